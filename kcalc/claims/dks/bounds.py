"""Claims of sections 13.1 to 13.4: the distance of C from the identity, and of C' from 1.

These distances measure how nonlinear the activation is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
import sympy as sp
from sympy import Rational, diff, simplify, symbols

from ... import activation, c_map
from ..bench import Bench, at_most, counterexample, equal, exact, proved
from ..claim import Evidence
from ..families import PowerMap, power_maps, residual_network
from ..functions import FUNCTIONS
from . import coefficients as co
from . import reference
from .paper import claim
from .reference import second_moment, steepness

_GRID = np.cos(np.linspace(np.pi, 0.0, 81))
_INSIDE = _GRID[1:-1]
_MOST = -1 / sqrt(3)  # c^3 - c is largest here
_SHARP = 2 / (3 * sqrt(3))


def _lower(ball: Any) -> float:
    """Return the lower end of an enclosure, up to a rounding error of 1e-16."""
    return float(ball.mid - ball.radius)


def _slopes_at_one(maps: list[PowerMap]) -> np.ndarray:
    return np.array([C.weights @ np.arange(C.weights.size) for C in maps])


def _distances(maps: list[PowerMap]) -> tuple[np.ndarray, np.ndarray]:
    """Compute max |C - c| and max |C' - 1| over [-1, 1] for each map."""
    far = [np.abs(C(_GRID) - _GRID).max() for C in maps]
    steep = [np.abs(C.derivative(1)(_GRID) - 1).max() for C in maps]
    return np.array(far), np.array(steep)


@lru_cache(maxsize=128)
def _measured(name: str, centred: bool) -> tuple[float, float, float, float]:
    """Evaluate (C'(0), C'(1), max |C - c|, max |C' - 1|) with the library."""
    phi = activation(name)
    if centred:
        phi = phi.transformed(output_shift=-phi.mean())
    C = phi.c_map
    slope = C.derivative(1)
    inner = slope(_INSIDE)
    return (slope(0.0), slope(1.0), np.abs(C(_GRID) - _GRID).max(), np.abs(inner - 1).max())


def _some(bench: Bench) -> list[str]:
    """Return all names of :data:`coefficients.NAMES`, or every other name with the quick budget."""
    return list(bench.size(co.NAMES[::2], co.NAMES))


def _library(names: list[str], centred: bool = False) -> np.ndarray:
    return np.array([_measured(name, centred) for name in names]).T


def _networks(bench: Bench) -> np.ndarray:
    """Compute the quantities of :func:`_measured` for random residual networks."""
    rows = []
    for name in bench.size(("tanh", "relu"), ("tanh", "relu", "gelu", "softplus", "selu", "sin")):
        C = c_map(residual_network(bench, name))
        slope = C.derivative(1)
        ends = slope(0.0), slope(1.0)
        rows.append((*ends, np.abs(C(_GRID) - _GRID).max(), np.abs(slope(_INSIDE) - 1).max()))
    return np.array(rows).T


@claim("DKS-thm13a", "Sec. 13.2, Theorem 13")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\tfrac14\,(1-C_f'(0)) \le \max_{c\in[-1,1]}|C_f(c)-c| \le 2\,(1-C_f'(0))$ for every
    subnetwork $f$

    Under: uniform q values
    """
    sides = [
        ("2(1 - C'(0)) - (C - c)", co.value_from_zero(1)),
        ("2(1 - C'(0)) + (C - c)", co.value_from_zero(-1)),
    ]
    for what, family in sides:
        yield co.everywhere(family, 0, what, bench)
    # even powers are positive and 3^(-n/2) falls with n, so c^n - c with n != 1 has its minimum
    # 2/(3 sqrt 3) at n = 3
    squares = [
        Rational(4, 27) - Rational(1, 16),
        Rational(1, 27) - Rational(1, 27) * Rational(1, 9),
    ]
    yield proved(
        squares,
        "the lower bound: $c^n - c \\ge 2/(3\\sqrt3) \\ge 1/4$ at $c = -1/\\sqrt3$ for all $n \\ne "
        "1$, because $4/27 \\ge 1/16$ and $3^{-n} \\ge 3^{-(n+2)}$",
        best_constant=_SHARP,
    )
    yield from co.agreement(bench)
    yield from co.on_activations(bench, sides, 0)
    yield proved(
        [
            _lower(activation(name).c_map.ball(_MOST, digits=15))
            - _MOST
            - float(0.25 * (1 - co.enclosed(name)[1]).upper())
            - 1e-12
            for name in co.NAMES
        ],
        "the lower bound, from the lower ends of enclosures of C at one point, for each "
        "activation; $10^{-12}$ is subtracted for rounding errors",
    )
    maps = power_maps(bench, 300, 4000)
    far = _distances(maps)[0]
    linear = np.array([1 - C.weights[1] for C in maps])
    curved = linear > 1e-3
    ratios = far[curved] / linear[curved]
    yield at_most(far, 2 * linear, "the upper bound over random C maps", largest_ratio=ratios.max())
    yield at_most(
        linear / 4, far, "the lower bound over random C maps", smallest_ratio=ratios.min()
    )
    for what, (zero, _, away, _) in (
        ("activations", _library(_some(bench))),
        ("random networks", _networks(bench)),
    ):
        yield at_most(away, 2 * (1 - zero), f"the upper bound over {what}")
        yield at_most((1 - zero) / 4, away, f"the lower bound over {what}")


@claim("DKS-thm13b", "Sec. 13.2, Theorem 13")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\max_{c\in[-1,1]}|C_f'(c)-1| \le 2\,(1-C_f'(0)) + (C_f'(1)-1)$ for every subnetwork $f$

    Under: uniform q values
    """
    sides = [
        ("the bound - (C' - 1)", co.slope_from_both(1)),
        ("the bound + (C' - 1)", co.slope_from_both(-1)),
    ]
    for what, family in sides:
        yield co.everywhere(family, 0, what, bench)
    yield from co.on_activations(bench, sides, 0)
    maps = power_maps(bench, 300, 4000)
    yield at_most(
        _distances(maps)[1],
        2 * (1 - np.array([C.weights[1] for C in maps])) + _slopes_at_one(maps) - 1,
        "the inequality for random C maps",
    )
    for what, (zero, one, _, away) in (
        ("activations", _library(_some(bench))),
        ("random networks", _networks(bench)),
    ):
        yield at_most(away, 2 * (1 - zero) + one - 1, f"the bound over {what}", 1e-10)


def _centred_names(bench: Bench) -> list[str]:
    return [name for name in _some(bench) if co.curved(name, True)]


def _attained(bench: Bench, which: int, factor: int) -> Evidence:
    """Check that C = c^2, whose slope at 1 is 2, attains the bound ``factor`` (C'(1) - 1)."""
    square = PowerMap(np.array([0.0, 0.0, 1.0]))
    found = _distances([square])[which][0]
    bound = factor * (square.derivative(1)(1.0) - 1)
    return equal(found, bound, "the bound is attained: $C = c^2$ at $c = -1$", 1e-14)


@claim("DKS-thm13c", "Sec. 13.2, Theorem 13")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\max_{c\in[-1,1]}|C_f(c)-c| \le 2\,(C_f'(1)-1)$ if $C_f(0)=0$

    Under: uniform q values
    """
    sides = [
        ("2(C'(1) - 1) - (C - c)", co.value_from_one(1)),
        ("2(C'(1) - 1) + (C - c)", co.value_from_one(-1)),
    ]
    for what, family in sides:
        yield co.everywhere(family, 2, what, bench)
    yield from co.on_activations(bench, sides, 2, centred=True)
    maps = power_maps(bench, 300, 4000, zero=True)
    excess = _slopes_at_one(maps) - 1
    yield at_most(_distances(maps)[0], 2 * excess, "the inequality for random C maps")
    _, one, away, _ = _library(_centred_names(bench), centred=True)
    yield at_most(away, 2 * (one - 1), "the inequality for activations minus their mean", 1e-10)
    yield _attained(bench, 0, 2)


@claim("DKS-thm13d", "Sec. 13.2, Theorem 13")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\max_{c\in[-1,1]}|C_f'(c)-1| \le 3\,(C_f'(1)-1)$ if $C_f(0)=0$

    Under: uniform q values
    """
    sides = [
        ("3(C'(1) - 1) - (C' - 1)", co.slope_from_one(1)),
        ("3(C'(1) - 1) + (C' - 1)", co.slope_from_one(-1)),
    ]
    for what, family in sides:
        yield co.everywhere(family, 2, what, bench)
    yield from co.on_activations(bench, sides, 2, centred=True)
    maps = power_maps(bench, 300, 4000, zero=True)
    yield at_most(
        _distances(maps)[1], 3 * (_slopes_at_one(maps) - 1), "the inequality for random C maps"
    )
    _, one, _, away = _library(_centred_names(bench), centred=True)
    yield at_most(away, 3 * (one - 1), "the inequality for activations minus their mean", 1e-10)
    yield _attained(bench, 1, 3)


@claim("DKS-rem14", "Sec. 13.2, Remark 14")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_f'(1)\ge1$ if $C_f(0)=0$, and $C_f'(0)\le1$ always

    Under: uniform q values
    """
    bent = [name for name in co.NAMES if co.curved(name, centred=True)]
    yield proved(
        [
            sum((n - 1) * b for n, b in enumerate(co.enclosed(name, centred=True)) if n > 1)
            for name in bent
        ],
        "$C'(1) - 1 = \\sum_{n\\ge1} (n-1)\\,b_n$ if $b_0 = 0$: enclosures of 17 terms for centred "
        "activations; the other terms are $\\ge0$",
    )
    yield proved(
        [1 - co.enclosed(name)[1] for name in co.NAMES],
        "enclosures of $1 - b_1$ for all activations",
    )
    zero, one, _, _ = _library(_centred_names(bench), centred=True)
    yield at_most(1.0, one, "activations minus their mean: the slope at 1 is at least 1")
    yield at_most(zero, 1.0, "activations minus their mean: the slope at 0 is at most 1")
    maps = power_maps(bench, 300, 4000, zero=True)
    yield at_most(
        1.0, _slopes_at_one(maps), "random C maps with C(0) = 0: the slope at 1 is at least 1"
    )


@claim("DKS-rem15", "Sec. 13.2, Remark 15")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$(1-1/\sqrt j)\,c + c^j/\sqrt j$ is a C map with a slope of at least $\sqrt j$ at $c=1$. For
    large $j$, it is close to linear away from $c=\pm1$
    """
    j, c = symbols("j c", positive=True)
    C = (1 - 1 / sp.sqrt(j)) * c + c**j / sp.sqrt(j)
    slope = simplify(diff(C, c).subs(c, 1))
    yield exact(
        slope - (1 - 1 / sp.sqrt(j) + sp.sqrt(j)), "the slope at 1 is $\\sqrt j + 1 - 1/\\sqrt j$"
    )
    yield exact(C.subs(c, 1) - 1, "the coefficients add up to 1")
    sizes = np.array([2, 10, 100, 1000, 10**4, 10**6])
    root = 1 / np.sqrt(sizes)
    yield at_most(np.sqrt(sizes), 1 - root + 1 / root, "the slope at 1 is at least $\\sqrt j$")
    inside = np.linspace(-0.9, 0.9, 61)
    off = np.array(
        [
            np.abs((1 - r) * inside + r * inside ** int(j) - (1 - r) * inside).max()
            for r, j in zip(root, sizes, strict=True)
        ]
    )
    yield equal(
        off, root * 0.9**sizes, "the distance from a line over |c| <= 0.9 is $0.9^j/\\sqrt j$"
    )
    yield at_most(
        off[2:], 1e-5, r"this distance is below $10^{-5}$ for $j \ge 100$", steepest=1 / root[-1]
    )


def _shares(name: str, q: float = 1.0, measure: float | None = None) -> tuple[float, float]:
    """Compute (nl^2, na^2), which measure how far phi is from linear and from affine functions.

    They are computed by quadrature for z -> phi(sqrt(q) z). ``measure`` is the variance of the
    Gaussian in the inner product, by default q.
    """
    phi = FUNCTIONS[name]
    size = q if measure is None else measure
    root = sqrt(size)
    norm = second_moment(name, size)
    line = reference.mean(lambda u: phi.value(u) * u / root, size, phi.kinks)
    bent = reference.mean(lambda u: (phi.value(u) - line * u / root) ** 2, size, phi.kinks)
    steep = steepness(name, size)
    average = reference.mean(phi.slope, size, phi.kinks)
    spread = reference.mean(lambda u: (phi.slope(u) - average) ** 2, size, phi.kinks)
    return bent / norm, spread / steep


@claim("DKS-prop16", "Sec. 13.3, Proposition 16")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{nl}(\phi)^2 = 1-C_f'(0)$ with $\mathrm{nl}(\phi) = \|\phi-\langle\phi,h_1\rangle
    h_1\|/\|\phi\|$, and $\tfrac14\mathrm{nl}(\phi)^2 \le \max_c|C_f(c)-c| \le
    2\,\mathrm{nl}(\phi)^2$

    Under: input q value 1
    """
    names = list(FUNCTIONS)
    shares = np.array([_shares(name)[0] for name in names])
    zero, _, away, _ = _library(names)
    yield equal(
        1 - zero,
        shares,
        "$1 - C'(0)$ against the integrals of nl",
        1e-11,
        shares=dict(zip(names, shares, strict=True)),
    )
    yield at_most(away, 2 * shares, "the upper bound on the distance from the identity, by nl")
    yield at_most(shares / 4, away, "the lower bound on the distance from the identity, by nl")
    a = bench.uniform(0.01, 2, bench.size(10, 100))
    bent = np.array(
        [reference.mean(lambda u, s=s: (np.tanh(s * u) - _projection(s) * u) ** 2) for s in a]
    )
    norm = np.array([reference.mean(lambda u, s=s: np.tanh(s * u) ** 2) for s in a])
    slopes = np.array([activation("tanh").c_map.derivative(1)(0.0, s * s) for s in a])
    yield equal(1 - slopes, bent / norm, "tanh(a x) for random a: both tend to 0 with a", 1e-11)


def _projection(s: float) -> float:
    return reference.mean(lambda u: np.tanh(s * u) * u)


@claim("DKS-nadef", "Sec. 13.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\phi$ is affine if and only if $\mathrm{na}(\phi)=0$, where $\mathrm{na}(\phi) =
    \|\phi'-\langle\phi',h_0\rangle h_0\|/\|\phi'\|$
    """
    a = bench.normal(20)
    yield equal(
        [reference.mean(lambda u, s=s: (np.full_like(u, s) - s) ** 2) for s in a],
        0.0,
        "na of random affine functions",
        1e-14,
    )
    yield at_most(
        1e-3,
        [_shares(name)[1] for name in FUNCTIONS],
        "na of functions that are not affine is positive",
        0.0,
    )


@claim("DKS-prop18", "Sec. 13.4, Proposition 18")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{na}(\phi)^2 = 1 - C_f'(0)/C_f'(1)$ for a nonlinear or combined layer $f$

    But: at an input q value other than 1, the inner product must be $E[\phi(\sqrt q x)\psi(\sqrt q
    x)]$
    """
    names = list(FUNCTIONS)
    zero, one, _, _ = _library(names)
    yield equal(
        1 - zero / one,
        [_shares(name)[1] for name in names],
        "na at q = 1 against kcalc's slopes",
        1e-10,
    )
    C = activation("tanh").c_map.derivative(1)
    yield counterexample(
        abs(1 - C(0.0, 4.0) / C(1.0, 4.0) - _shares("tanh")[1]),
        "tanh at q = 4 with the inner product at q = 1",
        q=4.0,
    )
    for name in names:
        q = bench.uniform(0.2, 3) if name != "exp" else 0.5
        slope = activation(name).c_map.derivative(1)
        yield equal(
            1 - slope(0.0, q) / slope(1.0, q),
            _shares(name, q)[1],
            "at random q with the inner product at that q",
            1e-9,
        )
