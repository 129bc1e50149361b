"""kcalc's docstrings as reStructuredText: plain formulas with bars and stars are text, "Parameters:" and the like are headings."""

from __future__ import annotations

import pydoc
import re
import sys
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LITERAL = re.compile(r"(``.+?``|:[a-z:]+:`[^`]+`|`[^`]+`_?)", re.DOTALL)
LABEL = re.compile(r"(?<![\w*])(Parameters|Returns|Raises|Yields): ")
ROLE = re.compile(r":(class|func|exc):`(?:kc\.(\w[\w.]*)|(\w+))`")
MADE_BY_HAND = frozenset({"Network", "Activation"})  # classes whose constructor a user calls


def mend(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what reStructuredText would take for markup, outside literals."""
    if not name.startswith("kcalc"):  # what numbers and tuples say of themselves
        del lines[:]
        return
    text = ROLE.sub(_qualified, "\n".join(lines))
    pieces = LITERAL.split(text)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"([|*])", r"\\\1", pieces[i])
        pieces[i] = re.sub(r"(\w)_(?=[\s.,;:)]|$)", r"\1\\_", pieces[i])
        pieces[i] = LABEL.sub(r"**\1:** ", pieces[i])
    lines[:] = "".join(pieces).split("\n")


def _qualified(role: re.Match[str]) -> str:
    """Names without their module are looked for everywhere."""
    kind, ours, bare = role.groups()
    return f":{kind}:`kcalc.{ours}`" if ours else f":{kind}:`.{bare}`"


def sign(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, annotation: str | None) -> Any:
    """Results are made by functions: how their classes are called is nobody's business."""
    if what == "class" and name.startswith("kcalc.") and "layers" not in name and name.rpartition(".")[2] not in MADE_BY_HAND:
        return "", None
    return None


def internal(app: Sphinx, env: Any, node: Any, contnode: nodes.TextElement) -> nodes.TextElement | None:
    """What a docstring names exists, but is not for users: its name stands without a link. Anything else is a mistake."""
    target = str(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or not _exists(target):
        return None
    return contnode


def _exists(target: str) -> bool:
    if target.startswith("kcalc."):
        return pydoc.locate(target) is not None
    owner, _, name = target.rpartition(".")
    loaded = [module for key, module in list(sys.modules.items()) if key.startswith("kcalc.")]
    return any(hasattr(getattr(module, owner) if owner and hasattr(module, owner) else module, name) for module in loaded)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", mend)
    app.connect("autodoc-process-signature", sign)
    app.connect("missing-reference", internal)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
