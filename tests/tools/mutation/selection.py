"""Which tests may notice a fault in a line, from a coverage record with contexts.

Each test's fastest case first.

What is kept in a cache is computed in the first test that asks: others that rest on a line are not
recorded at it. So those that run any line of its file come after those that run the line. A line
that runs at import has no tests of its own; `importing.py` says whose tests stand for it.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Container, Iterable
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
        self.existing: Container[str] | None = None  # the tests that may be chosen, None for all
        self._lines: dict[str, dict[int, list[str]]] = {}

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
        others = self._tests_at((path, other) for other in self._contexts(path))
        chosen, spent = [], 0.0
        for name in [*self._ordered(own), *self._ordered(others - own)]:
            spent += self.seconds.get(name, UNKNOWN)
            if chosen and spent > limit:
                break
            chosen.append(name)
        return chosen

    def _contexts(self, path: str) -> dict[int, list[str]]:
        if path not in self._lines:
            self._lines[path] = self.data.contexts_by_lineno(path)
        return self._lines[path]

    def _tests_at(self, places: Iterable[Place]) -> set[str]:
        return {
            name.rsplit("|", 1)[0]
            for path, line in places
            for name in self._contexts(path).get(line, [])
            if name and (self.existing is None or name.rsplit("|", 1)[0] in self.existing)
        }

    def _ordered(self, names: set[str]) -> list[str]:
        """The fastest case of every test, then the second fastest, and so on.

        Tests of many cases do not crowd out the others.
        """
        cases: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for name in names:
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
