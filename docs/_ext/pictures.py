"""``{picture} TEXT``: the figure that the code above it draws.

TEXT stands for it where it is not seen; the content is its caption. ``{thumbnail} PAGE NUMBER``
shows picture NUMBER of another page, small, as a link to that page.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import pages
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = "_generated"
FENCE = "```{picture}"
GALLERY = "gallery"  # the page of the thumbnails


class Picture(SphinxDirective):
    """The figure that is current after the last block above."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"width": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        number = int(self.env.temp_data.get("pictures") or 0)
        self.env.temp_data["pictures"] = number + 1
        drawn: dict[int, str] = self.env.temp_data.get("drawn") or {}
        if number not in drawn:
            raise self.error(f"no figure is open where picture {number + 1} of this page stands")
        figure = nodes.figure(classes=["picture"])
        figure += nodes.image(
            uri=f"/{FOLDER}/{drawn[number]}",
            alt=" ".join(self.arguments[0].split()),
            **self.options,
        )
        if self.content:
            words, messages = self.state.inline_text(" ".join(self.content), self.lineno)
            figure += [nodes.caption("", "", *words), *messages]
        return [figure]


class Thumbnail(SphinxDirective):
    """A picture of another page; the content is its caption."""

    required_arguments = 2
    has_content = True

    def run(self) -> list[nodes.Node]:
        page, number = self.arguments[0], int(self.arguments[1])
        text = Path(self.env.doc2path(page)).read_text(encoding="utf-8")
        told = [line.removeprefix(FENCE) for line in text.splitlines() if line.startswith(FENCE)]
        if not 1 <= number <= len(told):
            raise self.error(f"{page} has {len(told)} pictures, and no picture {number}")
        self.env.note_dependency(self.env.doc2path(page))
        if not (Path(self.env.srcdir) / FOLDER / _name(page, number)).exists():
            _figures(Path(self.env.srcdir), page, text)
        image = nodes.image(
            uri=f"/{FOLDER}/{_name(page, number)}", alt=" ".join(told[number - 1].split())
        )
        there = self.env.app.builder.get_relative_uri(self.env.docname, page)
        figure = nodes.figure(classes=["picture"])
        figure += nodes.reference("", "", image, refuri=there, internal=True)
        words, messages = self.state.inline_text(" ".join(self.content), self.lineno)
        figure += [nodes.caption("", "", *words), *messages]
        return [figure]


def _name(docname: str, number: int) -> str:
    return f"{docname.replace('/', '-')}-{number}.svg"


def draw(app: Sphinx, docname: str, source: list[str]) -> None:
    """Run the page as far as its last picture and keep its figures."""
    drawn = _figures(Path(app.srcdir), docname, source[0])
    if drawn:
        app.env.temp_data["drawn"] = drawn


def _figures(folder: Path, docname: str, text: str) -> dict[int, str]:
    """{number of a picture of the page, from 0: the file of its figure}."""
    places = {
        line: i
        for i, line in enumerate(
            number for number, row in enumerate(text.splitlines(), 1) if row.startswith(FENCE)
        )
    }
    if not places:
        return {}
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder = folder / FOLDER
    folder.mkdir(exist_ok=True)
    starts = [block.line for block in pages.blocks(text) if block.language in pages.RUN]
    drawn: dict[int, str] = {}
    plt.close("all")
    for block, _ in pages.run(text, check=False, upto=max(places)):
        end = min((line for line in starts if line > block.line), default=math.inf)
        for line, number in places.items():
            if block.line < line < end and plt.get_fignums():
                name = _name(docname, number + 1)
                with matplotlib.rc_context({"svg.hashsalt": name}):
                    plt.gcf().savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
                drawn[number] = name
                plt.close("all")
    return drawn


def gallery_last(app: Sphinx, env: Any, docnames: list[str]) -> None:
    """Read the gallery after the pages whose figures it shows."""
    docnames.sort(key=lambda name: name == GALLERY)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("picture", Picture)
    app.add_directive("thumbnail", Thumbnail)
    app.connect("env-before-read-docs", gallery_last)
    app.connect("source-read", draw)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
