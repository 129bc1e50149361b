"""Moments, q derivatives and Hermite coefficients of one function against closed forms in many
digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import pytest
from flint import arb, arb_poly
from gaussian_pieces import (
    BENT,
    ELU,
    MIRROR,
    MIXED,
    STEPS,
    Given,
    Pieces,
    digits,
    hermite,
    product,
    wave,
    weighted,
)
from refusals import refused

import kcalc as kc
from kcalc.gaussian.expectations import q_series, single

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


# -- derivatives in q where q is small -------------------------------------------------------------


def test_callables_whose_derivatives_are_lost_are_refused() -> None:
    phi = kc.activation(lambda x: np.tanh(x))
    assert phi.q_map.derivative(1)(1e-8) == pytest.approx(1, rel=1e-7)
    with refused("3.*digits.*1e-08"):
        phi.q_map.derivative(3)(1e-8)
