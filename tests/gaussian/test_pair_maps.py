"""E[phi(u) psi(v)] over all of c in [-1, 1] and its Taylor coefficients, against closed forms and
Mehler's series in many digits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from flint import arb
from gaussian_pieces import (
    STEPS,
    Pieces,
    digits,
    hermite,
    weighted,
)

from kcalc.activations import activation
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations.pairs import PairMap

GAPS = np.array([0.0, 1e-14, 1e-7, 0.01, 0.3, 1.0, 1.4, 1.99, 2.0])
SIGN = Pieces("sign", (0.0,), ((-1.0,), (1.0,)))


def exponential(rate: float) -> Pieces:
    return Pieces("exp", (), ((1.0,),), (rate,))


@lru_cache(maxsize=64)
def coefficients(f: Pieces, q: float, count: int) -> list[Any]:
    """E[f(sqrt q z) He_n(z)]/sqrt n! for n < count."""
    with digits(60):
        found = weighted(f, 0, arb(q).sqrt(), [hermite(n) for n in range(count)])
        return [a / arb(math.factorial(n)).sqrt() for n, a in enumerate(found)]


def sign_series(c: float, count: int) -> list[float]:
    return [2 / math.pi * x for x in arcsine(c, count)]


def erf_series(c: float, count: int) -> list[float]:
    """E[erf(u) erf(v)] = 2/pi asin(2q c/(1 + 2q)), here with q = 1/2."""
    return [2 / math.pi * x / 2**n for n, x in enumerate(arcsine(c / 2, count))]


def exponential_series(c: float, count: int) -> list[float]:
    """exp(u/2) with exp(v), q = 2."""
    return [math.exp(1.25 + c) / math.factorial(n) for n in range(count + 1)]


HIGH = {
    "sign": (
        lambda: PairMap(SIGN, 2.0, SIGN, 3.0),
        sign_series,
        {0.0: 12, 0.5: 12, 0.875: 12, 0.9375: 5},
    ),
    "erf": (
        lambda: PairMap(activation("erf"), 0.5, activation("erf"), 0.5),
        erf_series,
        {0.0: 12, 0.5: 16, 0.9: 12, -1.0: 8, 1.0: 8},
    ),
    "exp": (
        lambda: PairMap(exponential(0.5), 2.0, exponential(1.0), 2.0),
        exponential_series,
        {0.5: 8, 0.9: 8, -0.9: 8, 1.0: 5},
    ),
}


@pytest.mark.parametrize("name", HIGH)
def test_high_derivatives_are_right_or_refused(name: str) -> None:
    """Off by no more than 1e-10 max(1, |C^(k)|), or named with c.

    And what double precision can deliver is delivered.
    """
    make, series, served = HIGH[name]
    found, refused = make(), 0
    size = found._all[1]
    for c, last in served.items():
        wanted = np.array(series(c, 20))
        for order in range(3, 21):
            try:
                value = found.taylor(np.array([1.0 - c]), order)[order][0]
            except KcalcError as error:
                assert (
                    order > last
                    and f"derivative {order} of" in str(error)
                    and f"at |c| = {abs(c):.3f}" in str(error)
                ), (c, order)
                refused += 1
                break
            height = math.factorial(order) / size
            assert abs(value - wanted[order]) * height <= 1e-10 * max(
                1, abs(wanted[order]) * height
            ), (c, order)
    assert refused


def arcsine(c: float, count: int) -> list[float]:
    """Taylor coefficients of arcsin at c."""
    from mpmath import mp, mpf, taylor

    with mp.workdps(60):
        return [float(x) for x in taylor(mp.asin, mpf(c), count)]


def test_odd_and_even_functions_have_nothing_in_common() -> None:
    """Both series are cut, and what is left out of both may hide something: the zones are asked."""
    even = Pieces("abs", (0.0,), ((0.0, -1.0), (0.0, 1.0)))
    found = PairMap(SIGN, 1.0, even, 2.0)
    assert not found.complete
    assert found.taylor(GAPS, 2)[0] == pytest.approx(np.zeros(GAPS.size), abs=1e-15)
    assert found.at_one == pytest.approx(0, abs=1e-15)


def test_constants() -> None:
    one = Pieces("one", (), ((1.5,),))
    found = PairMap(one, 1.0, STEPS, 1.0)
    assert (
        found.products.size == 0
        and [list(part) for part in found.taylor(GAPS, 2)] == [[0.0] * GAPS.size] * 3
    )
