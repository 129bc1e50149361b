"""How many small faults the tests notice: ``python tests/tools/mutation --count 500 --seed 0``.

Needs the record of which test runs which line, and how long each takes::

    python -m pytest -n 2 --cov --cov-context=test --junitxml=.junit.xml

Places are drawn by function from the packages of `sample.ROOMS`. For each mutant the tests that run
its line, as many as fit in ``--seconds``, run in a process forked for it; more of them for those
that survive. If the line runs only in tests, the process has collected them all and its function
gets the spoilt code; else the process imports the spoilt file. Killed: a test fails, or the process
dies or takes several times as long as it should. Prints each survivor, and by room the numbers
killed, survived and without effect; exit status 1 if fewer than ``--at-least`` of all are killed.
With ``--journal`` verdicts are kept, and a run that was broken off goes on where it stopped. Rooms
take turns, so that a part of a run is a sample of every room.
Survivors that ``equal.toml`` explains are without effect and do not count; what it lists and a test
notices is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from equal import explained, listed
from importing import Readers
from journal import Journal
from sample import ROOMS, places, sampled
from selection import Selection
from trial import Item, Pool, Tried, Verdict, cold, prepare
from warm import warm

ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    """Try the sample; the exit status."""
    options = _options()
    selection = Selection(ROOT / options.coverage, ROOT / options.junit, Readers(ROOT))
    journal = Journal(options.journal)
    sample = sampled(ROOT, options.count, options.seed, options.room)
    harmless = {
        mutant for faults in explained(listed(), places(ROOT)).values() for mutant in faults
    }
    killed, equal, tried = Counter[str](), Counter[str](), Counter[str]()
    wrong = False
    waiting = [item for item in sample if journal.verdict(*item) is None]
    for (room, mutant), verdict, _ in chain(
        ((item, known, "") for item in sample if (known := journal.verdict(*item)) is not None),
        journal.kept(_tried(waiting, selection, options)),
    ):
        noticed, same = verdict is not Verdict.SURVIVED, mutant in harmless
        tried[room] += 1
        killed[room] += noticed
        equal[room] += same and not noticed
        wrong |= same and noticed
        if options.verbose or noticed == same:
            print(f"{'equal, but ' * (same and noticed)}{verdict.value:>9}  {mutant}", flush=True)
    return _report(killed, equal, tried, options.at_least) or int(wrong)


def _tried(
    waiting: list[Item], selection: Selection, options: argparse.Namespace
) -> Iterator[Tried]:
    """First the faults that need no import of their own, which are many and fast."""
    prepare(ROOT)
    done = set()
    for tried in warm(ROOT, options.processes, waiting, selection, options.seconds):
        done.add(tried[0])
        yield tried
    left = [item for item in waiting if item not in done]
    yield from Pool(ROOT, options.processes, cold).run(left, selection, options.seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500, help="mutants tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", choices=sorted(ROOMS), action="append", help="only these rooms")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--seconds",
        type=float,
        nargs="+",
        default=[10.0, 60.0],
        help="of tests for one mutant, by the recorded times; for survivors, more",
    )
    parser.add_argument("--coverage", default=".coverage")
    parser.add_argument("--junit", default=".junit.xml")
    parser.add_argument("--at-least", type=float, default=0.85, help="share killed that passes")
    parser.add_argument("--journal", help="file of verdicts: a run that was broken off goes on")
    parser.add_argument("--verbose", action="store_true", help="print killed mutants too")
    return parser.parse_args()


def _report(killed: Counter[str], equal: Counter[str], tried: Counter[str], least: float) -> int:
    print(f"{'room':<14}{'killed':>8}{'survived':>10}{'without effect':>16}{'share killed':>14}")
    for room in [*(room for room in ROOMS if tried[room]), "all"]:
        some, same, every = (
            count.total() if room == "all" else count[room] for count in (killed, equal, tried)
        )
        print(
            f"{room:<14}{some:8d}{every - same - some:10d}{same:16d}"
            f"{some / max(every - same, 1):14.1%}"
        )
    return 0 if killed.total() >= least * (tried.total() - equal.total()) else 1


if __name__ == "__main__":
    sys.exit(main())
