"""Claims of section 12: C maps of deep networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import cos, sqrt

import mpmath
import numpy as np
import sympy as sp
from sympy import Integer, Symbol, diff, simplify, symbols

from ... import Network, activation, c_map, chain, depth_limit, q_map, repeat
from ... import layers as L
from ...fields.balls import working
from ...foundation.process_state import decimal_digits, lambdify
from ..bench import Bench, at_most, certified, counterexample, equal, exact, proved, statistical
from ..claim import Evidence
from ..families import PowerMap, power_maps
from ..functions import relu_map
from . import reference
from .paper import claim
from .reference import second_moment, steepness

_C = Symbol("c", real=True)
_RELU = (sp.sqrt(1 - _C**2) + (sp.pi - sp.acos(_C)) * _C) / sp.pi
_POINTS = np.array([-0.95, -0.5, 0.0, 0.3, 0.8, 0.95])


def _layers(name: str, depth: int) -> Network:
    return chain(L.Input(), repeat(chain(L.Affine(), L.Nonlinear(name)), depth))


@claim("DKS-eq15", "Sec. 12.1, eq. 15")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""ReLU: $C_f(c) = \bigl(\sqrt{1-c^2}+(\pi-\cos^{-1}c)\,c\bigr)/\pi$, for every input q value"""
    value = lambdify(_C, _RELU, "numpy")
    for c in _POINTS:
        for q in (0.2, 1.0, 7.0):
            formula = value(c)
            yield equal(
                formula,
                reference.cosine("relu", c, q),
                "the closed form against the joint density",
                1e-11,
            )
            yield equal(
                activation("relu").c_map(c, q),
                formula,
                "kcalc against the closed form",
                1e-14,
            )
    found = activation("relu").c_map.symbolic().closed_form
    yield exact(
        found.subs(Symbol("c"), _C) - _RELU if found is not None else Integer(1),
        "kcalc's symbolic expression is equal to the printed one",
    )
    u = bench.rng.multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]], size=bench.size(20000, 400000))
    yield statistical(
        2 * np.prod(np.maximum(u, 0), axis=1), value(0.3), "samples at c = 0.3", draws=len(u)
    )


@claim("DKS-relu1", "Sec. 12.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""ReLU: $C_f'(1)=1$, and $C_g'(1)=1^D=1$ for a composition $g$ of $D$ layers"""
    slope = simplify(diff(_RELU, _C))
    yield exact(slope - (1 - sp.acos(_C) / sp.pi), "the derivative of equation 15 in closed form")
    yield exact(
        sp.limit(1 - sp.acos(_C) / sp.pi, _C, 1, "-") - 1, "the limit of this derivative at 1"
    )
    yield equal(
        steepness("relu") / second_moment("relu"),
        1.0,
        "$E\\phi'^2/E\\phi^2$",
    )
    for depth in (1, 7, 100):
        yield equal(c_map(_layers("relu", depth)).derivative(1)(1.0), 1.0, f"{depth} layers")


@claim("DKS-relu100", "Sec. 12.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""100 ReLU layers map $[-1,1]$ to $[0.996,1]$"""
    import flint

    with working(120):
        # C(-1) = 0 by equation 15, and C increases, so the image of -1 is the smallest
        c = flint.arb(0)
        pi = flint.arb.pi()
        for _ in range(99):
            at = flint.arb(c.mid())  # slopes are in [0, 1], so the radius does not grow
            c = ((1 - at * at).sqrt() + (pi - at.acos()) * at) / pi + flint.arb(0, c.rad())
        least = float(c.mid())
        yield proved(
            [float((c - flint.arb("0.996")).lower()), float((flint.arb("0.997") - c).lower())],
            "the image of -1 lies between 0.996 and 0.997, by ball arithmetic",
            least=least,
            radius=float(c.rad()),
        )
    yield certified(
        lambda c: 1 - c.acos() / flint.arb.pi(),
        flint.arb(-0.999999),
        flint.arb(0.999999),
        "the slope of eq. 15 is >= 0",
    )
    C = c_map(_layers("relu", 100))
    yield equal(C(-1.0), least, "the image of -1 in kcalc")
    yield at_most(least, C(np.linspace(-1, 1, 41)), "no other c value has a smaller image")
    direct = -1.0
    for _ in range(100):
        direct = relu_map(direct)
    yield equal(direct, 0.996357, "the image of -1, iterated in floating point", 5e-7)


@claim("DKS-hom", "Sec. 12.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""rectifiers are positively homogeneous: $\mathrm{RELU}(\lambda u) =
    \lambda\,\mathrm{RELU}(u)$ for $\lambda\ge0$
    """
    relu = activation("relu")
    values, factors = bench.normal(200), bench.rng.exponential(size=200)
    yield equal(
        relu(factors * values),
        factors * np.maximum(values, 0),
        "homogeneity at random numbers",
        1e-14,
    )
    factor, u = Symbol("lambda", nonnegative=True), Symbol("u", positive=True)
    halves = [
        (abs(factor * sign * u) + factor * sign * u) / 2 - factor * (abs(sign * u) + sign * u) / 2
        for sign in (1, -1)
    ]
    for difference, what in zip(halves, ("positive", "negative"), strict=True):
        yield exact(difference, f"for every {what} u, from $\\max(0,x)=(|x|+x)/2$")
    yield equal(
        relu.degree if relu.degree is not None else 0, 1, "the degree according to kcalc", 0.0
    )


def _erf_q(q: float) -> float:
    return 2 / math.pi * math.asin(2 * q / (1 + 2 * q))


def _erf_c(c: float, q: float) -> float:
    return 2 / math.pi * math.asin(2 * c * q / (1 + 2 * q)) / _erf_q(q)


@claim("DKS-erf", "Sec. 12.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""erf: $Q_f(q)=\frac2\pi\sin^{-1}\frac{2q}{1+2q}$ and
    $C_f(c)=\frac1{Q_f(q)}\,\frac2\pi\sin^{-1}\frac{2cq}{1+2q}$
    """
    phi = activation("erf")
    q = bench.uniform(0.05, 9, bench.size(4, 20))
    for x in q:
        yield equal(_erf_q(x), second_moment("erf", x), "Q against quadrature")
    yield equal(phi.q_map(q), [_erf_q(x) for x in q], "kcalc's Q", 1e-14)
    pairs = [(c, x) for c in _POINTS for x in q]
    formula = [_erf_c(c, x) for c, x in pairs]
    yield equal(
        formula,
        [reference.cosine("erf", c, x) for c, x in pairs],
        "C against the joint density",
        1e-10,
    )
    yield equal([phi.c_map(c, x) for c, x in pairs], formula, "kcalc's C", 1e-13)
    with decimal_digits(50):
        slow = mpmath.quad(
            lambda x: mpmath.erf(x) ** 2 * mpmath.npdf(x), np.linspace(-20, 20, 21).tolist()
        )
        yield equal(
            abs(slow - 2 / mpmath.pi * mpmath.asin(mpmath.mpf(2) / 3)) * 1e40,
            0.0,
            "Q(1) in 50 digits, error x 1e40",
            1.0,
        )


def _erf_iterated(c: np.ndarray, depth: int) -> np.ndarray:
    q, c = 1.0, np.array(c, dtype=float)
    for _ in range(depth):
        c = np.arcsin(2 * c * q / (1 + 2 * q)) / math.asin(2 * q / (1 + 2 * q))
        q = _erf_q(q)
    return c


@claim("DKS-erfdeg", "Sec. 12.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in erf networks of depth 50, 150 and 500, nearly all c values are mapped to a small region
    around 0, which shrinks with depth
    """
    grid = np.linspace(-0.99, 0.99, 45)
    images = []
    for depth in (50, 150, 500):
        own = c_map(_layers("erf", depth))(grid)
        yield equal(
            own,
            _erf_iterated(grid, depth),
            f"{depth} layers: kcalc against the closed forms, layer by layer",
            1e-10,
        )
        images.append(np.abs(own))
    yield at_most(
        np.array(images[1:]), np.array(images[:-1]), "every c comes closer to 0 with depth"
    )
    yield at_most(
        images[2],
        0.09,
        "500 layers map |c| <= 0.99 to less than 0.09",
        at_09=np.interp(0.9, grid, images[2]),
    )
    q = 1.0
    for _ in range(500):
        q = _erf_q(q)
    yield equal(q, 0.141924, "the q values converge", 1e-6)
    yield equal(q_map(_layers("erf", 500))(1.0), q, "kcalc's q value after 500 layers")


@claim("DKS-prop10", "Sec. 12.3, Proposition 10")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for a composition of $D$ subnetworks with the same C map $C$, there is a $c^*\in[0,1]$ such
    that $\lim_{D\to\infty}C_f(c)=c^*$ for all $c\in(-1,1)$

    Under: uniform q values

    But: $C$ must not be the identity
    """
    kept = PowerMap(np.array([0.0, 1.0])).iterate(np.array([0.3, 0.8]), 1000)
    yield counterexample(
        np.ptp(kept), "the identity (linear activations) does not change 0.3 and 0.8"
    )
    count = bench.size(150, 400)
    maps = [
        C for odd in (False, True) for C in power_maps(bench, count, odd=odd) if C.weights[1] < 0.9
    ]
    maps += [PowerMap(np.array([1 - s, s])) for s in (0.0, 0.3, 0.9)] + [
        PowerMap(np.eye(5)[n]) for n in (2, 3, 4)
    ]
    width = max(C.weights.size for C in maps)
    weights = np.array([np.pad(C.weights, (0, width - C.weights.size)) for C in maps])
    ends = np.tile(_POINTS, (len(maps), 1))
    depth = bench.size(3000, 8000)
    for _ in range(depth):
        ends = np.clip(_rows(weights, ends), -1, 1)
    # convergence is like 1/D if C'(1) = 1, and geometric otherwise
    yield at_most(
        ends.max(axis=1) - ends.min(axis=1),
        1e-2,
        "random C maps: the iterates from six starting points agree",
        maps=len(maps),
    )
    yield at_most(-1e-9, ends.min(axis=1), "the limit is not negative")
    yield at_most(np.abs(_rows(weights, ends) - ends), 1e-4, "the limit is a fixed point of C")
    for name in bench.size(
        ("tanh", "relu", "sigmoid"),
        ("tanh", "relu", "sigmoid", "erf", "sin", "selu", "atan", "hard_tanh"),
    ):
        phi = activation(name).transformed(output_scale=1 / sqrt(second_moment(name)))
        limit = depth_limit(chain(L.Input(), L.Affine(), L.Nonlinear(phi)))
        C, value = phi.c_map, np.array([-0.9, 0.2, 0.9])
        for _ in range(300):
            value = C(value, limit.q)
        room = 0.1 if abs(limit.rate - 1) < 0.05 else 1e-5
        yield equal(
            value,
            limit.c,
            f"{name}, normalised: 300 layers at q* against the limit in kcalc",
            room,
            rate=limit.rate,
        )


def _rows(weights: np.ndarray, c: np.ndarray) -> np.ndarray:
    out = np.zeros_like(c)
    for column in weights.T[::-1]:
        out = out * c + column[:, None]
    return out


@claim("DKS-dist2", "Sec. 12.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\|x-y\|/\bigl(\tfrac12(\|x\|+\|y\|)\bigr) = \|x-y\|/\sqrt{\|x\|\|y\|} = \sqrt{2(1-c)}$

    Under: equal norms (uniform q values)
    """
    n, c = symbols("n c", positive=True)
    yield exact(
        (n**2 + n**2 - 2 * n**2 * c) / (n * n) - 2 * (1 - c), "the square, from $x\\cdot y = n^2c$"
    )
    x, y = bench.normal(2, 50, 8)
    y = y * np.sqrt((x**2).sum(axis=1, keepdims=True) / (y**2).sum(axis=1, keepdims=True))
    size = np.sqrt((x**2).sum(axis=1))
    cosine = (x * y).sum(axis=1) / size**2
    apart = np.sqrt(((x - y) ** 2).sum(axis=1))
    yield equal(
        apart / (0.5 * (size + np.sqrt((y**2).sum(axis=1)))),
        np.sqrt(2 * (1 - cosine)),
        "random vectors with equal norms",
    )
    C = activation("tanh").c_map
    yield equal(
        2 * np.sin(C.at_angle(0.7) / 2),
        np.sqrt(2 * (1 - reference.cosine("tanh", cos(0.7)))),
        "the distance after a layer",
    )
