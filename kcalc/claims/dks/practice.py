"""Claims of sections 25, 26 and 28.

The claims concern variance propagation, other initialisations, normalisation layers, and
experimental settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import numpy as np
import sympy as sp
from scipy import special
from sympy import Integer, Matrix, Max, Rational, Symbol

from ... import activation, architectures, c_map, chain, q_map, shape
from ... import layers as L
from ...shaping import edge
from ..bench import Bench, at_most, counterexample, equal, exact, statistical
from ..claim import Evidence
from ..families import PowerMap, power_maps
from ..functions import SELU
from .normal_means import KNOWN, root
from .paper import PAPER, claim

GRID = np.cos(np.linspace(np.pi, 0.0, 201))
# E phi'^2, derived by hand
SELU_SLOPE = SELU[0] ** 2 * (0.5 + SELU[1] ** 2 * np.exp(2) * special.ndtr(-2))


@claim("DKS-251", "Sec. 25.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with $h_1=x$, $h_2=-x$ and $y=(h_1+h_2)/\sqrt2$, all weight vectors have norm 1, but $y=0$
    for every $x$
    """
    x = Symbol("x", real=True)
    first, second = Matrix([[1], [-1]]), Matrix([[1, 1]]) / sp.sqrt(2)
    yield exact((second * first * x)[0], "the output is 0")
    norms = [first.row(0).norm() - 1, first.row(1).norm() - 1, second.norm() - 1]
    yield equal(list(norms), 0, "the three norms minus 1", 0.0)
    for _ in bench.rounds(5, 50):
        width = bench.whole(1, 200)
        v = bench.normal(width, 6)
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        out = np.ones(2 * width) / np.sqrt(2 * width)
        yield equal(
            [np.abs(out @ np.concatenate([v, -v])).max(), np.linalg.norm(out) - 1],
            0,
            "pairs of opposite units in wide layers: the output and its norm minus 1",
        )


@claim("DKS-varxy", "Sec. 25.5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{Var}(x+y)=E[\mathrm{Var}(y|x)]+\mathrm{Var}(x)$ is wrong for $x=y$"""

    def variance(values: list[Fraction], weights: list[Fraction]) -> Fraction:
        mean = Fraction(sum(v * w for v, w in zip(values, weights, strict=True))) / sum(weights)
        return Fraction(
            sum((v - mean) ** 2 * w for v, w in zip(values, weights, strict=True))
        ) / sum(weights)

    coin, half = [Fraction(-1), Fraction(1)], [Fraction(1, 2)] * 2
    left, right = variance([2 * v for v in coin], half), Fraction(0) + variance(coin, half)
    yield equal(
        [left, right],
        [4, 1],
        "a fair coin $x=y=\\pm1$: the left side is 4, but the right side is 1",
        0.0,
    )
    for _ in bench.rounds(10, 100):
        table = bench.rng.integers(1, 9, (3, 4))
        x, y = ([Fraction(int(v)) for v in bench.rng.integers(-5, 6, n)] for n in table.shape)
        rows = [[Fraction(int(v)) for v in row] for row in table]
        share = [Fraction(sum(row)) for row in rows]
        inner = sum(variance(y, row) * s for row, s in zip(rows, share, strict=True)) / sum(share)
        means = [
            Fraction(sum(a * b for a, b in zip(y, row, strict=True))) / s
            for row, s in zip(rows, share, strict=True)
        ]
        outer = variance([a + b for a, b in zip(x, means, strict=True)], share)
        joint = [a + b for a in x for b in y]
        yield equal(
            variance(joint, [w for row in rows for w in row]) - inner - outer,
            0,
            "the correct form, over random tables in fractions: $E[Var(y|x)]+Var(x+E[y|x])$",
            0.0,
        )


@claim("DKS-26.1", "Sec. 26.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with Glorot's variance $2/(k+m)$ and widths $n,2n,n,\dots$, two layers multiply q by
    $n(2n)(2/(n+2n))^2=8/9$
    """
    n = Symbol("n", positive=True)
    yield exact(
        n * 2 * n * (2 / (n + 2 * n)) ** 2 - Rational(8, 9), "the product as printed is 8/9"
    )
    widths = [8, 16] * 5 + [8]
    layers = [L.Affine(m, sigma_w=sp.sqrt(Rational(2 * k, k + m))) for k, m in pairwise(widths)]
    yield equal(
        q_map(chain(*layers))(1.0), (8 / 9) ** 5, "kcalc's q value after ten such layers", 1e-13
    )
    yield equal(
        q_map(chain(*[L.Affine(m) for m in widths[1:]]))(1.0),
        1,
        "with $1/k$, q is preserved",
        1e-13,
    )
    draws, x = bench.size(20_000, 200_000), np.ones(8)
    first = bench.normal(draws, 16, 8) @ x * np.sqrt(2 / 24)
    second = np.einsum("doi,di->do", bench.normal(draws, 8, 16), first) * np.sqrt(2 / 24)
    yield statistical((second**2).mean(axis=1), 8 / 9, "random weights of widths 8, 16, 8")


@claim("DKS-selu", "Sec. 26.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""SELU has $Q(1)=1$, $C(0)=0$ and, by eq. 11, $C'(1)\approx1.0716$"""
    own, phi = KNOWN["selu"], activation("selu")
    yield equal(
        [own.q_map(), own.mean(), own.slope()],
        [1, 0, SELU_SLOPE],
        "quadrature against the slope derived by hand",
        1e-9,
    )
    yield equal(
        [phi.q_map(1.0), phi.c_map(0.0), phi.c_map.derivative(1)(1.0)],
        [1, 0, SELU_SLOPE],
        "kcalc's $Q(1)$, $C(0)$ and $C'(1)$",
        1e-9,
    )
    yield equal(SELU_SLOPE, 1.0716, "the digits as printed", 5e-5, slope=SELU_SLOPE)
    yield at_most(phi.q_map.derivative(1)(1.0), 0.8, "$q=1$ is attractive: $Q'(1)=0.783$", 0.0)


@claim("DKS-selu100", "Sec. 26.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""SELU networks have $C_f'(1)\approx1.005\cdot10^3$ for 100 layers and $1.0157\cdot10^9$ for
    300 layers
    """
    for depth, printed, digits in ((100, 1.005e3, 0.5), (300, 1.0157e9, 0.5e5)):
        yield equal(
            (SELU_SLOPE**depth - printed) / digits,
            0,
            f"{depth} layers: the error in units of half the last printed digit",
            1.0,
        )
        if depth > bench.size(100, 300):
            continue
        found = c_map(architectures.vanilla(depth, "selu")).derivative(1)(1.0)
        yield equal(
            found / SELU_SLOPE**depth,
            1,
            f"kcalc's network of {depth} layers against the power",
            1e-8,
        )


@claim("DKS-selugood", "Sec. 26.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""For 100 SELU layers, $C_f'(1)\approx1005$. The bound of Theorem 13 is 2008, although
    $\max|C_f-c|\le2$ for every map, and $C_f$ is degenerate: it maps $[-1,0.9]$ into $[-0.04,0.16]$

    Printed: $C_f$ is reasonably well behaved by Theorem 13
    """
    bound = 2 * (SELU_SLOPE**100 - 1)
    own = KNOWN["selu"]
    c = np.array([-1.0, 0.5, 0.9])
    local = activation("selu").c_map
    C = c_map(architectures.vanilla(100, "selu"))
    far = np.abs(C(GRID[::10]) - GRID[::10]).max()
    yield counterexample(
        far - 0.5,
        "the largest distance from the identity, which is at most 2 for any map, is near 1",
        far=far,
        bound=bound,
        one_sided=True,
    )
    yield at_most(2.0, bound, "the bound of Theorem 13 is weaker than the bound for any map", 0.0)
    inside = np.linspace(-1, 0.9, 20)
    yield at_most(
        np.abs(C(inside) - 0.06),
        0.1,
        "kcalc's map of 100 layers on [-1, 0.9] lies within [-0.04, 0.16]",
        0.0,
    )
    yield equal(local(c), [own.c_map(v) for v in c], "the map of one layer, by quadrature", 1e-11)
    iterated = c
    for _ in range(100):
        iterated = np.asarray(local(np.clip(iterated, -1, 1)))
    yield equal(C(c), iterated, "100 layers, one after another", 1e-9)


@claim("DKS-264", "Sec. 26.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""c values converge to 1 if $C'(1)<1$, and to some $c_0<1$ if $C'(1)>1$"""
    start = np.array([-0.5, 0.0, 0.5, 0.95])
    for C in power_maps(bench, 100, 500):
        slope = C.derivative(1)(1.0)
        if slope > 1.2 and C.weights[1] < 0.9:
            weights = C.weights * (0.8 / slope)
            weights[0] += 1 - weights.sum()
            yield equal(
                PowerMap(weights).iterate(start, 150).min(),
                1,
                "random maps with $C'(1)\\le0.8$ from four starting points",
                1e-9,
            )
            yield at_most(
                C.iterate(start[1:], 200).max(), 0.999, "random maps with $C'(1)>1.2$", 0.0
            )
    found = []
    for name in ("tanh", "softplus", "selu", "relu", "erf")[: bench.size(3, 5)]:
        C = activation(name).c_map
        tops = [p.value for p in C.fixed_points() if p.stable]
        slope = C.derivative(1)(1.0)
        if abs(slope - 1) > 1e-6:
            found.append([float(max(tops) > 1 - 1e-9), float(slope < 1)])
    found = np.array(found)
    yield equal(
        found[:, 0],
        found[:, 1],
        "kcalc's activations: the attractive fixed point is 1 if and only if $C'(1)<1$",
        0.0,
    )


@claim("DKS-fn21", "Sec. 26.4.1, footnote 21")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C'(0)\ge2-C'(1)=2-\mu^{-1}(\zeta)$, which is $2-\zeta^{1/D}$ for a chain of $D$ layers"""
    maps = power_maps(bench, 300, 3000, zero=True)
    zero, one = (np.array([C.derivative(1)(at) for C in maps]) for at in (0.0, 1.0))
    yield at_most(2 - one, zero, "random maps with $C(0)=0$")
    share = bench.uniform(0.1, 0.9)
    C = PowerMap(np.array([0.0, 1 - share, share]))
    yield equal(2 - C.derivative(1)(1.0), C.derivative(1)(0.0), "equality for $(1-b)c+bc^2$")
    rows = []
    for name in ("tanh", "softplus", "swish", "gelu")[: bench.size(3, 4)]:
        depth, zeta = bench.whole(5, 150), bench.uniform(1.1, 3)
        k = shape(architectures.vanilla(depth, name), method="dks", zeta=zeta).constants[name]
        own = KNOWN[name].at(k)
        rows.append(
            [2 - zeta ** (1 / depth), own.c_slope(0.0), k.transformed.c_map.derivative(1)(0.0)]
        )
    floor, own, ours = np.array(rows).T
    yield at_most(floor, ours, "networks that kcalc shapes", 1e-10)
    yield equal(ours, own, "their $C'(0)$ by quadrature", 1e-10)


@claim("DKS-LL", "Sec. 26.5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\varphi(x)-\varphi(-x)=x$ for $\varphi=\mathrm{relu}$, so $W\varphi(x)-W\varphi(-x)=Wx$"""
    p, x = Symbol("p", positive=True), Symbol("x", real=True)
    relu = activation("relu")
    for at in (p, -p, Integer(0)):
        yield exact(Max(0, at) - Max(0, -at) - at, f"the identity at x = {at}")
    u, w = bench.normal(7), bench.normal(4, 7)
    yield equal(w @ relu(u) - w @ relu(-u), w @ u, "random weights and inputs, kcalc's relu")
    both = activation(Max(0, x) - Max(0, -x))
    c = bench.uniform(-1, 1, 9)
    yield equal(both.c_map(c, 0.7, 2.0), c, "kcalc's C map of the difference is the identity")


@claim("DKS-267", "Sec. 26.7.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""Layer Normalization after a ReLU layer: $C_{f\circ g}'(1)=\pi/(\pi-1)\approx1.467$"""
    own = KNOWN["relu"]
    truth = own.slope() / (1 - own.mean() ** 2 / own.q_map())
    C = c_map(chain(L.Affine(), L.Nonlinear("relu"), L.LayerNorm()))
    yield equal(
        truth,
        np.pi / (np.pi - 1),
        "the slope divided by the fraction of q that is variance, by quadrature",
    )
    yield equal(
        [C.derivative(1)(1.0), C(0.0)],
        [np.pi / (np.pi - 1), 0],
        "kcalc's slope at 1, and value at 0",
    )
    yield equal(np.pi / (np.pi - 1), 1.467, "the digits as printed", 5e-4)
    h = bench.normal(2, bench.size(400_000, 4_000_000))
    u = np.maximum(np.stack([h[0], 0.9 * h[0] + np.sqrt(0.19) * h[1]]), 0)
    form = (own.c_map(0.9) * 0.5 - own.mean() ** 2) / (0.5 - own.mean() ** 2)
    yield statistical(
        [np.corrcoef(part)[0, 1] for part in np.split(u, 80, axis=1)],
        form,
        "correlations of 80 vectors of ReLU channels at c = 0.9",
    )
    yield equal(C(0.9), form, "kcalc at the same c value", 1e-11)


@claim("DKS-eocxiao", "Sec. 28.5.6")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for tanh, weight variance $1.01/k$ and bias variance $1.654355\cdot10^{-7}$ are on the edge
    of chaos: $C'(1)=1$
    """
    tanh, weight = KNOWN["tanh"], 1.01

    def slope(q: float) -> float:
        return weight * tanh.steepness(q)

    level = root(lambda q: slope(q) - 1, 1e-3, 2e-2)
    bias = level - weight * tanh.q_map(level)
    yield equal(
        bias / 1.654355e-7,
        1,
        "the bias variance by quadrature, divided by the printed value",
        5e-7,
        q=level,
        variance=bias,
    )
    point = edge("tanh", sigma_w=1.01**0.5)
    yield equal(
        [point.q / level, point.sigma_b**2 / bias], 1, "kcalc's edge: q and the bias variance", 1e-6
    )
    q = root(lambda v: weight * tanh.q_map(v) + 1.654355e-7 - v, 4e-3, 6e-3)
    yield equal(
        slope(q), 1, "the slope at the fixed point of q for the printed variances", 1e-7, q=q
    )


PAPER.undecidable(
    "DKS-rf",
    "Sec. 11.4",
    r"How DKS can be applied to standard random forest architectures",
    "a slip in the wording: convolutional architectures are meant, which Sec. 23 treats; nothing "
    "can be computed for random forests",
)
