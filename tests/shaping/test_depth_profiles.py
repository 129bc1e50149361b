"""Profiles over depth, against drawn rows, quadrature and the recursion of a stream."""

from __future__ import annotations

import json
from typing import Any

import matplotlib

matplotlib.use("Agg")
import mpmath as mp
import numpy as np

import kcalc as kc
from kcalc.gaussian.softmax import row_entropy

A, L = kc.architectures, kc.layers
T = 16


def stack(blocks: int = 3, **options: Any) -> kc.Network:
    return A.transformer_stack(blocks, 64, 4, **options)


def softmax_entropy(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    return -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=-1)


def test_a_gelu_stream_by_hand() -> None:
    """Attention of one token copies it; the first branch adds 1, the second E gelu^2."""
    profile = kc.depth_profile(stack(5), tokens=1)
    x, weights = np.polynomial.hermite_e.hermegauss(60)
    square = weights / weights.sum() @ (x * np.vectorize(lambda t: float(mp.ncdf(t)))(x)) ** 2
    np.testing.assert_allclose(profile.q, 1 + np.arange(6) * (1 + square), rtol=1e-9)
    np.testing.assert_allclose(profile.entropy[1:], 0, atol=1e-15)


def test_finite_key_widths_average_the_entropy() -> None:
    net = stack(1, attention={"wide": False, "key_width": 16})
    found = kc.depth_profile(net, tokens=T, backward=False)
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((4000, 1, 16)), rng.standard_normal((4000, T, 16))
    drawn = softmax_entropy((q @ k.swapaxes(1, 2))[:, 0] / 4)
    entropy = found.entropy[~np.isnan(found.entropy)][0]
    assert abs(entropy - drawn.mean()) <= 4 * drawn.std() / 4000**0.5


def test_causal_rows_see_fewer_tokens() -> None:
    """The first layer over alike tokens: rows over i of them."""
    net = stack(1, attention={"causal": True, "wide": True})
    found = kc.depth_profile(net, tokens=8, sampling=kc.Sampling(draws=200, chains=4))
    entropy, error = (x[~np.isnan(x)][0] for x in (found.entropy, found.entropy_error))
    truth = np.mean([row_entropy(i, 1.0) for i in range(2, 9)])
    assert abs(entropy - truth) < 4 * error and error < 0.01


def test_a_profile_has_the_habits_of_a_result() -> None:
    profile = kc.depth_profile(stack(2), tokens=T)
    data = json.loads(json.dumps(profile.to_dict()))
    assert data["branch"][0] is None and data["q"] == profile.q.tolist()
    assert list(profile.to_dataframe()["node"]) == list(profile.nodes)
    assert "token cosine" in str(profile) and repr(profile) == "DepthProfile(2 blocks)"
    assert "<table>" in profile._repr_html_()
    panels = profile.plot().axes
    assert len(panels) == 4 and len(panels[0].get_lines()) == 2
    assert len(kc.depth_profile(A.vanilla(3)).plot().axes) == 3


def test_gradients_that_are_refused_leave_the_rest() -> None:
    profile = kc.depth_profile(stack(2, attention={"sink": True}), tokens=T)
    assert profile.gradient_mean is None and profile.entropy is None
    assert any("no gradients" in a.text for a in profile.assumptions)


def test_errors_of_few_chains_are_at_least_those_of_blocks_around() -> None:
    from kcalc.shaping.profiles import _levelled

    errors, sizes = np.array([0.0, 2.0, 1e-3, 2.0, 2.0]), np.array([1.0, 1.0, 1.0, 1.0, 2.0])
    found = _levelled(sizes, errors)
    assert found[0] == 0 and found[2] > 1.2  # exact values stay exact
    assert (found >= errors).all() and (found / sizes).max() <= 2
    net = kc.architectures.gpt2(blocks=3, features=16, heads=2)
    few = kc.depth_profile(net, tokens=6)
    assert "in each of 4 independent" in " ".join(a.text for a in few.assumptions)
    for name in ("q", "gradient_mean"):
        assert np.nanmax(few.errors[name] / np.abs(getattr(few, name))) <= 0.01
