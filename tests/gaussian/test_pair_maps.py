"""E[phi(u) psi(v)] over all of c in [-1, 1] and its Taylor coefficients, against closed forms and
Mehler's series in many digits.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flint import arb
from gaussian_pieces import (
    BENT,
    ELU,
    MIRROR,
    MIXED,
    STEPS,
    Pieces,
    at_end,
    digits,
    hermite,
    wave,
    weighted,
)

from kcalc.activations import activation
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations import single
from kcalc.gaussian.expectations.pairs import PairMap

GAPS = np.array([0.0, 1e-14, 1e-7, 0.01, 0.3, 1.0, 1.4, 1.99, 2.0])
FUNCTIONS = {f.name: f for f in (STEPS, BENT, MIXED, MIRROR, ELU)}
RECORDS = json.loads((Path(__file__).parents[1] / "oracles" / "end_zones.json").read_text())[
    "records"
]
SIGN = Pieces("sign", (0.0,), ((-1.0,), (1.0,)))


def exponential(rate: float) -> Pieces:
    return Pieces("exp", (), ((1.0,),), (rate,))


@lru_cache(maxsize=64)
def coefficients(f: Pieces, q: float, count: int) -> list[Any]:
    """E[f(sqrt q z) He_n(z)]/sqrt n! for n < count."""
    with digits(60):
        found = weighted(f, 0, arb(q).sqrt(), [hermite(n) for n in range(count)])
        return [a / arb(math.factorial(n)).sqrt() for n, a in enumerate(found)]


def mehler(f: Pieces, q1: float, g: Pieces, q2: float, c: float, k: int) -> float:
    """Gamma^(k)(c)/k! = sum_n binom(n, k) a_n b_n c^(n-k), for |c| <= 0.5."""
    with digits(60):
        terms = zip(coefficients(f, q1, 90), coefficients(g, q2, 90), strict=True)
        return float(
            sum(
                (
                    math.comb(n, k) * a * b * arb(c) ** (n - k)
                    for n, (a, b) in enumerate(terms)
                    if n >= k
                ),
                arb(0),
            )
        )


@pytest.mark.parametrize(
    ("f", "q1", "g", "q2"),
    [(STEPS, 0.8, BENT, 1.7), (MIXED, 2.0, ELU, 0.5), (MIRROR, 1.0, MIRROR, 1.0)],
)
def test_inside(f: Pieces, q1: float, g: Pieces, q2: float) -> None:
    gaps = np.array([0.5, 0.75, 1.0, 1.25, 1.5])
    found = PairMap(f, q1, g, q2)
    values = found.taylor(gaps, 6)
    with digits(30):
        end = float(at_end(f, q1, g, q2, 1))
    size = math.sqrt(found._all[1])
    for gap, column in zip(gaps, np.stack(values, axis=1), strict=True):
        wanted = [mehler(f, q1, g, q2, 1 - gap, k) for k in range(7)]
        assert column[0] == pytest.approx(
            end - wanted[0], abs=3e-15 * size + 1e-15 * abs(end), rel=1e-13
        )
        assert column[1:] == pytest.approx(wanted[1:], rel=1e-12, abs=2e-14)
    assert not found.complete and found.whole == pytest.approx(end, rel=1e-14)


ENDS = [("steps", 0.8, "bent", 1.7), ("mirror", 1.5, "steps", 1.5), ("elu", 0.25, "elu", 3.0)]


@pytest.mark.parametrize(("phi", "q1", "psi", "q2"), ENDS)
def test_both_ends(phi: str, q1: float, psi: str, q2: float) -> None:
    """Gaps far below rounding of c, on the lower side by 1 + c where that is given."""
    found = PairMap(FUNCTIONS[phi], q1, FUNCTIONS[psi], q2)
    with digits(30):
        ends = [float(at_end(found.phi, q1, found.psi, q2, sign)) for sign in (1, -1)]
    assert [found.at_one, found.at_minus_one] == pytest.approx(ends, rel=1e-14)
    rows = [
        row
        for row in RECORDS
        if (row["phi"], row["q1"], row["psi"], row["q2"]) == (phi, q1, psi, q2)
    ]
    assert len(rows) == 8
    far = np.array([2 * math.sin(row["theta"] / 2) ** 2 for row in rows])
    upper = np.array([row["sign"] > 0 for row in rows])
    value, slope, bend = found.taylor(
        np.where(upper, far, 2 - far), 2, True, np.where(upper, 2 - far, far)
    )
    for i, row in enumerate(rows):
        wanted = ends[0] - row["values"][0] if not upper[i] else row["drop"]
        assert value[i] == pytest.approx(wanted, abs=3e-15, rel=1e-13)
        assert (slope[i], bend[i]) == pytest.approx(
            (row["values"][1], row["values"][2] / 2), rel=1e-11
        )
    with pytest.raises(KcalcError, match=r"order 3 > 2 .*\|c\| < 0\.94"):
        found.taylor(np.array([0.5, 1e-3]), 3)


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


def test_a_series_that_ends_beside_one_that_is_cut() -> None:
    """What counts is the shorter one: of 1500 terms and 640 that are not all, 640 are no whole."""
    ends, cut = wave(34.0, 0.3), STEPS
    assert (
        single.hermite(ends, 1.0).complete
        and single.hermite(ends, 1.0).coefficients.size > single.MAX_TERMS
    )
    assert not single.hermite(cut, 1.0).complete
    assert not PairMap(ends, 1.0, cut, 1.0).complete and not PairMap(cut, 1.0, ends, 1.0).complete
