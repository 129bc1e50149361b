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
import sympy as sp
from gaussian_pieces import STEPS
from oracles import end_zones as oracle
from refusals import refused

from kcalc.activations import activation
from kcalc.fields.chebyshev import Piecewise, adaptive
from kcalc.gaussian.expectations import near_unit_correlation, smoothing
from kcalc.gaussian.expectations.near_unit_correlation import ZONE, EndZone
from kcalc.gaussian.expectations.rough import slope_square
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


def test_too_many_panels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing, "_MOST", 20)
    smoothed(STEPS, 0, X, 0.01)
    with refused("'steps' varies too fast"):
        smoothed(STEPS, 0, np.linspace(-10, 10, 50), 5.0)


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


def test_square_roots_at_the_ends() -> None:
    """Near c = -1, sqrt(u v)^-1/4 is integrated where u, v > 0 and u + v is as small as 1 + c.

    Its mean is N(0) pi/8, and E sqrt(u)^2 = N(0).
    """
    x = sp.Symbol("x", real=True)
    steep = activation(sp.Piecewise((0, x < 0), (sp.sqrt(x), True)))
    slope = steep.c_map.derivative(1)
    assert slope(-1.0) == pytest.approx(math.pi / 8, rel=1e-12)
    assert (
        slope(1.0) == slope_square(steep, 1.0) == slope_square(activation("sign"), 1.0) == math.inf
    )
    with refused("almost diverges"):
        activation(x ** sp.Rational(501, 1000) * sp.Heaviside(x)).c_map.derivative(1)(1.0)
