"""E[phi(u) psi(v)] over all of c in [-1, 1] and its Taylor coefficients, against closed forms and
Mehler's series in many digits.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import mpmath
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
    plane,
    wave,
    weighted,
)

from kcalc.activations import activation
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations import pairs, single
from kcalc.gaussian.expectations.near_unit_correlation import ZONE
from kcalc.gaussian.expectations.pairs import PairMap, pair_map
from kcalc.gaussian.expectations.single import LONGEST

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
    ("a", "q1", "b", "q2"), [(0.5, 1.0, -0.75, 2.0), (1.25, 0.5, 1.25, 0.5), (0.25, 3.0, 1.5, 0.7)]
)
def test_exponentials(a: float, q1: float, b: float, q2: float) -> None:
    """Gamma(c) = exp((a^2 q1 + b^2 q2)/2 + t c), t = a b sqrt(q1 q2)."""
    t = a * b * math.sqrt(q1 * q2)
    scale = math.exp((a * a * q1 + b * b * q2) / 2)
    found = PairMap(exponential(a), q1, exponential(b), q2)
    assert found.complete and found.same is (a == b and q1 == q2)
    values = found.taylor(GAPS, 6)
    one = scale * math.exp(t)
    np.testing.assert_allclose(values[0], -one * np.expm1(-t * GAPS), rtol=1e-13)
    for order in range(1, 7):
        wanted = scale * t**order / math.factorial(order) * np.exp(t * (1 - GAPS))
        np.testing.assert_allclose(values[order], wanted, rtol=2e-13 if order < 3 else 1e-11)
    assert (found.at_one, found.whole, found.at_minus_one) == pytest.approx(
        (one, one, scale * math.exp(-t)), rel=2e-14
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


@pytest.mark.parametrize(("f", "q1", "g", "q2"), [(STEPS, 0.8, BENT, 1.7)])
@pytest.mark.parametrize(("sign", "theta"), [(1, 0.375), (-1, 0.625)])
def test_inside_near_the_zones(
    f: Pieces, q1: float, g: Pieces, q2: float, sign: int, theta: float
) -> None:
    with digits(30):
        value, slope, bend = (float(x) for x in plane(f, q1, g, q2, sign, theta))
        end = float(at_end(f, q1, g, q2, 1))
    for others in ([], [0.5, 1.0, 1.6], [0.065]):  # the least |c| decides how many terms are summed
        found = PairMap(f, q1, g, q2).taylor(np.array([1 - sign * math.cos(theta), *others]), 2)
        assert [part[0] for part in found] == pytest.approx(
            [end - value, slope, bend / 2], rel=1e-12
        )


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


def test_gaps_are_relatively_accurate_unless_told() -> None:
    rows = [
        row
        for row in RECORDS
        if row["phi"] == row["psi"] and row["q1"] == row["q2"] == 0.05 and row["sign"] > 0
    ]
    gaps = np.array([2 * math.sin(row["theta"] / 2) ** 2 for row in rows])
    wanted = np.array([row["drop"] for row in rows])
    found = PairMap(STEPS, 0.05, STEPS, 0.05)
    assert found.taylor(gaps, 0, absolute=True)[0] == pytest.approx(wanted, abs=1e-15)
    assert found.taylor(gaps, 0)[0] == pytest.approx(wanted, rel=1e-13)


def test_where_the_zones_begin() -> None:
    """Up to theta = ZONE the tables or their functions serve; the series is not asked beyond."""
    found = PairMap(SIGN, 1.0, SIGN, 1.0)
    asked = np.array([1 - math.cos(ZONE * (1 + step)) for step in (-1e-9, 1e-9)])
    for gaps in (asked, 2 - asked):
        with pytest.raises(KcalcError):
            found.taylor(gaps[:1], 3)
        assert len(found.taylor(gaps[1:], 3)) == 4
        c = 1 - gaps
        value, slope = found.taylor(gaps, 1)
        np.testing.assert_allclose(value, 2 / math.pi * np.arccos(c), rtol=1e-13)
        np.testing.assert_allclose(slope, 2 / math.pi / np.sqrt(1 - c * c), rtol=1e-12)


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


def test_an_odd_and_an_even_activation() -> None:
    """A table of a slope that is rounding throughout."""
    odd, even = activation("hard_tanh"), activation("abs")
    for part in odd.cross(even, 1.0, 2.0, np.linspace(0.95, 1.0, 100), 1):
        assert part == pytest.approx(np.zeros(100), abs=1e-15)


def test_a_polynomial_ends_the_series() -> None:
    """E[u g(v)] is linear in c with slope sqrt(q1) a_1."""
    line = Pieces("line", (), ((0.5, 2.0),))
    for first, second, q1, q2 in ((line, STEPS, 3.0, 0.8), (STEPS, line, 0.8, 3.0)):
        found = PairMap(first, q1, second, q2)
        a = [float(x) for x in coefficients(STEPS, 0.8, 2)]
        rate = 2 * math.sqrt(3.0) * a[1]
        value, slope, bend, third = found.taylor(GAPS, 3)
        assert found.complete and found.products.size == 1
        assert value == pytest.approx(rate * GAPS, rel=1e-13) and slope == pytest.approx(
            np.full(GAPS.size, rate), rel=1e-13
        )
        assert (
            not bend.any()
            and not third.any()
            and found.at_one == pytest.approx(0.5 * a[0] + rate, rel=1e-13)
        )
        assert found.whole == pytest.approx(found.at_one, rel=1e-13)


def test_constants() -> None:
    one = Pieces("one", (), ((1.5,),))
    found = PairMap(one, 1.0, STEPS, 1.0)
    assert (
        found.products.size == 0
        and [list(part) for part in found.taylor(GAPS, 2)] == [[0.0] * GAPS.size] * 3
    )


def test_jumps_far_out_make_derivatives_infinite() -> None:
    """At c = 1 and -1 alone: they weigh less than the least number."""
    f = Pieces("far", (-38.0, 38.0), ((0.0, 1.0), (1.0, 1.0), (4.0, 1.0)))
    found = PairMap(f, 1.0, f, 1.0)
    assert found.complete
    value, slope, bend = found.taylor(GAPS, 2)
    assert list(value) == pytest.approx(list(GAPS), rel=1e-14)
    assert (slope[0], slope[-1], bend[0], bend[-1]) == (math.inf, math.inf, math.inf, -math.inf)
    assert slope[1:-1] == pytest.approx(np.ones(GAPS.size - 2), rel=1e-14)
    assert bend[1:-1] == pytest.approx(np.zeros(GAPS.size - 2), abs=1e-13)
    near = found.taylor(np.array([2.0, 2.0]), 2, rest=np.array([1e-300, 0.0]))
    assert np.isfinite(near[1][0]) and np.isinf(near[1][1])
    assert len(found.taylor(GAPS, 0)) == 1 and np.isinf(found.taylor(GAPS, 1)[1][[0, -1]]).all()
    plain = PairMap(f, 1.0, Pieces("line", (), ((0.0, 1.0),)), 1.0)
    assert np.isfinite(plain.taylor(GAPS, 2)[1]).all()


def test_many_points_at_once() -> None:
    """In chunks where one matrix would be large."""
    found, gaps = PairMap(STEPS, 1.0, STEPS, 1.0), np.linspace(0.07, 1.93, 20001)
    many = found.taylor(gaps, 2)
    few = found.taylor(gaps[::4000], 2)
    for one, other in zip(many, few, strict=True):
        assert one[::4000] == pytest.approx(other, rel=1e-13)


def test_how_many_terms_matter() -> None:
    assert pairs._needed(np.array([1.0, 1e-3, 1e-17, 1e-30]), 1.0) == 3
    assert pairs._needed(np.array([1.0, 0.0, 0.9e-18, 1e-30]), 1.0) == 1
    assert pairs._needed(np.array([0.0, -1.0, 0.0]), 1.0) == 2
    assert pairs._needed(np.array([1e-18]), 1.0) == 0


def test_maps_are_kept() -> None:
    assert (
        pair_map(STEPS, 1.0, BENT, 2.0)
        is pair_map(STEPS, 1.0, BENT, 2.0)
        is not pair_map(BENT, 1.0, STEPS, 2.0)
    )


def test_waves_at_q_values_of_unlike_length() -> None:
    """cos(w x + p): e^(-m) (cos^2 p cosh k + sin^2 p sinh k), k = w^2 c sqrt(q1 q2), m = w^2 (q1 +
    q2)/2; 400 to 7700 terms.
    """
    f = wave(30.0, 0.3)
    with mpmath.workdps(40):
        even, odd = mpmath.cos(0.3) ** 2, mpmath.sin(0.3) ** 2
        for q1, q2 in (
            (0.02, 0.02),
            (0.5, 0.5),
            (0.51, 0.56),
            (1.0, 1.03),
            (0.3, 0.6),
            (3.0, 3.0),
            (8.0, 8.0),
        ):
            found = PairMap(f, q1, f, q2)
            assert found.complete and found.products.size <= LONGEST
            k = 900 * mpmath.sqrt(mpmath.mpf(q1) * q2)
            scale = mpmath.exp(-450 * (mpmath.mpf(q1) + q2))
            for gap in (1e-12, 1e-7, 1e-3, 0.05, 1.0, 1.999):
                c = 1 - mpmath.mpf(gap)
                wanted = even * (mpmath.cosh(k) - mpmath.cosh(c * k)) + odd * (
                    mpmath.sinh(k) - mpmath.sinh(c * k)
                )
                assert found.taylor(np.array([gap]), 0)[0][0] == pytest.approx(
                    float(scale * wanted), rel=1e-11
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
