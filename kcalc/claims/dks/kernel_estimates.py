"""Claims of Appendix H: tangent kernel matrices of deep networks, and the proof of Theorem 27."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import Any

import numpy as np
import sympy as sp
from numpy.polynomial.polynomial import polyder, polyval
from sympy import expand, symbols

from ... import Activation, Network, activation, architectures, c_map, ntk, shape
from ... import layers as L
from ..bench import Array, Bench, at_most, equal, exact
from ..claim import Evidence
from ..families import power_maps
from ..functions import FUNCTIONS, relu_map, relu_slope
from . import reference
from .normal_means import KNOWN
from .paper import claim

Function = Callable[[Array], Array]


@dataclass(frozen=True)
class Layer:
    """A normalised layer: a library activation, with C, C' and c* from a separate quadrature."""

    phi: Activation
    value: Function
    slope: Function
    steep: float

    @property
    def star(self) -> float:
        """The limit c* of iterates of C from 0."""
        c = 0.0
        for _ in range(1000):
            c = float(self.value(np.asarray(c)))
        return c


@lru_cache(maxsize=16)
def smooth(name: str, size: float, bias: float) -> Layer:
    """Return the layer phi(size x + bias) divided by its root mean square, for |c| away from 1."""
    plain = FUNCTIONS[name]
    z, w = reference.line()
    mass = w * reference.density(z)
    values = plain.value(size * z + bias)
    norm = mass @ values**2
    rows = [np.ones_like(z), z]
    for n in range(1, 89):
        rows.append((z * rows[n] - sqrt(n) * rows[n - 1]) / sqrt(n + 1))
    b = (np.array(rows) @ (mass * values)) ** 2 / norm
    steep = (mass @ (size * plain.slope(size * z + bias)) ** 2) / norm
    phi = activation(name).transformed(size, bias, 1 / sqrt(norm))
    rising = polyder(b)
    return Layer(phi, lambda c: polyval(c, b), lambda c: polyval(c, rising), float(steep))


def rectifier() -> Layer:
    """Return the layer sqrt(2) relu."""
    phi = activation("relu").transformed(output_scale=sqrt(2))
    return Layer(phi, relu_map, relu_slope, 1.0)


def kernels(layer: Layer, depth: int, c0: float) -> Array:
    """Compute Theta_i = C_g(c0) C_h'(C_g(c0)) for i = 1 ... D, where h has D - i layers."""
    c: list[Any] = [c0]
    slopes = []
    for _ in range(depth - 1):
        slopes.append(layer.slope(np.asarray(c[-1])))
        c.append(layer.value(np.asarray(c[-1])))
    return np.array([c[i] * prod(slopes[i:]) for i in range(depth)])


def library(layer: Layer, depth: int, c: Array) -> Array:
    """Compute the kernels Theta_i of all layers with the library, shape (depth, c.size)."""
    found = ntk(architectures.vanilla(depth - 1, layer.phi)).by_layer(c)
    return np.array(list(found.values()))


COLLAPSING = ("softplus", 1.0, 0.0)  # c* = 1, C'(1) < 1
EXPLODING = ("tanh", 2.0, 0.3)  # c* < 1, C'(1) > 1


@claim("DKS-H1", "App. H.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $c^*=1$ and $C'(1)<1$: $K_i\approx0$ for early and middle layers, and $K_i\approx
    C'(1)^{D-i}E$ for late layers. If $c^*<1<C'(1)$: $K_i\approx C'(1)^{D-i}I$, plus
    $c^*C'(c^*)^{D-i}(E-I)$ for late layers. If $C'(1)=1$: $K_i\approx I$ for early layers, then
    $I+\alpha_i(E-I)$ with increasing $0\le\alpha_i\le1$, and $E$ for late layers

    Under: a fully connected network of $D$ layers with $Q(1)=1$, which are identical except that
    the last one is linear; $E$ is the matrix of ones, and $c_0\ne\pm1$

    But: $h_i$ has $D-i$ nonlinear layers, because the last layer is linear; the statements are
    limits for $D\to\infty$; that $\alpha_i$ is the same for all pairs is a conjecture
    """
    depth, cosines = bench.size(60, 150), np.array([-0.5, 0.0, 0.3, 1.0])
    late = np.arange(depth - 6, depth)
    powers = np.arange(depth - 1, -1, -1.0)
    for name, layer in (
        ("collapsing", smooth(*COLLAPSING)),
        ("exploding", smooth(*EXPLODING)),
        ("edge", rectifier()),
    ):
        found = library(layer, depth, cosines)
        truth = np.array([kernels(layer, depth, c) for c in cosines[:-1]]).T
        scale = np.maximum(1.0, np.abs(truth))
        yield equal(
            found[:, :-1] / scale,
            truth / scale,
            f"{name}: kcalc against iterates of C by independent quadrature",
            1e-6,
        )
        yield equal(
            found[:, -1] / layer.steep**powers, 1, f"{name}: the diagonal is $C'(1)^{{D-i}}$", 1e-8
        )
        off, diagonal = found[:, :-1], found[:, -1:]
        if name == "collapsing":
            yield at_most(
                [layer.steep, 1 - layer.star], [0.95, 1e-6], "the case: $C'(1)<1$, $c^*=1$"
            )
            yield equal(
                off[: depth // 2], 0, "collapsing: early and middle layers are nearly 0", 1e-3
            )
            yield equal(
                off[late] / diagonal[late],
                1,
                "collapsing: late layers divided by $C'(1)^{D-i}$",
                1e-3,
            )
        elif name == "exploding":
            star = layer.star
            at_star = layer.slope(np.asarray(star))
            yield at_most(
                [0.05, star, at_star],
                [layer.steep - 1, 0.95, 0.95],
                "the case: $C'(1)>1$, $c^*<1$",
                star=star,
            )
            yield equal(
                off[: depth // 2] / diagonal[: depth // 2],
                0,
                "exploding: early and middle layers, off-diagonal entries divided by diagonal "
                "entries",
                1e-3,
            )
            yield equal(
                off[late] - star * at_star ** powers[late, None],
                0,
                "exploding: the kernels of late layers",
                1e-4,
            )
        else:
            ratio = off / diagonal
            yield at_most(
                np.abs(ratio[: depth // 10]), 0.02, "edge: the kernels of early layers are near $I$"
            )
            yield at_most(0.9, ratio[-2:], "edge: the kernels of late layers are near $E$")
            yield at_most(
                ratio[2:-1],
                ratio[3:],
                "edge: the ratios of off-diagonal to diagonal entries increase",
                1e-9,
            )
            yield at_most(np.abs(ratio), 1, "edge: these ratios are at most 1")
    deeper = library(rectifier(), 4 * depth, np.array([-0.5, 0.3]))
    near = library(rectifier(), depth, np.array([-0.5, 0.3]))
    spread = [
        np.abs(rows[:, 0] - rows[:, 1]).max()
        for rows in (deeper[len(deeper) // 4 :], near[len(near) // 4 :])
    ]
    yield at_most(
        spread[0],
        spread[1],
        "edge: the ratios of two pairs approach each other with depth, after the first quarter",
    )


@claim("DKS-H2a", "App. H.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""If $c^*=1$ and $C'(1)=1$: $K\approx D\,(I+\bar\alpha(E-I))$ with $0\le\bar\alpha\le1$

    Under: a fully connected network of $D$ layers with $Q(1)=1$, which are identical except that
    the last one is linear; $E$ is the matrix of ones, and $c_0\ne\pm1$
    """
    mean = np.full(2, np.nan)
    for depth in bench.size((100, 200), (100, 400)):
        found = library(rectifier(), depth, np.array([-0.3, 0.2, 1.0]))
        yield equal(found.sum(axis=0)[-1], depth, f"ReLU, D = {depth}: the diagonal is D", 1e-9)
        mean = found.sum(axis=0)[:-1] / depth
        yield equal(
            mean,
            [kernels(rectifier(), depth, c).sum() / depth for c in (-0.3, 0.2)],
            "the ratio, from the closed C map of ReLU",
            1e-9,
        )
        yield at_most(
            np.append(mean, 0.2),
            np.append([1.0, 1.0], mean.min()),
            "$\\bar\\alpha$ between 0.2 and 1",
            0.0,
        )
    yield equal(mean, 0.25, "this ratio is near 1/4", 0.03)


@claim("DKS-H2b", "App. H.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\sum_{i=0}^{L-1}C'(1)^iE=\frac{1-C'(1)^L}{1-C'(1)}E\approx\frac{1}{1-C'(1)}E$ for
    $C'(1)<1$, and for $C'(1)>1$: $K\approx\frac{1-C'(1)^D}{1-C'(1)}I+\frac{c^*}{1-C'(c^*)}(E-I)$

    Under: a fully connected network of $D$ layers with $Q(1)=1$, which are identical except that
    the last one is linear; $E$ is the matrix of ones, and $c_0\ne\pm1$
    """
    r, n = symbols("r n", positive=True)
    total = (1 - r**n) / (1 - r)
    yield exact(total.subs(n, 1) - 1, "the formula for the geometric sum of one term")
    yield exact(
        sp.powsimp(expand((total.subs(n, n + 1) - total - r**n) * (1 - r))),
        "the formula for the geometric sum, from $L$ to $L+1$ terms",
    )
    c = np.array([-0.4, 0.3, 1.0])
    layer, depth = smooth(*COLLAPSING), bench.size(70, 300)
    found = library(layer, depth, c).sum(axis=0)
    yield equal(found * (1 - layer.steep), 1, "collapsing: kcalc's K times $1-C'(1)$", 1e-3)
    limit = ntk(architectures.vanilla(depth - 1, layer.phi)).regime().limit
    predicted = (math.nan, math.nan) if limit is None else (limit.diagonal, limit.off_diagonal)
    yield equal(
        np.array(predicted) * (1 - layer.steep),
        1,
        "collapsing: the limit that kcalc predicts",
        1e-8,
    )
    layer = smooth(*EXPLODING)
    star = layer.star
    at_star = layer.slope(np.asarray(star))
    found = library(layer, depth, c).sum(axis=0)
    yield equal(
        found[-1] * (1 - layer.steep) / (1 - layer.steep**depth),
        1,
        "exploding: the diagonal of $K$",
        1e-6,
    )
    own = [kernels(layer, depth, v).sum() for v in c[:-1]]
    yield equal(
        found[:-1],
        own,
        "exploding: $K$ off the diagonal, kcalc against independently computed iterates",
        1e-6,
    )
    yield equal(
        own,
        star / (1 - at_star),
        "exploding: $K$ off the diagonal, up to the terms of early layers",
        0.02,
    )
    limit = ntk(architectures.vanilla(depth - 1, layer.phi)).regime().limit
    predicted = (
        (math.nan, math.nan)
        if limit is None
        else (limit.diagonal / layer.steep**depth, limit.off_diagonal)
    )
    yield equal(
        predicted,
        ((1 - layer.steep**-depth) / (layer.steep - 1), star / (1 - at_star)),
        "exploding: the limit that kcalc predicts",
        1e-6,
    )


# --- the proof of Theorem 27 ----------------------------------------------------------------------


def _shaped(name: str, depth: int, zeta: float) -> tuple[Network, Array, Array]:
    """Return a shaped vanilla network, the coefficients of C and the coefficients of C'.

    The network has ``depth`` weight layers and is shaped by the library. The coefficients are
    computed by quadrature.
    """
    shaped = shape(architectures.vanilla(depth - 1, name), method="dks", zeta=zeta)
    own = KNOWN[name].at(shaped.constants[name])
    b = own.series(40) * own.q_map()  # E[phi h_n]^2
    return shaped.network, b, polyder(b)


@claim("DKS-H3", "App. H.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_{g_i}'(1)\le\zeta^{(i-1)/(D-1)}$, $C_{h_i}'(1)\le\zeta^{(D-i)/(D-1)}$; so
    $|C_{g_i}(c_0)-c_0|\le2(\zeta^{(i-1)/(D-1)}-1)$, $|C_{h_i}'-1|\le3(\zeta^{(D-i)/(D-1)}-1)$ and
    $|\Theta_i-c_0|\le6(\zeta-1)+3(\cdot)+2(\cdot)\le11(\zeta-1)$

    Under: DKS on a fully connected network of $D$ layers, of which the last one is linear; inputs
    with q = 1
    """
    # the two slopes are 1 + a and 1 + b, zeta = (1 + a)(1 + b)
    a, b = symbols("a b", nonnegative=True)
    zeta = (1 + a) * (1 + b)
    first = 3 * b * (1 + 2 * a) + 2 * a
    second = 6 * (zeta - 1) + 3 * b + 2 * a
    yield exact(
        second - first - 6 * a - 6 * b,
        "the third line is larger by $6a+6b\\ge0$ if the slopes are $1+a$, $1+b$",
    )
    yield exact(
        11 * (zeta - 1) - second - (3 * a + 2 * b + 5 * a * b),
        "the last line is larger by $3a+2b+5ab\\ge0$",
    )
    yield exact(zeta - 1 - a * b - a - b, "$|a-1||b-1|\\le|ab-1|$ for $a,b\\ge1$")
    x = bench.normal(3, 2000) * 3
    left, size = np.abs(x[0] * x[1] - x[2]), np.abs(x[0] - x[2])
    yield at_most(
        left,
        np.abs(x[1] - 1) * (np.abs(x[2]) + size) + size,
        "$|ab-c|\\le|b-1|(|c|+|a-c|)+|a-c|$, random numbers",
    )
    c0 = np.array([-0.95, -0.5, 0.1, 0.6, 0.95])
    for name in ("tanh", "softplus", "gelu", "sigmoid")[: bench.size(2, 4)]:
        depth, zeta = bench.whole(4, 12), bench.uniform(1.2, 2.5)
        network, b, rising = _shaped(name, depth, zeta)
        i = np.arange(1, depth + 1)
        psi = zeta ** (1 / (depth - 1))
        yield equal(
            [b[0], rising.sum()],
            [0, psi],
            f"{name}: $C(0)=0$, $C'(1)=\\zeta^{{1/(D-1)}}$ by quadrature",
            1e-7,
        )
        g = [c0]
        for _ in range(depth - 1):
            g.append(polyval(g[-1], b))
        slopes = [polyval(v, rising) for v in g]
        h = np.array(
            [
                np.prod(slopes[k:-1], axis=0) if k < depth - 1 else np.ones(c0.size)
                for k in range(depth)
            ]
        )
        near = (zeta ** ((i - 1) / (depth - 1)) - 1)[:, None]
        far = (zeta ** ((depth - i) / (depth - 1)) - 1)[:, None]
        yield at_most(np.abs(np.array(g) - c0), 2 * near, f"{name}, D = {depth}: $C_g$", 1e-9)
        yield at_most(np.abs(h - 1), 3 * far, f"{name}, D = {depth}: $C_h'$", 1e-9)
        found = np.array(list(ntk(network).by_layer(c0).values()))
        yield equal(
            found,
            np.array(g) * h,
            f"{name}: $\\Theta_i=C_gC_h'$, kcalc against independently computed iterates",
            1e-6,
        )
        off = np.abs(found - c0)
        yield at_most(
            off, 6 * (zeta - 1) + 3 * far + 2 * near, f"{name}: the fourth line of the proof", 1e-9
        )
        yield at_most(
            off,
            11 * (zeta - 1),
            f"{name}: the last line of the proof",
            1e-9,
            largest=off.max() / (zeta - 1),
        )
        yield equal(c_map(network).derivative(1)(1.0), zeta, f"{name}: $C_f'(1)=\\zeta$", 1e-8)
        yield equal(len(network.nodes_of(L.Affine)), depth, f"{name}: $D$ layers", 0.0)
    maps = power_maps(bench, 60, 600, zero=True)
    grown = np.array([C.derivative(1)(1.0) - 1 for C in maps])
    yield at_most(
        [np.abs(C(c0) - c0).max() for C in maps],
        2 * grown,
        "Theorem 13 in the form used here, random C maps: values",
    )
    yield at_most(
        [np.abs(C.derivative(1)(c0) - 1).max() for C in maps],
        3 * grown,
        "Theorem 13 in the form used here, random C maps: slopes",
    )
