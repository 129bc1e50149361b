"""Claims of section 13.5: slopes of nearly constant C maps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import exp
from typing import Any

import numpy as np
import sympy as sp
from numpy.polynomial.polynomial import polyval
from sympy import Symbol, cancel, diff, expand, limit, oo, simplify, symbols

from ... import Network, activation, c_map, chain, repeat
from ... import layers as L
from ..bench import Array, Bench, at_most, counterexample, equal, exact
from ..claim import Evidence
from ..families import PowerMap, power_maps, residual_network
from .paper import claim

_POINTS = np.concatenate([-np.geomspace(1e-3, 1, 40), np.geomspace(1e-3, 1, 40)])
_NAMES = (
    "tanh",
    "relu",
    "gelu",
    "softplus",
    "sigmoid",
    "sin",
    "elu",
    "cos",
    "erf",
    "atan",
    "swish",
    "gaussian",
    "abs",
    "selu",
    "exp",
    "relu6",
)
_SAFE = exp(-1 / math.e)  # the printed bound is valid for F up to this value


def _flatness(C: PowerMap, c: Array | float) -> Any:
    """Compute F(c) = (C(|c|) - C(0))/|c| without cancellation."""
    return polyval(np.abs(c), C.weights[1:])


def _printed(F: Array, c: Array) -> Array:
    size = np.abs(c)
    return F * np.log(F) / (size * np.log(size)) * (1 + size)


def _jensen(F: Array, c: Array) -> Array:
    return F * (1 + np.log(F) / np.log(np.abs(c)))


def _random(bench: Bench, count: int) -> Iterator[tuple[float, float, float]]:
    """Yield (c, F(c), |C'(c)|) for random C maps that are not constant, at random c."""
    for C in power_maps(bench, count):
        c = bench.rng.choice([-1, 1]) * bench.uniform(0.01, 0.99)
        F = _flatness(C, c)
        if F > 1e-200:
            yield c, F, abs(C.derivative(1)(c))


@claim("DKS-prop19", "Sec. 13.5, Proposition 19")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\left|\dfrac{C_f(c)-C_f(0)}{c}\right| \le F_f(c) = \dfrac{C_f(|c|)-C_f(0)}{|c|}$ for
    $0<|c|\le1$

    Under: uniform q values
    """
    maps = power_maps(bench, 300, 4000)
    for C in maps:
        yield at_most(
            np.abs(polyval(_POINTS, C.weights[1:])),
            _flatness(C, _POINTS),
            "the inequality for random C maps",
        )
    for name in bench.size(_NAMES[:8], _NAMES):
        C = activation(name).c_map
        values, there, zero = C(_POINTS), C(np.abs(_POINTS)), C(0.0)
        yield at_most(
            np.abs(values - zero) / np.abs(_POINTS),
            (there - zero) / np.abs(_POINTS),
            "the inequality for the C maps of activations",
            1e-11,
        )
    C = c_map(residual_network(bench, "gelu"))
    yield at_most(
        np.abs(C(_POINTS) - C(0.0)),
        C(np.abs(_POINTS)) - C(0.0),
        "the inequality for a random network of residual blocks",
    )


@claim("DKS-Fmono", "Sec. 13.5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$F_f(c') \le F_f(c) \le 1$ for $|c'|\le|c|$

    Under: uniform q values
    """
    grid = np.sort(np.abs(_POINTS))
    flat = np.array([_flatness(C, grid) for C in power_maps(bench, 300, 4000)])
    yield at_most(flat[:, :-1], flat[:, 1:], "random C maps: F does not decrease")
    yield at_most(flat, 1.0, "random C maps: F is at most 1")
    coarse = np.linspace(0.1, 1, 19)
    for name in bench.size(_NAMES[:8], _NAMES):
        C = activation(name).c_map
        F = (C(coarse) - C(0.0)) / coarse
        yield at_most(
            np.append(F[:-1], F[-1]),
            np.append(F[1:], 1.0),
            f"{name}: F does not decrease, and is at most 1",
        )


@claim("DKS-prop20", "Sec. 13.5, Proposition 20")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$|C_f'(c)| \le F\,\Bigl(1+\dfrac{\log F}{\log|c|}\Bigr)$ with $F=F_f(c)$, $0<|c|<1$; if
    $F\le e^{-1/e}$, also $|C_f'(c)| \le \dfrac{F\log F}{|c|\log|c|}\,(1+|c|)$

    Under: uniform q values; $C_f$ is not constant

    Printed: $|C_f'(c)| \le \dfrac{F\log F}{|c|\log|c|}\,(1+|c|)$ for every $F$
    """
    yield counterexample(
        1.0 - _printed(np.ones(1), np.full(1, 0.5))[0],
        "$C = c$ has $F = 1$, so the bound is 0, and $C' = 1$ (linear activations)",
        one_sided=True,
    )
    c, F, slope = np.array(list(_random(bench, bench.size(1500, 20000)))).T
    excess = slope - _printed(F, c)
    violated = excess > 1e-12
    yield counterexample(
        excess.max(),
        "random C maps at random c",
        c=c[excess.argmax()],
        F=F[excess.argmax()],
        violations=int(violated.sum()),
        of=int(c.size),
        least_F=F[violated].min() if violated.any() else None,
        one_sided=True,
    )
    yield at_most(slope, _jensen(F, c), "random C maps at random c", 1e-11)
    small = _SAFE >= F
    yield at_most(
        slope[small], _printed(F[small], c[small]), "the printed bound if F <= e^(-1/e)", 1e-11
    )
    powers = np.arange(1, 40)
    x = bench.uniform(0.1, 0.95, powers.size)
    yield equal(
        _jensen(x ** (powers - 1), x),
        powers * x ** (powers - 1),
        "$C = c^n$ attains the bound",
        1e-11,
    )
    for name in bench.size(_NAMES[:6], _NAMES):
        C = activation(name).c_map
        points = np.linspace(0.05, 0.95, 7)
        F = (C(points) - C(0.0)) / points
        for sign in (1, -1):
            yield at_most(
                np.abs(C.derivative(1)(sign * points)),
                _jensen(F, points),
                "the inequality for the C maps of activations",
                1e-10,
            )


@claim("DKS-rem21", "Sec. 13.5, Remark 21")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$0 \le C_f'(0) \le C_f'(\varepsilon) = |C_f'(\varepsilon)|$ for $0<\varepsilon<1$, so
    Proposition 20 at $c=\varepsilon$ bounds $C_f'(0)$

    But: only with the corrected bound of Proposition 20, or if $F_f(\varepsilon)\le e^{-1/e}$
    """
    maps = [C for C in power_maps(bench, 300, 4000) if C.weights[1:].any()]
    eps = bench.uniform(0.01, 0.99, len(maps))
    zero = np.array([C.weights[1] for C in maps])
    there = np.array([C.derivative(1)(e) for C, e in zip(maps, eps, strict=True)])
    yield at_most(0.0, zero, "random C maps: the slope at 0 is not negative")
    yield at_most(
        zero, there, "random C maps: the slope at 0 is at most the slope at $\\varepsilon$"
    )
    for name in bench.size(_NAMES[:6], _NAMES):
        slope = activation(name).c_map.derivative(1)(np.linspace(0.0, 0.9, 10))
        yield at_most(
            np.append(0.0, slope[:-1]),
            slope,
            f"{name}: the slope increases from a nonnegative value",
            1e-11,
        )
    F = np.array([_flatness(C, e) for C, e in zip(maps, eps, strict=True)])
    yield counterexample(
        (zero - _printed(F, eps)).max(),
        "the bound on $C'(0)$ from Proposition 20 as printed",
        one_sided=True,
    )
    yield at_most(zero, _jensen(F, eps), "the bound on $C'(0)$ from the corrected form", 1e-11)


def _horner(weights: Array, c: Array) -> Array:
    """Evaluate sum_n weights[:, n] c^n, with one map per row."""
    out = np.zeros_like(c)
    for column in weights.T[::-1]:
        out = out * c + column
    return out


def _slopes_of_iterates(weights: Array, start: float, depth: int) -> Array:
    """Compute the slopes at ``start`` of maps composed ``depth`` times, by the chain rule."""
    slope, value = np.ones(len(weights)), np.full(len(weights), start)
    derivative = weights[:, 1:] * np.arange(1, weights.shape[1])
    for _ in range(depth):
        slope = slope * _horner(derivative, value)
        value = np.clip(_horner(weights, value), -1, 1)
    return slope


def _collapsing(bench: Bench, count: int) -> list[PowerMap]:
    """Draw C maps with C'(1) <= 1 (so c* = 1) as mixtures with the constant 1; some are even."""
    out = []
    for C in power_maps(bench, count, degree=6):
        weights = C.weights.copy()
        if bench.rng.random() < 0.3:
            weights[1::2] = 0
            weights = weights / weights.sum() if weights.any() else np.eye(7)[0]
        steep = weights @ np.arange(7)
        share = min(1.0, bench.uniform(0.3, 1) / steep) if steep > 0 else 1.0
        weights = share * weights
        weights[0] += 1 - share
        out.append(PowerMap(weights))
    return out


def _deep(name: str, depth: int) -> Network:
    return chain(L.Input(), repeat(chain(L.Affine(), L.Nonlinear(name)), depth))


@claim("DKS-prop22", "Sec. 13.5, Proposition 22")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for a composition of $D$ subnetworks with the same C map $C$ and $c^*=1$: $C_f'(1) =
    C'(1)^D$ with $0\le C'(1)\le1$, and either $C_f'(-1) = -C_f'(1)$ or $\lim_{D\to\infty}
    C_f'(-1)=0$

    Under: uniform q values; $C$ is not the identity
    """
    weights = np.array([C.weights for C in _collapsing(bench, bench.size(60, 1000))])
    ends = weights @ np.arange(weights.shape[1])
    even = ~weights[:, 1::2].any(axis=1)
    yield equal(
        _slopes_of_iterates(weights, 1.0, 5), ends**5, "$C_f'(1)=C'(1)^D$ by the chain rule", 1e-11
    )
    yield equal(
        _slopes_of_iterates(weights[even], -1.0, 7),
        -(ends[even] ** 7),
        "even maps: $C_f'(-1) = -C_f'(1)$",
        1e-11,
        maps=int(even.sum()),
    )
    depths = bench.size((50, 2000), (50, 20000))
    first, last = (np.abs(_slopes_of_iterates(weights[~even], -1.0, depth)) for depth in depths)
    yield at_most(
        last,
        np.minimum(1e-2, first),
        "other maps: $C_f'(-1)$ falls with depth",
        maps=int((~even).sum()),
        depths=list(depths),
    )
    general = power_maps(bench, 300, 3000)
    table = np.array([C.weights for C in general])
    value = np.zeros(len(table))
    for _ in range(2000):
        value = np.clip(_horner(table, value), -1, 1)
    top = np.abs(value - 1) < 1e-6
    yield at_most(
        table[top] @ np.arange(table.shape[1]),
        1.0,
        "random maps with $c^*=1$ have $C'(1)\\le1$",
        1e-6,
        maps=int(top.sum()),
    )
    for name, is_even in (("relu", False), ("abs", True), ("softplus", False), ("cos", True)):
        local = activation(name).c_map.derivative(1)
        if name in ("softplus", "cos"):
            slope, value = 1.0, -1.0
            for _ in range(12):
                slope, value = slope * local(value), activation(name).c_map(value)
            yield equal(
                slope,
                -(local(1.0) ** 12) if is_even else 0.0,
                f"12 layers of {name} at q = 1: the slope at -1",
                1e-10 if is_even else 1e-2,
            )
        else:
            whole = c_map(_deep(name, 40)).derivative(1)
            yield equal(whole(1.0), local(1.0) ** 40, f"{name}, 40 layers: the slope at 1", 1e-10)
            yield equal(
                whole(-1.0), -1.0 if is_even else 0.0, f"{name}, 40 layers: the slope at -1", 1e-2
            )


@claim("DKS-rem23", "Sec. 13.5, Remark 23")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_{f_n}(c) = 1-1/n+c^{n^2}/n$ tends to 1 for all $c\in[-1,1]$ and $F_{f_n}(c)\to0$, while
    $C_{f_n}'(1)=n\to\infty$
    """
    n, c = symbols("n c", positive=True)
    C = 1 - 1 / n + c ** (n**2) / n
    yield exact(diff(C, c).subs(c, 1) - n, "the slope at 1 is $n$")
    yield exact(C.subs(c, 1) - 1, "C(1) = 1")
    yield exact(
        limit(1 - 2 / n, n, oo) - 1,
        "the smallest value over [-1, 1] is at least $1 - 2/n$, which tends to 1",
    )
    grid = np.linspace(-1, 1, 41)
    for size in (10, 101, 1000):
        values = 1 - 1 / size + grid ** (size**2) / size
        yield at_most(1 - values, 2 / size, f"n = {size}: within 2/n of 1", slope=size)
        yield at_most(
            np.abs(grid[grid != 0]) ** (size**2 - 1) / size,
            1 / size,
            f"n = {size}: F is at most 1/n",
        )


@claim("DKS-rem24", "Sec. 13.5, Remark 24")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""ReLU has $C'(1)=1$, so $C'(1)\le1$ in Proposition 22 is tight"""
    c = Symbol("c", real=True)
    C = (sp.sqrt(1 - c**2) + (sp.pi - sp.acos(c)) * c) / sp.pi
    yield exact(
        limit(simplify(diff(C, c)), c, 1, "-") - 1, "the limit of the derivative of the closed form"
    )
    relu = activation("relu").c_map
    yield equal(relu.derivative(1)(1.0), 1.0, "kcalc's slope at 1", 1e-14)
    h = 1e-8
    yield equal((1 - relu(1 - h)) / h, 1.0, "its difference quotient at 1", 1e-3)
    yield at_most(
        0.9, c_map(_deep("relu", 300))(-1.0), "$c^*=1$: 300 layers map -1 to more than 0.9"
    )


@claim("DKS-prop25", "Sec. 13.5, Proposition 25")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_f'(1) \ge \dfrac{1-C_f(0)-F_f(1-\varepsilon)}{\varepsilon}$ for $0<\varepsilon<1$

    Under: uniform q values
    """
    maps = power_maps(bench, 300, 4000)
    eps = np.geomspace(1e-4, 0.999, 25)
    yield at_most(
        np.array([(1 - C.weights[0] - _flatness(C, 1 - eps)) / eps for C in maps]),
        np.array([[C.derivative(1)(1.0)] for C in maps]),
        "the inequality for random C maps",
        1e-11,
    )
    # C(1 - eps) = C(0) + (1 - eps) F, so the convex bound (1 - C(1 - eps))/eps <= C'(1) is larger
    # by F: every term (1 - c^n)/(1 - c) <= n
    e = Symbol("epsilon", positive=True)
    for n in (2, 3, 7):
        term = cancel((1 - (1 - e) ** n) / e)
        yield exact(
            expand(term - sum((1 - e) ** k for k in range(n))),
            f"$(1-(1-\\varepsilon)^{n})/\\varepsilon$ is a sum of {n} powers",
        )
    for name in bench.size(_NAMES[:6], _NAMES):
        C = activation(name).c_map
        F = (C(1 - eps) - C(0.0)) / (1 - eps)
        yield at_most((1 - C(0.0) - F) / eps, C.derivative(1)(1.0), f"{name}", 1e-9)
    deep = c_map(_deep("erf", 60))
    F = (deep(0.9) - deep(0.0)) / 0.9
    yield at_most(
        (1 - deep(0.0) - F) / 0.1,
        deep.derivative(1)(1.0),
        "the inequality for 60 erf layers",
        1e-9,
        flatness=F,
    )
