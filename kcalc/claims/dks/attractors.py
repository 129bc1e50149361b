"""Claims of Appendix C.2, Corollaries 37 to 39: the number of fixed points of a C map."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
import sympy as sp
from sympy import Integer, Poly, Rational, Symbol, expand

from ... import Activation, Network, activation, c_map, chain, repeat
from ... import layers as L
from ..bench import Bench, at_most, certified, counterexample, equal, proved
from ..claim import Evidence
from ..families import PowerMap, power_maps
from ..functions import FUNCTIONS
from . import coefficients as co
from . import reference
from .fixed_points import curved
from .paper import claim
from .reference import power_series, second_moment, steepness

_C = Symbol("c")


# --- families -------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def polynomial(weights: tuple[Rational, ...]) -> Activation:
    """Return the activation sum sqrt(b_n) h_n, whose C map at q = 1 is sum b_n c^n."""
    x = Symbol("x", real=True)
    terms = [
        sp.sqrt(b / sp.factorial(n)) * sp.hermite_prob_poly(n, x)
        for n, b in enumerate(weights)
        if b
    ]
    return activation(expand(sp.Add(*terms)))


def rational_maps(
    bench: Bench, kind: str, quick: int, full: int | None = None, degree: int = 8
) -> list[tuple[Rational, ...]]:
    """Draw random rational coefficients of C maps that are not affine.

    ``kind``: "below" for C'(1) < 1, "edge" for C'(1) = 1, "above" for C'(1) > 1, "odd" for odd C
    maps.
    """
    out = []
    while len(out) < len(bench.rounds(quick, full)):
        whole = [
            int(v)
            for v in bench.rng.integers(0, 9, degree + 1) * (bench.rng.random(degree + 1) < 0.5)
        ]
        whole[0] = 0
        if kind == "odd":
            whole[::2] = [0] * len(whole[::2])
        total = sum(whole)
        if not sum(whole[2:]) or (kind != "odd" and not any(whole[2::2])):
            continue
        weights = [Rational(v, total) for v in whole]
        steep = sum((n * b for n, b in enumerate(weights)), Integer(0))
        share = {"below": Rational(9, 10) / steep, "edge": 1 / steep}.get(kind, Integer(1))
        if kind == "above" and bench.rng.random() < 0.7:
            share = (1 + 1 / steep) / 2
        mixed = [share * b for b in weights]
        mixed[0] += 1 - share
        out.append(tuple(mixed))
    return out


def roots(weights: tuple[Any, ...], low: int = -1, high: int = 1) -> int:
    """Count the solutions of C(c) = c in [low, high] exactly, by Sturm's theorem."""
    poly = Poly(sum((b * _C**n for n, b in enumerate(weights)), Integer(0)) - _C, _C)
    return int(poly.count_roots(low, high))


@lru_cache(maxsize=32)
def settled(name: str, weight: float, bias: float) -> tuple[Network, float]:
    """Return a network with one layer, and the attracting fixed point of its Q map.

    The layer is an Affine with sigma_w^2 = ``weight`` and sigma_b^2 = ``bias``, followed by the
    activation ``name``.
    """
    q = 1.0
    for _ in range(4000):
        q = weight * second_moment(name, q) + bias
    return deep(name, weight, bias, 1), q


def deep(name: str, weight: float, bias: float, depth: int) -> Network:
    """Build a network with ``depth`` layers of :func:`settled`."""
    block = chain(L.Nonlinear(name), L.Affine(sigma_w=sqrt(weight), sigma_b=sqrt(bias)))
    return chain(L.Input(), L.Affine(), repeat(block, depth))


def own_map(name: str, weight: float, bias: float, q: float, c: float) -> float:
    """Evaluate the C map of the layer of :func:`settled` at q, using the joint density."""
    return (weight * reference.gamma(name, c, q) + bias) / q


EXPLODING = (("tanh", 2.0, 0.05), ("erf", 2.5, 0.2), ("tanh", 3.0, 0.01), ("sin", 2.0, 0.1))
COLLAPSING = (("tanh", 1.0, 0.3), ("sigmoid", 2.0, 0.1), ("softplus", 0.5, 0.2))


# --- fixed points ---------------------------------------------------------------------------------


def _mirrored(n: int) -> co.Terms:
    """Return the factor of b_n in (C(-t) + t)/t, for 0 < t <= 1.

    For n = 0, this factor is 1/t + 1, and its lower bound 2 is returned instead.
    """
    return {0: 2} if n == 0 else co.collected((0, 1), (n - 1, (-1) ** n))


@claim("DKS-cor37", "App. C.2, Corollary 37")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C$ has no fixed point in $[-1,0)$, unless it is odd

    Under: uniform q values; C nontrivial
    """
    count = bench.size(12, 60)
    for kind, expected in (("below", 0), ("edge", 0), ("above", 0), ("odd", 1)):
        yield equal(
            [roots(b, -1, 0) - (b[0] == 0) for b in rational_maps(bench, kind, count)],
            expected,
            f"fixed points in [-1, 0) of random maps ({kind}), counted exactly",
            0.0,
        )
    from flint import arb, arb_poly

    bounds = []
    for name in [
        name for name in bench.size(co.NAMES[::3], co.NAMES) if name not in ("square", "exp")
    ]:
        b = co.enclosed(name)
        if not any(v.lower() > 1e-6 for v in b[0::2]):
            continue
        total = arb_poly([])
        for n, value in enumerate(b):
            terms = _mirrored(n)
            total += arb_poly([terms.get(p, 0) for p in range(max(terms) + 1)]) * value
        seen = certified(lambda t, p=total: p(t), arb(0), arb(1), name, digits=15)
        bounds.append(math.nan if seen.holds is None or seen.margin is None else seen.margin)
    yield proved(
        [v - 1e-9 for v in bounds],
        "activations with an even part: $(C(c)-c)/|c|>0$ on $[-1,0)$, enclosed",
    )
    there, maps = [], {}
    for name in ("tanh", "gelu", "relu", "erf", "softplus", "sin", "selu", "cube"):
        points = activation(name).c_map.fixed_points()
        there.append(len([p for p in points if p.value < -1e-12]))
        maps[name] = there[-1]
        odd = name in ("tanh", "erf", "sin", "cube")
        own = power_series(name, 20)
        yield equal(
            [there[-1], own[::2].sum() < 1e-14],
            [odd, odd],
            f"{name}: fixed points below 0 that kcalc finds",
            0.0,
        )
    for C in curved(power_maps(bench, 300, 3000)):
        yield equal(
            C(-1.0) + 1,
            2 * (C.weights[0] + C.weights[2::2].sum()),
            "$C(-1)+1$ is twice the even part of $C$ at 1",
        )
    C = PowerMap(np.array([0.0, 0.2, 0.8]))
    yield at_most(
        C(0.5),
        0.5,
        "$C(0)=0$: convexity gives $C(c)\\le c$, as the proof requires; concavity would give the "
        "opposite",
    )


def _kinds(bench: Bench) -> Iterator[tuple[str, int, list[tuple[Rational, ...]]]]:
    for kind, number in (("below", 1), ("edge", 1), ("above", 2), ("odd", 3)):
        yield kind, number, rational_maps(bench, kind, 15, 80)


@claim("DKS-cor38", "App. C.2, Corollary 38")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""i) 1 is the only fixed point of $C$ iff $C'(1)\le1$; ii) there are two fixed points,
    $c^*\in[0,1)$ and 1, iff $C'(1)>1$ and $C$ is not odd; iii) there are three, $-1$, 0 and 1, iff
    $C$ is odd

    Under: uniform q values; C nontrivial
    """
    library, truth = [], []
    for kind, number, maps in _kinds(bench):
        yield equal(
            [roots(b) for b in maps],
            number,
            f"{kind}: fixed points in [-1, 1] of random maps, counted exactly",
            0.0,
        )
        for b in rational_maps(bench, kind, 1, 6, 5):
            library.append(len(polynomial(b).c_map.fixed_points()))
            truth.append(roots(b))
        if kind == "above":
            yield equal(
                [roots(b, 0, 1) for b in maps],
                2,
                "if there are two fixed points, both are in [0, 1]",
                0.0,
            )
    affine = [tuple(Rational(v) for v in (f"{k}/7", f"{7 - k}/7")) for k in range(1, 7)]
    yield equal([roots(b) for b in affine], 1, "affine maps belong to case i", 0.0)
    names = (
        "tanh",
        "gelu",
        "relu",
        "sigmoid",
        "erf",
        "softplus",
        "sin",
        "swish",
        "selu",
        "exp",
        "cube",
        "gaussian",
    )
    for name in names[: bench.size(8, 12)]:
        b = power_series(name, 60)
        steep = steepness(name) / second_moment(name)
        odd = b[::2].sum() < 1e-14
        library.append(len(activation(name).c_map.fixed_points()))
        truth.append(3 if odd else 1 if steep <= 1 + 1e-9 else 2)
    for name, weight, bias in EXPLODING[: bench.size(2, 4)] + COLLAPSING[: bench.size(1, 3)]:
        layer, q = settled(name, weight, bias)
        points = c_map(layer).fixed_points(q)
        library.append(len(points))
        truth.append(2 if (name, weight, bias) in EXPLODING else 1)
        residual = [
            own_map(name, weight, bias, q, p.value) - p.value for p in points if p.value < 0.95
        ]
        yield equal(
            [*residual, 0.0],
            0,
            f"{name} layers with biases: the fixed points, by the joint density",
            1e-9,
        )
    yield equal(
        library, truth, "the number of fixed points that kcalc finds", 0.0, maps=len(library)
    )


@claim("DKS-cor39", "App. C.2, Corollary 39")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$0\le C'(c^*)<1$ at the fixed point $c^*$ of Corollary 38 ii, and $C'(c^*)=0$ iff $c^*=0$
    and $C'(0)=0$

    Under: uniform q values; C nontrivial

    Printed: $0<C'(c^*)<1$
    """
    square = polynomial((Integer(0), Integer(0), Integer(1))).c_map
    point = square.fixed_points()[0]
    yield counterexample(
        abs(point.value) < 1e-12 and point.slope <= 1e-12,
        "$C=c^2$, the C map of $(x^2-1)/\\sqrt2$: $c^*=0$ and $C'(0)=0$",
        found=[point.value, point.slope],
    )
    slopes, zero = [], []
    for b in rational_maps(bench, "above", 60, 400):
        C = PowerMap(np.array([float(v) for v in b]))
        inner = star(C)
        slopes.append(C.derivative(1)(inner))
        zero.append((slopes[-1] == 0, b[0] == 0 and b[1] == 0))
    yield at_most(slopes, 1 - 1e-6, "random maps: the slope is below 1", 0.0, largest=max(slopes))
    yield at_most(0, slopes, "random maps: the slope is not negative", 0.0)
    was, should = np.array(zero).T
    yield equal(
        was, should, "the slope is 0 if and only if $b_0=b_1=0$", 0.0, times=int(should.sum())
    )
    for name, weight, bias in EXPLODING[: bench.size(2, 4)]:
        layer, q = settled(name, weight, bias)
        inner = c_map(layer).fixed_points(q)[0]
        phi = FUNCTIONS[name]
        truth = weight * reference.pair(phi.slope, q, phi.slope, q, inner.value)
        yield equal(
            inner.slope,
            truth,
            "layers with biases: kcalc's slope against the joint density",
            1e-9,
        )
        yield at_most(truth, 1 - 1e-3, "the slope at the fixed point is below 1", 0.0)


def star(C: PowerMap) -> float:
    """Compute the fixed point in [0, 1) of a map with C'(1) > 1, by Newton's method from 0."""
    c = 0.0
    for _ in range(200):
        c += (C(c) - c) / (1 - C.derivative(1)(c))
    return c
