"""Claims of sections 4 and 5.4: tailored rectifiers, smooth activations, and the edge of chaos."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np
import sympy as sp
from scipy import optimize
from sympy import Expr, Symbol, diff, expand, symbols

from ... import activation, activations, architectures, c_map, q_map, shape
from ...foundation.errors import UnreachableTarget
from ...shaping import edge
from ..bench import Bench, at_most, counterexample, equal, exact
from ..claim import Evidence
from .independent import (
    SMOOTH,
    chain_of,
    corner,
    homogeneous_pair,
    leaky,
    one,
    tailored_map,
    tailored_slope,
    transformed,
)
from .paper import claim

SHAPED = ("tanh", "softplus", "erf", "sin", "sigmoid", "swish", "gelu", "atan", "asinh", "gaussian")
SLOPES = (0.0, 0.3, 0.9, 1.5, 3.0, -0.4)


def exact_tailored_map() -> tuple[Expr, Symbol, Symbol]:
    """Return (C, t, a): C of a leaky ReLU with slope a at c = cos t, by an angular integral."""
    t, a, u = symbols("t a u", positive=True)
    primitive = u * sp.cos(t) / 2 + sp.sin(2 * u - t) / 4
    # both inputs positive, and the same for both negative
    both = primitive.subs(u, sp.pi / 2) - primitive.subs(u, t - sp.pi / 2)
    # one input positive and the other negative, twice
    mixed = primitive.subs(u, t + sp.pi / 2) - primitive.subs(u, sp.pi / 2)
    return ((1 + a**2) * both + 2 * a * mixed) / sp.pi * 2 / (1 + a**2), t, a


def printed_tailored_map(t: Symbol, a: Expr) -> Expr:
    """Return eq. 9 at c = cos t."""
    return sp.cos(t) + (1 - a) ** 2 / (sp.pi * (1 + a**2)) * (sp.sin(t) - t * sp.cos(t))


@claim("TAT-eq9", "Sec. 4.1, eq. 9 and App. C, Lemma 1 (eq. 20)")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\sqrt{2/(1+\alpha^2)}\,\phi_\alpha$ has $\mathcal Q(q)=q$ and $\mathcal
    C(c)=c+\frac{(1-\alpha)^2}{\pi(1+\alpha^2)}(\sqrt{1-c^2}-c\cos^{-1}c)$
    """
    truth, t, a = exact_tailored_map()
    u = Symbol("u", positive=True)
    yield exact(
        diff(u * sp.cos(t) / 2 + sp.sin(2 * u - t) / 4, u) - sp.cos(u) * sp.cos(u - t),
        "the primitive of cos u cos(u - t)",
    )
    yield exact(
        sp.expand_trig(expand(truth - printed_tailored_map(t, a))),
        "the angular integral minus eq. 9, exactly",
    )
    c = np.cos(np.linspace(0, np.pi, bench.size(15, 201)))
    for slope in (*SLOPES, *bench.uniform(-2, 3, bench.size(4, 40))):
        scale = sqrt(2 / (1 + slope**2))
        phi = activations.abrelu(slope * scale, scale)
        q1, q2 = np.exp(bench.uniform(-3, 3, 2))
        yield equal(
            phi.c_map(c, q1, q2),
            [homogeneous_pair(leaky(slope), leaky(slope), x) * scale**2 for x in c],
            "the C map at random q_1, q_2 against the angular integral",
        )
        yield equal(phi.q_map(q1), q1, "kcalc's Q(q) = q", 1e-13)
    yield equal(
        [tailored_map(s, c) - np.asarray(activations.leaky_relu(s).c_map(c)) for s in SLOPES],
        0.0,
        "the printed formula against kcalc",
        1e-13,
    )


@claim("TAT-eq11", "Sec. 4.1, eq. 11")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""TReLU: $\mathcal Q(q)=q$, $\mathcal C_f'(1)=1$, and $\mathcal C_f(0)=\eta$ for any
    $0\le\eta\le1$

    But: with $\alpha\in[0,1]$, $\eta$ is at most $\mathcal C_f(0)$ of the ReLU network; $\eta=.9$
    needs 13 layers
    """

    def reached(slope: float, depth: int) -> float:
        return float(chain_of(depth)(0.0, lambda c: tailored_map(slope, c)))

    most = max(reached(a, 12) for a in np.linspace(0, 1, 101))
    yield counterexample(
        0.9 - most,
        "12 layers: no slope in [0, 1] gives C_f(0) = .9",
        greatest=most,
        layers=12,
        one_sided=True,
    )
    refused = 0.0
    try:
        shape(architectures.vanilla(12), method="tat", eta=0.9)
    except UnreachableTarget:
        refused = 1.0
    yield equal(refused, 1.0, "shaping rejects .9 at 12 layers", 0.5)
    yield at_most(0.9, reached(0.0, 13), "13 layers of ReLUs reach .9", 0.0)
    for depth, eta in [
        (13, 0.9),
        (50, 0.9),
        (100, 0.95),
        (20, 0.5),
        *([(1000, 0.9)] if bench.budget == "full" else []),
    ]:
        shaped = shape(architectures.vanilla(depth), method="tat", eta=eta)
        slope = shaped.constants["relu"].negative_slope or 0.0
        yield equal(
            reached(slope, depth),
            eta,
            "C_f(0) = eta with the slopes that shaping finds, iterated by the printed formula",
            1e-11,
        )
        yield equal(
            np.array(
                [
                    chain_of(depth).derivatives(
                        1.0,
                        (
                            lambda c, a=slope: tailored_map(a, c),
                            lambda c, a=slope: tailored_slope(a, c),
                        ),
                    )[1],
                    q_map(shaped.network)(2.5) - 2.5 + 1,
                ]
            ),
            1.0,
            "C_f'(1) = 1, and Q_f(2.5) = 2.5",
            1e-11,
        )


@claim("TAT-eq12", "Sec. 4.1, eq. 12")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for $L$ layers, $\mathcal C_f(0)=\mathcal C\circ\mathcal C\circ\cdots\circ\mathcal C(0)$
    with $L$ copies of $\mathcal C$
    """
    for depth in (1, 2, 50, 100, *([1000] if bench.budget == "full" else [])):
        for slope in (0.0, 0.43, -0.5, 1.7):
            c = 0.0
            for _ in range(depth):
                c = (
                    homogeneous_pair(leaky(slope), leaky(slope), min(c, 1.0)) * 2 / (1 + slope**2)
                    if depth < 100
                    else tailored_map(slope, c)
                )
            yield equal(
                c_map(architectures.vanilla(depth, activations.leaky_relu(slope)))(0.0),
                c,
                "global C maps at 0 against iterates of the angular integral (of eq. 9 for 100 "
                "layers and more)",
                1e-11,
            )


@claim("TAT-eq14", "Sec. 4.2, eq. 14")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathcal C_f''(1)=L\,\mathcal C''(1)$ for $L$ layers with $\mathcal C(1)=\mathcal C'(1)=1$,
    so $\mathcal C''(1)=\tau/L$ gives $\mathcal C_f''(1)=\tau$
    """
    c, k, third = symbols("c k d")
    local = 1 + (c - 1) + k / 2 * (c - 1) ** 2 + third * (c - 1) ** 3
    whole = c
    for depth in range(1, 4):
        whole = local.subs(c, whole)
        yield exact(
            diff(whole, c, 2).subs(c, 1) - depth * k, f"{depth} generic maps with slope 1, exactly"
        )
    for depth, name, target in [
        (4, "tanh", 0.2),
        (10, "softplus", 0.3),
        (50, "gelu", 0.5),
        (30, "sin", 0.3),
    ][: bench.size(3, 4)]:
        shaped = shape(architectures.vanilla(depth, name), method="tat", tau=target)
        _, slope, bend = transformed(name, shaped.constants[name])
        first, second = one(lambda z, f=slope: f(z) ** 2), one(lambda z, f=bend: f(z) ** 2)
        rule = (lambda x: x, lambda x, v=first: v + 0 * x, lambda x, v=second: v + 0 * x)
        yield equal(
            [chain_of(depth).derivatives(1.0, rule)[2], c_map(shaped.network).derivative(2)(1.0)],
            [target, target],
            "C_f''(1) of shaped networks, from the chain rule with E[phi''^2] against kcalc",
            1e-9,
        )


@claim("TAT-eq15", "Sec. 4.2, eq. 15")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\gamma = E[(\phi(\alpha z+\beta)+\delta)^2]^{-1/2}$ gives $\mathcal Q(1)=1$"""
    for name in SHAPED[: bench.size(4, 10)]:
        for shaped in (
            shape(architectures.vanilla(10, name), method="tat", tau=0.3),
            shape(architectures.vanilla(10, name), method="dks", zeta=1.5),
        ):
            constants = shaped.constants[name]
            phi = SMOOTH[name][0]
            alpha = constants.alpha
            beta = constants.beta
            delta = constants.delta
            yield equal(
                constants.gamma,
                one(lambda z, f=phi, a=alpha, b=beta, d=delta: (f(a * z + b) + d) ** 2) ** -0.5,
                "gamma of shaped activations against the printed expectation",
                1e-10,
            )
            yield equal(
                constants.transformed.q_map(1.0), 1.0, "Q(1) of the transformed activations"
            )


@claim("TAT-eq16", "Sec. 4.2, eq. 16")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E[\hat\phi\hat\phi'z]=\mathcal Q'(1)$, $E[\hat\phi''^2]=\mathcal C''(1)$,
    $E[\hat\phi'^2]=\mathcal C'(1)$ if $\mathcal Q(1)=1$

    Under: smooth activations
    """
    found, truth = [], []
    for name in SMOOTH:
        phi, slope, bend = SMOOTH[name]
        size = one(lambda z, f=phi: f(z) ** 2)
        local = activation(name)
        found += [
            local.q_map.derivative(1)(1.0),
            local.c_map.derivative(2)(1.0),
            local.c_map.derivative(1)(1.0),
        ]
        truth += [
            one(lambda z, f=phi, g=slope: f(z) * g(z) * z),
            one(lambda z, f=bend: f(z) ** 2) / size,
            one(lambda z, f=slope: f(z) ** 2) / size,
        ]
    yield equal(
        found, truth, "the three expectations, for unchanged activations (divided by Q(1))", 1e-9
    )
    found, truth = [], []
    for name in SHAPED[: bench.size(4, 10)]:
        phi, slope, bend = transformed(
            name, shape(architectures.vanilla(10, name), method="tat", tau=0.3).constants[name]
        )
        found += [
            one(lambda z: phi(z) * slope(z) * z),  # noqa: B023
            one(lambda z: bend(z) ** 2),  # noqa: B023
            one(lambda z: slope(z) ** 2),  # noqa: B023
        ]
        truth += [1.0, 0.03, 1.0]
    yield equal(found, truth, "the constants of shaping solve the system, tau/L = .03", 1e-10)


@claim("TAT-lreluC2", "Sec. 4.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""leaky ReLUs have $\mathcal C''(1)=\infty$

    Under: $\alpha\ne1$ (the identity has $\mathcal C''=0$)
    """
    t, k = symbols("t k", positive=True)
    slope = 1 - k * t  # C'(cos t); d/dc = -(1/sin t) d/dt
    yield exact(
        -diff(slope, t) / sp.sin(t) - k / sp.sin(t),
        "C'' = k/sqrt(1 - c^2), which grows without bound",
    )
    slopes = [*SLOPES, *bench.uniform(-1, 0.9, 10)]
    yield equal(
        [np.isinf(activations.leaky_relu(a).c_map.derivative(2)(1.0)) for a in slopes],
        1.0,
        "kcalc reports an infinite C''(1)",
        0.0,
    )
    gaps = 10.0 ** -np.arange(2, 13, 2)
    for a in slopes:
        yield equal(
            np.asarray(activations.leaky_relu(a).c_map.derivative(2)(1 - gaps))
            * np.sqrt(gaps * (2 - gaps)),
            np.full(len(gaps), corner(a)),
            "C''(c) sqrt(1 - c^2) = k as c -> 1",
            1e-4,
        )


# -- the edge of chaos -----------------------------------------------------------------------------


@claim("TAT-eocrelu", "Sec. 5.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""ReLU networks have $\mathcal C'(1)=1$ whenever $\sigma_b=0$

    Under: any $\sigma_w>0$
    """
    biased, truth = [], []
    for _ in bench.rounds(6, 30):
        w, b, q = (v for v in np.exp(bench.uniform(-1, 1, 3)))
        yield equal(
            c_map(architectures.vanilla(1, "relu", sigma_w=w, readout=False)).derivative(1)(1.0, q),
            1.0,
            "slopes at 1 for random sigma_w and q",
            1e-13,
        )
        # with a bias: c of the preactivations is (w^2 q c + b^2)/(w^2 q + b^2), and the slope w^2
        # q/(w^2 q + b^2) < 1
        biased.append(
            1 - 1e3 * (1 - tailored_map(0.0, (w**2 * q * (1 - 1e-3) + b**2) / (w**2 * q + b**2)))
        )
        truth.append(w**2 * q / (w**2 * q + b**2))
    yield at_most(
        biased,
        1 - 1e-4,
        "with sigma_b > 0, the slope is w^2 q/(w^2 q + b^2) < 1",
        expected=truth,
    )
    near = 1 - 10.0 ** -np.arange(3, 10, 2)
    slopes = [(1 - homogeneous_pair(leaky(0.0), leaky(0.0), c) * 2) / (1 - c) for c in near]
    yield at_most(
        np.abs(1 - np.array(slopes)),
        np.sqrt(1 - near),
        "(1 - C(c))/(1 - c) -> 1 by the angular integral",
        gaps=list(1 - near),
    )


def _edge(sigma_w: float, sigma_b: float) -> float:
    """Compute the slope chi_1 = sigma_w^2 E phi'(sqrt(q*) z)^2 for tanh.

    q* is the fixed point of the q value of the preactivations.
    """

    def surplus(q: float) -> float:
        return sigma_w**2 * one(lambda z: np.tanh(sqrt(q) * z) ** 2) + sigma_b**2 - q

    q: Any = optimize.brentq(surplus, 1e-9, sigma_w**2 + sigma_b**2 + 1, xtol=1e-14)  # pyright: ignore[reportArgumentType]
    return sigma_w**2 * one(lambda z: (1 - np.tanh(sqrt(q) * z) ** 2) ** 2)


@claim("TAT-eoctanh", "Sec. 5.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""tanh with $\sigma_w=1.302$ is at the edge of chaos for $\sigma_b=.19783$; for
    $\sigma_b=0.2$, $\chi_1=.9988$
    """
    found = edge("tanh", sigma_w=1.302)
    yield equal(
        _edge(1.302, found.sigma_b),
        1.0,
        "chi_1 at the sigma_b that kcalc finds for sigma_w = 1.302",
        1e-9,
    )
    yield equal(found.sigma_b, 0.19783, "kcalc's sigma_b for sigma_w = 1.302", 1e-5)
    yield equal(_edge(1.302, 0.2), 0.9988, "chi_1 at (1.302, 0.2)", 5e-5)
    for sigma in bench.uniform(1.05, 1.8, bench.size(4, 20)):
        yield equal(
            _edge(sigma, edge("tanh", sigma_w=sigma).sigma_b),
            1.0,
            "chi_1 along the edge that kcalc finds",
            1e-8,
        )
