"""Kernel maps of random networks in 50 digits, by code that shares nothing with kcalc.

It knows closed forms of five activations and the second moments of sums whose addends are
independent or all Gaussian; the random networks it is used on contain nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mpmath
import sympy as sp

from kcalc.network.layers import Affine, Concat, LayerNorm, RMSNorm, Scale, Sum

mp = mpmath.mp.clone()
mp.dps = 50
PAIRS = ((0, 0), (1, 1), (0, 1))


def number(value: Any) -> Any:
    """An exact number, to all digits."""
    if isinstance(value, sp.Rational):
        return mp.mpf(value.p) / value.q
    return mp.mpf(str(sp.N(value, mp.dps + 10))) if isinstance(value, sp.Basic) else mp.mpf(value)


@dataclass
class Feature:
    """One group of channels: second moments (11, 22, 12), means, and the linear form in Gaussians
    if it is one.
    """

    width: int
    k: Any
    m: Any = (0, 0)
    linear: dict[Any, Any] | None = None

    def times(self, s1: Any, s2: Any, t1: Any = 0, t2: Any = 0) -> Feature:
        """``(s1 f1 + t1, s2 f2 + t2)``."""
        s, t, m = (s1, s2), (t1, t2), self.m
        k = tuple(
            s[i] * s[j] * self.k[n] + s[i] * m[i] * t[j] + s[j] * m[j] * t[i] + t[i] * t[j]
            for n, (i, j) in enumerate(PAIRS)
        )
        linear = None
        if self.linear is not None:
            linear = {leaf: (s1 * a, s2 * b, kk) for leaf, (a, b, kk) in self.linear.items()}
        return Feature(self.width, k, (s1 * m[0] + t1, s2 * m[1] + t2), linear)


def mixed(features: list[Feature]) -> tuple[Any, Any]:
    """Second moments and means over all channels."""
    total = sum(f.width for f in features)
    return (
        tuple(sum(f.width * f.k[i] for f in features) / total for i in range(3)),
        tuple(sum(f.width * f.m[i] for f in features) / total for i in range(2)),
    )


def added(row: list[Feature], weights: list[Any], width: int) -> Feature:
    """A weighted sum of features that are independent, or all linear in the same Gaussians."""
    terms = [f.times(w, w) for f, w in zip(row, weights, strict=True)]
    mean = tuple(sum(f.m[i] for f in terms) for i in range(2))
    linear: dict[Any, Any] | None = None
    if all(f.linear is not None for f in terms):
        linear = {}
        for f in terms:
            for leaf, (a, b, k) in f.linear.items():
                old = linear.get(leaf, (0, 0, k))
                linear[leaf] = (old[0] + a, old[1] + b, k)

    def covariance(n: int, i: int, j: int) -> Any:
        if linear is not None:
            return sum(v[i] * v[j] * v[2][n] for v in linear.values())
        return sum(f.k[n] - f.m[i] * f.m[j] for f in terms)

    k = tuple(covariance(n, i, j) + mean[i] * mean[j] for n, (i, j) in enumerate(PAIRS))
    return Feature(width, k, mean, linear)


def cut(features: list[Feature], edges: list[int]) -> list[Feature]:
    """Groups cut at given channels."""
    out, start = [], 0
    for f in features:
        inside = [e for e in edges if start < e <= start + f.width]
        for low, high in zip([start, *inside], inside, strict=False):
            out.append(Feature(high - low, f.k, f.m, f.linear))
        start += f.width
    return out


def step(layer: Any, below: list[list[Feature]], node: Any) -> list[Feature]:
    """The rule of one layer."""
    first = below[0]
    if isinstance(layer, Affine):
        k, _ = mixed(first)
        w, b = number(layer.sigma_w) ** 2, number(layer.sigma_b) ** 2
        k = tuple(w * v + b for v in k)
        depthwise = layer.groups == layer.features
        linear = None if depthwise else {node: (mp.mpf(1), mp.mpf(1), k)}
        return [Feature(layer.features, k, linear=linear)]
    if isinstance(layer, Sum):
        weights = [number(w) for w in layer.weights or (1,) * len(below)]
        edges = sorted({sum(f.width for f in fs[: i + 1]) for fs in below for i in range(len(fs))})
        rows = zip(*(cut(fs, edges) for fs in below), strict=True)
        return [added(list(row), weights, row[0].width) for row in rows]
    if isinstance(layer, Concat):
        return [f for fs in below for f in fs]
    if isinstance(layer, Scale):
        return [f.times(number(layer.factor), number(layer.factor)) for f in first]
    if isinstance(layer, LayerNorm | RMSNorm):
        (k11, k22, _), (m1, m2) = mixed(first)
        m1, m2 = (m1, m2) if isinstance(layer, LayerNorm) else (0, 0)
        s1, s2 = 1 / mp.sqrt(k11 - m1 * m1), 1 / mp.sqrt(k22 - m2 * m2)
        return [f.times(s1, s2, -m1 * s1, -m2 * s2) for f in first]
    return first
