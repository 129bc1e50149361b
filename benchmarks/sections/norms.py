"""Kernel matrices of rows with unequal norms, compared with older code that had no tables for them.

``KCALC_BENCH_BEFORE`` names a checkout of the older code; without it, these ratios are omitted.
"""

from __future__ import annotations

import os
from typing import Any

from .. import child
from ..book import Options, Section, Table, digits, seconds

SETS = ("digits", "centred digits")
SLOW = (
    ("5", 200, "dks tanh", 100, 3),
    ("10", 200, "dks tanh", 100, 3),
    ("5", 200, "tat relu", 100, 62),
    ("digits", 1257, "elu", 3, 6),
    ("centred digits", 1257, "elu", 10, 6),
    ("digits", 1257, "selu", 3, 6),
)


def run(options: Options) -> Section:
    count, depths = options.size((60, (1,)), (1257, (3, 1, 10)))
    cells = [(what, count, name, n) for n in depths for what in SETS for name in NAMES]
    slow = options.size((("5", 20, "dks tanh", 10, 3),), SLOW)
    return Section(
        "Rows of unequal norms",
        "The tables show the CPU time for the NNGP and the NTK together. Every cell is measured "
        "in a separate process; the older code runs between two runs of the current code. "
        '"Equal" uses the same rows scaled to one norm, after a warm-up. "Difference" is the '
        "largest difference from the recursion for each pair, relative to the kernel or to a "
        "hundredth of sqrt(K(x, x) K(y, y)), whichever is larger, over 1953 random pairs unless "
        "stated otherwise.",
        [
            Table(
                f"{count} images of digits, raw and with their mean subtracted",
                (
                    "rows, activation, layers",
                    "cold",
                    "warm",
                    "before: cold",
                    "warm",
                    "ratio cold",
                    "warm",
                    "warm over equal",
                    "difference",
                ),
                [beside(*cell) for cell in cells],
            ),
            Table(
                "Networks whose kernels used to be computed pair by pair: N rows with norms that "
                'vary by a factor of 5 or 10, or digits. "Pairs" is the number of pairs times the '
                "recursion's time for one pair.",
                ("rows, activation, layers", "N", "cold", "warm", "pairs", "ratio", "difference"),
                [against_pairs(*cell) for cell in slow],
            ),
        ],
    )


NAMES = ("tanh", "gelu", "erf")


def _job(what: str, count: int, name: str, depth: int) -> dict[str, Any]:
    return {"what": what, "count": count, "activation": name, "depth": depth}


def beside(what: str, count: int, name: str, depth: int) -> tuple[str, ...]:
    """One row of the first table."""
    job, before = _job(what, count, name, depth), os.environ.get("KCALC_BENCH_BEFORE")
    runs = [child.run("benchmarks.norm_jobs:timed", **job)]
    old = None
    if before is not None:
        old = child.run("benchmarks.norm_jobs:timed", before=before, limit=1800.0, **job)
        runs.append(child.run("benchmarks.norm_jobs:timed", **job))
    mean = {key: sum(one[key] for one in runs) / len(runs) for key in runs[0]}
    far = child.run("benchmarks.norm_jobs:compared", **job)["difference"]
    then = ("-",) * 4
    if old is not None:
        ratios = (digits(old[key] / mean[key]) for key in ("cold", "warm"))
        then = (seconds(old["cold"]), seconds(old["warm"]), *ratios)
    return (
        f"{what}, {name}, {depth}",
        seconds(mean["cold"]),
        seconds(mean["warm"]),
        *then,
        digits(mean["warm"] / mean["equal"]),
        f"{far:.0e}",
    )


def against_pairs(what: str, count: int, name: str, depth: int, few: int) -> tuple[str, ...]:
    """One row of the second table."""
    job = _job(what, count, name, depth)
    found = child.run("benchmarks.norm_jobs:timed", **job)
    other = child.run("benchmarks.norm_jobs:compared", few=few, limit=1800.0, **job)
    pairs = other["pair"] * count * (count + 1) / 2
    label = f"norms over {what}" if what.isdigit() else what
    return (
        f"{label}, {name}, {depth}",
        str(count),
        seconds(found["cold"]),
        seconds(found["warm"]),
        seconds(pairs),
        digits(pairs / found["cold"]),
        f"{other['difference']:.0e} ({few * (few + 1) // 2} pairs)",
    )
