"""Cost as a function of size: CPU time (less affected by other processes) of the same work at
growing sizes, with fitted exponents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .book import Table, digits, seconds
from .timing import exponent, spent

STEEP = 1.2
STEEP_STEP = 1.4  # for the last step alone, which other work on the machine disturbs more


@dataclass(frozen=True)
class Work:
    """Work done at every size: ``action(prepare(size))``, of which only ``action`` is timed.

    Sizes whose predicted time exceeds ``budget`` seconds are left out, together with all larger
    sizes. The best of ``rounds`` rounds is used. ``why`` explains an exponent above 1.2.
    """

    name: str
    action: Callable[[Any], Any]
    budget: float = 8.0
    rounds: int = 2
    why: str = ""


@dataclass(frozen=True)
class Measured:
    """CPU seconds at the sizes that were measured."""

    work: Work
    found: Mapping[float, float]

    @property
    def fitted(self) -> float:
        """Over all sizes."""
        return exponent(list(self.found), list(self.found.values()))

    @property
    def last(self) -> float:
        """The exponent between the two largest sizes, at which one-time costs matter least."""
        sizes = list(self.found)[-2:]
        return exponent(sizes, [self.found[size] for size in sizes])

    @property
    def remark(self) -> str:
        """The explanation of a steep exponent, or a remark that there is none."""
        steep = len(self.found) > 2 and (self.fitted > STEEP or self.last > STEEP_STEP)
        return (
            (f"steep: {self.work.why}" if self.work.why else "**steep, not explained**")
            if steep
            else ""
        )


def grown(
    works: Sequence[Work],
    sizes: Sequence[int],
    prepare: Callable[[int], Any],
    measure: Callable[[Any], float] | None = None,
) -> list[Measured]:
    """Time all work at every size, alternating sizes within a round.

    Exponents are fitted against ``measure(prepared)``.
    """
    found: dict[str, dict[float, float]] = {work.name: {} for work in works}
    for size in sizes:
        ready = prepare(size)
        scale = float(size if measure is None else measure(ready))
        for work in works:
            if foreseen(found[work.name], scale) <= work.budget:
                found[work.name][scale] = _best(work, ready)
    return [Measured(work, found[work.name]) for work in works]


def _best(work: Work, ready: Any) -> float:
    """The best of several rounds, or a single round if it takes more than a second."""
    best = spent(lambda: work.action(ready)).cpu
    for _ in range(work.rounds - 1 if best < 1 else 0):
        best = min(best, spent(lambda: work.action(ready)).cpu)
    return best


def foreseen(known: Mapping[float, float], size: float) -> float:
    """Predicted seconds at a size, from the last two known sizes (growing at least linearly).

    Returns 0 if nothing is known.
    """
    if not known:
        return 0.0
    sizes = list(known)[-2:]
    power = max(1.0, exponent(sizes, [known[s] for s in sizes])) if len(sizes) == 2 else 1.0
    return known[sizes[-1]] * (size / sizes[-1]) ** power


def table(caption: str, what: str, rows: Sequence[Measured], sizes: Sequence[float]) -> Table:
    """Times, exponents and remarks."""
    columns = (what, *(count(size) for size in sizes), "exponent", "last step", "remark")
    cells = [
        (
            row.work.name,
            *(seconds(row.found[size]) if size in row.found else "-" for size in map(float, sizes)),
            *("-" if math.isnan(value) else digits(value) for value in (row.fitted, row.last)),
            row.remark,
        )
        for row in rows
    ]
    return Table(caption, columns, cells)


def count(size: float) -> str:
    """An integer as text, written as a power of ten if it is one."""
    power = round(math.log10(size)) if size > 0 else 0
    return f"10^{power}" if power > 2 and size == 10**power else f"{size:.0f}"
