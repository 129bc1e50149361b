"""Who depends on a line that runs when its module is imported: a constant, a default, a decorator.

The record says of such a line only that it ran before any test, so the tests are those of the lines
that read what it defines.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

Place = tuple[str, int]  # a path relative to the root, and a line


class Readers:
    """The lines of a package by the names that they read."""

    def __init__(self, root: Path, package: str = "kcalc") -> None:
        self.root, self.package = root, package

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The syntax tree of every module, by its path."""
        return {
            path.relative_to(self.root).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted((self.root / self.package).rglob("*.py"))
        }

    @cached_property
    def uses(self) -> dict[str, list[Place]]:
        """The places that read each name."""
        found: defaultdict[str, list[Place]] = defaultdict(list)
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                name = None
                if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                    name = node.id if isinstance(node, ast.Name) else node.attr
                elif isinstance(node, ast.keyword):
                    name = node.arg
                if name is not None:
                    found[name].append((path, node.lineno))
        return found

    def lines(self, path: str, line: int, ran: Callable[[Place], bool]) -> list[Place]:
        """The places whose tests may notice a fault in a line that no test runs.

        ``ran``: whether a test runs a place. Statements that run at import too pass the fault on to
        those who read what they define; the nearest places that tests run are enough.
        """
        level, met = [(path, line)], {(path, line)}
        while level:
            found: list[Place] = []
            further: list[Place] = []
            for place in level:
                names, body = statement_at(self.trees[place[0]], place[1])
                uses = [use for name in names for use in self.uses.get(name, ()) if use not in met]
                met.update(uses)
                further += uses
                found += ((place[0], inner) for inner in body)
            if found := [place for place in [*found, *further] if ran(place)]:
                return found
            level = further
        return []


def statement_at(tree: ast.Module, line: int) -> tuple[list[str], Sequence[int]]:
    """The names that the statement around a line defines, and the lines that run when it is called.

    The statement is a function, or what runs at import: an assignment, the head of a class.
    """
    around: list[str] = []
    body = tree.body
    while True:
        node = next((n for n in body if _first(n) <= line <= (n.end_lineno or n.lineno)), None)
        if node is None:
            return around[-1:], ()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return [node.name], range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        if not isinstance(node, ast.ClassDef):
            return [*_defined(node), *around[-1:]], ()
        if line < node.body[0].lineno:
            return [node.name], ()
        around.append(node.name)
        body = node.body


def _first(node: ast.stmt) -> int:
    """The first line, that of a decorator if there is one."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])


def _defined(node: ast.stmt) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.alias):
            yield (inner.asname or inner.name).split(".")[0]
