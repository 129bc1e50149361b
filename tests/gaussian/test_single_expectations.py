"""Moments, q derivatives and Hermite coefficients of one function against closed forms in many
digits.
"""

from __future__ import annotations

import math
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from flint import arb
from gaussian_pieces import (
    Pieces,
    digits,
    hermite,
    wave,
    weighted,
)
from refusals import refused

import kcalc as kc
from kcalc.gaussian.expectations import single


@lru_cache(maxsize=64)
def coefficients(f: Pieces, q: float, numbers: tuple[int, ...]) -> list[float]:
    with digits(40 + max(numbers)):
        found = weighted(f, 0, arb(q).sqrt(), [hermite(n) for n in numbers])
        return [
            float(a / arb(math.factorial(n)).sqrt()) for n, a in zip(numbers, found, strict=True)
        ]


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


# -- derivatives in q where q is small -------------------------------------------------------------


def test_callables_whose_derivatives_are_lost_are_refused() -> None:
    phi = kc.activation(lambda x: np.tanh(x))
    assert phi.q_map.derivative(1)(1e-8) == pytest.approx(1, rel=1e-7)
    with refused("3.*digits.*1e-08"):
        phi.q_map.derivative(3)(1e-8)
