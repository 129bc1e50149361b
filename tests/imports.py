"""What the files of kcalc import, read from their text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import deletion

import kcalc as kc

ROOT = Path(kc.__file__).parent


@cache
def modules() -> dict[str, Path]:
    """{dotted name: file} of all of kcalc."""
    names = {
        path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for path in ROOT.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def steps(tree: ast.AST, typing: bool) -> Iterator[ast.AST]:
    """The nodes of a file, without those for type checkers only unless ``typing``."""
    for node in ast.iter_child_nodes(tree):
        if typing or not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from steps(node, typing)


def wanted(path: Path, text: str, typing: bool = True) -> Iterator[tuple[str, str]]:
    """(module, name) of every import in a file of kcalc, also of those inside functions."""
    package = ["kcalc", *path.relative_to(ROOT).parent.parts]
    for node in steps(ast.parse(text), typing):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*above, *(node.module or "").split(".")]).rstrip(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield (inner, "") if inner in modules() else (module, alias.name)


def guests_of(guests: set[str]) -> dict[Path, set[str]]:
    """{file of kcalc: the guests that it belongs to}, of some guests."""
    found: dict[Path, set[str]] = {}
    for guest in guests:
        for path in deletion.files(guest):
            for file in path.rglob("*.py") if path.is_dir() else [path]:
                found.setdefault(file, set()).add(guest)
    return found
