"""Verdicts in a file, so that a long run can be broken off and go on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from mutants import Mutant
from trial import Tried, Verdict


class Journal:
    """A line of JSON for every fault that was tried; nothing without a path."""

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else Path(path)
        lines: list[str] = []
        if self.path is not None and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines()
        self.known = {(room, fault): verdict for room, fault, verdict, _ in map(json.loads, lines)}

    def verdict(self, room: str, mutant: Mutant) -> Verdict | None:
        """What became of a fault, None where it was not tried."""
        found = self.known.get((room, _key(mutant)))
        return None if found is None else Verdict(found)

    def kept(self, tried: Iterable[Tried]) -> Iterator[Tried]:
        """The same, each written down as it comes."""
        for (room, mutant), verdict, test in tried:
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([room, _key(mutant), verdict.value, test]) + "\n")
            yield (room, mutant), verdict, test


def _key(mutant: Mutant) -> str:
    return f"{mutant} [{mutant.start}]"
