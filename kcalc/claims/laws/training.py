"""Claims about dropout in training, and gradients through large batches."""

from __future__ import annotations

from collections.abc import Iterator
from math import pi, sqrt

import numpy as np

from ... import activation, activations, c_map, chain, gradients, large_batch, repeat
from ... import layers as L
from ..bench import Bench, equal, statistical
from ..claim import Evidence
from .critical import normal
from .paper import claim

DROPOUT, BATCHES = "Dropout in training", "Large batches"


@claim("LAW-dropout", DROPOUT)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with independent masks of keep probability $r$, $q' = q/r$, but the covariance of two
    examples does not change, so $\mathcal C(1) < 1$; squared gradients are divided by $r$
    """
    keep = 0.7
    net = chain(
        L.Input(), L.Affine(sigma_w=1.3), L.Nonlinear("tanh"), L.Dropout(1 - keep, active=True),
        L.Affine(),
    )  # fmt: skip
    cosine = float(c_map(net)(0.4))
    n = bench.size(20_000, 200_000)
    z = bench.normal(2, n)
    u, v = np.tanh(1.3 * z[0]), np.tanh(1.3 * (0.4 * z[0] + sqrt(1 - 0.16) * z[1]))
    masks = (bench.rng.random((2, n)) < keep) / keep
    size = float(activation("tanh").second_moment(1.69))
    yield statistical((u * masks[0]) ** 2, size / keep, "the mean square with sampled masks")
    yield statistical(
        u * v * masks[0] * masks[1],
        cosine * size / keep,
        "the covariance of two examples with sampled masks",
    )
    yield equal(float(c_map(net)(1.0)), keep, "kcalc's value of $C(1)$ is $r$", 1e-13)
    found = gradients(net)
    yield equal(
        found.nodes["nonlinear_1"],
        found.nodes["affine_2"] / keep,
        "kcalc's squared gradients are divided by $r$",
        1e-13,
    )


@claim("LAW-dropout-limit", DROPOUT)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""there is no edge of chaos with dropout: at constant $q$, ReLU chains tend to $c^* = .627146$
    for $r = .9$ and to $.472799$ for $r = .8$, and tanh chains with $r = .9$, $\sigma_w^2 = 1.76$
    and $\sigma_b^2 = .05$ to $.356737$
    """
    for name, keep, weight, bias, limit in (
        ("relu", 0.9, 1.8, 0.0, 0.627146),
        ("relu", 0.8, 1.6, 0.0, 0.472799),
        ("tanh", 0.9, 1.76, 0.05, 0.356737),
    ):
        affine = L.Affine(sigma_w=sqrt(weight), sigma_b=sqrt(bias))
        layer = chain(L.Nonlinear(name), L.Dropout(1 - keep, active=True), affine)
        deep = c_map(chain(L.Affine(), repeat(layer, 100)))
        yield equal(deep(np.array([0.0, 1.0])), limit, f"100 layers of {name}, keep {keep}", 1e-6)
    z, w = np.polynomial.hermite_e.hermegauss(100)
    w = w / w.sum()
    q, c = 1.0, 0.0
    for _ in range(100):
        x, y = np.sqrt(q) * z[:, None], np.sqrt(q) * (c * z[:, None] + sqrt(1 - c * c) * z)
        joint = w @ (np.tanh(x) * np.tanh(y)) @ w
        q = 1.76 / 0.9 * (w @ np.tanh(np.sqrt(q) * z) ** 2) + 0.05
        c = (1.76 * joint + 0.05) / q
    yield equal(c, 0.356737, "iterated by quadrature, tanh", 1e-6)


@claim("LAW-batch-gradients", BATCHES)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in the limit of large batches and widths, a BatchNorm layer with gain $\gamma$ and bias
    $\beta$ multiplies squared gradients by $\gamma^2\,\mathbb E\varphi'(\gamma
    z+\beta)^2/\operatorname{Var}\varphi(\gamma z+\beta) \ge 1$, which is $\pi/(\pi-1)$ for ReLU

    Under: gradients of the loss at different examples are uncorrelated
    """
    z, w = normal(20001)
    for name, phi, gamma, beta, truth in (
        ("relu", activation("relu"), 1.0, 0.0, pi / (pi - 1)),
        ("leaky relu", activations.leaky_relu(0.2), 1.0, 0.0, 0.52 / (0.52 - 0.32 / pi)),
        ("tanh", activation("tanh"), 1.0, 0.0, None),
        ("tanh", activation("tanh"), 1.7, -0.6, None),
    ):
        moved = phi.transformed(input_scale=gamma, input_shift=beta)
        layer = chain(L.BatchNorm(), L.Nonlinear(moved), L.Affine())
        found = gradients(large_batch(chain(L.Input(), L.Affine(), repeat(layer, 3))))
        factor = found.nodes["affine_2"] / found.nodes["affine_3"]
        value, slope = phi.numeric(0)(gamma * z + beta), gamma * phi.numeric(1)(gamma * z + beta)
        expected = (w @ slope**2) / (w @ value**2 - (w @ value) ** 2) if truth is None else truth
        yield equal(factor, expected, f"{name}, gain {gamma}, bias {beta}", 1e-7)
    batch, width = bench.size(100, 400), bench.size(300, 1500)
    ratios = [_batch_ratio(bench, batch, width) for _ in range(bench.size(12, 40))]
    bias = pi / (pi - 1) * (3 / batch + 6 / width)  # the order of finite-size effects
    yield equal(np.mean(ratios), pi / (pi - 1), "sampled ReLU layers", bias)


def _batch_ratio(bench: Bench, batch: int, width: int) -> float:
    """Measure the factor by which a layer multiplies squared gradients.

    The layer lies between two others, and gradients at different examples are uncorrelated.
    """
    h = bench.normal(batch, width)
    layers = []
    for _ in range(3):
        weights = bench.normal(width, width) / sqrt(width)
        z = h @ weights
        spread = z.std(axis=0)
        y = (z - z.mean(axis=0)) / spread
        layers.append((weights, y, spread))
        h = np.maximum(y, 0)
    g = bench.normal(batch, width)
    before = np.mean(g**2)
    sizes = [before]
    for weights, y, spread in layers[::-1]:
        d = g * (y > 0)
        d = (d - d.mean(axis=0) - y * (d * y).mean(axis=0)) / spread
        sizes.append(np.mean(d**2))
        g = d @ weights.T
    return float(sizes[2] / sizes[1])
