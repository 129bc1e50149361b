"""Claims of section 24.5: tangent kernels of deep networks with degenerate C maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from math import cos, log, pi, sin, sqrt

import numpy as np
import sympy as sp
from sympy import Rational, Symbol, diff, symbols

from ... import Network, activation, architectures, ntk
from ..bench import Bench, at_most, counterexample, equal, exact, proved
from ..claim import Evidence
from ..families import PowerMap, power_maps
from ..functions import relu_map, relu_slope
from .normal_means import KNOWN, Phi
from .paper import claim
from .tangent_kernels import theta


def _saturating(bench: Bench, low: float, high: float) -> tuple[Network, Phi, int]:
    """Return a deep network of identical shifted tanh or erf layers, one layer, and the depth.

    The layer has Q(1) = 1 and C'(1) in [low, high]. If C'(1) is above 1, C'(c*) < 0.76, so 80
    layers reach the limit. Q'(1) is small, so rounding errors of q do not grow.
    """
    while True:
        name = str(bench.rng.choice(["tanh", "erf"]))
        alpha, beta = bench.uniform(0.3, 3.2), bench.uniform(0.3, 1.5)
        gamma = KNOWN[name].transformed(alpha, beta, 1, 0).q_map() ** -0.5
        own = KNOWN[name].transformed(alpha, beta, gamma, 0)
        if (
            low < own.slope() < high
            and abs(own.q_slope()) < 0.8
            and own.mean() ** 2 > 0.05
            and (high < 1 or _star(own)[1] < 0.76)
        ):
            depth = bench.size(80, 140)
            phi = activation(name).transformed(alpha, beta, gamma)
            return architectures.vanilla(depth - 1, phi), own, depth


def _star(own: Phi) -> tuple[float, float]:
    """Compute (c*, C'(c*)) from the Hermite series, by iteration from 0."""
    C = PowerMap(own.series(100))
    star = _fixed(lambda c: C(c))
    return star, C.derivative(1)(star)


@claim("DKS-ntktab1", "Sec. 24.5.2, tables")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""let $K=\sum_iK_i$ be the tangent kernel of $D$ equal layers, and $E$ the matrix of ones. If
    $c^*=1$ and $C'(1)<1$: $K_i\approx0$ for early and middle layers, $K_i\approx C'(1)^{D-i}E$ for
    late layers, and $K\approx E/(1-C'(1))$
    """
    for _ in bench.rounds(1, 4):
        net, own, depth = _saturating(bench, 0.25, 0.6)
        K = ntk(net)
        parts = np.array(list(K.by_layer(np.array([-0.7, 0.0, 0.5, 1.0])).values()))
        slope = own.slope()
        powers = slope ** np.arange(depth - 1, -1, -1.0)
        late = slice(depth // 2, None)
        yield equal(
            parts[: depth // 3],
            0,
            "kcalc: the kernels of the first third of the layers are nearly 0",
            10 * slope ** (depth * 0.6) + 1e-12,
        )
        yield equal(
            parts[late],
            powers[late, None] * np.ones(4),
            "the kernels of the later half, at c = -0.7, 0, 0.5, 1",
            40 * slope ** (depth / 2) + 1e-12,
        )
        yield equal(
            parts.sum(axis=0),
            1 / (1 - slope),
            "the kernel of all layers together, entry by entry",
            100 * slope ** (depth / 2) + 1e-12,
            slope=slope,
        )
    for C in power_maps(bench, 50, 500):
        pulled = PowerMap(np.concatenate([[0.0], C.weights[1:]]))
        share = 0.8 * bench.rng.random() / max(pulled.derivative(1)(1.0), 1e-9)
        if share * C.weights[1:].sum() > 1:
            continue
        weights = share * C.weights * (np.arange(13) > 0)
        weights[0] = 1 - weights.sum()
        map_ = PowerMap(weights)
        slope = map_.derivative(1)(1.0)
        parts = theta([(map_, map_.derivative(1))] * 150, np.array([-0.7, 0.0, 0.6, 1.0]))
        yield equal(
            np.abs(parts.sum(axis=0) * (1 - slope) - 1).max(),
            0,
            "150 layers of random maps with $C'(1)<0.8$: the kernel divided by $1/(1-C'(1))$",
            1e-9,
        )


def at_edge(bench: Bench, count: int) -> list[PowerMap]:
    """Draw random positive definite maps with C'(1) = 1 that are not the identity."""
    out = []
    for C in power_maps(bench, count):
        slope = C.derivative(1)(1.0)
        if slope > 1.05:
            weights = C.weights / slope
            weights[0] += 1 - 1 / slope
            out.append(PowerMap(weights))
    return out


@claim("DKS-ntktab2", "Sec. 24.5.2, table")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $c^*=1$ and $C'(1)=1$: $K_i\approx I+\alpha_i(E-I)$ with
    $0=\alpha_1\le\dots\le\alpha_D=1$, where $E$ is the matrix of ones

    Under: the paper conjectures this. For $c_0\ge0$, monotonicity follows from
    $C(c)-cC'(c)=\sum_n(n-1)b_n(1-c^n)\ge0$. The values 0 and 1 are limits
    """
    c, n = Symbol("c", positive=True), 7
    b = symbols(f"b2:{n}", positive=True)
    linear = 1 - sum(k * w for k, w in zip(range(2, n), b, strict=True))  # b_1, from C'(1) = 1
    C = (
        1
        - linear
        - sum(b)
        + linear * c
        + sum(w * c**k for k, w in zip(range(2, n), b, strict=True))
    )
    gap = sum((k - 1) * w * (1 - c**k) for k, w in zip(range(2, n), b, strict=True))
    yield exact(
        C - c * diff(C, c) - gap,
        r"$C-cC'=\sum(n-1)b_n(1-c^n)$ if $C(1)=C'(1)=1$, for degree 6 and all weights",
    )
    for map_ in at_edge(bench, bench.size(40, 400)):
        parts = theta([(map_, map_.derivative(1))] * 200, np.array([0.0, 0.1, 0.5, 0.9, 1.0]))
        yield at_most(
            -np.diff(parts, axis=0).min(),
            0,
            "random maps with $C'(1)=1$: decreases of $\\alpha_i$ from layer to layer",
        )
        yield equal(
            np.abs(parts[:, -1] - 1).max(),
            0,
            "the diagonal entries of the kernels of these maps minus 1",
            1e-8,
        )
    depth = bench.size(100, 400)
    K = ntk(architectures.vanilla(depth - 1, activation("relu").transformed(output_scale=2**0.5)))
    parts = np.array(list(K.by_layer(np.array([-0.5, 0.0, 0.5, 1.0])).values()))
    yield equal(
        parts,
        theta([(relu_map, relu_slope)] * (depth - 1), np.array([-0.5, 0.0, 0.5, 1.0])),
        f"kcalc's {depth} layers of ReLU against the recursion",
        1e-10,
    )
    yield at_most(-np.diff(parts[1:], axis=0), 0, "the kernels of consecutive layers are ordered")
    yield equal(
        [parts[0, :3], 1 - parts[-1, :3]],
        0,
        "$\\alpha$ of the first and the last layer: 0 and 1 up to terms that vanish with depth",
        40 / depth**2 + 2e-3,
    )


@claim("DKS-ntktab3", "Sec. 24.5.2, tables")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $c^*<1$ and $C'(1)>1$: $K_i\approx C'(1)^{D-i}I$, plus $c^*C'(c^*)^{D-i}(E-I)$ for late
    layers, and $K\approx\frac{1-C'(1)^D}{1-C'(1)}I+\frac{c^*}{1-C'(c^*)}(E-I)$
    """
    for _ in bench.rounds(1, 2):
        net, own, depth = _saturating(bench, 1.3, 2.8)
        K = ntk(net)
        (star, inner), slope = _star(own), own.slope()
        yield equal(
            [own.c_map(star), own.c_slope(star)],
            [star, inner],
            "the fixed point and the slope there, by quadrature",
            1e-9,
        )
        parts = np.array(list(K.by_layer(np.array([-0.6, 0.0, 0.5, 1.0])).values()))
        back = np.arange(depth - 1, -1, -1.0)
        yield equal(parts[:, 3] / slope**back, 1, "kcalc: the diagonal of every layer", 1e-8)
        late = slice(2 * depth // 3, None)
        yield equal(
            parts[late, :3],
            (star * inner ** back[late])[:, None] * np.ones(3),
            "kernels of late layers, off the diagonal",
            1e-10 + 20 * inner ** (depth / 1.6),
        )
        yield equal(
            parts[:, :3].sum(axis=0),
            star / (1 - inner),
            "the kernel of all layers together, off the diagonal",
            1e-10 + 20 * depth * inner**depth,
            fixed_point=star,
            slope_there=inner,
        )
        yield equal(
            parts[:, 3].sum() / ((1 - slope**depth) / (1 - slope)),
            1,
            "the kernel of all layers together, on the diagonal",
            1e-8,
        )
    for C in power_maps(bench, 30, 100):
        slope = C.derivative(1)(1.0)
        if slope < 1.3 or C.weights[0] < 0.02:
            continue
        star = _fixed(lambda v, C=C: C(v))
        inner = C.derivative(1)(star)
        if inner < 0.88:
            parts = theta([(C, C.derivative(1))] * 250, np.array([-0.6, 0.0, 0.6]))
            yield equal(
                parts.sum(axis=0) - star / (1 - inner),
                0,
                "the kernel of 250 layers of random maps",
                1e-8,
            )


def _fixed(C: Callable[[float], float], steps: int = 300) -> float:
    c = 0.0
    for _ in range(steps):
        c = C(c)
    return c


def alpha_bar(gap: Callable[[float], float], slope: Callable[[float], float], depth: int) -> float:
    """Compute K(0) / K(1) for ``depth`` layers with C'(1) = 1, the last of them linear.

    ``gap`` and ``slope`` are 1 - C and C' as functions of u = 1 - c.
    """
    u, cosines, logs = 1.0, [0.0], []
    for _ in range(depth - 1):
        logs.append(log(slope(u)))
        u = gap(u)
        cosines.append(1 - u)
    behind = np.concatenate([np.cumsum(logs[::-1])[::-1], [0.0]])
    return float(np.mean(np.array(cosines) * np.exp(behind)))


def _relu_gap(u: float) -> float:
    t = 2 * math.asin(sqrt(u / 2))
    return u - (sin(t) - t * cos(t)) / pi if t > 1e-3 else u - t**3 / (3 * pi)


def _relu_rate(u: float) -> float:
    return 1 - 2 * math.asin(sqrt(u / 2)) / pi


@claim("DKS-abar", "Sec. 24.5.2, App. H.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $C'(1)=1$: $K\approx D(I+\bar\alpha(E-I))$ with $\bar\alpha=\frac14$ for ReLU and
    $\bar\alpha=\frac13$ for other networks

    But: these are limits as $D\to\infty$ (for ReLU at $D=100$, $\bar\alpha=0.273$), and $\frac13$
    requires $C''(1)<\infty$; in general, $C=c+\kappa(1-c)^{1+p}$ with $0<p\le1$ gives
    $\bar\alpha\to p/(1+2p)$
    """
    short = alpha_bar(_relu_gap, _relu_rate, 100)
    yield counterexample(
        abs(short - 0.25) - 0.02,
        r"ReLU, $D=100$, $c_0=0$: $\bar\alpha$ is not 1/4",
        found=short,
        one_sided=True,
    )
    regime = ntk(
        architectures.vanilla(99, activation("relu").transformed(output_scale=2**0.5))
    ).regime(0.0)
    yield equal(regime.alpha_bar, short, "kcalc's measured ratio at D = 100", 1e-9)
    yield equal(regime.predicted_alpha_bar or 0.0, 0.25, "kcalc's predicted limit of the ratio")
    depth = bench.size(20_000, 400_000)
    yield equal(alpha_bar(_relu_gap, _relu_rate, depth), 0.25, f"ReLU, D = {depth}", 1e-3)
    for p in (0.5, 0.75, 1.0):
        k = bench.uniform(0.3, 0.9) / (1 + p)
        found = alpha_bar(
            lambda u, p=p, k=k: u - k * u ** (1 + p),
            lambda u, p=p, k=k: 1 - k * (1 + p) * u**p,
            depth,
        )
        yield equal(
            found, p / (1 + 2 * p), f"$C=c+\\kappa(1-c)^{{1+p}}$, p = {p}, D = {depth}", 2e-3
        )
    weights = [float((-1) ** n * sp.binomial(Rational(7, 4), n)) for n in range(2, 40)]
    yield proved(
        [min(weights)],
        "p = 3/4: the coefficients of $(1-c)^{7/4}$ for powers of at least 2 are positive, so $C$ "
        "is a C map",
    )


@claim("DKS-xiao", "Sec. 24.5.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""For $C'(1)>1$, the second term of $K$ is $\frac{c^*}{1-C'(c^*)}(E-I)$, not
    $\frac1{1-C'(c^*)}(E-I)$ as estimated by others

    Under: we did not check what the other paper says
    """
    net, own, depth = _saturating(bench, 1.3, 2.8)
    K = ntk(net)
    star, inner = _star(own)
    yield equal(
        K(0.0),
        star / (1 - inner),
        "an exploding network in kcalc at $c_0=0$",
        1e-10 + 20 * depth * inner**depth,
    )
    yield at_most(
        0.1,
        1 / (1 - inner) - K(0.0),
        "for that network, the estimate for $C'(1)=1$ is too large by more than 0.1",
        0.0,
        fixed_point=star,
    )
