"""How long each test takes: ``python tests/tools/durations.py`` measures and marks.

Runs the tests at the size of CI (``--run-slow --every 40``), prints CPU seconds by room, and
writes ``tests/slow.json``: every case above ``--limit`` CPU seconds, child processes included.
``conftest.py`` marks these cases slow. With paths, only their entries change.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
MARKS = TESTS / "slow.json"
LIMIT = 0.4  # CPU seconds


def marked(path: Path = MARKS) -> dict[str, float]:
    """CPU seconds of each case that is too long for the quick run, by its node id."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        f"{file}::{case}": seconds
        for file, cases in found.items()
        for case, seconds in cases.items()
    }


def write(seconds: dict[str, float], limit: float, path: Path = MARKS) -> None:
    """Keep the cases above the limit, by file, in alphabetical order."""
    files: dict[str, dict[str, float]] = {}
    for node in sorted(node for node, spent in seconds.items() if spent > limit):
        file, _, case = node.partition("::")
        files.setdefault(file, {})[case] = round(seconds[node], 1)
    path.write_text(json.dumps(files, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def by_room(seconds: dict[str, float]) -> Iterator[tuple[str, float, int]]:
    """(room, CPU seconds, cases), the longest first."""
    spent, cases = Counter[str](), Counter[str]()
    for node, value in seconds.items():
        parts = node.partition("::")[0].split("/")
        room = parts[1] if len(parts) > 2 else "whole package"
        spent[room] += value
        cases[room] += 1
    for room, value in spent.most_common():
        yield room, value, cases[room]


def within(cases: Iterable[str], seconds: dict[str, float], budget: float) -> set[str]:
    """The cases that CI runs: the cheapest of every check first, as many as fit in the budget.

    A case that was never measured counts as one second.
    """
    checks: dict[str, list[tuple[float, str]]] = {}
    for node in cases:
        checks.setdefault(node.partition("[")[0], []).append((seconds.get(node, 1.0), node))
    ranked = sorted(
        (rank, spent, node)
        for found in checks.values()
        for rank, (spent, node) in enumerate(sorted(found))
    )
    chosen, total = set(), 0.0
    for _, spent, node in ranked:
        if total + spent <= budget:
            total += spent
            chosen.add(node)
    return chosen


def measure(paths: list[str], processes: int) -> dict[str, float]:
    """CPU seconds by node id, as ``conftest.py`` writes them down."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), *paths]
        command += [
            "--run-slow",
            "--every",
            "40",
            f"--durations-to={folder}",
            "-p",
            "no:cacheprovider",
        ]
        status = subprocess.run(command, cwd=TESTS.parent, check=False).returncode
        if status > 1:  # failed tests have their times too
            raise SystemExit(f"pytest could not run these tests (exit status {status})")
        return {
            node: spent
            for file in Path(folder).glob("*.jsonl")
            for node, spent in map(json.loads, file.read_text(encoding="utf-8").splitlines())
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", help="test files or folders, all by default")
    parser.add_argument("--limit", type=float, default=LIMIT, help="CPU seconds")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    found = measure(options.paths, options.processes)
    for room, spent, cases in by_room(found):
        print(f"{room:<16}{spent:8.1f} s{cases:8d} cases")
    slow = {node: spent for node, spent in found.items() if spent > options.limit}
    print(f"{'all':<16}{sum(found.values()):8.1f} s{len(found):8d} cases")
    print(f"{'slow':<16}{sum(slow.values()):8.1f} s{len(slow):8d} cases")
    kept = {node: spent for node, spent in marked().items() if options.paths and node not in found}
    write(kept | slow, 0.0)  # marks of before are above the limit but for rounding


if __name__ == "__main__":
    main()
