"""Claims of Appendix C.2, Theorems 40 to 42: convergence rates of iterates of a C map."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import mpmath
import numpy as np
from sympy import Integer, Rational

from ... import Network, activation, c_map, chain, q_map, repeat
from ... import layers as L
from ...foundation.process_state import decimal_digits
from ..bench import Bench, at_most, counterexample, equal, proved
from ..claim import STATEMENT, Evidence, Method
from ..families import PowerMap, power_maps
from ..functions import FUNCTIONS
from . import coefficients as co
from . import reference
from .attractors import COLLAPSING, EXPLODING, deep, own_map, polynomial, rational_maps, settled
from .attractors import star as star_of
from .fixed_points import curved, slope
from .paper import claim
from .reference import cosine, second_moment, steepness

Real = Any  # of mpmath
_GRID = np.linspace(-1, 1, 41)


def _line(n: int) -> co.Terms:
    """Return the polynomial (n (1 - c) - (1 - c^n)) / (1 - c)."""
    return {} if n == 0 else co.collected((0, n), *((k, -1) for k in range(n)))


@claim("DKS-thm40", "App. C.2, Theorem 40")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $C'(1)<1$: $C'(1)^n(c-1)+1\le C^n(c)\le1$ on $[-1,1]$

    Under: uniform q values; C nontrivial

    But: the printed step for $c<0$ applies Corollary 32 in the wrong direction; $1-c^i\le i\,(1-c)$
    on $[-1,1]$ proves the statement
    """
    C = PowerMap(np.array([0.6, 0, 0.4]))
    yield counterexample(
        C(0.5) - (slope(C) * 0.5 + 1 - slope(C)),
        "the printed step needs $C(x)\\le C'(1)x+1-C'(1)$, but $0.6+0.4x^2$ is larger at $x=1/2$",
        one_sided=True,
    )
    yield proved(
        [_line(n).get(0, 0) - sum(abs(v) for p, v in _line(n).items() if p) for n in range(1, 300)],
        "$1-c^i\\le i(1-c)$ on $[-1,1]$, divided by $1-c$: term by term",
    )
    for b in rational_maps(bench, "below", 60, 500):
        C = PowerMap(np.array([float(v) for v in b]))
        for n in (1, 2, 5, 20):
            high = C.iterate(_GRID, n)
            yield at_most(slope(C) ** n * (_GRID - 1) + 1, high, "random maps, from below")
            yield at_most(high, 1, "random maps, from above")
    theta = np.arccos(_GRID[:-1])
    for name, weight, bias in COLLAPSING[: bench.size(2, 3)]:
        _, q = settled(name, weight, bias)
        steep = weight * steepness(name, q)
        for n in (1, 4, 15):
            gap = c_map(deep(name, weight, bias, n)).gap_at_angle(theta, q)
            yield at_most(
                gap / (1 - _GRID[:-1]),
                steep**n,
                f"{n} {name} layers with biases: $1-C^n$ divided by $1-c$",
                1e-9,
            )
            yield at_most(0, gap, "$1-C^n$ is positive", 0.0)
        yield equal(
            c_map(deep(name, weight, bias, 1))(np.array([-0.6, 0.4]), q),
            [own_map(name, weight, bias, q, c) for c in (-0.6, 0.4)],
            f"{name}: one layer, by the joint density",
            1e-9,
        )


def _precise(bench: Bench, count: int) -> Iterator[tuple[list[Real], Real]]:
    """Yield random maps of Corollary 38 ii and their c*, with 50 digits."""
    for b in rational_maps(bench, "above", count):
        weights = [mpmath.mpf(int(v.p)) / int(v.q) for v in b]
        star = mpmath.mpf(star_of(PowerMap(np.array([float(v) for v in b]))))
        for _ in range(4):
            star += (_at(weights, star) - star) / (1 - _at(_slopes(weights), star))
        yield weights, star


def _at(weights: list[Real], c: Real) -> Real:
    return mpmath.polyval(weights[::-1], c)


def _slopes(weights: list[Real]) -> list[Real]:
    return [n * b for n, b in enumerate(weights)][1:]


def _positive(differences: list[Real], what: str, strict: bool = True) -> Evidence:
    """Check that all 50-digit values are positive (or, unless ``strict``, not negative)."""
    least, room = min(differences), mpmath.mpf(10) ** -44
    return Evidence(
        STATEMENT,
        Method.NUMERIC,
        bool(least > (room if strict else -room)),
        what,
        float(least),
        {"cases": len(differences)},
    )


def _exploding(
    bench: Bench, depths: tuple[int, ...]
) -> Iterator[tuple[tuple[str, float, float], float, int, Network, float, float]]:
    """Yield (layer, q, depth, network, c*, C'(c*)) for layers with biases.

    c* and C'(c*) are computed from the joint density.
    """
    for name, weight, bias in EXPLODING[: bench.size(2, 4)]:
        _, q = settled(name, weight, bias)
        star = 0.0
        for _ in range(120):
            star = own_map(name, weight, bias, q, star)
        phi = FUNCTIONS[name]
        at_star = weight * reference.pair(phi.slope, q, phi.slope, q, star)
        for n in depths:
            yield (name, weight, bias), q, n, deep(name, weight, bias, n), star, at_star


@claim("DKS-thm41i", "App. C.2, Theorem 41 i")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$c^*<C^n(c_0)\le c^*+\Bigl(\dfrac{C(c_0)-C(c^*)}{c_0-c^*}\Bigr)^n(c_0-c^*)$ for
    $c_0\in(c^*,1)$

    Under: uniform q values; $C'(1)>1$, C not odd
    """
    above, below, ratios = [], [], []
    with decimal_digits(50):
        for weights, star in _precise(bench, bench.size(25, 200)):
            start = star + (1 - star) * mpmath.mpf(bench.uniform(0.05, 0.95))
            ratio = (_at(weights, start) - star) / (start - star)
            ratios += [ratio, 1 - ratio]
            c = start
            for n in range(1, 9):
                c = _at(weights, c)
                above.append(star + ratio**n * (start - star) - c)
                below.append((c - star) / (start - star) if star else mpmath.mpf(c > 0))
        yield _positive(below, "random maps, 50 digits: $C^n(c_0)>c^*$")
        yield _positive(above, "random maps, 50 digits: the upper bound", strict=False)
        yield _positive(ratios, "the ratio lies strictly between 0 and 1")
    for layer, q, n, network, star, _ in _exploding(bench, (1, 3, 8)):
        start = star + (1 - star) * np.array([0.2, 0.7])
        one = np.array([own_map(*layer, q, c) for c in start])
        ratio = (one - star) / (start - star)
        found = c_map(network)(start, q)
        yield at_most(
            found, star + ratio**n * (start - star), f"{layer[0]}, {n} layers: upper bound", 1e-8
        )
        yield at_most(star, found, f"{layer[0]}, {n} layers: lower bound", 1e-8)


@claim("DKS-thm41ii", "App. C.2, Theorem 41 ii")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$c^*+C'(c^*)^n(c_0-c^*)<C^n(c_0)<c^*$ for $c_0\in[0,c^*)$

    Under: uniform q values; $C'(1)>1$, C not odd
    """
    above, below = [], []
    with decimal_digits(50):
        for weights, star in _precise(bench, bench.size(40, 250)):
            if star < mpmath.mpf("1e-3"):
                continue
            steep = _at(_slopes(weights), star)
            for share in (0.0, bench.uniform(0.05, 0.95)):
                start = c = star * mpmath.mpf(share)
                for n in range(1, 9):
                    c = _at(weights, c)
                    above.append((star - c) / star / steep**n)
                    below.append((c - star - steep**n * (start - star)) / star / steep**n)
        yield _positive(above, "random maps, 50 digits: $C^n(c_0)<c^*$")
        yield _positive(below, "random maps, 50 digits: the lower bound")
    for (name, *_), q, n, network, star, steep in _exploding(bench, (1, 3, 8)):
        start = star * np.array([0.0, 0.4, 0.9])
        found = c_map(network)(start, q)
        yield at_most(
            star + steep**n * (start - star), found, f"{name}, {n} layers: lower bound", 1e-8
        )
        yield at_most(found, star, f"{name}, {n} layers: upper bound", 1e-8)


@claim("DKS-thm41iii", "App. C.2, Theorem 41 iii")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C^n(c_0)\ge\alpha^n\bigl(c_0-\tfrac{C(0)}{1-\alpha}\bigr)+\tfrac{C(0)}{1-\alpha}$ with
    $\alpha=\dfrac{C(-c_0)-C(0)}{-c_0}$, for $c_0\in(-1,0)$ as long as $C^{n-1}(c_0)\le0$

    Under: uniform q values; $C'(1)>1$, C not odd
    """
    slack, used = [], 0
    maps = power_maps(bench, 400, 4000)
    for C in [C for C in maps if slope(C) > 1 and C.weights[::2].sum() > 1e-6]:
        mixed = PowerMap(
            C.weights * np.where(np.arange(C.weights.size) % 2, 1.0, bench.uniform(0.01, 1))
        )
        # a smaller even part leads to more steps below 0
        mixed = PowerMap(mixed.weights / mixed.weights.sum())
        start = bench.uniform(-0.99, -0.01)
        zero = mixed(0.0)
        alpha = (mixed(-start) - zero) / -start
        alphas = alpha
        c, line, n = start, start, 0
        while c <= 0 and n < 40:
            c, line, n = mixed(c), alpha * line + zero, n + 1
            slack.append(c - (alpha**n * (start - zero / (1 - alpha)) + zero / (1 - alpha)))
            used += n > 1
        yield at_most(alphas, 1 - 1e-12, "alpha is below 1", 0.0)
        yield at_most(0, alphas, "alpha is not negative", 0.0)
    yield at_most(0, slack, "the bound for random maps", beyond_one_step=used)
    yield at_most(50, used, "the number of steps after the first, which test iterates")
    for name, weight, bias in (("tanh", 3.0, 0.01), ("erf", 2.5, 0.02))[: bench.size(1, 2)]:
        _, q = settled(name, weight, bias)
        start, zero = -0.6, own_map(name, weight, bias, q, 0.0)
        alpha = (own_map(name, weight, bias, q, -start) - zero) / -start
        c, n = start, 0
        while c <= 0 and n < 9:
            n += 1
            c = c_map(deep(name, weight, bias, n))(start, q)
            yield at_most(
                alpha**n * (start - zero / (1 - alpha)) + zero / (1 - alpha),
                c,
                f"{name} layers with small biases, n = {n}; alpha by the joint density",
                1e-9,
            )


@claim("DKS-thm42", "App. C.2, Theorem 42")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for odd $C$ and $0<\hat c<1$: $|C^n(c)|\le\bigl(C(\hat c)/\hat c\bigr)^n\,|c|$ on $[-\hat
    c,\hat c]$

    Under: uniform q values; C nontrivial

    Printed: $|C^n(c)|\le\hat c^{\,n}$ on $[-\hat c,\hat c]$
    """
    weights = (Integer(0), Rational(9, 10), Integer(0), Rational(1, 10))
    half = sum(b * Rational(1, 2) ** n for n, b in enumerate(weights))
    twice = float(sum(b * half**n for n, b in enumerate(weights)))
    yield counterexample(
        twice - 0.25,
        "$C=0.9c+0.1c^3$, $\\hat c=1/2$: $C^2(1/2)=0.4261>1/4$",
        value=twice,
        one_sided=True,
    )
    phi = polynomial(weights)
    yield equal(
        c_map(chain(L.Input(), repeat(chain(L.Affine(), L.Nonlinear(phi)), 2)))(0.5),
        twice,
        "two kcalc layers with that C map",
        1e-9,
    )
    excess = []
    for C in curved(power_maps(bench, 300, 3000, odd=True)):
        top = bench.uniform(0.05, 0.99)
        c = np.linspace(-top, top, 21)
        for n in (1, 2, 5, 20):
            found = np.abs(C.iterate(c, n))
            excess.append((found - top**n).max())
            yield at_most(
                found, (C(top) / top) ** n * np.abs(c), "the bound for random odd maps", 1e-13
            )
    yield counterexample(
        max(excess),
        "the bound for random odd maps",
        violations=int((np.array(excess) > 1e-9).sum()),
        of=len(excess),
        one_sided=True,
    )
    for name in ("tanh", "erf", "sin", "asinh")[: bench.size(2, 4)]:
        scaled = activation(name).transformed(output_scale=1 / sqrt(second_moment(name)))
        top = 0.8
        c = np.linspace(-top, top, 9)
        ratio = cosine(name, top) / top
        for n in (1, 3, 8):
            network = chain(L.Input(), repeat(chain(L.Affine(), L.Nonlinear(scaled)), n))
            yield equal(q_map(network)(1.0), 1.0, f"{name}: q stays 1", 1e-9)
            found = np.abs(c_map(network)(c))
            yield at_most(
                found,
                ratio**n * np.abs(c),
                f"{name}, {n} layers; $C(\\hat c)$ by the joint density",
                1e-10,
            )
