"""The spine works without a guest, and says which one is missing; see ``tools/deletion.py``."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import deletion
import imports
import pytest

CLIENTS = {"claims", "lab", "clients"}
NEEDED = {
    ("verification", "backend"): "what is measured is a model",
    ("learnable", "matrices"): "a learnable kernel is a kernel of rows",
}
"""Guests that do nothing without another one."""
ON_DEMAND = (
    "kcalc/calculi/smoothness/activation_suprema.py",
    "kcalc/finite_width",
    "kcalc/interchange/shaping_models/model_regions.py",
    "kcalc/verification/plots.py",
    "kcalc/verification/scaling.py",
    "kcalc/verification/token*.py",
)
"""Files that need another guest than their own, imported only where they are asked for."""


@pytest.mark.parametrize("guest", deletion.guests())
def test_the_files_and_tests_of_guests_are_there(guest: str) -> None:
    row = deletion.guests()[guest]
    for pattern in (*row["code"], *row["tests"]):
        assert [*deletion.ROOT.glob(pattern)], pattern
    for test in row["needed_by"]:
        file, *names = test.partition("[")[0].split("::")
        assert (deletion.ROOT / file).exists(), test
        assert all(name in (deletion.ROOT / file).read_text(encoding="utf-8") for name in names)
    assert deletion.missing() == []


def test_each_test_of_a_spine_room_belongs_to_one_wing() -> None:
    spine = set(deletion.spine_tests())
    assert {"tests/calculi/test_ntk.py", "tests/maps/test_formulas.py"} <= spine
    assert not any("spatial" in path or "attention" in path for path in spine)


def guests_of() -> dict[str, set[str]]:
    """{file of kcalc: the guests that it belongs to}."""
    found = imports.guests_of(set(deletion.guests()) - CLIENTS)
    return {str(file.relative_to(deletion.ROOT)): guests for file, guests in found.items()}


def imported(file: Path) -> Iterator[str]:
    """The files of kcalc that a file imports when it is imported."""
    package = file.relative_to(deletion.ROOT).parent.parts
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        above = package[: len(package) - node.level + 1] if node.level else ()
        base = (*above, *(node.module or "").split("."))
        for names in ([], *([alias.name] for alias in node.names)):
            place = deletion.ROOT.joinpath(*filter(None, (*base, *names)))
            for path in (place.with_suffix(".py"), place / "__init__.py"):
                if path.is_file():
                    yield str(path.relative_to(deletion.ROOT))


def test_no_guest_is_missed_by_another_one() -> None:
    """Without its folder all others are imported, and say what they need where they need it."""
    own = guests_of()
    late = {
        str(file.relative_to(deletion.ROOT))
        for pattern in ON_DEMAND
        for path in deletion.ROOT.glob(pattern)
        for file in ([path] if path.is_file() else path.glob("*.py"))
    }
    wrong = []
    for file, guests in own.items():
        for target in set(imported(deletion.ROOT / file)):
            others = own.get(target, set()) - guests
            allowed = {two for one, two in NEEDED if one in guests}
            if file not in late and (others - allowed or target in late):
                wrong.append((file, target))
    assert wrong == []


def test_tests_of_the_spine_import_no_guest() -> None:
    """Without the guest none of a file's tests would run."""
    own = guests_of()
    wrong = [
        (test, target)
        for test in deletion.spine_tests()
        for target in imported(deletion.ROOT / test)
        if target in own
    ]
    assert wrong == []


def test_a_run_that_ended_early_is_no_proof(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed = subprocess.CompletedProcess([], -9, "....\n", "")
    monkeypatch.setattr(deletion, "run", lambda *_: killed)
    assert "-9" in deletion.check_spine("plotting", tmp_path, ["tests/network"])[1]["pytest"]
