"""Claims of section 9: weighted sums."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np
import sympy as sp
from sympy import symbols

from ... import Network, c_map, q_map
from ... import layers as L
from ..bench import Bench, at_most, equal, exact, statistical
from ..claim import Evidence
from ..families import graph
from .maps import branches, random_c
from .paper import claim
from .reference import cosine, second_moment


@claim("DKS-sumsim", "Sec. 9")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""an affine layer after a concatenation whose parts are multiplied by $\alpha_i =
    w_i\sqrt{\sum_jk_j}/\sqrt{k_i}$ computes $\sum_i w_if_i(Z_i)$

    Under: affine layers $f_i$ that share no weights, zero biases
    """
    w, k1, k2, k3 = symbols("w k1 k2 k3", positive=True)
    total = k1 + k2 + k3
    alpha = w * sp.sqrt(total) / sp.sqrt(k1)
    yield exact(sp.sqrt(k1) * alpha / sp.sqrt(total) - w, "the weight of a branch")
    k, weights = np.array([5, 2, 9]), bench.normal(3)
    scales = weights * np.sqrt(k.sum() / k)
    x = [bench.normal(int(n)) for n in k]
    draws = bench.size(4000, 100000)
    # layers with separate fan-ins
    filters = [bench.normal(draws, int(n)) / sqrt(n) for n in k]
    separate = sum(w * (f @ v) for w, f, v in zip(weights, filters, x, strict=True))
    # one layer with fan-in sum k
    joined = np.concatenate(
        [sqrt(n / k.sum()) * f for n, f in zip(k, filters, strict=True)], axis=1
    )
    yield equal(
        joined @ np.concatenate([s * v for s, v in zip(scales, x, strict=True)]),
        separate,
        "the same output with the filters joined in one layer",
    )
    yield statistical(
        joined[:, 0] ** 2 * k.sum(), 1.0, "the joint filters have the variance of one layer"
    )
    for q2 in (None, 0.4):
        yield equal(
            c_map(_weighted_sum((0.6, -1.3)))(0.35, 1.2, q2),
            c_map(_simulated((0.6, -1.3), (3, 8)))(0.35, 1.2, q2),
            "the network with a sum and the one with a concatenation",
        )


def _weighted_sum(weights: tuple[float, float]) -> Network:
    return graph(
        x=L.Input(),
        a0=(L.Affine(), "x"),
        a1=(L.Affine(), "x"),
        n0=(L.Nonlinear("relu"), "a0"),
        n1=(L.Nonlinear("tanh"), "a1"),
        b0=(L.Affine(), "n0"),
        b1=(L.Affine(), "n1"),
        s=(L.Sum(weights=weights), "b0", "b1"),
        out=(L.Nonlinear("gelu"), "s"),
    )


def _simulated(weights: tuple[float, float], k: tuple[int, int]) -> Network:
    scales = [w * sqrt(sum(k) / n) for w, n in zip(weights, k, strict=True)]
    return graph(
        x=L.Input(),
        a0=(L.Affine(features=k[0]), "x"),
        a1=(L.Affine(features=k[1]), "x"),
        n0=(L.Nonlinear("relu"), "a0"),
        n1=(L.Nonlinear("tanh"), "a1"),
        m0=(L.Scale(scales[0]), "n0"),
        m1=(L.Scale(scales[1]), "n1"),
        z=(L.Concat(), "m0", "m1"),
        b=(L.Affine(), "z"),
        out=(L.Nonlinear("gelu"), "b"),
    )


@claim("DKS-eq12", "Sec. 9, eq. 12")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a weighted sum has $q = \sum_i w_i^2q_i$

    Under: independent affine layers before the sum
    """
    w, k1, k2, q1, q2, w2 = symbols("w k1 k2 q1 q2 w2", positive=True)
    total = k1 + k2
    concatenated = (k1 * w**2 * total / k1 * q1 + k2 * w2**2 * total / k2 * q2) / total
    yield exact(concatenated - (w**2 * q1 + w2**2 * q2), "the formula follows from equation 8")
    a, b = (v for v in bench.uniform(0.3, 2, 2))
    inner = a**2 * second_moment("relu", 1.2) + b**2 * second_moment("tanh", 1.2)
    net = _weighted_sum((a, -b))
    yield equal(q_map(net)(1.2), second_moment("gelu", inner), "q of a weighted sum in kcalc")
    x, y = bench.normal(4), bench.normal(7)
    draws = bench.size(20000, 400000)
    f, g = bench.normal(draws, 4) / 2, bench.normal(draws, 7) / sqrt(7)
    yield statistical(
        (a * (f @ x) + b * (g @ y)) ** 2,
        a**2 * np.mean(x**2) + b**2 * np.mean(y**2),
        "q of sums of random affine layers",
    )


@claim("DKS-eq13", "Sec. 9, eq. 13")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a weighted sum has $c = \sum_iw_i^2q_ic_i/\sum_iw_i^2q_i$

    Under: uniform q values; independent affine layers before the sum
    """
    for _ in bench.rounds(6, 40):
        a, b, c, q = (*bench.uniform(0.3, 2, 2), random_c(bench), bench.uniform(0.3, 2))
        sizes, _, inner = branches(("relu", "tanh"), c, q, q)
        total = a**2 * sizes[0] + b**2 * sizes[1]
        mixed = (a**2 * sizes[0] * inner[0] + b**2 * sizes[1] * inner[1]) / total
        yield equal(
            c_map(_weighted_sum((a, -b)))(c, q),
            cosine("gelu", mixed, total),
            "c of weighted sums in kcalc",
            1e-11,
        )
        yield at_most(
            0.0,
            min(mixed - min(inner), max(inner) - mixed),
            "c of a sum lies between the c values of the branches",
        )
    x, y = bench.normal(2, 2, 5)
    # unit q values at both inputs
    x, y = (v / np.sqrt((v**2).mean(axis=1, keepdims=True)) for v in (x, y))
    draws = bench.size(20000, 400000)
    f, g = bench.normal(2, draws, 5) / sqrt(5)
    first, second = (0.8 * (f @ x[i]) + 1.5 * (g @ (2 * y[i])) for i in range(2))
    yield statistical(
        first * second,
        0.64 * np.mean(x[0] * x[1]) + 2.25 * 4 * np.mean(y[0] * y[1]),
        "random affine layers: the m value that corresponds to this c value",
    )
