"""Claims of Appendix B: maxima over subnetworks, and U_{f,r}.

U_{f,r} is computed by the recipe of the appendix.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np
import sympy as sp
from sympy import Integer, Rational, Symbol, diff, simplify, sympify

from ... import (
    Network,
    activation,
    c_map,
    maximal,
    maximal_c_value,
    maximal_curvature,
    maximal_slope,
    shape,
    slope_polynomial,
)
from ... import layers as L
from ..bench import Bench, at_most, counterexample, equal, exact
from ..claim import Evidence
from .independent import (
    greatest,
    one,
    random_dag,
    read,
    small_network,
    subnetworks,
    tailored_map,
    tailored_rectifier,
)
from .paper import claim


def _networks(bench: Bench, count: int) -> list[Network]:
    return [small_network(bench, bench.whole(2, 9)) for _ in range(count)]


def _curvature(net: Network, members: frozenset[Any], entry: Any, out: Any, bend: float) -> float:
    """Compute C_g''(1) by the second-order chain rule, for C(1) = C'(1) = 1 and C''(1) = bend."""

    def step(jet: np.ndarray) -> np.ndarray:
        first, second = jet
        return np.array([first, bend * first**2 + second])

    return float(read(net, members, entry, np.array([1.0, 0.0]), step)[out][1])


@claim("TAT-mu1", "App. B.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mu_f^1(\mathcal C'(1))=\max_{g\subseteq f}\mathcal C_g'(1)$ depends on the activation only
    through $\mathcal C'(1)$
    """
    found, truth, several = [], [], 0
    for net in _networks(bench, bench.size(40, 200)):
        psi = bench.uniform(1, 2)
        found.append(maximal_slope(net)(psi))
        truth.append(greatest(net, 1.0, lambda x, psi=psi: psi * x))
        several += len(subnetworks(net))
    yield equal(
        found,
        truth,
        "random networks: kcalc against a search over all subsets of layers",
        subnetworks=several,
    )
    size = one(lambda z: np.tanh(z) ** 2)
    psi = one(lambda z: (1 - np.tanh(z) ** 2) ** 2) / size
    scaled = activation(sp.tanh(Symbol("x", real=True)) / sqrt(size))  # pyright: ignore[reportArgumentType]
    for _ in bench.rounds(8, 40):
        dag = random_dag(bench, 6)
        yield equal(
            c_map(dag.network(scaled)).derivative(1)(1.0),
            dag(1.0, lambda x: psi * x),
            "C_f'(1) of networks of tanh, scaled to Q(1) = 1, is the same function of C'(1)",
            1e-10,
        )


@claim("TAT-mu0", "App. B.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mu_f^0(\alpha)=\max_{g\subseteq f}\mathcal C_g(0)$, and it is $M_{f,r_0}(0)$ with
    $r_0=\mathcal C$
    """
    for net in _networks(bench, bench.size(40, 200)):
        slope = bench.uniform(-1, 1)
        truth = greatest(net, 0.0, lambda c, a=slope: tailored_map(a, c))
        yield equal(
            maximal_c_value(net)(slope),
            truth,
            "random networks: kcalc against a search over all subsets of layers",
        )
        yield equal(
            maximal(net, lambda c, a=slope: tailored_map(a, c))(0.0), truth, "M at 0 with r = C"
        )
    for _ in bench.rounds(6, 40):
        dag, slope = random_dag(bench, 7), bench.uniform(-1, 3)
        yield equal(
            c_map(dag.network(tailored_rectifier(slope)))(0.0),
            dag(0.0, lambda c, a=slope: tailored_map(a, c)),
            "kcalc's C_f(0) is U_{f,C}(0)",
        )


@claim("TAT-mu2", "App. B.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mu_f^2(\mathcal C''(1))=\max_{g\subseteq f}\mathcal C_g''(1)$ is a multiple of $\mathcal
    C''(1)$, because $(a\circ b)''=a''(b)b'^2+a'(b)b''$

    Under: $\mathcal C'(1)=1$
    """
    x = Symbol("x")
    a, b = sp.Function("a"), sp.Function("b")
    y = Symbol("y")
    rule = diff(a(y), y, 2).subs(y, b(x)) * diff(b(x), x) ** 2 + diff(a(y), y).subs(y, b(x)) * diff(
        b(x), x, 2
    )
    yield exact((diff(a(b(x)), x, 2) - rule).doit(), "the second-order chain rule")
    for net in _networks(bench, bench.size(40, 200)):
        bend = bench.uniform(0.01, 1)
        curvature = maximal_curvature(net)
        truth = max((_curvature(net, *g, bend) for g in subnetworks(net)), default=0.0)
        yield equal(
            curvature(bend),
            truth,
            "random networks: kcalc against a search over all subsets of layers",
        )
        yield equal(curvature.multiplier * bend, truth, "the multiplier times C''(1)")


# -- B.2 -------------------------------------------------------------------------------------------


@claim("TAT-r2", "App. B.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mu_f^2(\mathcal C''(1))=M_{f,r_2}(0)$ with $r_2(x)=x+\mathcal C''(1)$"""
    for net in _networks(bench, bench.size(40, 200)):
        bend = bench.uniform(0.01, 1)
        truth = max((_curvature(net, *g, bend) for g in subnetworks(net)), default=0.0)
        yield equal(
            [
                maximal(net, lambda x, k=bend: x + k)(0.0),
                greatest(net, 0.0, lambda x, k=bend: x + k),
            ],
            [truth, truth],
            "random networks: the largest C_g''(1) by the chain rule",
        )


def _composes(pair: tuple[Any, Any], pairs: set[tuple[Any, Any]]) -> bool:
    """Whether a subnetwork can be composed with another into a larger subnetwork."""
    entry, out = pair
    return any(
        (e == out and (entry, o) in pairs) or (o == entry and (e, out) in pairs) for e, o in pairs
    )


@claim("TAT-mono", "App. B.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $r$ is non-decreasing with $r(x)\ge x$ on the values that occur (such as $\mathcal C$ of
    leaky ReLUs, $\psi x$ with $\psi\ge1$, or $x+\kappa$), then $U_{g\circ h,r}(x)\ge
    U_{g,r}(x),U_{h,r}(x)$. Subnetworks that are part of a larger composition can therefore be left
    out

    Printed: this holds for every non-decreasing $r$
    """
    half = 0.7
    yield counterexample(
        half - half * half,
        "r(x) = .7x at x = 1: U = .49 for two layers and .7 for one",
        both=half**2,
        one=half,
        one_sided=True,
    )
    found, truth, short, wrong = [], [], 0, 0
    for net in _networks(bench, bench.size(60, 300)):
        sets = subnetworks(net)
        pairs = {g[1:] for g in sets}
        largest = [g for g in sets if not _composes(g[1:], pairs)]
        for r, x in ((lambda v: 1.3 * v + 0.1, 0.2), (lambda v: tailored_map(0.2, v), 0.0)):
            best = max((read(net, *g[:2], x, r)[g[2]] for g in largest), default=x)
            found.append(best)
            truth.append(greatest(net, x, r))
        shrinks = lambda v: 0.7 * v  # noqa: E731
        wrong += (
            max((read(net, *g[:2], 1.0, shrinks)[g[2]] for g in largest), default=1.0)
            < greatest(net, 1.0, shrinks) - 1e-12
        )
        short += 1
    yield equal(
        found,
        truth,
        "random networks, r(x) >= x: subnetworks that are not part of a larger composition attain "
        "the maximum",
        networks=short,
        wrong_for_r_below_x=int(wrong),
    )
    drawn = bench.uniform(0, 1, bench.size(200, 2000), 3)
    composed = [
        max(tailored_map(a, c), tailored_map(b, c)) - tailored_map(a, tailored_map(b, c))
        for a, b, c in drawn
    ]
    yield at_most(composed, 0, "U of a composition against U of its parts, for maps of rectifiers")
    # kcalc finds the maximum even if r(x) < x
    for net in _networks(bench, bench.size(20, 100)):
        yield equal(
            maximal(net, lambda v: 0.7 * v)(1.0) - greatest(net, 1.0, lambda v: 0.7 * v),
            0.0,
            "r(x) = .7x: kcalc finds the maximum over all subnetworks",
        )


# -- B.3, B.4 --------------------------------------------------------------------------------------


@claim("TAT-b3", "App. B.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for leaky ReLUs with $\alpha\in[-1,1)$, $\mathcal C(c)$ at $c<1$ is a strictly decreasing
    function of $\alpha$, and so is $\mu_f^0(\alpha)$ unless it is 0
    """
    a = Symbol("a", real=True)
    k = (1 - a) ** 2 / (sp.pi * (1 + a**2))
    yield exact(
        simplify(diff(k, a) + 2 * (1 - a**2) / (sp.pi * (1 + a**2) ** 2)),
        "dk/da = -2 (1 - a^2)/(pi (1 + a^2)^2) < 0",
    )
    yield exact(simplify(k.subs(a, 1 / a) - k), "k(1/a) = k(a): it increases again for a > 1")
    grid = np.linspace(-1, 1, 41)
    c = np.array([-1.0, -0.4, 0.0, 0.7])
    values = np.array([np.asarray(tailored_rectifier(s).c_map(c)) for s in grid])
    yield at_most(1e-9, -np.diff(values, axis=0), "kcalc's C(c) falls along a grid of slopes")
    for net in _networks(bench, bench.size(20, 100)):
        if net.nodes_of(L.Nonlinear) and maximal_c_value(net)(0.0) > 0:
            yield at_most(
                1e-9,
                -np.diff(np.asarray(maximal_c_value(net)(grid))),
                "mu^0 of random networks falls along the same grid",
            )


@claim("TAT-b4", "App. B.4, rules 1-5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in $U_{f,r}$, compositions map to compositions, affine layers to the identity, nonlinear
    layers to $r$, and normalised sums to $\sum w_i^2U_{g_i,r}(x_i)$
    """
    c = np.array([-1.0, -0.6, 0.0, 0.5, 1.0])
    for _ in bench.rounds(15, 80):
        dag = random_dag(bench, bench.whole(2, 12))
        slope = bench.uniform(-1, 2)
        yield equal(
            c_map(dag.network(tailored_rectifier(slope)))(c),
            dag(c, lambda x, a=slope: tailored_map(a, x)),
            "r = C: the global C maps of random networks",
        )
        psi = Rational(bench.whole(5, 30), 10)
        polynomial = sympify(slope_polynomial(dag.network("tanh")))
        yield equal(
            polynomial.subs(dict.fromkeys(polynomial.free_symbols, psi)),
            dag(Integer(1), lambda x, p=psi: p * x, Rational),
            "r(x) = psi x at 1: their slope polynomials",
            1e-11,
        )


@claim("TAT-b4b", "App. B.4, special rules")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in $U_{f,r_2}(0)$, compositions add, affine layers and the input give 0, nonlinear layers
    $\mathcal C''(1)$, and sums $\sum w_i^2U_{g_i,r_2}(0)$
    """
    for i in bench.rounds(12, 60):
        dag = random_dag(bench, bench.whole(2, 12))
        added = dag(0.0, lambda x: x + 1.0)
        jets = dag.derivatives(1.0, (lambda x: x, lambda x: 1.0 + 0 * x, lambda x: 1.0 + 0 * x))
        yield equal(added, jets[2], "the additive rules with 0 at the input against the chain rule")
        if i < bench.size(4, 12):
            whole = dag.network("tanh")
            shaped = shape(whole, method="tat", tau=0.3)
            local = next(iter(shaped.constants.values())).transformed.c_map.derivative(2)(1.0)
            yield equal(
                c_map(shaped.network).derivative(2)(1.0) / local - added,
                0.0,
                "C_f''(1)/C''(1) of shaped networks in kcalc",
                1e-9,
            )
