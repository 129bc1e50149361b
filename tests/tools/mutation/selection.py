"""Which tests may notice a fault in a line, from a coverage record with contexts.

Each test's fastest case first.

What is kept in a cache is computed in the first test that asks: others that rest on a line are not
recorded at it. So those that run any line of its file come after those that run the line. A line
that runs at import has no tests of its own; `importing.py` says whose tests stand for it.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from coverage import CoverageData
from importing import Place, Readers

UNKNOWN = 1.0  # seconds, of a test whose time was not recorded


class Selection:
    """The record of a run of the tests."""

    def __init__(self, coverage: Path, junit: Path, readers: Readers) -> None:
        for path in (coverage, junit):
            if not path.exists():
                raise SystemExit(
                    f"no {path.name}: run the tests with --cov --cov-context=test "
                    f"--junitxml=.junit.xml first"
                )
        self.coverage = coverage
        self.open()
        self.seconds = _seconds(junit)
        self.readers = readers
        self.existing: set[str] | None = None  # the tests that may be chosen, None for all
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._files: dict[str, list[str]] = {}

    def open(self) -> None:
        """Read the record; again in a forked process, which would else empty the file."""
        self.data = CoverageData(str(self.coverage))
        self.data.read()

    def tests(self, path: str, line: int, limit: float) -> list[str]:
        """Names of tests that run the line, then of those that run others of its file, within
        ``limit`` seconds (at least one).
        """
        if path not in self.data.measured_files():
            raise SystemExit(
                f"{path} is not in the record of the tests: run them again as `python "
                f"tests/tools/mutation --help` says"
            )
        own = self._tests_at([(path, line)]) or self._tests_at(
            self.readers.lines(path, line, lambda place: bool(self._tests_at([place])))
        )
        chosen, spent = [], 0.0
        for name in self._in_turn(path, own):
            spent += self.seconds.get(name, UNKNOWN)
            if chosen and spent > limit:
                break
            chosen.append(name)
        return chosen

    def _in_turn(self, path: str, own: set[str]) -> Iterator[str]:
        """Tests of a line, then those that run another line of its file."""
        yield from self._ordered(own)
        if path not in self._files:
            self._files[path] = self._ordered(set().union(*self._contexts(path).values()))
        yield from (name for name in self._files[path] if name not in own)

    def _contexts(self, path: str) -> dict[int, set[str]]:
        """The tests that run each line of a file."""
        if path not in self._lines:
            self._lines[path] = {
                line: {name.rsplit("|", 1)[0] for name in names if name}
                for line, names in self.data.contexts_by_lineno(path).items()
            }
        return self._lines[path]

    def _tests_at(self, places: Iterable[Place]) -> set[str]:
        return set().union(*(self._contexts(path).get(line, ()) for path, line in places))

    def _ordered(self, names: set[str]) -> list[str]:
        """The fastest case of every test, then the second fastest, and so on.

        Tests of many cases do not crowd out the others.
        """
        cases: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for name in names if self.existing is None else names & self.existing:
            cases[name.partition("[")[0]].append((self.seconds.get(name, UNKNOWN), name))
        ranked = (
            (rank, seconds, name)
            for found in cases.values()
            for rank, (seconds, name) in enumerate(sorted(found))
        )
        return [name for _, _, name in sorted(ranked)]


def _seconds(junit: Path) -> dict[str, float]:
    times = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        times[f"{file}::{case.get('name')}"] = float(case.get("time", 0))
    return times
