"""Pairs near |c| = 1 and their derivatives against tests/tools/oracles/end_zones.py.

Kinks, jumps, unequal q, both ends.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from gaussian_pieces import BENT, ELU, MIXED, STEP, STEPS, Pieces, digits, smooth
from oracles import end_zones as oracle
from refusals import refused
from thinning import mostly_slow

import kcalc as kc
from kcalc.fields.chebyshev import Piecewise, adaptive
from kcalc.gaussian.expectations import near_unit_correlation, smoothing
from kcalc.gaussian.expectations.corners import Corners, Jumps, meet
from kcalc.gaussian.expectations.near_unit_correlation import CLOSE, ZONE, EndZone
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


@pytest.mark.slow
@pytest.mark.parametrize("index", range(0, len(RECORDS), 7))
def test_the_oracle_is_what_its_script_makes(index: int) -> None:
    row = RECORDS[index]
    functions = oracle.FUNCTIONS
    again = oracle.record(
        functions[row["phi"]],
        row["q1"],
        functions[row["psi"]],
        row["q2"],
        row["sign"],
        row["theta"],
    )
    assert again == row


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


@pytest.mark.parametrize("index", mostly_slow([14, 6, 8]))
def test_small_drops_between_two_levels_are_relatively_accurate(index: int) -> None:
    """At angles below CLOSE, the drop is what the slope adds up to, not a difference of values."""
    key = KEYS[index]
    theta, _, drops = columns(key)
    close = theta < CLOSE
    tolerance = 2e-6 if index == 8 else 1e-11
    np.testing.assert_allclose(zone(key).drop(theta[close]), drops[close], rtol=tolerance)
    np.testing.assert_allclose(zone(key).drop(theta[~close]), drops[~close], atol=1e-15)


@pytest.mark.parametrize("absolute", [False, True])
def test_small_drops_at_the_lower_end(absolute: bool) -> None:
    """Gamma(-1) - Gamma(c) = -Gamma'(-1) (1 + c) to first order."""
    for index in (7, 15, 9):
        slope = ROWS[KEYS[index]][-1]["values"][1]
        drop = zone(KEYS[index]).drop(np.array([5e-5]), absolute)[0]
        assert drop == pytest.approx(-slope * 2 * math.sin(2.5e-5) ** 2, abs=1e-12)


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


def test_the_nearest_of_the_jumps_that_meet_tells_the_sign() -> None:
    """All of them weigh less than the least number there is."""
    first = Pieces("near and far", (38.0, 39.0), ((0.0,), (1.0,), (2.0,)))
    for sizes, sign in (((1.0, -99.0), 1), ((-1.0, 99.0), -1)):
        second = Pieces("signed", (38.0, 39.0), ((0.0,), sizes[:1], (sum(sizes),)))
        found = EndZone(first, 1.0, second, 1.0, 1)
        assert [found.infinity(order) for order in (1, 2)] == [sign * math.inf] * 2
        turned = EndZone(
            first,
            1.0,
            Pieces("turned", (-39.0, -38.0), ((0.0,), sizes[1:], (sum(sizes),))),
            1.0,
            -1,
        )
        assert [turned.infinity(order) for order in (1, 2)] == [sign * math.inf, -sign * math.inf]


@dataclass(frozen=True)
class Wave:
    """x^2 + cos(w x + phase)."""

    frequency: float
    phase: float = 0.3
    name: str = "wave"
    kink_points: tuple[float, ...] = ()

    def jump_sizes(self, n: int) -> tuple[float, ...]:
        return ()

    def numeric(self, n: int = 0) -> Callable[[np.ndarray], np.ndarray]:
        power = (
            (lambda x: x * x, lambda x: 2 * x, lambda x: 2 + 0 * x)[n]
            if n < 3
            else (lambda x: 0 * x)
        )
        return lambda x: (
            power(x) + self.frequency**n * np.cos(self.frequency * x + self.phase + n * math.pi / 2)
        )

    def smooth(self, m: np.ndarray, sigma: float) -> np.ndarray:
        return (
            m * m
            + sigma**2
            + np.cos(self.frequency * m + self.phase)
            * math.exp(-((self.frequency * sigma) ** 2) / 2)
        )


@pytest.mark.parametrize(
    "f",
    [STEPS, BENT, MIXED, ELU, Pieces("smooth", (), ((0.5, 1.0, 0.25),), (-0.125,))],
    ids=lambda f: f.name,
)
@pytest.mark.parametrize("sigma", [1e-6, 1e-3, 0.4, 3.0])
def test_smoothed_functions(f: Pieces, sigma: float) -> None:
    centres = np.concatenate([X, [-15.9, 15.9, 16.5], np.array([0.0, 0.3, -2.0]) * sigma + 0.75])
    for n in range(4):
        with digits(40):
            wanted = np.array([float(smooth(f, n, float(m), sigma)) for m in centres])
        found = smoothed(f, n, centres, sigma)
        allowed = 2e-14 + 1e-15 / sigma + 2e-13 * (sigma > 1)
        assert (np.abs(found - wanted) <= allowed * np.maximum(np.abs(wanted), 1)).all(), (
            n,
            found,
            wanted,
        )
        np.testing.assert_array_equal(smoothed(f, n, centres, 0.0), f.numeric(n)(centres))


@pytest.mark.parametrize(
    ("frequency", "sigma", "most"),
    [(1.0, 0.5, 1e7), (30.0, 0.02, 1e7), (30.0, 2.0, 1e7), (40.0, 1.5, 100)],
)
def test_smoothed_waves(
    frequency: float, sigma: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoothing, "_SAMPLES", most)
    wave, centres = Wave(frequency), np.linspace(-3, 3.5, 7)
    np.testing.assert_allclose(
        smoothed(wave, 0, centres, sigma), wave.smooth(centres, sigma), rtol=0, atol=3e-13
    )  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("a", "q1", "q2"), [(0.3, 1.0, 3.0), (-0.7, 2.0, 1.7), (1.1, 0.3, 5.1)])
def test_jumps_that_meet_but_for_rounding(a: float, q1: float, q2: float) -> None:
    """Gamma' is the density of (x, y) at (a, sign a): exp(-a^2/(1 + |c|))/(2 pi s)."""
    for sign in (1, -1):
        steps = [
            Pieces("step", (k * math.sqrt(q),), ((0.0,), (1.0,)))
            for k, q in ((a, q1), (sign * a, q2))
        ]
        for theta in (0.2, 1e-6, 1e-13):
            found = EndZone(steps[0], q1, steps[1], q2, sign).derivative(1, np.array([theta]))[0]
            assert found == pytest.approx(
                math.exp(-a * a / (1 + math.cos(theta))) / (2 * math.pi * math.sin(theta)),
                rel=1e-12,
            )


def test_equal_functions_may_be_taken_as_one() -> None:
    twin = replace(STEPS, name="twin")
    for order in (1, 2):
        one, two = (
            Corners(STEPS, 0.9, f, 0.9, 1, 0.01).total(order, same)
            for f, same in ((STEPS, True), (twin, False))
        )
        assert one == pytest.approx(two, rel=1e-14)


def test_tables_of_functions() -> None:
    table = adaptive(np.exp, 1.0, 3.0)
    t = np.linspace(1.0, 3.0, 41)
    assert table.edges[0] == 1.0 and table.edges[-1] == 3.0
    np.testing.assert_allclose(table(t), np.exp(t), rtol=2e-14)
    np.testing.assert_allclose(table.slope()(t), np.exp(t), rtol=2e-12)
    steep = adaptive(lambda t: np.tanh(300 * (t - 1.4)), 1.0, 3.0)
    assert np.all(np.diff(steep.edges) > 0) and len(steep.edges) < 41
    np.testing.assert_allclose(steep(t), np.tanh(300 * (t - 1.4)), atol=3e-13)
    line = Piecewise(
        np.array([2.0, 6.0, 7.0]), np.array([[1.0, 2.0, 0.5, -0.25, 0.125], [0] * 5]).T
    )
    assert line(np.array([2.0, 4.0, 6.0 - 1e-15, 6.5])) == pytest.approx(
        [1 - 2 + 0.5 + 0.25 + 0.125, 1 - 0.5 + 0.125, 1 + 2 + 0.5 - 0.25 + 0.125, 0]
    )


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


WAVE = sp.Symbol("x", real=True)


@pytest.mark.parametrize(
    "expr",
    [sp.sin(30 * WAVE), sp.cos(60 * WAVE), sp.sin(30 * WAVE + 1), sp.sin(30 * WAVE) + WAVE / 10],
)
def test_waves_need_no_integrals_near_the_ends(
    expr: sp.Expr, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed forms or Hermite series serve every c, at q values where end zones took minutes."""
    monkeypatch.setattr(
        EndZone, "_derivative_at", lambda *_: pytest.fail("an end zone is integrated")
    )
    phi = kc.activation(expr)
    for q in (1e-3, 0.05, 0.5, 1.0, 8.0):
        c = np.array([1 - 1e-6, 0.99, 0.3, -0.9, -1 + 1e-9])
        assert np.all(np.isfinite(phi.taylor(1 - c, q, order=1)))
