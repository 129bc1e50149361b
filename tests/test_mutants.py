"""The faults that ``python tests/tools/mutation`` puts into source text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent / "tools" / "mutation"
SOURCE = '''"""Words."""

LIMIT = 0.5


def f(a: int, b: int = 3) -> int:
    """Says 1 + 1."""
    if a < b and not g(a, b):
        return -a * LIMIT
    for é, _ in zip("éé", "é", strict=True): a += np.maximum(a, b) if b % 2 else 0
    raise ValueError(f"{a + b}")


def __repr__(self) -> str:
    return self.a + 1
'''
CHANGES = {
    ("0.5", "(0.5 + 1)"),
    ("3", "(3 + 1)"),
    ("<", "<="),
    ("and", "or"),
    ("not g(a, b)", "(g(a, b))"),
    ("a, b", "b, a"),
    ("a < b and not g(a, b)", "(not (a < b and not g(a, b)))"),
    ("-a", "(a)"),
    ("*", "/"),
    ("b % 2", "(not (b % 2))"),
    ("%", "//"),
    ("2", "(2 + 1)"),
    ("0", "(0 + 1)"),
    ('raise ValueError(f"{a + b}")', "pass"),
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(TOOL))
    yield __import__("mutants")
    for name in ("mutants", "equal", "importing", "sample", "selection", "trial"):
        sys.modules.pop(name, None)


def test_every_fault_changes_one_place_and_compiles(tool, tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(SOURCE, encoding="utf-8")
    made = tool.mutants(path, tmp_path)
    assert sorted((m.before, m.after) for m in made) == sorted(CHANGES)
    for mutant in made:
        text = mutant.applied(SOURCE)
        compile(text, "mutant", "exec")
        back = text.replace(mutant.after, mutant.before, 1)
        assert text != SOURCE and back.count("\n") == SOURCE.count("\n")
        assert SOURCE.splitlines()[mutant.line - 1].find(mutant.before.splitlines()[0]) >= 0


def test_an_entry_is_found_again_when_its_file_moves_and_lines_shift(tool, tmp_path: Path) -> None:
    equal = __import__("equal")
    entries = [
        equal.Equal("f", 'return -a * LIMIT', "*", "/", "moved"),
        equal.Equal("f", 'return -a * LIMIT', "-a", "(a)", "the second", place=2),
        equal.Equal("", "LIMIT = 0.5", "0.5", "(0.5 + 1)", "of the module"),
    ]  # fmt: skip
    twice = SOURCE.replace("    for", "        return -a * LIMIT\n    for", 1)
    for name, text in (("one.py", twice), ("other/two.py", f"import math\n\n{twice}")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        made = tool.mutants(path, tmp_path)
        found = equal.explained(entries, {"room": made})
        assert [len(faults) for faults in found.values()] == [2, 1, 1]
        assert text[: found[entries[1]][0].start].count("-a * LIMIT") == 1
    both = {"here": made, "there": tool.mutants(tmp_path / "one.py", tmp_path)}
    assert not any(equal.explained(entries, both).values())
    entry = equal.Equal("f", "return -a * LIMIT", "*", "/", "of a room", room="there")
    ((_, faults),) = equal.explained([entry], both).items()
    assert len(faults) == 2


CONSTANT = """from .other import rule

LIMIT = 3
TABLE = {"a": LIMIT}


@rule(LIMIT)
def f(a: int, b: int = 3) -> int:
    return a + b


class Box:
    size = 4

    def double(self) -> int:
        return 2 * self.size
"""
READER = """from .constant import LIMIT, TABLE, Box


def g(a: int) -> int:
    return a + LIMIT


def h(a: str) -> int:
    return TABLE[a]


def made() -> dict:
    return {"b": 1}


OTHERS = made()


def k(a: str) -> int:
    return OTHERS[a]
"""


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("constant.py", 3, {("reader.py", 5), ("constant.py", 7)}),  # LIMIT
        ("constant.py", 4, {("reader.py", 9)}),  # TABLE
        ("constant.py", 7, {("constant.py", 9)}),  # a decorator
        ("constant.py", 13, {("constant.py", 16)}),  # a default of a class
        ("reader.py", 13, {("reader.py", 20)}),  # a function that runs at import only
    ],
)
def test_a_line_that_runs_at_import_has_the_tests_of_its_readers(
    tool, tmp_path: Path, path: str, line: int, expected: set[tuple[str, int]]
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name, text in (("constant.py", CONSTANT), ("reader.py", READER)):
        (package / name).write_text(text, encoding="utf-8")
    at_import = {("constant.py", 4)} | {("reader.py", n) for n in (1, 13, 16)}

    def ran(place: tuple[str, int]) -> bool:
        return (Path(place[0]).name, place[1]) not in at_import

    readers = __import__("importing").Readers(tmp_path, "package")
    found = readers.lines(f"package/{path}", line, ran)
    assert {(Path(file).name, number) for file, number in found} == expected
