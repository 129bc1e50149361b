"""Layout of the built pages: line breaks at formulas, long output, tables on narrow screens."""

from __future__ import annotations

import html
import re
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import help_lines
from docutils import nodes
from sphinx.application import Sphinx

FORMULA = re.compile(
    r"(?P<before>[(\[“‘]*)(?P<formula><math display=\"inline\">(?:(?!</math>).)*</math>)"
    r"(?P<after>(?:[.,;:!?)\]”’]|’s|-\w+)*)"
)
PRE = re.compile(
    r'(?P<head><div class="(?P<classes>[^"]*)"><div class="highlight"><pre)>(?P<body>.*?)</pre>',
    re.DOTALL,
)
CODE = re.compile(r"highlight-(?:i?python3?|json|yaml|toml)\b")
LONG_LINE = 42  # characters: a longer line of output is prose unless it has columns
LONG_CELL = 60  # characters: a longer last column is prose
HYPHENATED = re.compile(r"(^|[>\s])([^\s<>]{0,18}-[^\s<>]{1,18})(?=[<\s]|$)")
WIDEST_TABLE = 120  # characters of a line in columns
LONG_HELP = 95  # characters of a line of ``--help``, whose columns stay
COLUMNS = re.compile(r"\S {3,}\S|\.{4}|[-=+|]{8}")
GAP = re.compile(r"\S {2,}\S")
WORD = re.compile(r'<span class="pre">([^<]{1,24})</span>')
NUMBER = re.compile(r"<[^>]*>|(?:(?<=[\s(])|(?<=<p>))\d[\d.]*(?:e-\d+,?| %)|(?<=>)&lt;= [\d.]+")
REGION = re.compile(r'aria-label="(?:table|figure)"')  # regions have names of their own
WIDE_IMAGE = re.compile(r'<img [^>]*class="wide"[^>]*>')
SIZE = re.compile(r'<svg[^>]* width="([\d.]+)pt" height="([\d.]+)pt"')
WIDE = 1.9  # width over height of a row of panels
BROAD = 420.0  # points: a figure whose letters would be too small on a phone
SHORT_CELL = 12  # characters: a number with its unit
CURRENT = re.compile(
    r'(<li class="toctree-l\d+) current"><a class="current reference internal" href="#">'
)
MARKED = r'\1 current current-page"><a class="current reference internal" href="#">'
UNMARKED = r'\1"><a class="reference internal" href="{}.html">'
SIDEBARS: dict[Any, str] = {}  # Sphinx takes a third of the time for them if each page has its own
PROSE_CELL = 15  # characters: the mean cell, beyond the first column, of a table of prose


def _unbroken(found: re.Match[str]) -> str:
    """A formula, and in one piece with it the brackets and punctuation beside it."""
    if not found["before"] and not found["after"]:
        return found[0]
    return f'<span class="unbroken">{found[0]}</span>'


def _whole_number(found: re.Match[str]) -> str:
    """A number with an exponent, a percentage or a bound; tags stay."""
    return found[0] if found[0][0] == "<" else f'<span class="unbroken">{found[0]}</span>'


def _wrapped(found: re.Match[str]) -> str:
    """Long lines of prose, LaTeX and commands wrap; code and tables scroll."""
    if CODE.search(found["classes"]):
        return found[0]
    if found["body"].startswith(help_lines.START):
        return f"{found['head']}>{help_lines.in_entries(found['body'], LONG_HELP)}</pre>"
    lines = found["body"].split("\n")
    tables = _in_columns([html.unescape(re.sub("<[^>]*>", "", line)) for line in lines])
    lines = [
        f'<span class="long">{HYPHENATED.sub(_whole, line)}</span>'
        if _is_prose(line, WIDEST_TABLE if table else LONG_LINE)
        else line
        for line, table in zip(lines, tables, strict=True)
    ]
    return f"{found['head']}>{chr(10).join(lines)}</pre>"


def _in_columns(lines: list[str]) -> list[bool]:
    """Which lines are rows of a table: those with columns, and lines beside them with a gap."""
    found = [
        bool(COLUMNS.search(line.strip()))
        and (len(line.split("   ")[-1]) < LONG_CELL or not line.strip("-=+| "))
        for line in lines
    ]
    forward = [(i, i - 1) for i in range(1, len(lines))]
    back = [(j, i) for i, j in reversed(forward)]
    for here, beside in [*forward, *back]:
        found[here] |= found[beside] and bool(GAP.search(lines[here].strip()))
    return found


def _is_prose(line: str, longest: int) -> bool:
    text = html.unescape(re.sub("<[^>]*>", "", line))
    return line.count("<span") == line.count("</span") and len(text) > longest


def _whole(found: re.Match[str]) -> str:
    """A word with hyphens, numbers and options among them, that no line breaks within."""
    return f'{found[1]}<span class="unbroken">{found[2]}</span>'


def _scrolled(image: str) -> str:
    return f'<div class="panels" tabindex="0" role="region" aria-label="figure">{image}</div>'


def arrange(app: Sphinx, pagename: str, template: str, context: Any, doctree: Any) -> None:
    """Arrange the body of a page; what scrolls sideways can be reached by keyboard."""
    if "furo_navigation_tree" in context:  # Furo's captions are headings without a level
        tree = mark_current(context["furo_navigation_tree"], PurePosixPath(pagename).name)
        context["furo_navigation_tree"] = tree.replace(
            'class="caption" role="heading"', 'class="caption" role="heading" aria-level="2"'
        )
    if "body" not in context:
        return
    region = 'tabindex="0" role="region" aria-label="table"'
    body = FORMULA.sub(_unbroken, PRE.sub(_wrapped, context["body"]))
    body = NUMBER.sub(_whole_number, body)
    body = WORD.sub(r'<span class="pre unbroken">\1</span>', body)
    for old, new in {
        "<pre": '<pre tabindex="0"',
        '<div class="output text_html">': f'<div {region} class="output text_html">',
        '<div class="table-wrapper': f'<div {region} class="table-wrapper',
        **{image: _scrolled(image) for image in WIDE_IMAGE.findall(body)},
        ",</strong><strong>\u200b": ", ",  # names of parameters that share an entry
    }.items():
        body = body.replace(old, new)
    numbers = count(1)
    context["body"] = REGION.sub(lambda found: f'{found[0][:-1]} {next(numbers)}"', body)


def label_cells(app: Sphinx, doctree: nodes.document) -> None:
    """Mark tables of prose, whose rows become lists on narrow screens; name each cell's column."""
    for table in doctree.findall(nodes.table):
        head = next(table.findall(nodes.thead), None)
        body = next(table.findall(nodes.tbody), None)
        if head is None or body is None:
            continue
        columns = list(head.findall(nodes.entry))
        cells = [entry for row in body.findall(nodes.row) for entry in list(row)[1:]]
        lengths = [len(entry.astext()) for entry in cells] or [0]
        for entry in cells:
            entry["classes"] += ["short"] * (len(entry.astext()) <= SHORT_CELL)
        if len(columns) < 3 or sum(lengths) < PROSE_CELL * len(lengths):
            continue
        table["classes"].append("stacked")
        for row in body.findall(nodes.row):
            for column, entry in zip(columns[1:], list(row)[1:], strict=False):
                if column.children and entry.astext():
                    words = [*column.deepcopy()[0].children, nodes.Text(": ")]
                    entry[0].insert(0, nodes.inline("", "", *words, classes=["column"]))


def mark_wide(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Mark figures of several panels, which scroll on narrow screens."""
    for image in doctree.findall(nodes.image):
        path = Path(app.srcdir, str(image["uri"]).lstrip("/"))
        if not path.exists():
            path = Path("/", str(image["uri"]).lstrip("/"))
        if path.suffix != ".svg" or "width" in image or not path.exists():
            continue
        size = SIZE.search(path.read_text(encoding="utf-8")[:2000])
        if size and (float(size[1]) > WIDE * float(size[2]) or float(size[1]) > BROAD):
            image["classes"].append("wide")


def name_asides(app: Sphinx, error: Exception | None) -> None:
    """Name Furo's two sidebars, which readers of screens could not tell apart."""
    names = {"sidebar-drawer": "all pages", "toc-drawer": "on this page"}
    for path in Path(app.outdir).glob("**/*.html") if error is None else ():
        old = text = path.read_text(encoding="utf-8")
        for kind, name in names.items():
            text = text.replace(
                f'<aside class="{kind}">', f'<aside class="{kind}" aria-label="{name}">'
            )
        if text != old:
            path.write_text(text, encoding="utf-8")


def fold_navigation(app: Sphinx, name: str, template: str, context: Any, doctree: Any) -> None:
    """The sidebar lists the pages of the current branch only, not hundreds of others.

    Leaves of one folder and one parent share a sidebar without a mark, which ``arrange`` adds.
    """
    if not (whole := context.get("toctree")):
        return
    page = PurePosixPath(name)
    parents = [parent["link"] for parent in context.get("parents", [])]
    leaf = bool(parents) and name not in app.env.toctree_includes
    key = (page.parent, parents[-1]) if leaf else name

    def folded(**options: Any) -> str:
        if key not in SIDEBARS:
            tree = whole(**{**options, "collapse": True})
            SIDEBARS[key] = CURRENT.sub(UNMARKED.format(page.name), tree) if leaf else tree
        return SIDEBARS[key]

    context["toctree"] = folded


def mark_current(tree: str, page: str) -> str:
    """Mark a page in a sidebar that it shares with others."""
    link = f'"><a class="reference internal" href="{re.escape(page)}\\.html">'
    unmarked = r'(<li class="toctree-l\d+)' + link
    if not re.search(unmarked, tree):
        return tree
    return re.sub(unmarked, MARKED, tree.replace(" current-page", ""))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", name_asides)
    app.connect("doctree-read", label_cells)
    app.connect("doctree-resolved", mark_wide)
    app.connect("html-page-context", fold_navigation, priority=400)  # before the theme reads it
    app.connect("html-page-context", arrange, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
