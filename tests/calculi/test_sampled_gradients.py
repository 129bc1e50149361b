"""Gradients over tokens followed one by one.

Against derivatives written out entry by entry, backpropagation through drawn heads and networks,
the tangent kernel, and the exact gradients of tokens that are alike.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from refusals import refusals
from wiring import wired

import kcalc as kc
from kcalc import Sampling, gradients, ntk
from kcalc.calculi.attention.score_slopes import pulled, response
from kcalc.network.layers import (
    Affine,
    Attend,
    Concat,
    Flatten,
    LayerNorm,
    Nonlinear,
    Pool,
    Product,
    RMSNorm,
    Sum,
    TokenMix,
)

A = kc.architectures
WORST = 4.5  # standard errors
X = np.random.default_rng(0).standard_normal((2, 6, 9))
FEW = Sampling(draws=4, chains=3, seed=1)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"causal": True, "key_width": 8, "scale": 0.7},
    "sink": {"causal": True, "sink": True},
    "relu": {"normaliser": "relu"},
    "scores with ALiBi": {"normaliser": "identity", "alibi": True, "heads": 4},
    "ALiBi": {"causal": True, "alibi": True, "heads": 4},
    "relative": {"relative": (1.2, 8, 4)},
    "relative sigmoid": {"relative": (1.2, 8, 4), "normaliser": "sigmoid"},
    "shaped": {"identity": 0.5, "centre": 0.4},
    "linear": {"scale": "linear"},
    "a window": {"causal": True, "window": 3},
    "a prefix": {"prefix": 2},
    "scores in a window": {"normaliser": "identity", "window": 3},
}


def blocks(count: int = 2, **options: Any) -> kc.Network:
    """Pre-norm blocks of attention and a gated MLP with a Concat, and a readout."""
    steps: list[Any] = [("e", Affine(sigma_b=0.2))]
    below = "e"
    for b in range(count):
        steps += [
            (f"n{b}", LayerNorm(), below),
            *((f"{n}{b}", Affine(sigma_w=1.5, sigma_b=0.3), f"n{b}") for n in "qkv"),
            (f"a{b}", Attend(**options), f"q{b} k{b} v{b}"),
            (f"o{b}", Affine()),
            (f"s{b}", Sum((1, 0.7)), f"{below} o{b}"),
            (f"m{b}", RMSNorm()),
            (f"u{b}", Affine(sigma_b=0.1)),
            (f"w{b}", Affine(), f"m{b}"),
            (f"p{b}", Nonlinear("gelu"), f"u{b}"),
            (f"g{b}", Product(), f"p{b} w{b}"),
            (f"c{b}", Concat(channels=(3, 1)), f"g{b} u{b}"),
            (f"d{b}", Affine()),
            (f"t{b}", Sum((1, 0.7)), f"s{b} d{b}"),
        ]
        below = f"t{b}"
    return wired(*steps, ("out", Affine(), below))


# -- the derivatives of weights --------------------------------------------------------------------


@pytest.mark.parametrize("normaliser", ["softmax", "sigmoid"])
def test_responses_are_sums_of_products_of_derivatives(normaliser: str) -> None:
    """R and R' entry by entry, from the matrices of derivatives of every row, with a sink."""
    rng, op = np.random.default_rng(1), cast(Any, SimpleNamespace(normaliser=normaliser))
    a = rng.uniform(0.1, 1, (2, 3, 4))
    if normaliser == "softmax":
        a /= a.sum(axis=-1, keepdims=True) + 1
    roots = rng.standard_normal((3, 4, 5))
    v, w = (part @ part.T for part in roots[:2])
    m = roots[2][:3] @ roots[2][:3].T
    for n in range(2):
        slopes = np.empty((3, 4, 4))
        for i, j, k in np.ndindex(3, 4, 4):
            if normaliser == "softmax":
                slopes[i, j, k] = a[n, i, j] * ((j == k) - a[n, i, k])
            else:
                slopes[i, j, k] = (j == k) * a[n, i, j] * (1 - a[n, i, j])
        forward, back = np.zeros((3, 3)), np.zeros((4, 4))
        for i, k in np.ndindex(3, 3):
            moved = slopes[i] @ v @ slopes[k]
            forward[i, k] = (moved * w).sum()
            back += m[i, k] * moved
        np.testing.assert_allclose(response(op, a, a, v, w)[n], forward, rtol=1e-12)
        np.testing.assert_allclose(pulled(op, a, v, m)[n], back, rtol=1e-12)


# -- identities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_they_add_up_to_the_tangent_kernel(options: dict[str, Any]) -> None:
    """With the same draws, the gradients of all parameters have the squares of the jet."""
    net = blocks(**options)
    found = gradients(net, tokens=X[:1], sampling=FEW)
    kernel = ntk(net, tokens=X[:1], sampling=FEW)
    expected = np.einsum("stst->st", kernel.ntk).mean()
    assert sum(found.weights.values()) == pytest.approx(expected, rel=1e-12)


def test_queries_that_are_the_keys_have_the_gradients_of_their_values() -> None:
    attend = Attend(scale="linear", causal=True)
    reads = [(n, Affine(), "x") for n in "qv"]
    net = wired(*reads, ("a", attend, "q q v"), ("out", Affine()))
    found: Any = gradients(net, tokens=X)
    kernel = ntk(net, tokens=X)
    assert found.nodes["q"] == 0 and not any(a.kind == "sampled" for a in found.assumptions)
    expected = np.einsum("stst->st", kernel.ntk).mean()
    assert sum(found.weights.values()) == pytest.approx(expected, rel=1e-12)
    assert all(error == 0 for error in found.errors["nodes"].values())


# -- tokens that are alike -------------------------------------------------------------------------


def pooled(last: Any, **options: Any) -> kc.Network:
    """A block over tokens that ends with one number of tokens or none."""
    steps = [*blocks(1, **options).steps()][:-1]
    return wired(*steps, ("taken", last, "t0"), ("dense", Affine(sigma_b=0.2)))


ALIKE: dict[str, kc.Network] = {
    "softmax": blocks(),
    "sigmoid": blocks(normaliser="sigmoid"),
    "shaped": blocks(identity=0.5, centre=0.4),
    "the mean": pooled(Pool("mean")),
    "flat": pooled(Flatten()),
    "a weighted sum": pooled(TokenMix(((2.0, -1.0, 0.5, 0.0, 1.0),))),
}


@pytest.mark.parametrize("net", ALIKE.values(), ids=ALIKE)
def test_tokens_that_are_alike_have_their_exact_gradients(net: kc.Network) -> None:
    given: dict[str, Any] = {"q": 1.3, "tokens": 5, "token_cosine": 0.3}
    exact = gradients(net, **given)
    found: Any = gradients(net, **given, sampling=Sampling(100, 24, 4))
    assert found.chi == pytest.approx(exact.chi, rel=0.02)
    for name in ("nodes", "weights", "mean", "difference"):
        table = getattr(exact, name)
        largest = max(exact.nodes.values())
        for node, expected in table.items():
            value, error = getattr(found, name)[node], found.errors[name][node]
            bias = 2e-3 * abs(expected)  # falls as 1 over the draws
            assert abs(value - expected) <= WORST * error + bias + 1e-12 * largest, (name, node)
            assert error <= 0.1 * abs(expected) + 1e-12 * largest, (name, node)


def test_plain_scores_need_no_draws() -> None:
    """Weights that are scores: the covariances of gradients are formulas, as for alike tokens."""
    net = blocks(normaliser="identity")
    exact = gradients(net, tokens=5, token_cosine=0.3)
    own = np.full((5, 5), 0.3) + 0.7 * np.eye(5)
    found: Any = gradients(net, tokens=own)
    for name in ("nodes", "weights", "mean", "difference"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=1e-11, abs=1e-12)
    assert set(found.errors["nodes"].values()) == {0.0}


# -- what is refused -------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Any, str]] = {
    "q beside tokens": (
        lambda: gradients(blocks(), q=2, tokens=X),
        "an array of tokens already defines",
    ),
    "no tokens": (lambda: gradients(blocks(), sampling=FEW), "pass tokens="),
    "too many tokens": (
        lambda: gradients(A.gpt2(48), tokens=2000),
        "memory suffices for .* tokens, but there are 2000",
    ),
}


test_bad_input_is_refused = refusals(REFUSED)
