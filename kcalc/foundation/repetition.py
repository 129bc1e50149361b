"""Repetitions in a sequence."""

from __future__ import annotations

from collections.abc import Sequence

MAX_PERIOD = 64


def repetition(numbers: Sequence[int], start: int) -> tuple[int, int]:
    """Return the (period, count) of the longest repetition that begins at ``start``.

    On ties, the shorter period wins. Returns (1, 1) if nothing repeats. The search covers periods
    up to 64.
    """
    best, covered = (1, 1), 1
    for period in range(1, min(MAX_PERIOD, (len(numbers) - start) // 2) + 1):
        end = start + period
        while end < len(numbers) and numbers[end] == numbers[end - period]:
            end += 1
        count = (end - start) // period
        if count >= 2 and count * period > covered:
            best, covered = (period, count), count * period
    return best
