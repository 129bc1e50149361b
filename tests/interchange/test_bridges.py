"""Shaping asks registries for what concerns models; within the bridges imports go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import networkx as nx

from kcalc import interchange

ROOM = Path(interchange.__file__).parent


def imported(path: Path) -> set[Path | None]:
    """The files of the room that a file imports, at its top or inside of functions.

    Typing-only imports are left out.
    """
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    typing = [n for n in nodes if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    apart = {inner for node in typing for inner in ast.walk(node)}
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level and node not in apart:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            found |= {_file(folder / alias.name) or _file(folder) for alias in node.names}
    return found - {path, None}


def _file(place: Path) -> Path | None:
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if ROOM in file.parents and file.exists()), None)


def test_imports_in_the_room_go_one_way() -> None:
    arrows = nx.DiGraph()
    for path in ROOM.rglob("*.py"):
        arrows.add_edges_from((path, other) for other in imported(path))
    assert len(arrows) > 100  # they are found
    assert [c for c in nx.strongly_connected_components(arrows) if len(c) > 1] == []


PROGRAM = """
import sys

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("kcalc.interchange"):
            raise ModuleNotFoundError(f"No module named {name!r}", name="kcalc.interchange")

sys.meta_path.insert(0, Gone())
import kcalc as kc

s = kc.shape(kc.chain(kc.layers.Affine(), kc.layers.Nonlinear("relu")), method="normalisation")
assert max(s.residuals.values()) < 1e-12 and s.left_alone == {} and kc.RegionalShaping
for ask in (
    lambda: kc.read, lambda: kc.Edits, lambda: kc.interchange, lambda: s.export("json"),
    lambda: s.edits, lambda: s.patch(), lambda: s.apply_to(None),
):
    try:
        ask()
    except kc.KcalcError as error:
        assert "kcalc/interchange," in str(error) and len(str(error).splitlines()) == 1, error
    else:
        raise AssertionError("no error")
"""


def test_networks_are_shaped_without_the_bridges() -> None:
    """What needs them says which folder is missing."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_door_of_the_room() -> None:
    """At most thirty names, each with a word in its docstring."""
    assert len(interchange.__all__) <= 30
    assert [n for n in interchange.__all__ if f"``{n}``" not in str(interchange.__doc__)] == []
    assert [name for name in interchange.__all__ if getattr(interchange, name) is None] == []
    from kcalc.interchange import first_line, place

    error = ValueError("sizes\ndiffer")
    assert first_line(error) == "ValueError: sizes" and place(error) == ""
