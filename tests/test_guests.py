"""What the spine asks for is registered, and what is registered is there."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kcalc as kc
from kcalc import wiring
from kcalc.fields import NUMPY, SYMPY, mpmath_field
from kcalc.fields.balls import ball_field
from kcalc.foundation.guests import DRAWINGS, KERNELS, MissingGuest, Readings, Registry, brought

ROOM = Path(kc.__file__).parent
FREE = ("plotting", "lab/widgets.py", "verification/plots.py", "lab/training/plots.py")


def sources() -> Iterator[tuple[str, ast.Module]]:
    """The files of kcalc, parsed."""
    for path in ROOM.rglob("*.py"):
        yield path.relative_to(ROOM).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def asked(registry: str) -> set[str]:
    """The keys by which the code asks a registry, as it writes them."""
    found = set()
    for _, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == registry:
                found.add(ast.unparse(node.slice).strip("()"))
    return found


def test_every_drawing_is_asked_for_by_the_name_of_a_result() -> None:
    names = {
        node.name for _, tree in sources() for node in tree.body if isinstance(node, ast.ClassDef)
    }
    assert {ast.literal_eval(key) for key in asked("DRAWINGS")} == set(DRAWINGS.places)
    assert {key.partition(".")[0] for key in map(str, DRAWINGS.places)} <= names


def test_every_question_to_a_number_system_is_registered() -> None:
    questions = {key.partition(",")[0].strip("'") for key in asked("KERNELS")}
    assert questions == {key[0] for key in KERNELS.places if isinstance(key, tuple)}


@pytest.mark.parametrize("registry", wiring.REGISTRIES, ids=lambda registry: registry.what)
def test_every_place_is_there(registry: Registry | Readings) -> None:
    for *_, place in registry.rows():
        found = brought(place)
        assert callable(found) or inspect.ismodule(found), place


def test_nothing_but_pictures_imports_plotting() -> None:
    importing = [
        name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and re.match(r"(kcalc\.)?plotting", node.module or "")
        and not name.startswith(FREE)
    ]
    assert importing == []


def test_number_systems_name_themselves() -> None:
    fields = (NUMPY, SYMPY, mpmath_field(20), ball_field(30))
    assert [field.kind for field in fields] == ["numpy", "sympy", "mpmath", "balls"]


def test_a_key_has_one_place() -> None:
    registry = Registry("things")
    registry.register("a", "room:one")
    registry.register("a", "room:one")
    with pytest.raises(kc.KcalcError, match="room:one and room:two claim 'a'"):
        registry.register("a", "room:two")


def test_a_missing_guest_is_named() -> None:
    with pytest.raises(MissingGuest, match="kcalc/nowhere, a part of kcalc"):
        brought("nowhere.module:name")
    with pytest.raises(MissingGuest, match="kcalc/plotting/nothing"):
        brought("plotting.nothing")
    with pytest.raises(MissingGuest, match="drawings: nothing is registered for 'Nothing'"):
        DRAWINGS["Nothing"]
