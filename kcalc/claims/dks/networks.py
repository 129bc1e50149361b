"""Claims of sections 22 and 23: quadrature, numerical inversion, polynomials of ResNets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import sympy as sp
from numpy.polynomial.legendre import leggauss
from scipy import special
from sympy import Expr, Integer, Poly, Rational, Symbol, symbols

from ... import Network, architectures, maximal_slope, slope_polynomial, subnetworks
from ... import layers as L
from ...foundation.symbols import psi
from ..bench import Array, Bench, at_most, equal, exact
from ..claim import Evidence
from .normal_means import KNOWN, asymptotic_legendre, line
from .paper import PAPER, claim
from .random_networks import random_network, slopes

DEPTHS = (50, 101, 152)
W = Symbol("w", positive=True)


def _rule(n: int) -> tuple[Array, Array]:
    """Return the Gauss-Legendre rule of order n on [-10, 10] for Gaussian means, without panels."""
    t, w = leggauss(n) if n < 1000 else asymptotic_legendre(n)
    return 10 * t, 10 * w * np.exp(-((10 * t) ** 2) / 2) / np.sqrt(2 * np.pi)


@claim("DKS-222", "Sec. 22.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""Gauss-Legendre quadrature of order $10^5$ on $[-10,10]$ estimates the Gaussian expectations
    with high accuracy; if it is split at the kinks, 200 nodes per piece are enough
    """
    shift = bench.uniform(0.2, 0.8)
    truth = special.ndtr(-shift)  # E 1[x > shift]
    x, w = _rule(10**5)
    yield equal(w @ (x > shift), truth, "order $10^5$: the moments computed with the rule", 1e-4)
    smooth = [
        [w @ phi.values(x) ** 2, phi.q_map()]
        for phi in (KNOWN[n] for n in ("tanh", "softplus", "swish", "gelu"))
    ]
    yield equal(
        np.array(smooth)[:, 0],
        np.array(smooth)[:, 1],
        "order $10^5$: second moments of smooth activations",
        1e-9,
    )
    t, v = leggauss(200)
    for name in ("relu", "selu", "elu", "hard_tanh", "tanh", "softplus", "swish"):
        phi = KNOWN[name].transformed(bench.uniform(0.3, 1.2), bench.uniform(-0.5, 0.5), 1.0, 0.0)
        edges = np.array([-10.0, *phi.kinks, 10.0])
        half, middle = np.diff(edges)[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
        x, w = (middle + half * t).ravel(), (half * v).ravel()
        density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
        slope = phi.slope() * phi.q_map()
        yield equal(
            [
                w @ (density * phi.values(x) ** 2) - phi.q_map(),
                w @ (density * phi.slopes(x) ** 2) - slope,
            ],
            0,
            "200 nodes per piece, split at kinks, against independent panels",
        )
    yield at_most(
        2 * special.ndtr(-10.0) * 1e4,
        1e-18,
        "the part of the integral outside [-10, 10], for functions that are at most 10^4 there",
        0.0,
    )
    x, w = line()
    yield equal([w.sum(), w @ x**4], [1, 3], "moments 0 and 4 computed with the panels", 1e-13)


@claim("DKS-223", "Sec. 22.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mu^{-1}$ has the closed form $\mu^{-1}(\zeta)=\zeta^{1/D}$ if $\mu(\psi)=\psi^D$"""
    d, zeta = symbols("D zeta", positive=True)
    yield exact((zeta ** (1 / d)) ** d - zeta, r"$(\zeta^{1/D})^D=\zeta$")
    for _ in bench.rounds(10, 60):
        depth, target = bench.whole(1, 300), np.exp(bench.uniform(0.01, 3))
        yield equal(
            maximal_slope(architectures.vanilla(depth, "tanh")).inverse(target)
            - target ** (1 / depth),
            0,
            "kcalc's inverse of vanilla networks",
        )
    for _ in bench.rounds(4, 30):
        mu = maximal_slope(random_network(bench, "tanh", 6))
        target = np.exp(bench.uniform(0.01, 3))
        low, high = 1.0, 2.0
        while mu(high) < target:
            high *= 2
        while high - low > 1e-13:
            middle = (low + high) / 2
            low, high = (middle, high) if mu(middle) < target else (low, middle)
        yield equal(
            mu.inverse(target) - low,
            0,
            "other networks: kcalc's inverse against the paper's bisection from [1, 2]",
            1e-11,
        )


def _count(network: Network, kind: type) -> int:
    return len(network.nodes_of(kind))


@claim("DKS-Dparam", "Sec. 23.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""A ResNet-V2 of depth $D\in\{50,101,152\}$ has $D-1$ nonlinear layers and $(D-2)/3$ blocks,
    of which 4 are transition blocks

    Under: the shortcut of a transition block shares a nonlinear layer with its branch, and this
    layer is not counted twice
    """
    stages = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
    yield equal(
        [[3 * sum(s) + 1 - (d - 1), sum(s) - (d - 2) // 3, len(s) - 4] for d, s in stages.items()],
        0,
        "three nonlinear layers in each block and a final one, from the published stages",
        0.0,
    )
    for depth in DEPTHS:
        net = architectures.resnet_v2(depth)
        yield equal(
            [
                _count(net, L.Nonlinear) - 4 - (depth - 1),
                _count(net, L.Sum) - (depth - 2) // 3,
                _count(net, L.Pool) - 2,
            ],
            0,
            "kcalc's networks: nonlinear layers, excluding the 4 transition shortcuts, sums "
            "and pools",
            0.0,
        )
    along = [
        int(Poly(slope_polynomial(architectures.resnet_v2(depth, residual_weight=1)), psi).degree())
        for depth in DEPTHS
    ]
    yield equal(along, np.array(DEPTHS) - 1, "the nonlinear layers on the longest path", 0.0)


PAPER.undecidable(
    "DKS-mnist",
    "Sec. 23.1 and 29 other places",
    r"The ResNets classify MNIST images of 224 x 224 pixels with 3 channels",
    "this concerns only the name of a data set; MNIST images have 28 x 28 pixels and one channel, "
    "so ImageNet is meant; no formula depends on it",
)


def _eq20(depth: int, w2: Expr) -> Expr:
    return (w2 * psi**3 + 1 - w2) ** Rational(depth - 14, 3) * (w2 * psi**2 + 1 - w2) ** 4 * psi**5


def _blocks(depth: int, w2: Expr) -> Expr:
    """Build the slope polynomial from branches psi^3, four shortcuts psi and a final layer psi."""
    return (
        (w2 * psi**3 + 1 - w2) ** ((depth - 2) // 3 - 4) * (w2 * psi**3 + (1 - w2) * psi) ** 4 * psi
    )


def _ratios(bench: Bench, found: Any, printed: Any) -> list[float]:
    """Compute found / printed at six random rational w and psi; only the division is rounded."""
    points = bench.rng.integers([[1, 21]] * 6, [[20, 60]] * 6)
    at: list[Any] = [{W: Rational(int(a), 20), psi: Rational(int(b), 20)} for a, b in points]
    return [float(found.subs(point) / printed.subs(point)) for point in at]


@claim("DKS-eq20", "Sec. 23.4, eq. 20")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$p_f=(w^2\psi^3+1-w^2)^{(D-2)/3-4}(w^2\psi^3+(1-w^2)\psi)^4\psi=(w^2\psi^3+1-w^2)^{(D-14)/3}(w^2\psi^2+1-w^2)^4\psi^5=\mu(\psi)$
    for the modified ResNet-V2 with residual weight $w$
    """
    for depth in DEPTHS[: bench.size(2, 3)]:
        pairs = [
            (Rational(int(a), 10), Rational(int(b), 20))
            for a, b in bench.rng.integers([[1, 1]] * 5, [[30, 20]] * 5)
        ]
        yield equal(
            [_blocks(depth, b).subs(psi, a) / _eq20(depth, b).subs(psi, a) for a, b in pairs],
            1,
            f"D = {depth}: both printed forms at five random points, in fractions",
            0.0,
        )
        found = slope_polynomial(architectures.resnet_v2(depth, residual_weight=W))
        yield equal(
            _ratios(bench, found, _eq20(depth, W**2)),
            1,
            f"D = {depth}: kcalc's polynomial divided by the printed one, in exact fractions",
            0.0,
        )
    for depth in DEPTHS:
        w2 = Rational(bench.whole(1, 20), 20)
        at = bench.uniform(1.001, 1.3)
        net = architectures.resnet_v2(depth, residual_weight=sp.sqrt(w2))
        truth = float(_eq20(depth, w2).subs(psi, sp.Float(at, 30)))
        yield equal(
            slopes(net, at)[net.outputs[0]] / truth - 1,
            0,
            "the chain rule on the graph, at random w and psi",
            1e-11,
        )
        yield equal(maximal_slope(net)(at) / truth - 1, 0, r"kcalc's $\mu$ is $p_f$", 1e-11)
        inner = [part.network for part in subnetworks(net).nonlinear]
        yield equal(
            max(float(slope_polynomial(part).subs(psi, at)) for part in inner) / truth - 1,
            0,
            "the largest slope of all maximal subnetworks, computed one by one",
            1e-11,
        )


@claim("DKS-w01", "Sec. 23.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mu(\psi)=\psi^5$ for $w=0$ and $\mu(\psi)=\psi^{D-1}$ for $w=1$; for other $w$ it is a
    polynomial of degree $D-1$ with coefficients that add up to 1
    """
    for depth in DEPTHS:
        yield exact(_eq20(depth, Integer(0)) - psi**5, f"D = {depth}: eq. 20 at $w=0$")
        yield exact(_eq20(depth, Integer(1)) - psi ** (depth - 1), f"D = {depth}: eq. 20 at $w=1$")
        yield exact(
            slope_polynomial(architectures.resnet_v2(depth, residual_weight=1))
            - psi ** (depth - 1),
            f"D = {depth}: kcalc's network with $w=1$",
        )
    for depth in DEPTHS[: bench.size(1, 3)]:
        p = slope_polynomial(
            architectures.resnet_v2(depth, residual_weight=Rational(3, 5)), expand=True
        )
        yield equal(
            [float(p.as_expr().subs(p.gen, 1)) - 1, p.degree() - (depth - 1)],
            0,
            "$w=3/5$: the sum of the coefficients minus 1, the degree minus $D-1$",
            0.0,
        )
        near = slope_polynomial(architectures.resnet_v2(depth, residual_weight=Rational(1, 10**6)))
        yield equal(
            float(near.subs(psi, Rational(11, 10))) / 1.1**5 - 1,
            0,
            "kcalc's network as $w\\to0$: $w=10^{-6}$",
            1e-9,
        )


@claim("DKS-235", "Sec. 23.5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""Without shortcuts the polynomial is $\psi^{D-1}$, which is eq. 20 with residual weight
    $w=1$
    """
    free = {
        depth: slope_polynomial(architectures.resnet_v2(depth, shortcut_weight=0))
        for depth in DEPTHS
    }
    for depth in DEPTHS:
        yield exact(free[depth] - psi ** (depth - 1), f"D = {depth}: kcalc's skip-free network")
        yield exact(_eq20(depth, Integer(1)) - psi ** (depth - 1), f"D = {depth}: eq. 20 at $w=1$")


@claim("DKS-236", "Sec. 23.6")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""Wide ResNets have $\mu=(w^2\psi^2+1-w^2)^{(D-10)/2}(w^2\psi+1-w^2)^3\psi^4$, and without
    shortcuts $\mu=\psi^{D-3}$

    Under: $D-4$ is divisible by 6
    """
    for depth in (10, 16, 28, 40, 250)[: bench.size(4, 5)]:
        printed = (
            (W**2 * psi**2 + 1 - W**2) ** ((depth - 10) // 2)
            * (W**2 * psi + 1 - W**2) ** 3
            * psi**4
        )
        yield equal(
            _ratios(
                bench,
                slope_polynomial(architectures.wide_resnet(depth, residual_weight=W)),
                printed,
            ),
            1,
            f"D = {depth}: kcalc's polynomial divided by the printed one, in exact fractions",
            0.0,
        )
        yield exact(
            slope_polynomial(architectures.wide_resnet(depth, shortcut_weight=0))
            - psi ** (depth - 3),
            f"D = {depth}: without shortcuts",
        )
        w2 = Rational(bench.whole(1, 20), 20)
        at = bench.uniform(1.001, 1.3)
        net = architectures.wide_resnet(depth, residual_weight=sp.sqrt(w2))
        truth = float(printed.subs({W: sp.sqrt(w2), psi: sp.Float(at, 30)}))
        yield equal(
            slopes(net, at)[net.outputs[0]] / truth - 1,
            0,
            "the chain rule on the graph, at random w and psi",
            1e-11,
        )
        yield equal(
            maximal_slope(net)(at) / truth - 1, 0, r"kcalc's $\mu$ is the printed polynomial", 1e-11
        )
