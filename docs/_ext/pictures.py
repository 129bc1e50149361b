"""``{picture} TEXT``: the figure that the code above it draws.

TEXT stands for it where it is not seen; the content is its caption.
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


def draw(app: Sphinx, docname: str, source: list[str]) -> None:
    """Run the page as far as its last picture and keep its figures."""
    lines = source[0].splitlines()
    places = {
        line: i
        for i, line in enumerate(
            number for number, text in enumerate(lines, 1) if text.startswith("```{picture}")
        )
    }
    if not places:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder = Path(app.srcdir, FOLDER)
    folder.mkdir(exist_ok=True)
    starts = [block.line for block in pages.blocks(source[0]) if block.language in pages.RUN]
    drawn: dict[int, str] = {}
    plt.close("all")
    for block, _ in pages.run(source[0], check=False, upto=max(places)):
        end = min((line for line in starts if line > block.line), default=math.inf)
        for line, number in places.items():
            if block.line < line < end and plt.get_fignums():
                name = f"{docname.replace('/', '-')}-{number + 1}.svg"
                with matplotlib.rc_context({"svg.hashsalt": name}):
                    plt.gcf().savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
                drawn[number] = name
                plt.close("all")
    app.env.temp_data["drawn"] = drawn


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("picture", Picture)
    app.connect("source-read", draw)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
