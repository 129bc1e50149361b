"""What feature maps are made of.

Exact cross terms, fusion, refusals, and what a heuristic answer says of itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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


def moment(
    function: Callable[[Any, Any], Any], c: float, q1: float, q2: float, uses_y: bool
) -> float:
    """E f(z1, y1) f(z2, y2) for z of variances q1, q2, y of variances q1/4, q2/4, both with cosine
    c, z independent of y.
    """
    single = c == 1
    g, w = trapezoid(0.14 if single else 0.28 if uses_y else 0.1)
    h, v = (g, w) if uses_y else (np.zeros(1), np.ones(1))
    (z_inner, z_weights), (y_inner, y_weights) = (
        (np.zeros(1), np.ones(1)) if single else pair for pair in ((g, w), (h, v))
    )
    sine, total = math.sqrt(1 - c * c), 0.0
    y1, y2 = math.sqrt(q1) / 2 * h, math.sqrt(q2) / 2 * (c * h[:, None] + sine * y_inner)
    for weight, node in zip(w, g, strict=True):
        z2 = math.sqrt(q2) * (c * node + sine * z_inner)[:, None, None]
        second = z_weights @ ((function(z2, y2) + 0 * y2) @ y_weights)
        total += weight * float(v @ ((function(math.sqrt(q1) * node, y1) + 0 * y1) * second))
    return total


def expected(
    function: Callable[[Any, Any], Any], c: float, q1: float, q2: float, uses_y: bool
) -> tuple[float, float, float]:
    """(q1, q2, c) of f(z, y)."""
    a, b = (moment(function, 1, q, q, uses_y) for q in (q1, q2))
    return a, b, moment(function, c, q1, q2, uses_y) / math.sqrt(a * b)


TWO = (("z", L.Affine(), "x"), ("y", L.Affine(sigma_w=0.5), "x"), ("zy", L.Sum((1, 2)), "z y"))
SUMS: dict[str, tuple[tuple[Any, ...], Callable[[Any, Any], Any]]] = {
    "z + phi(z)": (
        (("a", phi("tanh"), "z"), ("s", L.Sum((0.7, -1.2)), "z a")),
        lambda z, y: 0.7 * z - 1.2 * np.tanh(z),
    ),
    "phi(z) + psi(z)": (
        (("a", phi("tanh"), "z"), ("b", phi("softplus"), "z"), ("s", L.Sum((1, 2)), "a b")),
        lambda z, y: np.tanh(z) + 2 * softplus(z),
    ),
    "z + phi(z + 2y)": (
        (("a", phi("softplus"), "zy"), ("s", L.Sum(), "z a")),
        lambda z, y: z + softplus(z + 2 * y),
    ),
    "phi(z) + psi(z + 2y)": (
        (("a", phi("softplus"), "z"), ("b", phi("tanh"), "zy"), ("s", L.Sum((1, -1)), "a b")),
        lambda z, y: softplus(z) - np.tanh(z + 2 * y),
    ),
    "phi(z + 2y) + psi(z + 2y) + y": (
        (("a", phi("softplus"), "zy"), ("b", phi("sin"), "zy"), ("s", L.Sum(), "a b y")),
        lambda z, y: softplus(z + 2 * y) + np.sin(z + 2 * y) + y,
    ),
    "psi(z + phi(z))": (
        (("a", phi("tanh"), "z"), ("t", L.Sum((1, 2)), "z a"), ("s", phi("softplus"), "t")),
        lambda z, y: softplus(z + 2 * np.tanh(z)),
    ),
    "z + psi(phi(-2z))": (
        (
            ("m", L.Scale(-2), "z"),
            ("a", phi("tanh"), "m"),
            ("b", phi("softplus"), "a"),
            ("s", L.Sum(), "z b"),
        ),
        lambda z, y: z + softplus(np.tanh(-2 * z)),
    ),
    "phi(z) + phi(z) + z + z": (
        (("a", phi("softplus"), "z"), ("b", phi("softplus"), "z"), ("s", L.Sum(), "a b z z")),
        lambda z, y: 2 * softplus(z) + 2 * z,
    ),
}


def read(steps: Any) -> kc.Network:
    """The network of a sum over z, y and z + 2y, without what it does not use."""
    used = {p for _, _, parents in steps for p in parents.split()}
    return wired(
        *(s for s in TWO if s[0] in used | ({"z", "y"} if "zy" in used else set())), *steps
    )


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize(("c", "q1", "q2"), [(0.4, 1.0, 1.0), (-0.6, 0.5, 1.5)])
def test_cross_terms_against_quadrature(name, c, q1, q2):
    steps, function = SUMS[name]
    got = kc.node_values(read(steps), c, q1, q2)["s"]
    assert got == pytest.approx(expected(function, c, q1, q2, "y" in name), rel=1e-9, abs=1e-9)


# -- pinned ----------------------------------------------------------------------------------------


def test_a_v1_resnet_is_refused():
    branch = kc.chain(L.Affine(sigma_w=math.sqrt(2)), phi("relu"), L.Affine(sigma_w=math.sqrt(2)))
    v1 = kc.chain(L.Affine(), kc.repeat(kc.chain(kc.residual(branch), phi("relu")), 8))
    with pytest.raises(kc.FreshnessError, match=r"node 'nonlinear_4'.*V2"):
        kc.c_map(v1)
    forced = kc.c_map(v1, assume_independent=True)
    assert sum(a.kind == "heuristic" for a in forced.assumptions) == 7
    assert math.isfinite(forced(0.3))


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


@pytest.mark.parametrize("name", BROKEN)
def test_assuming_independence_answers_and_says_so(name):
    network = broken(name)
    forced = kc.c_map(network, assume_independent=True)
    for q1, q2 in ((1.0, None), (0.6, 1.8)):
        values = forced(0.4, q1, q2)
        assert all(
            np.isfinite(v) for v in (values.values() if isinstance(values, dict) else [values])
        )
        try:
            kc.node_values(network, 0.4, q1, q2)
        except kc.FreshnessError as error:
            notes = [a for a in forced.assumptions if a.kind == "heuristic"]
            assert any(f"node {a.node!r}" in str(error) for a in notes), (q1, q2)
            assert forced.heuristic


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
