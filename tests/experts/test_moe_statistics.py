"""Statistics of routers against frozen values, enumeration and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from refusals import refusals, refused

import kcalc as kc
from kcalc.experts.one_token import swaps
from kcalc.experts.scores import SCORES
from kcalc.experts.two_tokens import slopes


@pytest.mark.parametrize(
    "given",
    [
        (3, 2, "softmax", False),
        (2, 2, "softmax", False),
        (5, 3, "sigmoid", False),
        (4, 2, "sigmoid", True),
    ],
    ids=str,
)
def test_two_tokens_of_other_scores(given: tuple[int, int, str, bool]) -> None:
    """Against samples of logits of variance 1.3 and cosine .6 and of the derivatives of weights."""
    experts, k, score, normalise = given
    a, b = np.random.default_rng(0).normal(size=(2, 10_000, experts)) * 1.3**0.5
    tokens = []
    for z in (a, 0.6 * a + 0.8 * b):
        mask = z >= np.sort(z, 1)[:, -k, None]
        s = np.exp(z) if score == "softmax" else 1 / (1 + np.exp(-z))
        rate = np.ones_like(s) if score == "softmax" else 1 - s  # s' / s
        shares = s * (mask if normalise else score == "softmax")
        total = shares.sum(1, keepdims=True) if shares.any() else 1.0
        w = s * mask / total
        jacobian = np.eye(experts) * rate[:, :, None] - (shares * rate / total)[:, None]
        tokens.append((w, mask, w[:, :, None] * jacobian))
    (w, mask, jacobian), other = tokens
    samples = w * other[0], w**2, (mask & other[1]) / k, jacobian**2, jacobian * other[2]
    found = kc.moe_statistics(experts, k, 1.3, 0.6, score, normalise)
    two = slopes(experts, k, 1.3**0.5, 0.6, SCORES[score, normalise])
    values = found.cross, found.second, found.overlap, found.router, two
    for value, sample in zip(values, samples, strict=True):
        each = sample.reshape(len(a), -1).sum(1)
        assert abs(value - each.mean()) < 4 * each.std() / len(a) ** 0.5 + 1e-12
    one = kc.moe_statistics(experts, k, 1.3, 1.0, score, normalise)
    assert one.cross == found.second


@pytest.mark.parametrize(
    ("score", "normalise"), [("softmax", False), ("sigmoid", False), ("sigmoid", True)]
)
def test_ties_of_two_experts(score: str, normalise: bool) -> None:
    """They swap with probability theta / pi; the weight is then that of a logit of variance v/2."""
    z, w = np.polynomial.hermite_e.hermegauss(60)
    tied = (1 / (1 + np.exp(-z * 0.65**0.5))) ** 2 @ w / w.sum()
    wanted = 1.0 if normalise else 0.25 if score == "softmax" else tied
    found = swaps(2, 1, 1.3**0.5, SCORES[score, normalise])
    assert found == pytest.approx(wanted / math.pi, rel=1e-10)


def test_close_tokens() -> None:
    assert kc.moe_statistics(8, 2, 1.0, cosine=0.9).load_cv() == pytest.approx(1.4067670506)


test_bad_arguments = refusals(
    [
        ((4, 5, 1.0), "top_k = 5"),
        ((4, 0, 1.0), "top_k"),
        ((4, 2, 0.0), "variance"),
        ((4, 2, math.inf), "variance"),
        ((4, 2, 300.0), "variance 300"),
        ((4, 2, 1.0, 0.999), "cosine"),
        ((4, 2, 1.0, 0.5, "relu"), "score"),
        ((4, 2, 1.0, 0.5, "softmax", 1), "normalise"),
        ((4.5, 2, 1.0), "num_experts"),
    ],
    lambda arguments: kc.moe_statistics(*arguments),
)


def test_loads_of_tokens_with_a_negative_cosine() -> None:
    found = kc.moe_statistics(8, 2, 1.0, -0.5)
    assert found.load_cv(2) > found.load_cv(3) > 0
    few = "at most 3 tokens"
    for tokens, words in ((None, few), (4, few), (0, "tokens must be")):
        with refused(words):
            found.load_cv(tokens)
