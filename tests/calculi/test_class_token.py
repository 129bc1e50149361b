"""A class token before alike tokens: moments of rows, maps, gradients, kernels, readers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from refusals import refusals, refused
from wiring import attending, wired

import kcalc as kc
from kcalc import c_map, chain, node_values, q_map, to_jax, token_map
from kcalc.calculi.attention.class_token import Grouped, reading, response
from kcalc.gaussian.softmax_groups import ScorePair, moments
from kcalc.network.layers import (
    Affine,
    Attend,
    ClassToken,
    Input,
    Pool,
    Positions,
    TokenMix,
)

A = kc.architectures
WORST = 4.5


def vit(blocks: int = 1, width: int = 64, **options: Any) -> kc.Network:
    """Sixteen patches behind a class token, which the readout takes."""
    given = {"std": None, "classes": width, "class_token": True} | options
    return A.vit(blocks, width, max(width // 64, 1), (32, 32), 8, **given)


def without_readout() -> kc.Network:
    return wired(*[s for s in vit().steps() if s[0] not in ("pool", "readout")])


# -- moments of rows -------------------------------------------------------------------------------


def test_a_class_token_that_is_like_the_others_has_their_overlap() -> None:
    """Against frozen digits of python-flint, as in the theory of attention."""
    known = moments(63, ScorePair(4, 4, 2.4), ScorePair(4, 4, 2.4))
    every = Grouped(1, 0, 0, 0, 1)
    assert reading(known, every) == pytest.approx(0.0699723586941146880092484851130, rel=2e-12)
    assert response(known, every, every) == pytest.approx(0.0383916762579391, rel=1e-12)


@pytest.mark.parametrize(("tokens", "sigma_w"), [(2, 1.0), (4, 4.0)])
def test_few_tokens_and_steep_scores_are_sampled(tokens: int, sigma_w: float) -> None:
    """A class token that is like its orthogonal tokens, and one token more without it."""
    reads = attending(None, "t", Affine(sigma_w=sigma_w))
    net = wired(("e", Affine()), ("t", ClassToken()), *reads)
    plain = wired(("t", Affine()), *reads)
    found, exact = node_values(net, tokens=tokens)["a"], node_values(plain, tokens=tokens + 1)["a"]
    assert 0 < abs(found.q - exact.q1) <= WORST * found.q_error
    nodes, expected = (
        kc.gradients(n, tokens=k).nodes["q"] for n, k in ((net, tokens), (plain, tokens + 1))
    )
    assert nodes == pytest.approx(expected, rel=0.1)


# -- maps ------------------------------------------------------------------------------------------


def test_maps_of_points_are_those_of_node_values() -> None:
    net, given = vit(), {"tokens": 16, "token_cosine": 0.3}
    C, Q = c_map(net, **given), q_map(net, **given)
    value = node_values(net, 0.5, **given)["readout"]
    assert value.c_error == 0 and C(0.5) == pytest.approx(value.c, rel=1e-13)
    assert Q(1) == pytest.approx(value.q, rel=1e-13)
    assert C.derivative()(0.5) == pytest.approx((C(0.5001) - C(0.4999)) / 2e-4, rel=1e-6)
    assert C(1) == pytest.approx(1, abs=1e-12) and C(0.5, 2, 1) < C(0.5)
    np.testing.assert_allclose(C(np.array([0.2, 0.9])), [C(0.2), C(0.9)], rtol=1e-13)
    assert "assumed large" in str(C.assumptions)
    R = token_map(without_readout(), 16)
    expected: Any = node_values(without_readout(), **given)["norm"].token_cosine
    assert R(0.3) == pytest.approx(expected, rel=1e-13)


def test_maps_behind_two_class_tokens_are_refused_and_values_are_sampled() -> None:
    net = wired(
        ("class", ClassToken(count=2)),
        *((n, Affine(), "class") for n in "qkv"),
        ("a", Attend(), "q k v"),
    )
    values: Any = node_values(net, 0.5, tokens=4)
    assert values["a"].c_error > 0
    for call in (c_map(net, tokens=4), q_map(net, tokens=4)):
        with refused(r"no exact rule for node 'a' after a class token.*node_values"):
            call(0.5)


@pytest.mark.parametrize("cosine", [0.3, -0.45])
def test_correlations_that_no_scores_have_are_sampled(cosine: float) -> None:
    """Patches of negative cosine share less than nothing, and equal class tokens then part."""
    net = wired(
        ("class", ClassToken(0.75)),
        ("q", Affine(sigma_w=2)),
        *((n, Affine(), "class") for n in "kv"),
        ("a", Attend(), "q k v"),
        ("first", TokenMix([[1.0, 0, 0, 0]])),
    )
    found: Any = node_values(net, 0.3, tokens=3, token_cosine=cosine)
    assert (found["first"].c_error == 0) is (cosine > 0)
    c, error = drawn_cosine(cosine)
    assert abs(found["first"].c - c) <= WORST * math.hypot(error, found["first"].c_error)


def drawn_cosine(own: float) -> tuple[float, float]:
    """The c value of the class token behind attention from drawn scores, and its error."""
    draws, rng = 60_000, np.random.default_rng(3)
    tokens = np.full((3, 3), own) + (1 - own) * np.eye(3)
    K = np.zeros((2, 4, 2, 4))
    K[:, 0, :, 0] = 0.75**2
    K[:, 1:, :, 1:] = np.einsum("ab,st->asbt", [[1, 0.3], [0.3, 1]], tokens)
    K = K.reshape(8, 8)
    values, vectors = np.linalg.eigh(K)
    root = vectors * np.sqrt(np.maximum(values, 0))
    scores = np.exp(2 * root @ rng.standard_normal((draws, 8, 8)) @ root.T)
    rows = scores[:, 0, :4], scores[:, 4, 4:]
    one, two = (row / row.sum(axis=1, keepdims=True) for row in rows)
    across = np.einsum("ds,st,dt->d", one, K[:4, 4:], two)
    q = np.einsum("ds,st,dt->d", one, K[:4, :4], one).mean()
    return across.mean() / q, across.std() / q / math.sqrt(draws)


@pytest.mark.slow
@pytest.mark.usefixtures("full_compilation")
def test_drawn_networks_have_the_values_of_their_maps(every: int) -> None:
    model = to_jax(vit(2, 512), weights="delta_gaussian")
    given = {
        "draws": max(40 // every, 6),
        "pairs": 4,
        "tokens": 16,
        "token_cosine": 0.3,
        "tangent": False,
    }
    check = kc.verify_kernels(model, 0.5, 1.0, **given)
    for name in check.quantities:
        s = check.statistic(name)
        far = np.abs(s.mean - s.expected) / np.maximum(np.abs(s.expected), 0.05)
        assert ((np.abs(s.z) <= WORST) | (far <= 0.015))[check.judged()].all()
    assert check.gradients is not None
    for found in check.gradients.modes.values():
        assert np.nanmax(np.abs(found.z)) <= WORST


# -- what is refused, and arrays -------------------------------------------------------------------


REFUSED = {
    "pooled": (lambda: token_map(vit(), 16)(0.3), "'readout' has no tokens"),
    "derivative of R": (lambda: token_map(without_readout(), 16).derivative()(0.3), "values"),
    "derivative of Q": (lambda: q_map(vit(), tokens=16).derivative()(1.0), "derivatives in q"),
    "a formula": (lambda: token_map(without_readout(), 16).expr, "only in double precision"),
    "a second derivative": (lambda: c_map(vit(), tokens=16).derivative(2)(0.3), "only first"),
    "one tangent kernel": (lambda: kc.ntk(vit(), tokens=16), "a class token"),
    "no tokens": (lambda: c_map(vit())(0.5), "tokens=128"),
    "behind pooling": (
        lambda: node_values(chain(Input(4), Affine(8), Pool("mean"), ClassToken()), tokens=3),
        "before the pooling",
    ),
}


test_refusals_name_what_is_in_the_way = refusals(REFUSED)


def test_arrays_have_the_token_in_front() -> None:
    model = to_jax(wired(("x", Input(3, (2, 2))), ("front", ClassToken(2.0, 2))))
    params, x = model.init(0), np.arange(12.0).reshape(1, 2, 2, 3)
    made = np.asarray(model.apply(params, x)).reshape(6, 3)
    np.testing.assert_allclose(made[2:], x.reshape(4, 3))
    assert made[:2].any()


def test_positions_after_a_class_token() -> None:
    net = chain(Input(4), Affine(4), ClassToken(), Positions("learned", length=5), Affine(4))
    with pytest.raises(kc.KcalcError, match=r"reads 6 tokens; pass at most 4 \(tokens=4\)"):
        node_values(net, tokens=5)
    assert node_values(net, tokens=4)
