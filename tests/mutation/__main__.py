"""How many small faults the tests notice: ``python tests/mutation --count 500 --seed 0``.

Needs the record of which test runs which line, and how long each takes::

    python -m pytest -n 2 --cov --cov-context=test --junitxml=.junit.xml

For each mutant of a sample over `ROOMS` the tests that run its line, as many as fit in ``--seconds``, run in a process forked for it,
whose import system sees the spoilt file; more of them for those that survive.  Killed: a test fails, or the process dies or takes several
times as long as it should.  Prints each survivor, and the share killed by room; exit status 1 below ``--at-least``.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from sample import ROOMS, sampled
from selection import Selection
from trial import Pool, Verdict

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Try the sample; the exit status."""
    options = _options()
    selection = Selection(ROOT / options.coverage, ROOT / options.junit)
    sample = sampled(ROOT, options.count, options.seed, options.room)
    killed: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for (room, mutant), verdict in Pool(ROOT, options.processes).run(sample, selection, options.seconds):
        tried[room] += 1
        killed[room] += verdict is not Verdict.SURVIVED
        if verdict is Verdict.SURVIVED or options.verbose:
            print(f"{verdict.value:>9}  {mutant}", flush=True)
    return _report(killed, tried, options.at_least)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="mutants tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", choices=sorted(ROOMS), action="append", help="only these rooms")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[10.0, 60.0], help="of tests for one mutant, by the recorded times; for survivors, more"
    )
    parser.add_argument("--coverage", default=".coverage")
    parser.add_argument("--junit", default=".junit.xml")
    parser.add_argument("--at-least", type=float, default=0.85, help="share killed that passes")
    parser.add_argument("--verbose", action="store_true", help="print killed mutants too")
    return parser.parse_args()


def _report(killed: Counter[str], tried: Counter[str], least: float) -> int:
    for room in ROOMS:
        if tried[room]:
            print(f"{room:<14}{killed[room]:4d} of {tried[room]:4d} killed  {killed[room] / tried[room]:6.1%}")
    share = killed.total() / max(tried.total(), 1)
    print(f"{'all':<14}{killed.total():4d} of {tried.total():4d} killed  {share:6.1%}")
    return 0 if share >= least else 1


if __name__ == "__main__":
    sys.exit(main())
