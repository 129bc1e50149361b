"""Profiles over depth, against drawn rows, quadrature and the recursion of a stream."""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("Agg")
import mpmath as mp
import numpy as np

import kcalc as kc
from kcalc import depth_profile
from kcalc.gaussian.softmax import row_entropy

A = kc.architectures
T = 16


def stack(blocks: int = 3, **options: Any) -> kc.Network:
    return A.transformer_stack(blocks, 64, 4, **options)


def softmax_entropy(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    return -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=-1)


def test_a_gelu_stream_by_hand() -> None:
    """Attention of one token copies it; the first branch adds 1, the second E gelu^2."""
    profile = depth_profile(stack(5), tokens=1)
    x, weights = np.polynomial.hermite_e.hermegauss(60)
    square = weights / weights.sum() @ (x * np.vectorize(lambda t: float(mp.ncdf(t)))(x)) ** 2
    np.testing.assert_allclose(profile.q, 1 + np.arange(6) * (1 + square), rtol=1e-9)
    np.testing.assert_allclose(profile.entropy[1:], 0, atol=1e-15)
    mixed = depth_profile(stack(2, shortcut_weight=1, residual_weight=0.5), tokens=1)
    np.testing.assert_allclose(np.diff(mixed.q), mixed.branch[1:])


def test_finite_key_widths_average_the_entropy() -> None:
    net = stack(1, attention={"wide": False, "key_width": 16})
    found = depth_profile(net, tokens=T, backward=False)
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((4000, 1, 16)), rng.standard_normal((4000, T, 16))
    drawn = softmax_entropy((q @ k.swapaxes(1, 2))[:, 0] / 4)
    entropy = found.entropy[~np.isnan(found.entropy)][0]
    assert abs(entropy - drawn.mean()) <= 4 * drawn.std() / 4000**0.5


def test_causal_rows_see_fewer_tokens() -> None:
    """The first layer over alike tokens: rows over i of them."""
    net = stack(1, attention={"causal": True, "wide": True})
    found = depth_profile(net, tokens=8, sampling=kc.Sampling(draws=200, chains=4))
    entropy, error = (x[~np.isnan(x)][0] for x in (found.entropy, found.entropy_error))
    truth = np.mean([row_entropy(i, 1.0) for i in range(2, 9)])
    assert abs(entropy - truth) < 4 * error and error < 0.01
    barred = {ax.get_title() for ax in found.plot().axes if ax.containers}
    assert "Scores by depth" in barred


def test_gradients_that_are_refused_leave_the_rest() -> None:
    profile = depth_profile(stack(2, attention={"sink": True}), tokens=T)
    assert profile.gradient_mean is None and profile.entropy is None
    assert any("no gradients" in a.text for a in profile.assumptions)
