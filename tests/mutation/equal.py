"""Faults that change nothing anybody could see, each with its reason: ``equal.toml``, which a run checks too.

An entry names the file, the text of the line (without its indentation), what is replaced by what (``place``: the first, second ... such
fault of the file, where not all of them are meant), and why no result depends on it: a tie, a size that only time depends on, arguments
that may change places.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mutants import Mutant, mutants

LIST = Path(__file__).with_name("equal.toml")


@dataclass(frozen=True)
class Equal:
    """One entry."""

    file: str
    line: str
    before: str
    after: str
    why: str
    place: int = 0

    def says(self, root: Path, mutant: Mutant) -> bool:
        """Whether it is about this fault."""
        if (self.file, self.before, self.after) != (mutant.path, mutant.before, mutant.after):
            return False
        if _lines(root / mutant.path)[mutant.line - 1].strip() != self.line:
            return False
        return self.place == 0 or self._alike(root)[self.place - 1] == mutant.start

    def _alike(self, root: Path) -> list[int]:
        """Where faults with these texts stand in the file."""
        lines = _lines(root / self.file)
        alike = (m for m in _mutants(root / self.file, root) if (m.before, m.after) == (self.before, self.after))
        return sorted(m.start for m in alike if lines[m.line - 1].strip() == self.line)


def listed() -> list[Equal]:
    """All entries."""
    return [Equal(**entry) for entry in tomllib.loads(LIST.read_text(encoding="utf-8"))["equal"]]


def stale(root: Path) -> list[Equal]:
    """Entries that no fault of the present text answers to."""
    return [entry for entry in listed() if not any(entry.says(root, mutant) for mutant in _mutants(root / entry.file, root))]


@lru_cache(maxsize=64)
def _mutants(path: Path, root: Path) -> list[Mutant]:
    return mutants(path, root) if path.exists() else []


@lru_cache(maxsize=64)
def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
