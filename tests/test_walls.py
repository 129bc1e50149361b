"""The spine imports no guest, and clients come through the door: public names only."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import deletion
import pytest
from imports import ROOT, guests_of, modules, wanted

COMMON = ("kcalc.foundation", "kcalc.fields")
CLIENTS = ("claims", "lab", "cli")
FILES = [path for client in CLIENTS for path in sorted((ROOT / client).rglob("*.py"))]
FACE = ("__init__.py", "__main__.py", "wiring.py", "version.py")


def refused(path: Path, text: str) -> list[str]:
    """The imports of a client's file that are no public names."""
    own = f"kcalc.{path.relative_to(ROOT).parts[0]}"
    found = []
    for module, name in wanted(path, text):
        if module not in modules() or module.startswith((own, *COMMON)):
            continue
        if not offered(module, name):
            found.append(f"{module}: {name}")
    return found


def offered(module: str, name: str) -> bool:
    """Whether a module is a door that has the name; that of kcalc has public modules, too."""
    door = importlib.import_module(module)
    if modules()[module].name != "__init__.py":
        return False
    public = module == "kcalc" and not name.startswith("_")
    return not name or name in door.__all__ or (public and inspect.ismodule(getattr(door, name)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_clients_import_public_names(path: Path) -> None:
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


def guests() -> dict[str, set[str]]:
    """{dotted name: the guests that the module belongs to}."""
    by_path = {path: name for name, path in modules().items()}
    return {by_path[path]: found for path, found in guests_of(set(deletion.guests())).items()}


def taken(wing: set[str], allowed: set[str]) -> list[tuple[str, str]]:
    """(file, module of a guest) of the imports of a wing, but for guests that it may import."""
    known = guests()
    return [
        (name, module)
        for name, path in modules().items()
        if name in wing and path.name not in FACE[1:]
        for module, _ in wanted(path, path.read_text(encoding="utf-8"), typing=False)
        if known.get(module, set()) - allowed
    ]


def test_the_spine_imports_no_guest() -> None:
    """Neither when it is imported nor inside functions; type checkers may see more."""
    spine = set(modules()) - set(guests()) - {"kcalc"}
    assert {"kcalc.calculi.ntk", "kcalc.network.layers", "kcalc.activations.base"} <= spine
    assert taken(spine, set()) == []


def test_shaping_imports_the_spine_only() -> None:
    shaping = {name for name, found in guests().items() if found == {"shaping"}}
    assert "kcalc.shaping.dks" in shaping
    assert taken(shaping, {"shaping"}) == []
