"""Claims of Appendix C.2 up to Lemma 36: properties of positive definite C maps on [-1, 1]."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import sympy as sp
from numpy.polynomial.polynomial import polyval
from sympy import Symbol

from ... import activation, c_map
from ..bench import Array, Bench, at_most, counterexample, equal, exact, proved
from ..claim import Evidence
from ..families import PowerMap, power_maps, residual_network
from ..functions import FUNCTIONS
from . import coefficients as co
from . import reference
from .paper import claim
from .reference import cosine, power_series, second_moment, steepness

T = np.linspace(0.0, 1.0, 101)[1:]


def curved(maps: list[PowerMap]) -> list[PowerMap]:
    """Return the maps that are not affine."""
    return [C for C in maps if C.weights[2:].sum() > 1e-3]


def slope(C: PowerMap) -> float:
    """Return C'(1)."""
    return float(C.weights @ np.arange(C.weights.size))


def everywhere(bench: Bench, family: co.Family, first: int, what: str) -> Evidence:
    """Prove p_n >= 0 on [-1, 1] individually for each polynomial of a family up to n = 400."""
    slack = []
    for n in range(first, 400):
        terms = family(n)
        slack.append(terms.get(0, 0) - sum(abs(value) for power, value in terms.items() if power))
    return proved(slack, f"{what}: term by term of the power series")


def _names(bench: Bench) -> tuple[str, ...]:
    return bench.size(co.NAMES[::3], co.NAMES)


@claim("DKS-prop31", "App. C.2, Proposition 31 i-iii")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""i) $C(1)=1$, $C(0)\ge0$; ii) $C$ is increasing and convex on $[0,1]$; iii) strictly
    increasing there if it is not constant

    Under: uniform q values

    But: increasing in ii must mean non-decreasing, because $C=1$ is constant
    """
    constant = PowerMap(np.array([1.0, 0.0]))
    yield counterexample(
        float(constant(1.0) <= constant(0.0)),
        "if ii is read strictly, it fails for $C=1$, the C map of a constant activation",
    )
    names = list(_names(bench))
    yield at_most(
        0,
        [b.mid() for name in names for b in co.enclosed(name)],
        "coefficients of activations, midpoints of enclosures: none of them is negative",
    )
    yield from _agreeing(bench, names)
    grid = np.append(0.0, T)
    values = []
    for name in _names(bench):
        C, phi = activation(name).c_map, FUNCTIONS[name]
        values.append(C(grid))
        yield equal(
            C(0.0),
            reference.mean(phi.value, 1.0, phi.kinks) ** 2 / second_moment(name),
            "$C(0) = (E\\phi)^2/Q$, by quadrature",
            1e-11,
        )
    net = c_map(residual_network(bench, "gelu"))
    values += [
        net(grid),
        *(C(grid) for C in power_maps(bench, 300, 3000) if C.weights[1:].sum() > 1e-3),
    ]
    rows = np.array(values)
    yield equal(rows[:, -1], 1, "$C(1)=1$: activations, a random network, random C maps")
    yield at_most(0, rows[:, 0], "$C(0)\\ge0$", 1e-15)
    yield at_most(
        0, np.diff(rows, 2, axis=1), "ii: second differences of $C$ on $[0,1]$ are not negative"
    )
    yield at_most(
        1e-7,
        (rows[:, 50:] - rows[:, :-50]).min(axis=1),
        "iii: $C$ increases from one end to the other of every interval of length 1/2",
        0.0,
    )


def _agreeing(bench: Bench, names: list[str]) -> Iterator[Evidence]:
    """Compare enclosed coefficients and the library's series with quadrature in NumPy."""
    truth = [power_series(name, co.TERMS + 1) for name in names]
    yield equal(
        [[float(b.mid()) for b in co.enclosed(name)] for name in names],
        truth,
        "enclosed coefficients against quadrature",
        1e-11,
    )
    yield equal(
        [activation(name).c_map.series(co.TERMS + 1) for name in names],
        truth,
        "kcalc's series against quadrature",
        1e-11,
    )


@claim("DKS-prop31iv", "App. C.2, Proposition 31 iv")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""every $C$ that is not affine is strictly increasing and strictly convex on $[0,1]$

    Under: uniform q values

    Printed: every $C$ that is neither constant nor the identity is strictly increasing and strictly
    convex on $[0,1]$
    """
    x = Symbol("x", real=True)
    C = activation((x + 1) / sp.sqrt(2)).c_map
    bend = (C(0.0) + C(1.0)) / 2 - C(0.5)
    moved = abs(C(0.5) - 0.5) > 0.1 and (C(1.0) - C(0.0)) > 0.1
    yield counterexample(
        moved and bend < 1e-12,
        "$\\phi=(x+1)/\\sqrt2$ has $C=(1+c)/2$: neither constant nor the identity, but affine",
        bend=bend,
    )
    own = np.polynomial.hermite_e.HermiteE([1, 1]) / np.sqrt(2)
    yield equal(
        own.coef**2, [0.5, 0.5], "the coefficients of this map, from the Hermite expansion", 1e-14
    )
    higher = [max(float(b.lower()) for b in co.enclosed(name)[2:]) for name in _names(bench)]
    yield proved(
        [v - 1e-6 for v in higher],
        "activations: a coefficient beyond the linear one is positive, enclosed",
    )
    maps = curved(power_maps(bench, 400, 4000))
    bends = [C(0.3) / 2 + C(0.9) / 2 - C(0.6) for C in maps]
    least = [
        sum(b * (0.3**n + 0.9**n - 2 * 0.6**n) / 2 for n, b in enumerate(C.weights) if n > 1)
        for C in maps
    ]
    yield equal(
        bends, least, "the curvature of random maps equals the curvature of their nonlinear terms"
    )
    yield at_most(1e-9, bends, "the curvature of random maps is positive", 0.0)
    yield at_most(1e-9, [C(0.9) - C(0.3) for C in maps], "random maps are strictly increasing", 0.0)
    for name in _names(bench):
        values = activation(name).c_map(np.array([0.2, 0.6, 1.0]))
        yield at_most(
            1e-6,
            [values[0] / 2 + values[2] / 2 - values[1], values[2] - values[1]],
            "the C maps of activations are strictly convex and increase",
            0.0,
        )


@claim("DKS-cor32", "App. C.2, Corollary 32")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C(c)\ge C'(1)\,c+1-C'(1)$ on $[0,1]$

    Under: uniform q values; C nontrivial
    """
    c = Symbol("c")
    for n in (2, 3, 7, 12):
        rest = sum((n - 1 - k) * c**k for k in range(n - 1))
        yield exact(
            c**n - (n * c + 1 - n) - (1 - c) ** 2 * rest,
            f"$c^{{{n}}}$ minus its tangent: no negative coefficient",
        )
    maps = power_maps(bench, 400, 4000)
    yield at_most(
        np.array([slope(C) * (T - 1) + 1 for C in maps]),
        [C(T) for C in maps],
        "the inequality for random C maps",
    )
    for name in _names(bench):
        steep = steepness(name) / second_moment(name)
        C = activation(name).c_map
        yield at_most(
            steep * (T - 1) + 1,
            C(T),
            "the inequality for activations, with $C'(1)$ by quadrature",
            1e-11,
        )
        yield equal(C.derivative(1)(1.0), steep, "these slopes against kcalc's", 1e-10)
    C = c_map(residual_network(bench, "softplus"))
    yield at_most(
        C.derivative(1)(1.0) * (T - 1) + 1, C(T), "the inequality for a random network", 1e-11
    )


@claim("DKS-lem33", "App. C.2, Lemma 33, eq. 26")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C(-c)\ge2C(0)-C(c)$ for $c\in(0,1]$; if equality holds for one such $c$, then $C-C(0)$ is
    odd

    Under: uniform q values; C nontrivial

    Printed: if equality holds for one such $c$, then $C$ is odd
    """
    for weights, what in (([0.5, 0.5], "(1+c)/2"), ([0.5, 0, 0, 0.5], "(1+c^3)/2")):
        C = PowerMap(np.array(weights))
        same = abs(C(-0.7) - 2 * C(0) + C(0.7)) < 1e-15
        yield counterexample(
            (C(-0.7) + C(0.7)) if same else 0.0,
            f"$C={what}$: equality everywhere, and $C(-c)+C(c)=1$",
        )
    x = Symbol("x", real=True)
    straight = activation((x + 1) / sp.sqrt(2)).c_map
    yield equal(straight(-T) + straight(T), 1, "$(1+c)/2$ is the C map of $\\phi=(x+1)/\\sqrt2$")
    maps = power_maps(bench, 400, 4000)
    slack = np.array([C(-T) - 2 * C(0) + C(T) for C in maps])
    yield equal(
        slack,
        np.array(
            [2 * sum(b * T**n for n, b in enumerate(C.weights) if n and n % 2 == 0) for C in maps]
        ),
        "the difference of both sides is twice the even part of $C-C(0)$",
    )
    yield at_most(0, slack, "the inequality for random C maps", 1e-13)
    yield at_most(
        [2 * C.weights[2::2].max() * T**12 for C in maps],
        slack,
        "one positive even coefficient suffices for strict inequality",
        1e-13,
    )
    odd = [PowerMap(np.append(0.4, 0.6 * C.weights[1:])) for C in power_maps(bench, 50, odd=True)]
    yield equal(
        [C(-T) - 0.4 + C(T) - 0.4 for C in odd],
        0,
        "without even terms, equality holds and $C-C(0)$ is odd",
        1e-13,
    )
    at = np.array([0.2, 0.5])
    for name in _names(bench):
        C = activation(name).c_map
        gaps = C(-at) + C(at) - 2 * C(0.0)
        b = power_series(name, 60)
        yield at_most(0, gaps, "the inequality for activations")
        yield equal(
            gaps,
            [2 * (b[2::2] @ c ** np.arange(2, 60, 2)) for c in at],
            "this difference from even coefficients by quadrature",
            1e-9,
        )


def _secant(n: int) -> co.Terms:
    """Return ((-c)^n + c g^(n-1)) / (g^n t) as a polynomial in t, for c = g t."""
    return co.collected((0, 1), (n - 1, (-1) ** n))


def _below(bench: Bench, share: Array | float) -> tuple[Array, Array]:
    """Compute both sides (bound, value) of Corollary 34 for activations at gamma = ``share``."""
    left, right = [], []
    for name in _names(bench):
        C = activation(name).c_map
        at = share * T[9::10]
        zero = C(0.0)
        left.append(zero - (C(share) - zero) / share * at)
        right.append(C(-at))
    return np.array(left), np.array(right)


@claim("DKS-cor34", "App. C.2, Corollary 34")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for $\gamma\in(0,1)$: $C(-c)\ge-\dfrac{C(\gamma)-C(0)}{\gamma}\,c+C(0)$ for $c\in(0,\gamma)$

    Under: uniform q values
    """
    yield everywhere(bench, _secant, 1, "$(-c)^n+c\\,\\gamma^{n-1}\\ge0$ on $(0,\\gamma)$")
    for C in power_maps(bench, 400, 4000):
        g = bench.uniform(0.02, 1)
        yield at_most(C(0) - (C(g) - C(0)) * T, C(-g * T), "the inequality for random C maps")
    for g in (0.3, 0.8):
        yield at_most(*_below(bench, g), f"activations, $\\gamma={g}$", 1e-11)
    C = PowerMap(np.array([0.1, 0.3, 0, 0.6]))
    yield equal(
        C(-0.5),
        C(0) - (C(0.5) - C(0)),
        "the bound is attained at $c=\\gamma$ if there are no even terms",
        1e-14,
    )


@claim("DKS-cor35", "App. C.2, Corollary 35")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C(-c)\ge-(1-C(0))\,c+C(0)$ for $c\in(0,1]$

    Under: uniform q values
    """
    yield everywhere(bench, _secant, 1, "$(-c)^n+c\\ge0$ on $(0,1]$")
    maps = power_maps(bench, 400, 4000)
    for C in maps:
        yield at_most(C(0) - (1 - C(0)) * T, C(-T), "the inequality for random C maps")
    yield at_most(*_below(bench, 1.0), "the inequality for activations", 1e-11)
    C = c_map(residual_network(bench, "gelu"))
    yield at_most(C(0.0) - (1 - C(0.0)) * T, C(-T), "the inequality for a random network", 1e-11)
    at = np.array([0.3, 0.7])
    for name in ("gelu", "relu", "tanh"):
        yield equal(
            activation(name).c_map(-at),
            [cosine(name, -c) for c in at],
            "C at negative c, by the joint density",
            1e-10,
        )


@claim("DKS-lem36", "App. C.2, Lemma 36")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$0<\dfrac{C(-c)-C(0)}{-c}<1$ for $c\in(-1,0)$ and every C map that is neither constant nor
    the identity

    Under: uniform q values

    Printed: this holds for every C map
    """
    identity, constant = activation("identity").c_map, PowerMap(np.array([1.0, 0.0]))
    at = T[:-1]
    quotient = (identity(0.5) - identity(0.0)) / 0.5
    yield counterexample(
        float(quotient >= 1 - 1e-12), "the identity: the quotient is 1", quotient=quotient
    )
    yield counterexample(
        float((constant(0.5) - constant(0.0)) / 0.5 <= 0), "a constant: the quotient is 0"
    )
    maps = [
        C
        for C in power_maps(bench, 400, 4000)
        if C.weights[1:].sum() > 1e-3 and C.weights[1] < 0.999
    ]
    ratio = np.array([polyval(at, C.weights[1:]) for C in maps])
    room = np.array([(1 - C.weights[1] - C.weights[0]) * (1 - at) + C.weights[0] for C in maps])
    yield at_most(ratio + room, 1, "random C maps: below 1 by at least $b_0+(1-b_0-b_1)(1-x)$")
    yield at_most(1e-12, room, "this lower bound of the difference is positive", 0.0)
    yield at_most(1e-30, ratio, "random C maps: the quotient is positive", 0.0)
    C = PowerMap(np.array([0.5, 0.5]))
    yield equal((C(at) - C(0)) / at, 0.5, "affine maps are no exception, for example $(1+c)/2$")
    found = []
    for name in _names(bench):
        C = activation(name).c_map
        found.append((C(at) - C(0.0)) / at)
    yield at_most(found, 1 - 1e-6 * (1 - at), "activations: the quotient is below 1", 0.0)
    yield at_most(1e-9, [row[-1] for row in found], "activations: the quotient is positive", 0.0)
