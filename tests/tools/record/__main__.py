"""Record what kcalc answers on many networks, and compare two records.

With ``python tests/tools/record`` in front:

- ``write FILE --count 1000`` asks every calculus about every network of the corpus, with the kcalc
  that is imported; to record an older version, put it on ``PYTHONPATH``;
- ``compare OLD NEW`` lists every difference, ``--by model`` those of readers;
- ``count FILE`` counts answers and refusals;
- ``readers FILE`` records what the readers answer on the models of the tests, on generated ones and
  on real architectures.

Records are files of JSON lines and are not kept with the code.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

TOOLS, TESTS, ROOT = Path(__file__).resolve().parents[1:4]
sys.path[:0] = [str(TESTS), str(TOOLS), str(TESTS / "interchange")]
sys.path.append(str(ROOT))  # benchmarks; an older kcalc comes before it

from record import readers  # noqa: E402
from record.corpus import Case, numbered  # noqa: E402
from record.questions import QUESTIONS, asked, differences, outcome, without_wording  # noqa: E402

TOLERANCE = 1e-13


def answers(case: Case, names: list[str]) -> list[str]:
    """The outcomes of one network as lines of JSON."""
    lines = []
    for name in names:
        if asked(case, name):
            lines.append(
                json.dumps(
                    {"case": case.name, "question": name} | outcome(case, name), sort_keys=True
                )
            )
    return lines


def _by_number(given: tuple[int, list[str]]) -> list[str]:
    return answers(numbered(given[0]), given[1])


def write(path: str, count: int, names: list[str], workers: int) -> None:
    """Ask ``count`` covering networks and half as many of the fuzzer's."""
    numbers = [
        n for seed in range(count) for n in ((seed, -1 - seed // 2) if seed % 2 else (seed,))
    ]
    with ProcessPoolExecutor(workers) as pool, open(path, "w") as out:
        for lines in pool.map(_by_number, [(n, names) for n in numbers], chunksize=1):
            out.writelines(f"{line}\n" for line in lines)
            out.flush()


def read(path: str) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """((network, question), outcome) of every line."""
    for line in Path(path).read_text().splitlines():
        found = json.loads(line)
        yield (found.pop("case"), found.pop("question")), found


def compare(
    old: str, new: str, tolerance: float, shown: int, wording: bool = True, by: str = "question"
) -> int:
    """Print the differences by question or by "model", at most ``shown`` of each.

    ``wording``: sentences count too. Returns: the number of differences.
    """
    place = 0 if by == "model" else 1
    before, after = dict(read(old)), dict(read(new))
    if not wording:
        before, after = (
            {key: without_wording(found) for key, found in record.items()}
            for record in (before, after)
        )
    listed: dict[str, list[str]] = defaultdict(list)
    compared: Counter[str] = Counter()
    for key in before.keys() & after.keys():
        compared[key[place]] += 1
        if found := differences(before[key], after[key], tolerance):
            listed[key[place]].append(f"{key[1 - place]}: {'; '.join(found[:3])}")
    for name in sorted(listed if by == "model" else compared):
        print(f"{name}: {compared[name]} compared, {len(listed[name])} differ")
        for text in sorted(listed[name])[:shown]:
            print(f"    {text}")
    if missing := before.keys() ^ after.keys():
        print(f"{len(missing)} outcomes are in one record only")
    return sum(map(len, listed.values()))


def count(path: str) -> None:
    """Print how many answers, refusals, faults and slow ones each question has."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for (_, question), result in read(path):
        found[question][next(k for k in ("answer", "refusal", "fault", "slow") if k in result)] += 1
    for question in sorted(found):
        print(f"{question:22s}", dict(found[question]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="record", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writer = commands.add_parser("write")
    writer.add_argument("file")
    writer.add_argument("--count", type=int, default=1000)
    writer.add_argument("--questions", nargs="*", default=list(QUESTIONS), choices=list(QUESTIONS))
    writer.add_argument("--workers", type=int, default=2)
    reader = commands.add_parser("readers")
    reader.add_argument("file")
    reader.add_argument(
        "--groups", nargs="*", default=list(readers.GROUPS), choices=list(readers.GROUPS)
    )
    comparer = commands.add_parser("compare")
    comparer.add_argument("old")
    comparer.add_argument("new")
    comparer.add_argument("--tolerance", type=float, default=TOLERANCE)
    comparer.add_argument("--ignore-wording", action="store_true")
    comparer.add_argument("--shown", type=int, default=20)
    comparer.add_argument("--by", choices=("question", "model"), default="question")
    counter = commands.add_parser("count")
    counter.add_argument("file")
    given = parser.parse_args()
    if given.command == "write":
        write(given.file, given.count, given.questions, given.workers)
    elif given.command == "readers":
        readers.write(given.file, given.groups)
    elif given.command == "count":
        count(given.file)
    else:
        wording = not given.ignore_wording
        found = compare(given.old, given.new, given.tolerance, given.shown, wording, given.by)
        return int(found > 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
