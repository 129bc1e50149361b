"""Claims come through the door: public names, what packages offer, and no circles of their own."""

from __future__ import annotations

import ast
import importlib
import pickle
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kcalc as kc

ROOT = Path(kc.__file__).parent
COMMON = ("kcalc.foundation", "kcalc.fields")
FILES = sorted((ROOT / "claims").rglob("*.py"))


@cache
def modules() -> dict[str, Path]:
    """{dotted name: file} of all of kcalc."""
    names = {
        path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for path in ROOT.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def wanted(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every import in a file of kcalc, also of those inside functions."""
    package = ["kcalc", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*above, *(node.module or "").split(".")]).rstrip(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield (inner, "") if inner in modules() else (module, alias.name)


def refused(path: Path, text: str) -> list[str]:
    """The imports of a file of claims that are no public names."""
    found = []
    for module, name in wanted(path, text):
        if module not in modules() or module.startswith(("kcalc.claims", *COMMON)):
            continue
        door = modules()[module].name == "__init__.py"
        if not door or (name and name not in importlib.import_module(module).__all__):
            found.append(f"{module}: {name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_claims_import_public_names(path: Path) -> None:
    assert refused(path, path.read_text(encoding="utf-8")) == []


def test_inner_names_are_found() -> None:
    path = ROOT / "claims" / "dks" / "sums.py"
    for line, count in (
        ("from ...network.layers import Affine, Sum", 2),
        ("def f():\n    from ...calculi import kernel", 1),
        ("from ... import _ROOMS", 1),
        ("import kcalc.calculi.ntk", 1),
        ("from kcalc.shaping.eoc import edge", 1),
        ("from ... import ntk, shaping\nfrom ...shaping import edge", 0),
        ("from ...fields.balls import working\nfrom ..claim import Claim", 0),
    ):
        assert len(refused(path, line)) == count, line


def test_claims_have_no_circles() -> None:
    """The graph of imports sorts, also with those inside functions."""
    graph = {
        name: {
            module
            for module, _ in wanted(path, path.read_text(encoding="utf-8"))
            if module.startswith("kcalc.claims.") and path.name != "__init__.py"
        }
        for name, path in modules().items()
        if name.startswith("kcalc.claims")
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph) > 50


def test_registered_claims_are_pickled_by_their_ids() -> None:
    claim = kc.claims.get("DKS-eq4")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(claim, protocol)) is claim
    own = kc.claims.Claim("X-1", "dks", "p", "$x$", kc.claims.Verdict.NOT_DECIDABLE, reason="no")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copied = pickle.loads(pickle.dumps(own, protocol))
        assert copied == own and copied is not own
