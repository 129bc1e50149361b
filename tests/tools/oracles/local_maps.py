"""Frozen truth for local C maps.

200 points for every catalogue entry, and 1 - C at small angles, sharing nothing with kcalc.

Entries with a textbook closed form are evaluated in mpmath (closed_forms.py), the others by
two-dimensional quadrature in 80-bit numbers (pair_quadrature.py, pair_functions.py). Every entry is
checked against its brute-force rows in activations.json (Arb numbers, other geometry, derivatives
on the density instead of on phi: good to about 3e-16 there in C''), every integral against a finer
rule and, near c = +-1, against the integral of the next derivative, and the quadrature against
closed forms at all their points with q <= 10; "checks" in the result holds what was found.

c, 1 - c, q1, q2 and the angles are doubles, and the truth is that of exactly those doubles.
local_maps.json.gz: records[name] = {q, moments: rows of (E phi, Q, E phi', dQ/dq) for each q,
points: rows of (c, index of q1, index of q2), values: rows of (C, C', C''), gap_q, gaps: rows of 1
- C(cos angle) for each gap_q}.

Run ``python tests/tools/oracles/local_maps.py [name ...]`` (minutes).
"""

from __future__ import annotations

import gzip
import json
import math
import platform
import random
import sys
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import flint
import mpmath as mp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracles.closed_forms import CLOSED
from oracles.pair_functions import FUNCTIONS, line_piece
from oracles.pair_quadrature import (
    Function,
    Pair,
    Real,
    gammas,
    legendre,
    one_dimensional,
    small_gaps,
)

FROZEN = Path(__file__).parents[2] / "oracles"
FILE = FROZEN / "local_maps.json.gz"
ROWS = json.loads((FROZEN / "activations.json").read_text())["records"]
ANGLES = [float(f"1e-{k}") for k in range(1, 9)]
GAP_Q = [0.03, 1.0, 12.0, 100.0]
POINTS, NEAR, POOL = 200, 60, 80
QUANTITIES = ("mean", "second_moment", "mean_slope", "q_slope")


# --- where ----------------------------------------------------------------------------------------


def cosines(source: random.Random) -> list[float]:
    """+-1, +-(1 - 10^-k) and uniform ones; each of them and its 1 - c are doubles."""
    near = [s * 1.0 for s in (1, -1) for _ in range(6)]
    near += [
        s * (1 - round(10.0**-k * 2.0**52) / 2.0**52)
        for s in (1, -1)
        for k in range(1, 13)
        for _ in range(2)
    ]
    assert len(near) == NEAR
    return near + [source.randrange(1 - 2**20, 2**20) / 2.0**20 for _ in range(POINTS - NEAR)]


def variances(source: random.Random) -> list[float]:
    """Log-uniform on [0.01, 100], its ends included."""
    return sorted(
        {0.01, 100.0, *(float(f"{10 ** source.uniform(-2, 2):.5g}") for _ in range(POOL - 2))}
    )


def grid(name: str) -> tuple[list[float], list[tuple[float, int, int]]]:
    """The q values and the points (c, index of q1, index of q2), a third of them on q1 = q2."""
    source = random.Random(f"local maps of {name}")
    q = variances(source)
    points = []
    for c in cosines(source):
        first = source.randrange(len(q))
        points.append((c, first, first if source.random() < 1 / 3 else source.randrange(len(q))))
    source.shuffle(points)
    return q, points


# --- what -----------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """20 significant digits, or inf."""
    if not mp.isfinite(value):
        return str(float(value))
    if isinstance(value, mp.mpf):
        return str(mp.nstr(value, 21))
    return np.format_float_scientific(value, precision=20, unique=False, trim="-")


def closed_record(
    name: str, q: list[float], points: list[tuple[float, int, int]]
) -> dict[str, Any]:
    form, sizes = CLOSED[name], [mp.mpf(value) for value in q]
    moments = [form.moments(value) for value in sizes]
    values = []
    for c, i, j in points:
        norm = mp.sqrt(moments[i][1] * moments[j][1])
        values.append([value / norm for value in form.gammas(mp.mpf(c), sizes[i], sizes[j])])
    gaps = [[form.gap(mp.mpf(angle), mp.mpf(value)) for angle in ANGLES] for value in GAP_Q]
    return {"moments": moments, "values": values, "gaps": gaps}


def integrated_record(
    name: str, q: list[float], points: list[tuple[float, int, int]]
) -> dict[str, Any]:
    phi = FUNCTIONS[name]
    moments = [one_dimensional(phi, value) for value in q]
    values = [integrated(phi, c, q[i], q[j], moments[i][1] * moments[j][1]) for c, i, j in points]
    gaps = [small_gaps(phi, value, ANGLES[::-1])[::-1] for value in GAP_Q]
    return {"moments": moments, "values": values, "gaps": gaps}


def integrated(
    phi: Function, c: float, q1: float, q2: float, product: Any, nodes: int = 24
) -> list[Any]:
    return [value / np.sqrt(product) for value in gammas(phi, c, q1, q2, nodes=nodes)]


# --- is it true -----------------------------------------------------------------------------------


def apart(found: Any, truth: Any) -> float:
    """|found - truth| / max(1, |truth|); 0 for equal infinities."""
    found, truth = (
        value if isinstance(value, mp.mpf) else mp.mpf(text(value)) for value in (found, truth)
    )
    return 0.0 if found == truth else float(abs(found - truth) / max(1, abs(truth)))


def against_rows(name: str) -> dict[str, float]:
    """The largest distances to the rows of activations.json, C maps and 1-D moments over their
    natural sizes, gaps relative.
    """
    closed, rows = name in CLOSED, ROWS[name]
    number = mp.mpf if closed else Real
    root = mp.sqrt if closed else np.sqrt
    moments = {
        row["q"]: CLOSED[name].moments(mp.mpf(row["q"]))
        if closed
        else one_dimensional(FUNCTIONS[name], row["q"])
        for row in rows["moments"]
    }
    found: dict[str, float] = dict.fromkeys(("moments", "C", "C'", "C''", "gaps"), 0.0)
    for row in rows["moments"]:
        size = root(moments[row["q"]][1])
        sizes = (size, size**2, size / math.sqrt(row["q"]), size**2 / row["q"])
        for key, value, scale in zip(QUANTITIES, moments[row["q"]], sizes, strict=True):
            found["moments"] = max(found["moments"], apart(value / scale, number(row[key]) / scale))
    for row in rows["gammas"]:
        at = (row["c"], row["q1"], row["q2"])
        norm = root(moments[row["q1"]][1] * moments[row["q2"]][1])
        values = CLOSED[name].gammas(*map(mp.mpf, at)) if closed else gammas(FUNCTIONS[name], *at)
        for key, value, truth in zip(("C", "C'", "C''"), values, row["values"], strict=True):
            found[key] = max(found[key], apart(value / norm, number(truth) / norm))
    for row in rows["gaps"]:
        angle = mp.mpf(row["theta"])
        gap = (
            CLOSED[name].gap(angle, mp.mpf(row["q"]))
            if closed
            else small_gaps(FUNCTIONS[name], row["q"], [float(angle)])[0]
        )
        found["gaps"] = max(found["gaps"], apart(gap / number(row["gap"]), 1))
    return found


def against_finer(
    name: str, q: list[float], points: list[tuple[float, int, int]], record: dict[str, Any]
) -> dict[str, float]:
    """What a rule with 32 nodes on every panel changes at every tenth point and at one row of gaps."""
    phi, worst = FUNCTIONS[name], 0.0
    for (c, i, j), old in list(zip(points, record["values"], strict=True))[::10]:
        new = integrated(
            phi,
            c,
            q[i],
            q[j],
            one_dimensional(phi, q[i], 32)[1] * one_dimensional(phi, q[j], 32)[1],
            32,
        )
        worst = max(worst, *map(apart, new, old))
    gaps = small_gaps(phi, GAP_Q[-1], ANGLES[::-1], 28)[::-1]
    return {
        "values": worst,
        "gaps": max(apart(new / old, 1) for new, old in zip(gaps, record["gaps"][-1], strict=True)),
    }


def against_integrals(name: str) -> float:
    """|C^(i)(s) - C^(i)(t) - integral of C^(i+1)|/(1 + |.|), i = 0, 1, over a short interval of
    angles near c = 1 and c = -1, q1 = q2 = 3.

    The jumps enter the derivatives in closed form only, so this confirms their terms where the
    density route has no digits left.
    """
    phi, worst = FUNCTIONS[name], 0.0
    x, w = legendre(24)
    product = one_dimensional(phi, 3.0)[1]
    for other in (phi, phi.reflected()):

        def at(angle: Any, orders: tuple[int, ...], other: Function = other) -> list[Any]:
            return [
                value / product
                for value in Pair(
                    phi, other, Real(3), Real(3), 2 * np.sin(angle / 2) ** 2, 24
                ).gamma(orders)
            ]

        for start in (Real("1e-6"), Real("2e-3")):
            angles = start * (1.25 + x / 4)
            rates = np.array([at(angle, (1, 2)) for angle in angles]) * np.sin(angles)[:, None]
            steps = start / 4 * (w @ rates)
            for high, low, change in zip(
                at(start, (0, 1)), at(1.5 * start, (0, 1)), steps, strict=True
            ):
                worst = max(worst, float(abs(high - low - change) / (1 + abs(high))))
    return worst


def quadrature_check(name: str) -> float:
    """The quadrature against the closed form of an entry at all its points with q <= 10."""
    half, jump = Real(1) / 2, (Real(0),)
    functions = {
        "abrelu": Function((line_piece(-half), line_piece(3 * half)), (0.0,), jump, (2 * Real(1),)),
        "sign": Function(
            (line_piece(jump[0], -Real(1)), line_piece(jump[0], Real(1))), (0.0,), (Real(2),), jump
        ),
        "relu2": Function((line_piece(jump[0]), lambda x: (x * x, 2 * x, 2 + 0 * x)), (0.0,)),
        "gaussian": Function(
            (
                lambda x: (
                    np.exp(-x * x),
                    -2 * x * np.exp(-x * x),
                    (4 * x * x - 2) * np.exp(-x * x),
                ),
            ),
            poles=((0.0, 1.0),),
        ),
        "snake": Function(
            (lambda x: (x + np.sin(x) ** 2, 1 + np.sin(2 * x), 2 * np.cos(2 * x)),),
            poles=((0.0, 1.0),),
        ),
    }
    q, points = grid(name)
    kept = [(c, i, j) for c, i, j in points if max(q[i], q[j]) <= 10]
    truth = closed_record(name, q, kept)
    worst = 0.0
    for (c, i, j), row in zip(kept, truth["values"], strict=True):
        product = (
            one_dimensional(functions[name], q[i])[1] * one_dimensional(functions[name], q[j])[1]
        )
        worst = max(worst, *map(apart, integrated(functions[name], c, q[i], q[j], product), row))
    return worst


# --- the file -------------------------------------------------------------------------------------


def work(name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    q, points = grid(name)
    record = (
        closed_record(name, q, points) if name in CLOSED else integrated_record(name, q, points)
    )
    checks: dict[str, Any] = {"against activations.json": against_rows(name)}
    if name not in CLOSED:
        checks["against a finer rule"] = against_finer(name, q, points, record)
        checks["against integrals of the next derivative"] = against_integrals(name)
    rows = {key: [[text(value) for value in row] for row in table] for key, table in record.items()}
    return name, {"q": q, "points": points, "gap_q": GAP_Q, **rows}, checks


def check(name: str) -> tuple[str, float]:
    return name, quadrature_check(name)


def save(found: dict[str, Any]) -> None:
    content = json.dumps(found, separators=(",", ":"), sort_keys=True)
    FILE.write_bytes(gzip.compress(content.encode(), mtime=0))


def main(names: list[str]) -> None:
    found: dict[str, Any] = (
        json.loads(gzip.decompress(FILE.read_bytes()))
        if FILE.exists()
        else {"records": {}, "checks": {}}
    )
    found["angles"] = ANGLES
    found["versions"] = {
        "python": platform.python_version(),
        "python-flint": flint.__version__,
        "mpmath": mp.__version__,
        "numpy": np.__version__,
        "digits": mp.mp.dps,
        "long double mantissa": int(np.finfo(Real).nmant) + 1,
    }
    with Pool(2) as pool:
        for name, record, checks in pool.imap_unordered(work, names or [*CLOSED, *FUNCTIONS]):
            found["records"][name], found["checks"][name] = record, checks
            save(found)
            print(name, json.dumps(checks), flush=True)
        if not names:
            found["quadrature against closed forms"] = dict(
                pool.map(check, ["abrelu", "sign", "relu2", "gaussian", "snake"])
            )
            save(found)
            print(found["quadrature against closed forms"])


if __name__ == "__main__":
    assert np.finfo(Real).nmant == 63, "needs 80-bit long doubles (x86)"
    main(sys.argv[1:])
