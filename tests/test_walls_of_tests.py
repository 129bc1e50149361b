"""Tests of clients ask as users do: through public names and the doors of rooms."""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import kcalc as kc

HERE, ROOT = Path(__file__).parent, Path(kc.__file__).parents[1]
CLIENTS = ("claims", "cli", "lab")
FILES = [path for room in CLIENTS for path in sorted((HERE / room).rglob("*.py"))]
# inner modules of clients that their tests may import
EXCEPTIONS = {
    "kcalc.cli.command": "the clock of elapsed time, which a test sets",
    "kcalc.lab.training.kfac": "the check of kfac-jax, whose result is kept",
    "kcalc.lab.report.local_tables": "the page's tables, which JavaScript evaluates, by number",
    "kcalc.lab.report.program": "the page's program, refused before there is a page",
    "kcalc.lab.report.replay": "Python's reading of that program, which a page is checked by",
}


@cache
def modules() -> frozenset[str]:
    """Every module of kcalc, by its file."""
    paths = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "kcalc").rglob("*.py")]
    return frozenset(".".join(path.parts).removesuffix(".__init__") for path in paths)


@cache
def rooms() -> frozenset[str]:
    """The packages right below kcalc and its lab, and their modules of one file."""
    return frozenset(name for name in modules() if re.fullmatch(r"kcalc(\.lab)?\.\w+", name))


@cache
def inner() -> frozenset[str]:
    """Every module below a room."""
    return modules() - rooms() - {"kcalc"}


def public(module: str, name: str) -> bool:
    """Whether a door offers a name."""
    if module == "kcalc":
        return name in kc.__all__ or bool({f"kcalc.{name}", f"kcalc.lab.{name}"} & rooms())
    offered = getattr(importlib.import_module(module), "__all__", None)
    return not name.startswith("_") if offered is None else name in offered  # or of one file


def wrong(module: str, name: str | None) -> str | None:
    """What is wrong with an import, None for a public name."""
    if module.partition(".")[0] != "kcalc" or {module, f"{module}.{name}"} & set(EXCEPTIONS):
        return None
    if module in ("kcalc", *rooms()):
        return None if name is None or public(module, name) else f"{name} of {module}"
    return module


def reached(node: ast.Attribute) -> str | None:
    """The inner module that an expression such as ``kc.calculi.kernel`` stands for."""
    names = re.fullmatch(r"(?:kc|kcalc)\.([\w.]+)", ast.unparse(node))
    found = names and f"kcalc.{names[1]}"
    if found not in inner() or found in EXCEPTIONS:
        return None
    door, _, name = found.rpartition(".")
    offered = getattr(importlib.import_module(door), "__all__", ())
    module = isinstance(operator.attrgetter(names[1])(kc), ModuleType)
    return found if module and name not in offered else None


def found_in(text: str) -> Iterator[str]:
    """The inner names that a program of Python reaches for."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (found for one in node.names if (found := wrong(one.name, None)))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (found for one in node.names if (found := wrong(node.module, one.name)))
        elif isinstance(node, ast.Attribute) and (found := reached(node)):
            yield found
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.match(r"(kcalc(?:\.\w+)+)$", node.value)  # of monkeypatch and import_module
            parts = named[1].split(".") if named else []
            heads = {".".join(parts[:count]) for count in range(3, len(parts) + 1)}
            yield from heads & inner() - set(EXCEPTIONS)
            if "\nimport kcalc" in node.value or "\nfrom kcalc" in node.value:  # a script
                yield from found_in(inspect.cleandoc(node.value))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_tests_of_clients_use_public_names(path: Path) -> None:
    assert not list(found_in(path.read_text(encoding="utf-8")))


def test_inner_names_are_found() -> None:
    for text, module in (
        ("from kcalc.calculi.kernel import Kernel", "kcalc.calculi.kernel"),
        ("from kcalc.lab.transfer import sizes", "sizes of kcalc.lab.transfer"),
        ("import kcalc.lab.audit.depth", "kcalc.lab.audit.depth"),
        ("from kcalc.audit import Audit", "kcalc.audit"),
        ("def f():\n    from kcalc import _ROOMS", "_ROOMS of kcalc"),
        ("kc.report.pages; kc.calculi.kernel.Kernel", "kcalc.calculi.kernel"),
        ("patch('kcalc.cli.verify.verify', 3)", "kcalc.cli.verify"),
        ("S = '\\nimport kcalc.fields.gaps\\n'", "kcalc.fields.gaps"),
    ):
        assert list(found_in(text)) == [module], text
    doors = (
        "import kcalc as kc\nfrom kcalc.cli import main\nfrom kcalc import training\nkc.layers.Sum"
    )
    assert not list(found_in(doors + "\nkc.spectrum.spectrum; kc.gaussian"))


def test_exceptions_are_few_and_needed() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in FILES)
    assert len(EXCEPTIONS) < 6
    for module in EXCEPTIONS:
        room, _, name = module.rpartition(".")
        assert module in texts or re.search(rf"from {room} import .*\b{name}\b", texts)
