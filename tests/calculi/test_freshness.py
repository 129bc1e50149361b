"""What feature maps are made of.

Exact cross terms, fusion, refusals, and what a heuristic answer says of itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from monte_carlo import simulate
from wiring import wired

import kcalc as kc

L = kc.layers
FRESH = 4.0  # standard errors


def phi(name: Any) -> L.Nonlinear:
    """An activation layer."""
    return L.Nonlinear(name)


# -- an independent quadrature ---------------------------------------------------------------------


def softplus(u: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, u)


def trapezoid(step: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for E f(g) with g standard normal and f smooth."""
    nodes = np.arange(-7.5, 7.5 + step, step)
    return nodes, np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi) * step


# -- pinned ----------------------------------------------------------------------------------------


# -- hypotheses that fail: refused, or what a real network does ------------------------------------


K = 16384
BROKEN: dict[str, tuple[tuple[str, Any, str], ...]] = {
    "phi on a raw input": (("p", phi("relu"), "x"),),
    "two raw inputs": (("x", L.Input(K)), ("e", L.Input(K)), ("s", L.Sum(), "x e")),
    "raw plus Gaussian": (("z", L.Affine(K), "x"), ("s", L.Sum(), "x z"), ("p", phi("tanh"), "s")),
    "depthwise then phi": (
        ("z", L.Affine(K), "x"),
        ("a", phi("softplus"), "z"),
        ("d", L.Affine(K, groups=K), "a"),
        ("p", phi("tanh"), "d"),
    ),
    "fan-in two then phi": (
        ("z", L.Affine(K), "x"),
        ("d", L.Affine(K, groups=K // 2), "z"),
        ("p", phi("tanh"), "d"),
    ),
    "phi, norm, phi": (
        ("z", L.Affine(K), "x"),
        ("a", phi("softplus"), "z"),
        ("n", L.LayerNorm(), "a"),
        ("p", phi("relu"), "n"),
    ),
    "grouped after concat": (
        ("z", L.Affine(K), "x"),
        ("a", phi("relu"), "z"),
        ("c", L.Concat(), "z a"),
        ("d", L.Affine(K, groups=2), "c"),
        ("p", phi("relu"), "d"),
    ),
    "norm of a mixed concat": (
        ("z", L.Affine(K), "x"),
        ("a", phi("relu"), "z"),
        ("c", L.Concat(), "z a"),
        ("n", L.LayerNorm(), "c"),
        ("p", phi("tanh"), "n"),
    ),
    "misaligned concats": (
        ("h", L.Affine(2 * K), "x"),
        ("z", L.Affine(K), "x"),
        ("y", L.Affine(K), "x"),
        ("a", L.Concat(), "h z"),
        ("b", L.Concat(), "y h"),
        ("s", L.Sum(), "a b"),
        ("p", phi("tanh"), "s"),
    ),
    "misaligned halves of one sum": (
        ("h", L.Affine(2 * K), "x"),
        ("z", L.Affine(K), "x"),
        ("y", L.Affine(K), "x"),
        ("a", L.Concat(), "z y"),
        ("s", L.Sum(), "h a"),
        ("b", L.Concat(), "s z"),
        ("d", L.Concat(), "y h"),
        ("t", L.Sum(), "b d"),
    ),
}


def broken(name: str) -> kc.Network:
    """One of the networks above."""
    return wired(*BROKEN[name], features=K)


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize(("c", "q1", "q2"), [(0.4, 1.0, None), (0.4, 0.6, 1.8)])
def test_broken_hypotheses(name, c, q1, q2):
    network = broken(name)
    try:
        values = kc.node_values(network, c, q1, q2)
    except kc.FreshnessError as error:
        assert any(f"node {node!r}" in str(error) for node in network)
        assert "assume_independent=True" in str(error)
        return
    if kc.c_map(network).heuristic:
        return
    for node, measured in simulate(network, c, q1, q2, draws=64, width=K, seed=7).items():
        assert max(measured.deviations(values[node])) <= FRESH, (name, node)


def test_a_small_grouped_fan_in_is_not_gaussian():
    """Without channel counts a grouped layer says what it takes for granted."""
    unknown = wired(("z", L.Affine(), "x"), ("d", L.Affine(groups=8), "z"), ("p", phi("tanh"), "d"))
    assert any(a.node == "d" and "group" in a.text for a in kc.c_map(unknown).assumptions)


def test_long_fusions_are_refused_and_short_ones_are_right() -> None:
    """Each activation that reads x + gelu(x) multiplies the formula.

    Two are one function of one Gaussian, 24 are refused.
    """

    def gated(count: int) -> kc.Network:
        steps: list[tuple[str, Any, str]] = [("s0", L.Affine(), "x")]
        for i in range(count):
            steps += [(f"g{i}", phi("gelu"), f"s{i}"), (f"s{i + 1}", L.Sum(), f"s{i} g{i}")]
        return wired(*steps, ("y", phi("gelu"), f"s{count}"))

    g, w = trapezoid(0.1)
    cosine, sine = 0.3, math.sqrt(1 - 0.09)
    from scipy.special import ndtr

    def function(u: np.ndarray) -> np.ndarray:
        for _ in range(2):
            u = u + u * ndtr(u)
        return u * ndtr(u)

    cross = w @ (function(g)[:, None] * function(cosine * g[:, None] + sine * g)) @ w
    assert kc.c_map(gated(2))(cosine) == pytest.approx(cross / (w @ function(g) ** 2), rel=1e-10)
    with pytest.raises(
        kc.FreshnessError, match=r"node 'g4' fuses.*more than 400 operations.*Affine"
    ):
        kc.c_map(gated(24))


def test_activations_of_a_named_gaussian_are_not_fused_in_symbols() -> None:
    """The scale of a LayerNorm is no number there; in numbers the two are one activation."""
    activations = [L.Nonlinear("sigmoid"), L.Nonlinear("relu")]
    C = kc.c_map(
        kc.chain(
            L.Input(),
            L.Affine(sigma_b=0.5),
            L.Nonlinear("gelu"),
            L.Affine(),
            L.LayerNorm(),
            *activations,
            L.Affine(),
        )
    )
    assert C(1.0) == pytest.approx(1.0)
    with pytest.raises(kc.FreshnessError, match="relu sees the output of sigmoid"):
        C.symbolic(1)
