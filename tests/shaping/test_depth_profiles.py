"""Profiles over depth, against drawn rows, quadrature and the recursion of a stream."""

from __future__ import annotations

import json
from typing import Any

import matplotlib

matplotlib.use("Agg")
import mpmath as mp
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.gaussian.softmax import row_entropy
from kcalc.shaping.traces import block_ends

A, L = kc.architectures, kc.layers
T = 16


def stack(blocks: int = 3, **options: Any) -> kc.Network:
    return A.transformer_stack(blocks, 64, 4, **options)


def softmax_entropy(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    return -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=-1)


@pytest.mark.parametrize("variance", [1.0, 9.0, 30.0])
def test_the_entropy_of_two_weights_is_that_of_a_logistic_function(variance: float) -> None:
    with mp.workdps(25):

        def entropy(d: mp.mpf) -> mp.mpf:
            one, two = 1 / (1 + mp.exp(-d)), 1 / (1 + mp.exp(d))
            return -(one * mp.log(one) + two * mp.log(two))

        width = mp.sqrt(2 * variance)
        cuts = [-60, -10, -3, 0, 3, 10, 60]
        truth = float(mp.quad(lambda d: entropy(d) * mp.npdf(d, 0, width), cuts))
    assert row_entropy(2, variance) == pytest.approx(truth, abs=2e-13)


@pytest.mark.parametrize(("tokens", "variance"), [(1, 2.0), (12, 1.44), (64, 4.0), (512, 9.0)])
def test_the_entropy_of_drawn_rows(tokens: int, variance: float) -> None:
    rng = np.random.default_rng(tokens)
    drawn = softmax_entropy(variance**0.5 * rng.standard_normal((4000, tokens)))
    error = drawn.std() / len(drawn) ** 0.5
    assert abs(row_entropy(tokens, variance) - drawn.mean()) <= 4 * error + 1e-12
    assert row_entropy(tokens, 0.0) == pytest.approx(np.log(tokens), abs=1e-14)


@pytest.mark.parametrize(
    ("options", "shortcut"),
    [({}, 1.0), ({"shortcut_weight": 0.8, "parallel": True}, 0.8), ({"parallel": True}, 1.0)],
)
def test_a_stream_is_its_shortcut_and_its_branches(options: Any, shortcut: float) -> None:
    profile = kc.depth_profile(stack(**options), tokens=T, token_cosine=0.2)
    assert len(profile.nodes) == 4 and np.isnan(profile.branch[0])
    made = shortcut**2 * profile.q[:-1] + profile.branch[1:]
    np.testing.assert_allclose(profile.q[1:], made, rtol=1e-12)
    # scores of the normalised stream in front of the block
    np.testing.assert_allclose(profile.score_variance[1:], 1 - profile.token_cosine[:-1], rtol=1e-9)
    entropies = [row_entropy(T, v) for v in profile.score_variance[1:]]
    np.testing.assert_allclose(profile.entropy[1:], entropies, rtol=1e-12)


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


def test_sampled_scores_agree_with_exact_ones_and_have_errors() -> None:
    net = stack(2, attention={"wide": True})  # scores as the formulas take them, Gaussian
    exact = kc.depth_profile(net, tokens=T)
    drawn = kc.depth_profile(net, tokens=T, sampling=kc.Sampling(draws=24, chains=4))
    for name in ("score_variance", "entropy"):
        error = getattr(drawn, f"{name}_error")  # 0 where covariances are exact
        apart = np.abs(getattr(drawn, name) - getattr(exact, name))
        assert (apart[1:] <= 4 * error[1:] + 1e-12).all(), name
    assert exact.q_error is None and (drawn.q_error >= 0).all() and drawn.branch_error is not None
    with pytest.raises(AttributeError, match="depth_error"):
        _ = exact.depth_error


def test_causal_rows_see_fewer_tokens() -> None:
    """The first layer over alike tokens: rows over i of them."""
    net = stack(1, attention={"causal": True, "wide": True})
    found = kc.depth_profile(net, tokens=8, sampling=kc.Sampling(draws=200, chains=4))
    entropy, error = (x[~np.isnan(x)][0] for x in (found.entropy, found.entropy_error))
    truth = np.mean([row_entropy(i, 1.0) for i in range(2, 9)])
    assert abs(entropy - truth) < 4 * error and error < 0.01


def test_networks_without_tokens_have_q_c_and_one_gradient() -> None:
    net = A.rescaled_resnet(4, 2, 0.6, sigma_w=2**0.5)
    profile = kc.depth_profile(net, [0.0, 0.5])
    assert profile.c.shape == (5, 2) and profile.token_cosine is None
    assert profile.score_variance is None and profile.gradient_difference is None
    np.testing.assert_allclose(profile.branch[1:], 0.64 * profile.q[:-1], rtol=1e-12)
    gradients = kc.gradients(net).nodes
    assert profile.gradient_mean.tolist() == [gradients[n] for n in profile.nodes]


@pytest.mark.parametrize(
    ("net", "ends"),
    [
        (stack(3), ["tokens", *(f"block_{i}.mlp.sum" for i in (1, 2, 3))]),
        (stack(2, placement="post"), ["tokens", "block_1.mlp.norm", "block_2.mlp.norm"]),
        (A.gpt2(2), ["positions", "block_1.mlp.sum", "block_2.mlp.sum"]),
        (A.wide_resnet(16), ["affine_1", *(f"sum_{i}" for i in range(1, 7))]),
        (A.vanilla(2), ["input", "nonlinear_1", "nonlinear_2"]),
    ],
)
def test_where_blocks_end(net: kc.Network, ends: list[str]) -> None:
    assert [list(net)[i] for i in block_ends(net)] == ends


def test_blocks_with_constants_of_their_own_are_repeated() -> None:
    parts = [kc.residual(kc.chain(L.Affine(sigma_w=s), L.Nonlinear("tanh"), L.Affine()), s / 2)
             for s in (0.5, 1, 1.5)]  # fmt: skip
    assert len(kc.depth_profile(kc.chain(L.Affine(), *parts)).nodes) == 4


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "tokens"),
        ({"tokens": 0}, "whole number"),
        ({"tokens": 4, "c": 2}, "c"),
        ({"tokens": 4, "q": -1}, "q"),
        ({"tokens": 4, "backward": 1}, "backward"),
        ({"tokens": 4, "sampling": 3}, "Sampling"),
        ({"tokens": 4, "output": "nowhere"}, "nowhere"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], words: str) -> None:
    with refused(words):
        kc.depth_profile(stack(1), **options)


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
