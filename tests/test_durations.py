"""The tool that marks long tests, and the choice of those that CI runs."""

from __future__ import annotations

from pathlib import Path

import durations

ROOT = Path(__file__).parents[1]
SECONDS = {
    "tests/a/test_a.py::test_one": 0.1,
    "tests/a/test_a.py::test_two[x::y]": 2.0,
    "tests/a/test_a.py::test_two[z]": 1.0,
    "tests/test_b.py::test_three": 0.5,
}


def test_rooms_are_folders_of_tests() -> None:
    assert list(durations.by_room(SECONDS)) == [("a", 3.1, 3), ("whole package", 0.5, 1)]


def test_marked_files_exist() -> None:
    assert {n.partition("::")[0] for n in durations.marked()} <= {
        p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("test_*.py")
    }
