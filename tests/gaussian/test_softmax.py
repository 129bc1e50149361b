"""Overlaps of softmax rows against 20 digits of tests/oracles/softmax.json, and their limits
against forms of their own.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from refusals import refused

from kcalc.gaussian.certified.softmax import self_overlap_ball
from kcalc.gaussian.softmax import (
    Overlap,
    causal_overlaps,
    overlap_gap,
    self_overlap,
    sink_overlap,
    sink_self_overlap,
)

FROZEN = json.loads((Path(__file__).parents[1] / "oracles" / "softmax.json").read_text())
Array = np.ndarray


def relative(found: float, expected: str) -> float:
    return float(abs(mp.mpf(found) / mp.mpf(expected) - 1))


@pytest.mark.parametrize("row", FROZEN["pairs"], ids=lambda row: "-".join(map(str, row["point"])))
def test_overlaps(row: Any) -> None:
    """S to 1e-13, dS/dk and dS/dv1 to 1e-12; rows exchanged.

    The second derivative belongs to the other row.
    """
    (tokens, v1, v2, k), (value, slope, bend) = row["point"], row["values"]
    row1, row2 = Overlap(tokens, v1, v2, k), Overlap(tokens, v2, v1, k)
    for found in (row1, row2):
        assert relative(found.value, value) <= 1e-13
        assert relative(found.by_covariance, slope) <= 1e-12
    floor = 1e-13 * abs(float(slope))  # dS/dv1 changes its sign
    assert abs(row1.by_variance1 - float(bend)) <= 1e-12 * abs(float(bend)) + floor
    assert abs(row2.by_variance2 - float(bend)) <= 1e-12 * abs(float(bend)) + floor


@pytest.mark.parametrize("row", FROZEN["alone"], ids=lambda row: "-".join(map(str, row["point"])))
def test_self_overlaps(row: Any) -> None:
    (tokens, variance), (value, slope) = row["point"], row["values"]
    full = Overlap(tokens, variance, variance, variance)
    assert relative(self_overlap(tokens, variance), value) <= 1e-13
    assert relative(full.value, value) <= 1e-13
    assert relative(full.by_covariance + full.by_variance1 + full.by_variance2, slope) <= 2e-12


def reference_gap(tokens: int, variance: float, below: float) -> mp.mpf:
    """``S_self - S`` for two tokens in 40 digits.

    A = (s(x), s(-x)) with the logistic s, so that it is ``E (s(x) - s(y))^2``.
    """
    with mp.workdps(40):
        v, apart = mp.mpf(variance), mp.mpf(below)
        # x - y = d, x + y = m: independent, of variances 4 below and 8 v - 4 below
        d, m = mp.sqrt(4 * apart), mp.sqrt(8 * v - 4 * apart)
        grids = [
            [
                (step * k, mp.npdf(step * k) * step)
                for k in range(-round(9 / step), round(9 / step) + 1)
            ]
            for step in (0.5, 0.25)
        ]
        total = mp.mpf(0)
        for z, w in grids[0]:
            for y, u in grids[1]:
                one, two = (m * y + d * z) / 2, (m * y - d * z) / 2
                total += (
                    w
                    * u
                    * (mp.sinh((one - two) / 2) / (2 * mp.cosh(one / 2) * mp.cosh(two / 2))) ** 2
                )
        return total


@pytest.mark.parametrize("variance", [0.25, 2.0])
@pytest.mark.parametrize("share", [1e-10, 1e-6, 2e-4, 0.01, 0.3])
def test_gaps_keep_their_digits(variance: float, share: float) -> None:
    below = variance * share
    assert (
        relative(overlap_gap(2, variance, below), str(reference_gap(2, variance, below))) <= 1e-12
    )


@pytest.mark.parametrize(("tokens", "variance"), [(7, 1.0), (300, 4.0), (4096, 9.0)])
def test_gaps_join(tokens: int, variance: float) -> None:
    """The quadrature for close rows and the difference for distant ones agree where they meet.

    The gap starts with slope dS/dk.
    """
    for below in (1e-7, 1e-3, 0.05):
        one = overlap_gap(tokens, variance, below * (1 - 1e-9))
        two = overlap_gap(tokens, variance, below * (1 + 1e-9))
        assert one == pytest.approx(two, rel=1e-8)
    slope = Overlap(tokens, variance, variance, variance).by_covariance
    assert overlap_gap(tokens, variance, 1e-12 * variance) == pytest.approx(
        slope * 1e-12 * variance, rel=1e-10
    )


@pytest.mark.parametrize("tokens", [2, 5, 1000, 65536])
def test_limits(tokens: int) -> None:
    """Small scores ``S = 1/T + k (T-1)/T^2``; independent rows 1/T; rows that are certain.

    Two tokens.
    """
    small = Overlap(tokens, 1e-12, 1e-12, 4e-13)
    assert small.value == pytest.approx(1 / tokens, rel=1e-11)
    assert small.by_covariance == pytest.approx((tokens - 1) / tokens**2, rel=1e-10)
    assert self_overlap(tokens, 0.0) == pytest.approx(1 / tokens, rel=1e-14)
    assert Overlap(tokens, 0.0, 3.0, 0.0).value == pytest.approx(1 / tokens, rel=1e-13)
    apart = Overlap(tokens, 1.5, 4.0, 0.0)
    assert apart.value == pytest.approx(1 / tokens, rel=1e-13)
    # E P_A = (1 - S_self) / T times the centring matrix T/(T-1) (I - 1/T): the trace of the product
    # of two
    both = (1 - self_overlap(tokens, 1.5)) * (1 - self_overlap(tokens, 4.0)) / (tokens - 1)
    assert apart.by_covariance == pytest.approx(both, rel=1e-12)
    assert Overlap(tokens, 2.0, 2.0, 2.0).value == pytest.approx(
        self_overlap(tokens, 2.0), rel=1e-13
    )


def test_one_token() -> None:
    row = Overlap(1, 2.0, 3.0, 1.0)
    assert (row.value, row.by_covariance, row.by_variance1, row.by_variance2) == (1, 0, 0, 0)
    assert self_overlap(1, 2.0) == 1 and overlap_gap(1, 2.0, 0.5) == 0


@pytest.mark.parametrize("variance", [0.04, 0.25])
def test_many_tokens(variance: float) -> None:
    """``T S -> e^k`` and ``T S_self -> e^v`` as T grows, with deviations of order 1 / T."""
    for k in (0.6 * variance, -0.6 * variance):
        errors = [
            (T, abs(T * Overlap(T, variance, variance, k).value - math.exp(k)))
            for T in (1 << 10, 1 << 14)
        ]
        assert errors[1][1] < 1e-4 and errors[0][1] / errors[1][1] == pytest.approx(16, rel=0.02)
    assert (1 << 20) * self_overlap(1 << 20, variance) == pytest.approx(
        math.exp(variance), rel=1e-5
    )


def test_the_difference_is_the_integral_of_the_slope() -> None:
    x, weights = np.polynomial.legendre.leggauss(40)
    slopes = [Overlap(20, 3.0, 3.0, 1.5 * (1 + t)).by_covariance for t in x]
    assert 1.5 * float(weights @ slopes) == pytest.approx(self_overlap(20, 3.0) - 1 / 20, rel=1e-12)


@pytest.mark.parametrize("case", [(3, 1.5, 0.4, 0.6), (12, 4.0, 4.0, -2.0), (40, 1.0, 1.0, 1.0)])
def test_rows_over_the_first_tokens(case: tuple[int, float, float, float]) -> None:
    tokens, v1, v2, k = case
    table = causal_overlaps(tokens, v1, v2, k)
    for i, j in ((1, tokens), (tokens, 1), (2, tokens), (tokens, tokens), (tokens, 2)):
        least = min(i, j)
        one, two = (v1, v2) if i <= j else (v2, v1)
        assert table[i - 1, j - 1] == pytest.approx(
            Overlap(least, one, two, k, more=max(i, j) - least).value, rel=1e-12
        )
    # a row of one token sees that token alone
    assert table[0, 1:] == pytest.approx(1 / np.arange(2, tokens + 1), rel=1e-12)
    rng = np.random.default_rng(2)
    z = rng.standard_normal((2, 20_000, tokens))
    second = k / math.sqrt(v1) * z[0] + math.sqrt(max(v2 - k * k / v1, 0)) * z[1]
    a, b = (
        np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
        for x in (math.sqrt(v1) * z[0][:, :2], second)
    )
    products = (a * b[:, :2]).sum(axis=1)
    assert abs(products.mean() - table[1, -1]) <= 4.5 * products.std() / math.sqrt(len(products))


@pytest.mark.parametrize("tokens", [1, 2, 30])
def test_sinks(tokens: int) -> None:
    """A sink whose score lies far below the others is none.

    Without scores all weights are 1 / (T + 1); one row and two agree.
    """
    flat = sink_overlap(tokens, 0.0, 0.0, 0.0, (0.0, 0.0, 0.0))
    assert flat == pytest.approx(
        (tokens / (tokens + 1) ** 2, (tokens / (tokens + 1)) ** 2), rel=1e-12
    )
    assert sink_self_overlap(tokens, 0.0, 0.0) == pytest.approx(flat, rel=1e-12)
    assert sink_overlap(tokens, 2.0, 2.0, 2.0, (0.7, 0.7, 0.7)) == pytest.approx(
        sink_self_overlap(tokens, 2.0, 0.7), rel=1e-12
    )


@pytest.mark.parametrize(
    "row",
    [row for row in FROZEN["alone"] if row["point"][1] <= 4],
    ids=lambda row: "-".join(map(str, row["point"])),
)
def test_certified_self_overlaps(row: Any) -> None:
    """The enclosure holds the frozen digits, and the number in double precision is next to it."""
    (tokens, variance), (value, _) = row["point"], row["values"]
    found = self_overlap_ball(tokens, variance, 25)
    assert found.radius <= mp.mpf(10) ** -25
    with mp.workdps(40):
        assert abs(found.mid / mp.mpf(value) - 1) <= 2e-19
    assert self_overlap(tokens, variance) == pytest.approx(float(found), rel=1e-13)


def test_the_enclosure_of_two_tokens() -> None:
    """``S_self = E [s(x)^2 + s(-x)^2]`` with the logistic s and x of variance 2 v: 45 digits."""
    with mp.workdps(60):
        v = mp.mpf(1.5)
        step = mp.mpf(1) / 20
        points = [step * k for k in range(-340, 341)]
        exact = sum(
            mp.npdf(z) * step * (1 - 1 / (2 * mp.cosh(mp.sqrt(v / 2) * z) ** 2)) for z in points
        )
        found = self_overlap_ball(2, 1.5, 45)
        assert (
            found.radius < mp.mpf(10) ** -45
            and abs(found.mid - exact) <= found.radius + mp.mpf(10) ** -50
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0), "tokens"),
        ((4, -1.0), "variance of scores"),
        ((4, 30), "variance of scores"),
        ((4, "x"), "finite real"),
        ((4, 1.0, 0), "digits"),
    ],
)
def test_bad_enclosures_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with refused(message):
        self_overlap_ball(*arguments)
