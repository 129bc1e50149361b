"""The spine works without a guest, and says which one is missing; see ``tools/deletion.py``."""

from __future__ import annotations

from pathlib import Path

import deletion
import pytest


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deletion.copied(tmp_path_factory.mktemp("kcalc"))


@pytest.mark.slow
@pytest.mark.parametrize("guest", deletion.detached())
def test_the_spine_works_without_a_guest(guest: str, copy: Path) -> None:
    with deletion.without(guest, copy):
        assert "reinstall kcalc" in deletion.check_core(guest, copy)


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
