"""Faults that change nothing anybody could see, each with its reason.

``equal.toml``, which a run checks too.

An entry names the function ("Class.method", "" for a module), the text of the line (without its
indentation), what is replaced by what (``place``: the first, second ... such fault of the function,
where not all of them are meant; ``room``, where several files have such faults), and why no result
depends on it: a tie, a size that only time depends on, arguments that may change places. Where
files and lines stand makes no difference.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mutants import Mutant

LIST = Path(__file__).with_name("equal.toml")


@dataclass(frozen=True)
class Equal:
    """One entry."""

    function: str
    line: str
    before: str
    after: str
    why: str
    place: int = 0
    room: str = ""


def listed() -> list[Equal]:
    """All entries."""
    return [Equal(**entry) for entry in tomllib.loads(LIST.read_text(encoding="utf-8"))["equal"]]


def explained(
    entries: Iterable[Equal], rooms: Mapping[str, Iterable[Mutant]]
) -> dict[Equal, list[Mutant]]:
    """{entry: the faults that it is about}.

    None where the text has changed, or where several files have such faults.
    """
    alike: defaultdict[tuple[str, ...], list[Mutant]] = defaultdict(list)
    for room, mutants in rooms.items():
        for mutant in sorted(mutants, key=lambda mutant: mutant.start):
            for name in (room, ""):
                alike[name, mutant.function, mutant.text, mutant.before, mutant.after].append(
                    mutant
                )
    found = {}
    for entry in entries:
        faults = alike[entry.room, entry.function, entry.line, entry.before, entry.after]
        one_file = len({fault.path for fault in faults}) == 1
        found[entry] = (
            (faults[entry.place - 1 : entry.place] if entry.place else faults) if one_file else []
        )
    return found
