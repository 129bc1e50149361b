"""Every message of kcalc, once: ``python tests/tools/messages.py`` writes ``tests/messages.txt``.

A message is the text of an error, an assumption or a note, as it stands in the code: ``{...}`` is
what it fills in. They are sorted by file and function, without line numbers, so that a change of
words is a change of one line, to be read in the diff.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SNAPSHOT = TESTS / "messages.txt"
SAID = {  # besides classes of errors
    *("Assumption", "Finding", "note", "remark", "warn"),
    *("NoRule", "UnreachableTarget", "OutOfReach"),
    *("unknown", "no_rule", "fail", "refused"),
    *("advising", "Remedy"),
}
WORDS = 2  # fewer are a name or a key


class _Messages(ast.NodeVisitor):
    def __init__(self) -> None:
        self.around: list[str] = []
        self.found: list[tuple[str, str]] = []
        self.met: set[ast.AST] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.around.append(node.name)
        self.generic_visit(node)
        self.around.pop()

    visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._keep(node.exc)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", "")).lstrip("_")
        if name in SAID or name.endswith("Error"):
            self._keep(node)
        self.generic_visit(node)

    def _keep(self, node: ast.AST) -> None:
        for text in _texts(node, self.met):
            if len(text.split()) >= WORDS:
                self.found.append((".".join(self.around), text))


def _texts(node: ast.AST, met: set[ast.AST]) -> Iterator[str]:
    """The literal texts of an expression, the outermost once."""
    if node in met:
        return
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        met.update(ast.walk(node))
        yield _template(node)
        return
    for inner in ast.iter_child_nodes(node):
        yield from _texts(inner, met)


def _template(node: ast.Constant | ast.JoinedStr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(
        f"{{{ast.unparse(part.value)}}}"
        if isinstance(part, ast.FormattedValue)
        else str(getattr(part, "value", ""))
        for part in parts
    )
    return " ".join(text.split())


def messages(root: Path = TESTS.parent) -> list[str]:
    """``file function: text`` of every message, sorted by place."""
    rows = []
    for path in sorted((root / "kcalc").rglob("*.py")):
        visitor = _Messages()
        visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
        place = path.relative_to(root / "kcalc").as_posix()
        rows += sorted(f"{place} {function}: {text}" for function, text in visitor.found)
    return rows


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(messages()) + "\n", encoding="utf-8")
