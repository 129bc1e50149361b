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
from flint import arb
from refusals import refused

from kcalc.fields.balls import ball_field
from kcalc.gaussian.certified.softmax import overlap, self_overlap_ball
from kcalc.gaussian.certified.softmax import self_overlap as certified_self_overlap
from kcalc.gaussian.softmax import (
    Overlap,
    causal_overlaps,
    overlap_gap,
    self_overlap,
)

FROZEN = json.loads((Path(__file__).parents[1] / "oracles" / "softmax.json").read_text())


def test_one_token() -> None:
    row = Overlap(1, 2.0, 3.0, 1.0)
    assert (row.value, row.by_covariance, row.by_variance1, row.by_variance2) == (1, 0, 0, 0)
    assert self_overlap(1, 2.0) == 1 and overlap_gap(1, 2.0, 0.5) == 0


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


@pytest.mark.parametrize(
    ("tokens", "one", "two", "k"),
    [(1, 2, 3, 1), (2, 1, 4, 1.5), (2, 4, 1, 1.5), (3, 1, 2, 0), (2, 1, 1, 1), (2, 1, 1, 1 + 1e-9)],
)
def test_certified_overlaps(tokens: int, one: float, two: float, k: float) -> None:
    """Covariances larger than one of the variances, none, and one too large by rounding."""
    with ball_field(20).working():
        found = overlap(tokens, (arb(one), arb(two)), arb(k), 1)
    value = Overlap(tokens, one, two, k if k != 1 + 1e-9 else 1).value
    assert abs(float(found.mid()) - value) < float(found.rad()) + 1e-12


def test_certified_overlaps_at_the_ends() -> None:
    assert certified_self_overlap(4, arb(0), 10).contains(arb("0.25"))
    with ball_field(20).working(), refused("covariance of 0 or at least 1e-06"):
        overlap(4, (arb(1), arb(1)), arb("1e-9"), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0), "tokens"),
        ((4, -1.0), "variance of the scores"),
        ((4, 30), "variance of the scores"),
        ((4, "x"), "finite real"),
        ((4, 1.0, 0), "digits"),
    ],
)
def test_bad_enclosures_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with refused(message):
        self_overlap_ball(*arguments)
