"""Every catalogue entry against frozen truth.

C, C', C'' at 200 points, 1 - C at angles down to 1e-8, and the one-dimensional moments.

The truth is that of the very doubles passed: c was drawn so that c and 1 - c both are doubles, at c
= +-(1 - 10^-k) too, so the rounding of the input is no part of the problem and C, C', C'' get no
allowance for it. A moment is allowed 1e-14 of its natural size on top of its relative tolerance, |E
phi| <= sqrt Q, |E phi'| <= sqrt(Q/q) and dQ/dq ~ Q/q: those of odd, even, Hermite and periodic
activations cancel to nothing (dQ/dq = exp(-2q) for sin). tests/tools/oracles/local_maps.py made
the truth from closed forms and 80-bit quadrature.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thinning import mostly_slow

from kcalc.activations import activation, names

FROZEN = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "oracles" / "local_maps.json.gz").read_bytes())
)
RECORDS: dict[str, dict[str, Any]] = FROZEN["records"]
SOME = slice(None, None, 8)  # 25 of the 200 points, which are in random order
ALL = slice(None)
C_ERROR, SLOPE_ERROR, GAP_ERROR, MOMENT_ERROR = 1e-13, 1e-11, 1e-12, 1e-13
ROUNDING = 1e-14
QUANTITIES = ("mean", "second_moment", "mean_slope", "q_slope")


def numbers(rows: list[list[str]]) -> np.ndarray:
    return np.array([[float(value) for value in row] for row in rows])


def far(got: np.ndarray, truth: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Where |got - truth| > allowed; infinities must be met exactly, nan is always far."""
    with np.errstate(invalid="ignore"):
        return ~np.where(np.isfinite(truth), np.abs(got - truth) <= allowed, got == truth)


def check_c_map(name: str, which: slice) -> None:
    record = RECORDS[name]
    points, truth = np.array(record["points"][which]), numbers(record["values"][which])
    c, q = points[:, 0], np.array(record["q"])
    q1, q2 = (q[points[:, i].astype(int)] for i in (1, 2))
    gap = 1 - c
    assert np.array_equal(1 - gap, c)
    drop, slope, bend = activation(name).taylor(gap, q1, q2, 2)
    found = np.stack([1 - drop, slope, 2 * bend], axis=1)
    allowed = np.maximum(1, np.abs(truth)) * SLOPE_ERROR
    allowed[:, 0] = C_ERROR
    bad = [
        f"C{chr(39) * i} at c = {c[row]:.17g}, q = {q1[row]}, {q2[row]}: {found[row, i]:.17g}, "
        f"truth {truth[row, i]:.17g}"
        for row, i in np.argwhere(far(found, truth, allowed))
    ]
    assert not bad, f"{len(bad)} of {truth.size} values are off:\n" + "\n".join(bad[:12])


@pytest.mark.parametrize("name", mostly_slow(names()))
def test_c_maps_and_two_derivatives(name):
    check_c_map(name, SOME)


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(names()))
def test_c_maps_and_two_derivatives_at_all_points(name):
    check_c_map(name, ALL)


def check_moments(name: str, which: slice) -> None:
    phi, record = activation(name), RECORDS[name]
    for q, row in zip(record["q"][which], record["moments"][which], strict=True):
        size = math.sqrt(float(row[1]))
        scales = (size, size**2, size / math.sqrt(q), size**2 / q)
        for quantity, text, scale in zip(QUANTITIES, row, scales, strict=True):
            got, truth = float(getattr(phi, quantity)(q)), float(text)
            assert abs(got - truth) <= MOMENT_ERROR * abs(truth) + ROUNDING * scale, (
                name,
                quantity,
                q,
                got,
                truth,
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_moments_at_every_q(name):
    check_moments(name, ALL)
