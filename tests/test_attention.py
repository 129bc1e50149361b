"""Kernel maps of attention over tokens, against drawn attention matrices written out here, and their modes against one another."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import kcalc as kc

Array = np.ndarray
L = kc.layers
DRAWS = 6000
WORST = 4.5  # standard errors: the largest of some 150 numbers


@dataclass(frozen=True)
class Case:
    """One layer of attention and two inputs: mean squares, cosine c between them, cosine rho of two tokens, sizes of weights and biases."""

    tokens: int = 6
    q: tuple[float, float] = (1.0, 1.0)
    c: float = 0.5
    rho: float = 0.3
    sigma: tuple[float, float, float] = (1.3, 0.9, 1.1)
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)
    norm: bool = False
    cross: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def network(self) -> kc.Network:
        """The layer, from ``x``, or queries from ``x`` and the rest from ``y``; the mean over its tokens."""
        steps: list[Any] = [("x", L.Input(), ()), ("y", L.Input(), ())] if self.cross else [("x", L.Input(), ())]
        reads = ("x", "y", "y") if self.cross else ("x",) * 3
        names = []
        for name, read, sigma, bias in zip("qkv", reads, self.sigma, self.bias, strict=True):
            steps.append((name, L.Affine(sigma_w=sigma, sigma_b=bias), (read,)))
            names.append(name)
            if self.norm and name != "v":
                steps.append((f"{name}_norm", L.RMSNorm(), (name,)))
                names[-1] = f"{name}_norm"
        steps.append(("attention", L.Attend(**self.options), tuple(names)))
        return kc.Network.from_steps([*steps, ("mean", L.Pool("mean"), ("attention",))])

    @property
    def given(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "token_cosine": self.rho}

    def inputs(self) -> Array:
        """The covariance of the tokens of both sequences, (2 T, 2 T)."""
        own = np.full((self.tokens, self.tokens), self.rho) + (1 - self.rho) * np.eye(self.tokens)
        across = self.c * math.sqrt(self.q[0] * self.q[1])
        return np.kron([[self.q[0], across], [across, self.q[1]]], own)

    def covariances(self) -> list[Array]:
        """Of queries, keys and values."""
        found = [s * s * self.inputs() + b * b for s, b in zip(self.sigma, self.bias, strict=True)]
        if self.norm:
            found[:2] = [m / np.sqrt(np.outer(np.diag(m), np.diag(m))) for m in found[:2]]
        return found

    def drawn(self, rng: np.random.Generator) -> tuple[Array, ...]:
        """Weights of both sequences in every draw, (draws, T, T) each."""
        queries, keys, _ = self.covariances()
        width, count = self.options.get("key_width"), 2 * self.tokens
        scale = self.options.get("scale", "sqrt")
        size = 1.0 if isinstance(scale, str) else scale * math.sqrt(width)
        if self.options.get("wide", True):
            full = size * root(queries) @ rng.standard_normal((DRAWS, count, count)) @ root(keys).T
        else:
            q, k = (root(m) @ rng.standard_normal((DRAWS, count, width)) for m in (queries, keys))
            full = size * q @ k.swapaxes(1, 2) / math.sqrt(width)
        return tuple(self.weights(full[:, part, part]) for part in (slice(0, self.tokens), slice(self.tokens, count)))

    def weights(self, scores: Array) -> Array:
        """The weights of scores, (..., T, T)."""
        normaliser, count = self.options.get("normaliser", "softmax"), self.tokens
        if self.options.get("causal"):
            scores = np.where(np.tril(np.ones((count, count), bool)), scores, -1e30)
        if normaliser == "sigmoid":
            return 1 / (1 + count * np.exp(-scores))
        if normaliser == "relu":
            return np.maximum(scores, 0) / count
        if normaliser == "identity":
            return scores
        powers = np.exp(scores)
        made = powers / (powers.sum(axis=-1, keepdims=True) + self.options.get("sink", False))
        return self.options.get("identity", 0) * np.eye(count) + made - self.options.get("centre", 0) / count


def root(covariance: Array) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0))


CASES = {
    "plain": Case(),
    "two tokens": Case(tokens=2, rho=-0.2),
    "one token": Case(tokens=1, rho=0.0),
    "unequal q": Case(q=(0.7, 1.9)),
    "negative c": Case(c=-0.6, q=(0.7, 1.9)),
    "orthogonal tokens": Case(rho=0.0, tokens=10),
    "the same input": Case(c=1.0),
    "opposite inputs": Case(c=-1.0),
    "biases": Case(bias=(0.5, 0.8, 0.4)),
    "biases, unequal q": Case(bias=(0.5, 0.8, 0.4), q=(0.7, 1.9)),
    "shaped": Case(options={"identity": 0.6, "centre": 0.5}),
    "shaped, unequal q": Case(q=(0.7, 1.9), options={"identity": 0.6, "centre": 0.5}),
    "scale": Case(options={"scale": 0.5, "key_width": 9}),
    "norms": Case(norm=True, bias=(0.5, 0.8, 0.4), q=(0.7, 1.9)),
    "cross-attention": Case(cross=True, bias=(0.5, 0.8, 0.4), q=(0.7, 1.9)),
    "dropout": Case(options={"dropout": 0.3}),
    "sigmoid": Case(options={"normaliser": "sigmoid"}),
    "sigmoid, unequal q": Case(q=(0.7, 1.9), bias=(0.5, 0.8, 0.4), options={"normaliser": "sigmoid"}),
    "relu": Case(options={"normaliser": "relu"}),
    "relu, unequal q": Case(q=(0.7, 1.9), bias=(0.5, 0.8, 0.4), options={"normaliser": "relu"}),
    "sink": Case(bias=(0.5, 0.8, 0.4), options={"sink": True}),
    "sink, unequal q": Case(q=(0.7, 1.9), bias=(0.5, 0.8, 0.4), rho=0.1, options={"sink": True}),
    "sink, one token": Case(tokens=1, rho=0.0, bias=(0.5, 0.8, 0.4), options={"sink": True}),
    "narrow": Case(options={"key_width": 4, "wide": False}),
    "narrow, unequal q": Case(q=(0.7, 1.9), bias=(0.5, 0.8, 0.4), options={"key_width": 8, "wide": False}),
    "identity": Case(bias=(0.5, 0.8, 0.4), options={"normaliser": "identity"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_are_those_of_drawn_attention(case: Case) -> None:
    found = kc.node_values(case.network(), c=case.c, q1=case.q[0], q2=case.q[1], **case.given)
    value, mean = found["attention"], found["mean"]
    T = case.tokens
    both = case.drawn(np.random.default_rng(5))
    V = case.covariances()[2]
    parts = [slice(0, T), slice(T, 2 * T)]
    own = [A @ V[part, part] @ A.swapaxes(1, 2) for A, part in zip(both, parts, strict=True)]
    across = both[0] @ V[parts[0], parts[1]] @ both[1].swapaxes(1, 2)
    others = T * (T - 1) or 1
    expected = {
        "q1": (own[0].trace(axis1=1, axis2=2) / T, value.q1),
        "q2": (own[1].trace(axis1=1, axis2=2) / T, value.q2),
        "joint": (across.trace(axis1=1, axis2=2) / T, value.c * math.sqrt(value.q1 * value.q2)),
        "tokens 1": ((own[0].sum(axis=(1, 2)) - own[0].trace(axis1=1, axis2=2)) / others, value.q1 * value.token_cosine1 * (T > 1)),
        "tokens 2": ((own[1].sum(axis=(1, 2)) - own[1].trace(axis1=1, axis2=2)) / others, value.q2 * value.token_cosine2 * (T > 1)),
        "mean": (own[0].mean(axis=(1, 2)), mean.q1),
        "mean, joint": (across.mean(axis=(1, 2)), mean.c * math.sqrt(mean.q1 * mean.q2)),
    }
    for name, (drawn, exact) in expected.items():
        error = drawn.std() / math.sqrt(len(drawn))
        assert abs(drawn.mean() - exact) <= WORST * error + 1e-12, (name, drawn.mean(), exact, error)


MASKED = {
    "one input": Case(options={"causal": True}), "unequal q": Case(q=(0.7, 1.9), bias=(0.5, 0.8, 0.4), options={"causal": True}),
    "negative c": Case(tokens=3, c=-0.7, rho=0.0, options={"causal": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", MASKED.values(), ids=MASKED)
def test_the_first_causal_layer_is_exact(case: Case) -> None:
    """Every entry of the covariance of all tokens of both inputs, without errors of sampling."""
    found: Any = kc.node_values(case.network(), c=case.c, q1=case.q[0], q2=case.q[1], **case.given)
    exact, spread = found.covariances["attention"]
    assert not spread.any()
    T, V = case.tokens, case.covariances()[2]
    A = np.zeros((DRAWS, 2 * T, 2 * T))
    for k, weights in enumerate(case.drawn(np.random.default_rng(6))):
        A[:, k * T : k * T + T, k * T : k * T + T] = weights
    drawn = A @ V @ A.swapaxes(1, 2)
    error = drawn.std(axis=0) / math.sqrt(DRAWS)
    assert (np.abs(drawn.mean(axis=0) - exact.reshape(2 * T, 2 * T)) <= WORST * error + 1e-12).all()


# -- derivatives ---------------------------------------------------------------------------------------------------------------------


def stacked(case: Case, count: int = 2) -> kc.Network:
    """Blocks with skips and an MLP, and a readout."""
    steps: list[Any] = [("x", L.Input(), ()), ("in", L.Affine(sigma_b=0.3), ("x",))]
    below = "in"
    for k in range(count):
        reads = []
        for name, sigma, bias in zip("qkv", case.sigma, case.bias, strict=True):
            steps.append((f"{name}{k}", L.Affine(sigma_w=sigma, sigma_b=bias), (below,)))
            reads.append(f"{name}{k}")
            if case.norm and name != "v":
                steps.append((f"{name}{k}_norm", L.RMSNorm(), (reads[-1],)))
                reads[-1] += "_norm"
        steps += [
            (f"attention{k}", L.Attend(**case.options), tuple(reads)),
            (f"o{k}", L.Affine(), (f"attention{k}",)),
            (f"sum{k}", L.Sum((0.8, 0.6)), (below, f"o{k}")),
            (f"norm{k}", L.LayerNorm(), (f"sum{k}",)),
            (f"up{k}", L.Affine(), (f"norm{k}",)),
            (f"phi{k}", L.Nonlinear("gelu"), (f"up{k}",)),
        ]
        below = f"phi{k}"
    return kc.Network.from_steps([*steps, ("out", L.Affine(sigma_b=0.2), (below,))])


FLAT = ("one token", "negative c", "opposite inputs")
SMOOTH = {n: c for n, c in CASES.items() if not (c.cross or n in FLAT or c.options.get("sink") or not c.options.get("wide", True))}


@pytest.mark.parametrize("case", SMOOTH.values(), ids=SMOOTH)
def test_gradients_and_the_tangent_kernel_agree(case: Case) -> None:
    """``|d out / d parameters|^2``, backwards through both modes, is the tangent kernel at c = 1, the jet through two sequences."""
    net = stacked(case)
    found = kc.gradients(net, q=case.q[0], **case.given)
    kernel = kc.ntk(net, **case.given)
    assert sum(found.weights.values()) == pytest.approx(kernel(1.0, case.q[0]), rel=1e-11)
    for node in ("q0", "k0", "v1"):
        assert found.weights[node] == pytest.approx(kernel.layers[node](1.0, case.q[0]), rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("case", SMOOTH.values(), ids=SMOOTH)
def test_derivatives_are_those_of_the_map(case: Case) -> None:
    net, step = stacked(case), 1e-5
    C = kc.c_map(net, **case.given)
    for q in ((1.0, None), (0.7, 1.9)):
        slope = (C(0.4 + step, *q) - C(0.4 - step, *q)) / (2 * step)
        assert C.derivative(1)(0.4, *q) == pytest.approx(slope, rel=1e-7)
    assert C.derivative(1)(1.0) == pytest.approx((math.sin(C.at_angle(1e-5) / 2) / math.sin(5e-6)) ** 2, rel=1e-5)
    Q = kc.q_map(net, **case.given)
    assert Q.derivative(1)(1.2) == pytest.approx((Q(1.2 + step) - Q(1.2 - step)) / (2 * step), rel=1e-6, abs=1e-9)
    R = kc.token_map(net, case.tokens)
    assert R.derivative(1)(0.3) == pytest.approx((R(0.3 + step) - R(0.3 - step)) / (2 * step), rel=1e-7)
