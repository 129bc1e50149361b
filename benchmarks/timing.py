"""Timing functions used by every section.

They use alternating rounds, medians, CPU time and wall time, and least-squares exponents. As in
:mod:`timeit`, the garbage collector is off during timing, because its passes over all live objects
are not part of the work.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Action = Callable[[], Any]


@dataclass(frozen=True)
class Spent:
    """Wall seconds, and CPU seconds of all threads of this process."""

    wall: float
    cpu: float


def timed(action: Action) -> tuple[Spent, Any]:
    """The time and the result of one call."""
    gc.collect()
    gc.disable()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        result = action()
        return Spent(time.perf_counter() - wall, time.process_time() - cpu), result
    finally:
        gc.enable()


def spent(action: Action) -> Spent:
    """The time of one call."""
    return timed(action)[0]


def rounds_of(
    actions: Mapping[str, Action], rounds: int, repeats: int = 1, warm: bool = True
) -> dict[str, list[Spent]]:
    """The time of every action in each round.

    Actions alternate, A B A B ..., with the order reversed in every other round, after a warm-up
    round. ``repeats`` calls are timed together if one call is too short for the clock; the times
    are per call.
    """
    found: dict[str, list[Spent]] = {name: [] for name in actions}
    if warm:
        for action in actions.values():
            action()
    for number in range(rounds):
        for name in reversed(actions) if number % 2 else actions:
            action = actions[name]
            total = spent(lambda action=action: [action() for _ in range(repeats)])
            found[name].append(Spent(total.wall / repeats, total.cpu / repeats))
    return found


def median(times: Iterable[Spent]) -> Spent:
    """The median wall time and the median CPU time."""
    kept = list(times)
    return Spent(statistics.median(t.wall for t in kept), statistics.median(t.cpu for t in kept))


def alternated(
    actions: Mapping[str, Action], rounds: int, repeats: int = 1, warm: bool = True
) -> dict[str, Spent]:
    """The median of every action over alternating rounds; see :func:`rounds_of`."""
    return {
        name: median(times) for name, times in rounds_of(actions, rounds, repeats, warm).items()
    }


def paired_ratio(first: Sequence[Spent], second: Sequence[Spent]) -> float:
    """The median over rounds of the ratio of two actions' wall times."""
    return statistics.median(a.wall / b.wall for a, b in zip(first, second, strict=True))


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log seconds against log size, by least squares; nan for fewer than two sizes."""
    if len(sizes) < 2:
        return math.nan
    x, y = [math.log(size) for size in sizes], [math.log(second) for second in seconds]
    middle, height = statistics.fmean(x), statistics.fmean(y)
    return sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True)) / sum(
        (a - middle) ** 2 for a in x
    )
