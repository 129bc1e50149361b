"""Moments, q derivatives and Hermite coefficients of one function against closed forms in many
digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from flint import arb, arb_poly
from gaussian_pieces import (
    BENT,
    ELU,
    MIRROR,
    MIXED,
    STEPS,
    Given,
    Pieces,
    at_end,
    digits,
    hermite,
    product,
    wave,
    weighted,
)
from refusals import refused

import kcalc as kc
from kcalc.activations import X
from kcalc.fields.chebyshev import Piecewise
from kcalc.gaussian.expectations import q_series, quadrature, single
from kcalc.gaussian.expectations.corners import Corners, Jumps
from kcalc.gaussian.expectations.quadrature import Profile, Rule

SMOOTH = Pieces("smooth", (), ((0.5, 1.0, -0.25),), (0.375,))
KINKED = [STEPS, BENT, MIXED, MIRROR, ELU]
LEVELS = (0.02, 1.25, 30.0)


def moments(f: Pieces, q: float, *factors: arb_poly, power: int = 1) -> list[float]:
    with digits(50):
        return [float(value) for value in weighted(f, 0, arb(q).sqrt(), factors, power)]


def series(function: Callable[[Any], Any], q: float, order: int) -> list[float]:
    """Taylor coefficients by differences, of so many digits that their error does not show."""
    with digits(160):
        h = arb(10) ** -25
        at = {k: function(arb(q) + k * h) for k in range(-order, order + 1)}
        out = []
        for n in range(order + 1):  # central differences of step 2h
            total = sum(((-1) ** i * math.comb(n, i) * at[n - 2 * i] for i in range(n + 1)), arb(0))
            out.append(float(total / ((2 * h) ** n * math.factorial(n))))
        return out


@pytest.mark.parametrize("f", [*KINKED, SMOOTH], ids=lambda f: f.name)
@pytest.mark.parametrize("q", LEVELS)
def test_moments_and_slopes(f: Pieces, q: float) -> None:
    one, second = hermite(0), hermite(2)
    mean, slope = moments(f, q, one, hermite(1))
    square, bend = moments(f, q, one, second, power=2)
    size = math.sqrt(square)
    assert single.mean(f, q) == pytest.approx(mean, rel=1e-14, abs=1e-14 * size)
    assert single.second_moment(f, q) == pytest.approx(square, rel=3e-14)
    assert single.mean_slope(f, q) == pytest.approx(
        slope / math.sqrt(q), rel=1e-13, abs=1e-14 * size
    )
    assert single.q_slope(f, q) == pytest.approx(bend / (2 * q), rel=1e-12, abs=1e-14 * square)


@pytest.mark.parametrize("f", [STEPS, MIXED, SMOOTH], ids=lambda f: f.name)
def test_series_in_q(f: Pieces) -> None:
    q, order, one = 0.75, 3, [hermite(0)]
    for power in (1, 2, 3):
        wanted = series(lambda t, power=power: weighted(f, 0, t.sqrt(), one, power)[0], q, order)
        assert q_series.moment_series(f, power, q, order) == pytest.approx(
            wanted, rel=1e-12, abs=1e-13
        )
    wanted = series(lambda t: weighted(f, 0, t.sqrt(), [hermite(1)])[0] / t.sqrt(), q, order)
    assert q_series.slope_series(f, q, order) == pytest.approx(wanted, rel=1e-12, abs=1e-13)
    other = BENT
    wanted = series(lambda t: weighted(product(f, other), 0, t.sqrt(), one)[0], q, order)
    assert q_series.product_series(f, other, q, order) == pytest.approx(
        wanted, rel=1e-12, abs=1e-13
    )


@pytest.mark.parametrize(
    ("f", "g"),
    [(STEPS, BENT), (BENT, MIRROR), (ELU, ELU), (MIXED, MIXED), (SMOOTH, MIRROR)],
    ids=lambda f: f.name,
)
def test_moments_of_pairs_at_the_ends(f: Pieces, g: Pieces) -> None:
    for q1, q2, sign in ((1.0, 1.0, 1), (1.0, 1.0, -1), (0.3, 2.7, 1), (2.7, 0.3, -1)):
        with digits(30):
            wanted = float(at_end(f, q1, g, q2, sign))
        found = (
            single.pair_moment(f, q1, g, q2, sign) if sign < 0 else single.pair_moment(f, q1, g, q2)
        )
        assert found == pytest.approx(wanted, rel=2e-14, abs=1e-14)


@pytest.mark.parametrize("f", [BENT, STEPS, SMOOTH], ids=lambda f: f.name)
@pytest.mark.parametrize(("q1", "q2"), [(0.5, 3.0), (1.0, 1.0 + 2.0**-20), (2.0, 2.0)])
def test_distances_between_levels_are_relatively_accurate(f: Pieces, q1: float, q2: float) -> None:
    with digits(40):
        first, second = (weighted(f, 0, arb(q).sqrt(), [hermite(0)], 2)[0] for q in (q1, q2))
        wanted = float(1 - at_end(f, q1, f, q2, 1) / (first * second).sqrt()) if q1 != q2 else 0.0
    assert single.pair_distance(f, q1, q2) == pytest.approx(wanted, rel=1e-9, abs=0)


def test_edges_of_both_meshes() -> None:
    """Kinks of both, those of the second reflected, over the wider of the ranges."""
    for sign in (1, -1):
        edges = quadrature.joint_edges(BENT, 4.0, STEPS, 0.25, sign)
        own, other = single.z_edges(BENT, 4.0), single.z_edges(STEPS, 0.25)
        assert set(edges) == {*own, *(sign * other)} and list(edges) == sorted(edges)
        assert {-0.25, 0.5, sign * -1.0, sign * 1.5} <= set(edges)
    assert quadrature.joint_edges(ELU, 1.0, ELU, 1.0, 1, 10.0)[-1] < 8


@lru_cache(maxsize=64)
def coefficients(f: Pieces, q: float, numbers: tuple[int, ...]) -> list[float]:
    with digits(40 + max(numbers)):
        found = weighted(f, 0, arb(q).sqrt(), [hermite(n) for n in numbers])
        return [
            float(a / arb(math.factorial(n)).sqrt()) for n, a in zip(numbers, found, strict=True)
        ]


@pytest.mark.parametrize("f", [STEPS, MIXED, ELU], ids=lambda f: f.name)
@pytest.mark.parametrize("q", [0.3, 6.0])
def test_hermite_coefficients_of_functions_with_kinks(f: Pieces, q: float) -> None:
    found, numbers = single.hermite(f, q), (1, 2, 3, 4, 31, 32, 33, 64, 97, 160)
    wanted, (mean,), (square,) = (
        coefficients(f, q, numbers),
        moments(f, q, hermite(0)),
        moments(f, q, hermite(0), power=2),
    )
    np.testing.assert_allclose(
        found.coefficients[np.array(numbers) - 1], wanted, rtol=0, atol=4e-15 * math.sqrt(square)
    )
    assert found.mean == pytest.approx(mean, rel=1e-14)
    assert found.variance == pytest.approx(square - mean * mean, rel=1e-13)
    assert not found.complete and found.coefficients.size == single.MAX_TERMS == 640
    assert (
        found.tail == pytest.approx(square - mean * mean - sum(found.coefficients**2), rel=1e-9)
        and found.tail > 1e-12
    )


def test_what_the_cut_series_leaves_out() -> None:
    """sign: a_n^2 = 2/pi ((n-2)!!)^2/n! for odd n.

    Those beyond the last kept add up to the tail.
    """
    sign = Pieces("sign", (0.0,), ((-1.0,), (1.0,)))
    found, part, left = single.hermite(sign, 3.0), 2 / math.pi, 1.0
    for n in range(1, 641, 2):
        assert found.coefficients[n - 1] == pytest.approx(
            math.sqrt(part) * (-1) ** (n // 2), abs=3e-15
        )
        left -= part
        part *= n * n / ((n + 1) * (n + 2))
    assert found.tail == pytest.approx(left, rel=1e-11)
    assert not found.coefficients[1::2].any() or abs(found.coefficients[1::2]).max() < 3e-15


@pytest.mark.parametrize(("rate", "q"), [(0.375, 1e-3), (0.375, 20.0), (-1.5, 4.0)])
def test_hermite_coefficients_of_exponentials(rate: float, q: float) -> None:
    """exp(b x): a_n = exp(b^2 q/2) (b sqrt q)^n/sqrt(n!), known until they are rounding beside the
    whole.
    """
    found, t = single.hermite(Pieces("exp", (), ((1.0,),), (rate,)), q), rate * math.sqrt(q)
    scale = math.exp(t * t / 2)
    deviation = scale * math.sqrt(math.expm1(t * t))
    wanted = [scale * t**n / math.exp(math.lgamma(n + 1) / 2) for n in range(1, 100)]
    assert found.complete and found.tail == 0.0
    assert found.mean == pytest.approx(scale, rel=1e-14) and found.variance == pytest.approx(
        deviation**2, rel=1e-13
    )
    np.testing.assert_allclose(
        found.coefficients, wanted[: found.coefficients.size], rtol=0, atol=2e-15 * deviation
    )
    kept = max(n for n, a in enumerate(wanted, start=1) if abs(a) > 6e-16 * deviation)
    assert kept <= found.coefficients.size <= kept + 12


@pytest.mark.parametrize(
    ("frequency", "q", "complete"),
    [
        (1.0, 0.3, True),
        (2.0, 9.0, True),
        (18.0, 1.0, True),
        (34.0, 1.0, True),
        (30.0, 11.0, True),
        (200.0, 1.0, False),
    ],
)
def test_hermite_coefficients_of_waves(frequency: float, q: float, complete: bool) -> None:
    """cos(w x + p): a_n = exp(-w^2 q/2) (w sqrt q)^n cos(p + n pi/2)/sqrt(n!)."""
    found, t = single.hermite(wave(frequency, 0.3), q), frequency * math.sqrt(q)
    terms = max(640, found.coefficients.size)
    n = np.arange(1, terms + 1)
    with mpmath.workdps(30):
        logs = [
            -(mpmath.mpf(t) ** 2) / 2 + k * mpmath.log(t) - mpmath.loggamma(k + 1) / 2
            for k in map(int, n)
        ]
        wanted = np.array([float(mpmath.exp(log)) for log in logs]) * np.cos(
            0.3 + n % 4 * math.pi / 2
        )
    assert found.complete is complete
    got = np.append(found.coefficients, np.zeros(terms - found.coefficients.size))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-14)
    variance = (1 + math.exp(-2 * t * t) * math.cos(0.6)) / 2 - (
        math.exp(-t * t / 2) * math.cos(0.3)
    ) ** 2
    assert found.variance == pytest.approx(variance, rel=1e-13)
    assert found.tail == pytest.approx(0.0 if complete else variance - sum(wanted**2), rel=1e-9)


def test_polynomials_have_as_many_terms_as_their_degree() -> None:
    """x^3 - x: sqrt 6 q^(3/2) h_3 + (3 q^(3/2) - sqrt q) h_1; what has no variance has no terms."""
    found = single.hermite(Pieces("cubic", (), ((0.0, -1.0, 0.0, 1.0),)), 4.0)
    assert found.complete and found.coefficients == pytest.approx(
        [22.0, 0.0, 8 * math.sqrt(6)], abs=1e-13
    )
    constant = single.hermite(Pieces("constant", (), ((2.0,),)), 4.0)
    assert (constant.mean, constant.coefficients.size, constant.tail) == (
        pytest.approx(2.0, rel=1e-15),
        0,
        0.0,
    )


def narrow(width: float) -> Given:
    """x + exp(-((x - 1)/width)^2/2)."""
    bump = lambda x: np.exp(-(((x - 1) / width) ** 2) / 2)  # noqa: E731
    y = lambda x: (x - 1) / width  # noqa: E731
    return Given(
        "narrow",
        (
            lambda x: x + bump(x),
            lambda x: 1 - y(x) / width * bump(x),
            lambda x: (y(x) ** 2 - 1) / width**2 * bump(x),
            lambda x: (3 * y(x) - y(x) ** 3) / width**3 * bump(x),
        ),
        landmarks=((1.0, width),),
    )


@pytest.mark.parametrize("width", [1.5, 0.3, 0.05, 0.004])
def test_narrow_features_are_not_stepped_over(width: float) -> None:
    """E of the bump: a Gaussian integral; with x h_1 and the bump's moments."""
    q, f = 1.0, narrow(width)
    s = width * width
    # E bump, the bump being centred at 1/(1 + s) under the normal
    share = width / math.sqrt(1 + s) * math.exp(-1 / (2 * (1 + s)))
    centre, twice = 1 / (1 + s), width / math.sqrt(2 + s) * math.exp(-1 / (2 + s))
    found = single.hermite(f, q)
    assert found.mean == pytest.approx(share, rel=1e-13)
    assert found.variance == pytest.approx(1 + 2 * centre * share + twice - share**2, rel=1e-13)
    assert found.coefficients[0] == pytest.approx(1 + centre * share, rel=1e-13)
    spread = s / (1 + s)
    assert found.coefficients[1] == pytest.approx(
        share * (centre**2 + spread - 1) / math.sqrt(2), abs=1e-14
    )
    assert found.complete is (width > 1)


def test_grids_are_for_smooth_functions_that_they_resolve() -> None:
    def grid(f: Profile, q: float) -> Any:
        return single.grid_for(f, q)

    assert grid(STEPS, 1.0) is None and grid(wave(300.0, 0.0), 1.0) is None
    left = Pieces("left", (), ((1.0,),), (-1.5,))
    for f, q in (
        (SMOOTH, 1.0),
        (wave(3.0, 0.2), 2.0),
        (narrow(0.3), 1.0),
        (left, 4.0),
        (SMOOTH, 1e-3),
    ):
        found = grid(f, q)
        z, w = found.nodes.z, found.nodes.w
        assert (
            z == pytest.approx(-z[::-1], abs=0)
            and np.ptp(np.diff(z)) < 1e-15
            and found.half[0] == 0
            and found.half[-1] == z[-1]
        )
        assert [float(w @ z**k) for k in range(9)] == pytest.approx(
            [1, 0, 1, 0, 3, 0, 15, 0, 105], rel=1e-13, abs=1e-13
        )
        values = f.numeric(0)(math.sqrt(q) * z)
        assert float(w @ values**2) == pytest.approx(single.second_moment(f, q), rel=1e-14)


def test_a_wave_does_not_come_back_as_a_slower_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing known of its panels, the sums over every second node tell that the first grid is
    too coarse for the wave.
    """
    monkeypatch.setattr(single, "_PHASE", 0.0)
    f = wave(45.0, 0.2)
    found: Any = single.grid_for(f, 1.0)
    assert np.diff(found.nodes.z).max() <= 1 / 16
    assert abs(next(found.projections(f.numeric(0)(found.nodes.z)))).max() < 1e-14


@pytest.mark.parametrize("kind", [single.Hermite, Rule, Piecewise, Jumps, Corners])
def test_what_caches_share_cannot_be_changed(kind: Any) -> None:
    assert is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


# -- derivatives in q where q is small -------------------------------------------------------------


@pytest.mark.parametrize("q", [1e-14, 1e-10, 1e-6, 1e-3])
def test_derivatives_in_q_keep_their_digits_at_small_q(q: float) -> None:
    """By Taylor series: sigmoid^2 = 1/4 + x/4 + x^2/16 - x^3/48 - x^4/96 + ... + 17 x^6/11520 ...,
    tanh^2 = x^2 - 2 x^4/3 + 17 x^6/45 - 62 x^8/315 ...; odd powers have mean 0."""
    small = 300 * q  # of the terms left out, and relative
    sigmoid, tanh = kc.activation("sigmoid").q_map, kc.activation("tanh").q_map
    for order, wanted in ((1, 1 / 16), (2, -1 / 16), (3, 17 / 128)):
        assert sigmoid.derivative(order)(q) == pytest.approx(wanted, rel=small + 1e-13)
    for order, wanted in ((1, 1 - 4 * q), (2, -4 + 34 * q), (3, 34 - 496 * q)):
        assert tanh.derivative(order)(q) == pytest.approx(wanted, rel=1e4 * q * q + 1e-12)


def test_kinks_and_jumps_at_small_q() -> None:
    """(|x| + 1)^2 has Q = q + 2 sqrt(2 q/pi) + 1; relu has Q = q/2.

    a step at x has Q' = x exp(-x^2/2q) / (2 sqrt(2 pi q^3)).
    """
    bent = kc.activation(sp.Abs(X) + 1).q_map
    q, root = 1e-10, math.sqrt(2 / math.pi)
    found = [float(bent.derivative(order)(q)) for order in (1, 2, 3)]
    assert found == pytest.approx(
        [1 + root * q**-0.5, -root * q**-1.5 / 2, 3 * root * q**-2.5 / 4], rel=1e-12
    )
    relu = kc.activation("relu").q_map
    assert [relu.derivative(order)(q) for order in (1, 2, 3)] == pytest.approx(
        [0.5, 0, 0], abs=1e-15
    )
    step = kc.activation(sp.Heaviside(X - sp.Rational(1, 10**5), 0)).q_map
    wanted = 1e-5 * math.exp(-1e-10 / (2 * q)) / (2 * math.sqrt(2 * math.pi * q**3))
    assert step.derivative(1)(q) == pytest.approx(wanted, rel=1e-12)


def test_callables_whose_derivatives_are_lost_are_refused() -> None:
    phi = kc.activation(lambda x: np.tanh(x))
    assert phi.q_map.derivative(1)(1e-8) == pytest.approx(1, rel=1e-7)
    with refused("3.*digits.*1e-08"):
        phi.q_map.derivative(3)(1e-8)


def test_q_values_that_wander_share_their_nodes() -> None:
    """The last digits of q change from layer to layer in a deep network.

    Kinks have to stand at panel edges at every q.
    """
    near = 0.7 * (1 + 1e-12)
    assert quadrature.rule(SMOOTH, 0.7) is quadrature.rule(SMOOTH, near) and quadrature.rule(
        STEPS, 0.7
    ) is not quadrature.rule(STEPS, near)
    assert quadrature.rule(SMOOTH, 0.7) is not quadrature.rule(SMOOTH, 0.7 * (1 + 1e-8))
    assert all(quadrature.neighbour(SMOOTH, q) == q for q in (1.0, 0.5, 3.0, 2.0**-1000))
    for q in (0.7, near, 123.456, 3e-7):
        assert quadrature.neighbour(SMOOTH, q) == pytest.approx(q, rel=2.0**-29)
        f = wave(2.0, 0.2)
        second = (1 + math.exp(-8 * q) * math.cos(0.4)) / 2
        assert single.second_moment(f, q) == pytest.approx(second, rel=1e-14)


def test_expansions_do_not_depend_on_those_before() -> None:
    phi = kc.activation("tanh")
    caches = (single.hermite, single._checked_grid, single._kept_grid)

    def fresh(*sizes: float) -> Any:
        for cache in caches:
            cache.cache_clear()
        return [single.hermite(phi, q) for q in sizes][-1].coefficients

    alone = fresh(3.1)
    assert np.array_equal(fresh(40.0, 3.3, 3.0, 0.2, 3.1), alone)
    top = single._range_top(3.1)
    assert 3.1 <= top <= 3.1 * 1.19 and single._range_top(top) == pytest.approx(top, rel=1e-15)
