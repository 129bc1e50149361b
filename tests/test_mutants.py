"""The faults that ``python tests/mutation`` puts into source text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).with_name("mutation")
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
    ("0.5", "(0.5 + 1)"), ("3", "(3 + 1)"), ("<", "<="), ("and", "or"), ("not g(a, b)", "(g(a, b))"), ("a, b", "b, a"),
    ("a < b and not g(a, b)", "(not (a < b and not g(a, b)))"), ("-a", "(a)"), ("*", "/"), ("b % 2", "(not (b % 2))"), ("%", "//"),
    ("2", "(2 + 1)"), ("0", "(0 + 1)"), ('raise ValueError(f"{a + b}")', "pass"),
}  # fmt: skip


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(TOOL))
    yield __import__("mutants")
    for name in ("mutants", "equal", "sample", "selection", "trial"):
        sys.modules.pop(name, None)


def test_every_fault_changes_one_place_and_compiles(tool, tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(SOURCE, encoding="utf-8")
    made = tool.mutants(path, tmp_path)
    assert {(m.before, m.after) for m in made} == CHANGES
    assert len(made) == len(CHANGES)
    for mutant in made:
        text = mutant.applied(SOURCE)
        compile(text, "mutant", "exec")
        assert text != SOURCE and text.replace(mutant.after, mutant.before, 1).count("\n") == SOURCE.count("\n")
        assert SOURCE.splitlines()[mutant.line - 1].find(mutant.before.splitlines()[0]) >= 0


def test_a_sample_is_the_same_for_the_same_seed(tool, tmp_path: Path) -> None:
    sample = __import__("sample")
    root = TOOL.parents[1]
    first, again, other = (sample.sampled(root, 30, seed, ["slopes", "subnetworks"]) for seed in (0, 0, 1))
    assert first == again != other and len(set(first)) == 30
    assert {room for room, _ in first} == {"slopes", "subnetworks"}


def test_what_is_listed_as_equal_is_there_with_a_reason(tool) -> None:
    equal = __import__("equal")
    entries = equal.listed()
    assert len(set(entries)) == len(entries) > 100 and all(len(entry.why) > 10 for entry in entries)
    assert equal.stale(TOOL.parents[1]) == []
