"""Formulas as MathML, made at build time: pages need neither scripts nor fonts from elsewhere."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

from kcalc.foundation.mathml import mathml, tree

LOGGER = logging.getLogger(__name__)
LEFT_OVER = re.compile(r"\\[A-Za-z]+|\\[^\\\s]")
UNDER = {"msub": "munder", "msubsup": "munderover"}
LIMITED = frozenset({"∑", "∏", "max", "min", "sup", "inf", "lim"})
BAR = re.compile(r"<mo((?: stretchy=\"false\")?)>([|\u2016\u2225])</mo>")
ROOT = re.compile(r"<msqrt>((?:(?!<msqrt|<m(?:frac|subsup|table)|[|∑∏∫]).)*?)</msqrt>")
SCRIPT = re.compile(r"<m(?:sub|sup)>(?:(?!</m(?:sub|sup)>).)*</m(?:sub|sup)>")
PLAIN_SCRIPT = re.compile(
    r"<m(?:sub|sup)><mi>\w</mi>(?:<mrow>)?<m[ni]>(?:\d+|[a-fh-ik-or-xzA-Z]+)</m[ni]>(?:</mrow>)?</m"
)
TALL = '<mover accent="true"><mi>\u03d5</mi>'  # a letter that reaches up to its accent
DROPPED = re.compile(r"\\(?:displaystyle|textstyle|limits|nolimits|,\s*$)")


def inline(latex: str, where: nodes.Node) -> str:
    """A formula in a line of text."""
    text = _plain(latex)
    return _checked(mathml(text), latex, where)


def display(latex: str, where: nodes.Node) -> str:
    """A formula on a line of its own; its parts, a ``qquad`` apart, on several if need be."""
    text = _plain(latex)
    parts = text.split(r"\qquad")
    if len(parts) > 1 and all(map(_is_whole, parts)):
        row = " ".join(display(part, where) for part in parts)
        return row.replace('display="block"', 'display="inline" displaystyle="true"')
    if "&" in text and r"\begin" not in text:
        text = rf"\begin{{aligned}}{text}\end{{aligned}}"
    elif r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{gathered}}{text}\end{{gathered}}"
    root = tree(text)
    if root is None:
        return _checked(f"<code>{html.escape(latex)}</code>", latex, where)
    _set_limits(root)
    if r"\begin{array}{l}" in text:
        for cell in root.iter("mtd"):
            cell.set("style", "text-align: left")
    body = "".join(ET.tostring(item, encoding="unicode") for item in root)
    return _checked(f'<math display="block">{body}</math>', latex, where)


def _is_whole(part: str) -> bool:
    """Whether a part of a formula is one by itself."""
    pairs = ("{", "}"), (r"\left", r"\right")
    apart = not ({"&", r"\\"} & set(re.findall(r"&|\\\\", part))) and r"\begin" not in part
    return apart and bool(part.strip()) and all(part.count(a) == part.count(b) for a, b in pairs)


def _set_limits(node: ET.Element) -> None:
    """Limits of sums and maxima stand below and above them."""
    for child in node.iter():
        if child.tag in UNDER and len(child) and (child[0].text or "").strip() in LIMITED:
            child.tag = UNDER[child.tag]


def _plain(latex: str) -> str:
    """LaTeX without what only TeX's typesetting needs."""
    return re.sub(r"\s+", " ", DROPPED.sub("", latex)).strip()


def _low(root: re.Match[str]) -> str:
    """A root whose sign needs no stretching, marked: browsers leave a gap after it."""
    low = all(PLAIN_SCRIPT.match(script) for script in SCRIPT.findall(root[1]))
    low &= not ("<msub>" in root[1] and "(" in root[1])
    return f'<msqrt class="low">{root[1]}</msqrt>' if low else root[0]


def _checked(markup: str, latex: str, where: nodes.Node) -> str:
    if markup.startswith("<code>") or LEFT_OVER.search(re.sub(r"<[^>]*>", "", markup)):
        LOGGER.warning("a formula cannot be shown: %s", latex, location=where, type="mathml")
    markup = markup.replace("<mo>^</mo></mover>", "<mo>\u02c6</mo></mover>")  # a hat, not a caret
    markup = markup.replace(TALL, TALL.replace("<mover", '<mover class="tall"'))
    return BAR.sub(
        r'<mo\1 lspace="0" rspace="0">\2</mo>', ROOT.sub(_low, markup)
    )  # bars of absolute values stand close to what they enclose


def _visit_inline(self: Any, node: nodes.math) -> None:
    self.body.append(inline(node.astext(), node))
    raise nodes.SkipNode


def _visit_block(self: Any, node: nodes.math_block) -> None:
    self.body.append(
        self.starttag(
            node, "div", CLASS="formula", tabindex="0", role="group", **{"aria-label": "formula"}
        )
    )
    self.body.append(display(node.astext(), node))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))  # type: ignore[arg-type]
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
