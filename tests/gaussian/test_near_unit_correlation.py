"""Pairs near |c| = 1 and their derivatives against tests/tools/oracles/end_zones.py.

Kinks, jumps, unequal q, both ends.
"""

from __future__ import annotations

import json
import math
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gaussian_pieces import BENT, STEP, STEPS, Pieces
from oracles import end_zones as oracle
from refusals import refused

from kcalc.fields.chebyshev import Piecewise, adaptive
from kcalc.gaussian.expectations import near_unit_correlation, smoothing
from kcalc.gaussian.expectations.corners import Jumps, meet
from kcalc.gaussian.expectations.near_unit_correlation import ZONE, EndZone
from kcalc.gaussian.expectations.smoothing import smoothed

RECORDS = json.loads((Path(__file__).parents[1] / "oracles" / "end_zones.json").read_text())[
    "records"
]
ROWS = {
    key: list(rows)
    for key, rows in groupby(
        RECORDS, key=lambda row: (row["phi"], row["q1"], row["psi"], row["q2"], row["sign"])
    )
}
KEYS = list(ROWS)
ALWAYS = [0, 1, 4, 5, 6, 12, 14, 15, 16, 18, 22, 26, 27, 29, 31, 33, 34, 37]
X = np.array([-3.0, -0.5, -0.2, 0.0, 0.31, 0.75, 1.2, 4.0])


def zone(key: Any) -> EndZone:
    phi, q1, psi, q2, sign = key
    return EndZone(oracle.FUNCTIONS[phi], q1, oracle.FUNCTIONS[psi], q2, sign)


def columns(key: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Angles, values and derivatives, drops."""
    return tuple(np.array([row[name] for row in ROWS[key]]) for name in ("theta", "values", "drop"))  # type: ignore[return-value]


def assert_close(
    found: np.ndarray,
    wanted: np.ndarray,
    theta: np.ndarray,
    size: float = 1.0,
    tolerance: float = 5e-14,
) -> None:
    """Rounding beside the larger of the value and ``size``, and what points that meet but for
    rounding are off by.
    """
    error = np.abs(found - wanted)
    assert (error <= tolerance * np.maximum(np.abs(wanted), size) + 1e-17 / theta).all(), (
        found,
        wanted,
    )


@pytest.mark.parametrize(
    "key",
    [
        key if i in ALWAYS else pytest.param(key, marks=pytest.mark.slow)
        for i, key in enumerate(KEYS)
    ],
)
def test_values_and_derivatives(key: Any) -> None:
    theta, values, drops = columns(key)
    found, end = zone(key), ROWS[key][0]["end"]
    size = max(1.0, *(abs(ROWS[(*key[:4], sign)][0]["end"]) for sign in (1, -1)))
    for order in (1, 2):
        assert_close(found.derivative(order, theta), values[:, order], theta, size)
    assert_close(found.drop(theta, absolute=True), drops, theta, size, 5e-15)
    assert_close(found.drop(np.zeros(1), absolute=True), np.zeros(1), np.ones(1))
    assert found._end == pytest.approx(end, rel=1e-14)


@pytest.mark.parametrize(
    "key", [KEYS[10], KEYS[12], KEYS[27], pytest.param(KEYS[4], marks=pytest.mark.slow)]
)
def test_tables_agree_with_single_values(key: Any) -> None:
    """More than a few points at once come from tables.

    The derivatives to rounding, and drops relatively accurate.
    """
    theta, values, drops = columns(key)
    many = np.concatenate([theta, [0.0], np.geomspace(1e-5, ZONE, 70)])
    found = zone(key)
    for order in (1, 2):
        slopes = found.derivative(order, many)
        assert_close(slopes[: theta.size], values[:, order], theta)
        assert slopes[theta.size] == found.infinity(order) or slopes[theta.size] == pytest.approx(
            values[-1, order], rel=1e-6
        )
    np.testing.assert_allclose(found.drop(many)[: theta.size], drops, rtol=1e-13)


INFINITE = {
    4: (1, 2),
    10: (1, 2),
    29: (1, 2),
    **dict.fromkeys((12, 16, 18, 24, 25, 26, 27, 33), (2,)),
}


@pytest.mark.parametrize("index", range(len(KEYS)))
def test_what_is_infinite_at_the_end(index: int) -> None:
    """Where corners meet, with the sign that the derivative has close by.

    Elsewhere it is continuous.
    """
    found, last = zone(KEYS[index]), ROWS[KEYS[index]][-1]["values"]
    for order in (1, 2):
        here = math.copysign(math.inf, last[order]) if order in INFINITE.get(index, ()) else 0.0
        assert found.infinity(order) == here
        if not here and index % 5 < 2 and max(map(abs, last)) < 1e4:
            assert found.derivative(order, np.zeros(1)) == pytest.approx(
                last[order], abs=1e-5 if order == 2 else 1e-8
            )


@pytest.mark.parametrize("turned", [False, True])
def test_a_jump_that_meets_a_bend(turned: bool) -> None:
    """At c = -1: Gamma'' grows like 1/sin(theta), whichever of the two functions jumps, and Gamma'
    does not grow.
    """
    one, two = (BENT, STEP) if turned else (STEP, BENT)
    found = EndZone(one, 1.3, two, 1.3, -1)
    assert [found._power(order) for order in (1, 2)] == [0, 1]
    slopes, bends = (found.derivative(order, np.array([1e-5, 1e-6])) for order in (1, 2))
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-3) and bends[1] / bends[0] == pytest.approx(
        10, rel=1e-3
    )


def test_too_many_panels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing, "_MOST", 20)
    smoothed(STEPS, 0, X, 0.01)
    with refused("'steps' varies too fast"):
        smoothed(STEPS, 0, np.linspace(-10, 10, 50), 5.0)


def test_jumps() -> None:
    far = Pieces("far", (-100.0, 0.5, 78.0), ((0.0,), (1.0,), (1.0, 1.0), (0.0, 1.0)))
    jumps = Jumps.of(far, 4.0, 0)
    assert (list(jumps.points), list(jumps.standard), list(jumps.sizes)) == (
        [0.5, 78.0],
        [0.25, 39.0],
        [0.5, -1.0],
    )
    assert (
        jumps.any and not Jumps.of(far, 4.0, 2).any and list(Jumps.of(far, 4.0, 1).points) == [0.5]
    )
    assert list(
        meet(np.array([0.0, 1.0, 1.0, -3.0]), np.array([0.0, 1 + 5e-14, 1 + 3e-13, 3.0]))
    ) == [True, True, False, False]


def _count(table: Piecewise) -> int:
    return len(table.edges) - 1


def test_how_far_tables_go() -> None:
    """A function small beside the floor needs no panels; noise is no reason for more.

    What never settles is refused.
    """
    wild = np.random.default_rng(0)
    assert _count(adaptive(lambda t: 1e-17 * np.sin(1000 * t), 0.0, 0.35, floor=1.0)) == 1
    assert _count(adaptive(lambda t: 1e-17 * np.sin(1000 * t), 0.0, 0.35)) > 10
    assert _count(adaptive(lambda t: 1 + 1e-14 * wild.standard_normal(t.size), 0.0, 0.35)) == 1
    assert (
        _count(
            adaptive(
                lambda t: 1 + 1e-14 / (t + 1e-3) * wild.standard_normal(t.size),
                0.0,
                0.35,
                noise=1e-13,
            )
        )
        < 12
    )
    with refused("cannot be tabulated"):
        adaptive(lambda t: wild.standard_normal(t.size), 0.0, 0.35)
    # a jump is narrowed down
    assert _count(adaptive(lambda t: np.sign(t - 0.1234), 0.0, 0.35)) < 50
    assert near_unit_correlation._FEW < 100
