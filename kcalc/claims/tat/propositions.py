"""Claims of Propositions 1 to 4 and their proofs (Sec. 4.1, App. A.2, App. C)."""

from __future__ import annotations

from collections.abc import Iterator
from math import acos, sqrt

import numpy as np
import sympy as sp
from scipy import integrate
from sympy import Integer, Poly, Rational, Symbol, diff, expand, simplify, symbols

from ... import (
    Network,
    activation,
    architectures,
    c_map,
    chain,
    depth_limit,
    repeat,
    residual,
    shape,
)
from ... import layers as L
from ...foundation.errors import KcalcError
from ...shaping import flow, flow_slope, flow_time
from ..bench import Bench, at_most, certified, counterexample, equal, exact
from ..claim import Evidence
from ..families import power_maps
from ..functions import relu_map
from .independent import (
    SMOOTH,
    homogeneous_pair,
    leaky,
    one,
    pair,
    tailored_map,
    tailored_rectifier,
)
from .paper import claim
from .tailored import printed_tailored_map

_C = np.cos(np.linspace(0, np.pi, 41))


def _resnet(square: float, depth: int) -> Network:
    """Build residual blocks of an affine layer, normalised ReLUs and an affine layer.

    ``square`` is the squared shortcut weight.
    """
    branch = chain(L.Affine(), L.Nonlinear(tailored_rectifier(0.0)), L.Affine())
    return repeat(residual(branch, shortcut_weight=sqrt(square)), depth)


@claim("TAT-prop1", "Sec. 4.1 and App. C, Proposition 1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a network of tailored rectifiers has the C map of a rescaled ResNet of ReLUs with shortcut
    weight $\sqrt{2\alpha/(1+\alpha^2)}$ and squared residual weight $(1-\alpha)^2/(1+\alpha^2)$

    Under: $\alpha\ge0$

    Printed: the shortcut weight is $\sqrt{\alpha/(1+\alpha^2)}$
    """
    a, c = 0.37, 0.2
    printed, true = c_map(_resnet(a / (1 + a * a), 1))(c), tailored_map(a, c)
    yield counterexample(
        abs(printed - true), "one layer of slope .37 at c = .2", printed=printed, rectifier=true
    )
    t, s = symbols("t a", positive=True)
    relu = printed_tailored_map(t, Integer(0))
    mixed = 2 * s / (1 + s**2) * sp.cos(t) + (1 - s) ** 2 / (1 + s**2) * relu
    yield exact(
        simplify(mixed - printed_tailored_map(t, s)),
        "C map of the block minus the rectifier's",
    )
    yield exact(
        simplify(2 * s / (1 + s**2) + (1 - s) ** 2 / (1 + s**2) - 1),
        "the squared weights add up to 1",
    )
    for slope in bench.uniform(0, 3, bench.size(6, 30)):
        depth = bench.whole(1, 12)
        blocks = c_map(_resnet(2 * slope / (1 + slope**2), depth))(_C)
        c = _C
        for _ in range(depth):
            c = tailored_map(slope, c)
        yield equal(
            c_map(architectures.vanilla(depth, tailored_rectifier(slope)))(_C),
            blocks,
            "the global C maps of both networks, with random slopes and depths",
            1e-11,
        )
        yield equal(blocks, c, "the blocks against iterates of eq. 9", 1e-11)


@claim("TAT-eq25", "App. C, eq. 25")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a block with one layer of ReLUs has $\mathcal C_{\mathcal B}(c)=w^2c+(1-w^2)\,\mathcal
    C_{\phi_0}(c)$
    """
    squares = bench.uniform(0.01, 0.99, bench.size(8, 50))
    found = [c_map(_resnet(w, 1))(_C) for w in squares]
    integral = np.array([2 * homogeneous_pair(leaky(0.0), leaky(0.0), c) for c in _C])
    yield equal(
        found,
        squares[:, None] * _C + (1 - squares[:, None]) * integral,
        "blocks against the angular integral",
    )


@claim("TAT-eq26", "App. C, eq. 26")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathcal C_{\mathcal
    B}(c)=\frac{2\alpha}{1+\alpha^2}\,c+\frac{(1-\alpha)^2}{1+\alpha^2}\,\frac{\sqrt{1-c^2}+c(\pi-\cos^{-1}c)}{\pi}$
    """
    slopes = bench.uniform(0, 3, bench.size(10, 60))
    for s in slopes:
        yield equal(
            c_map(_resnet(2 * s / (1 + s * s), 1))(_C),
            2 * s / (1 + s * s) * _C + (1 - s) ** 2 / (1 + s * s) * relu_map(_C),
            "the block's C map in kcalc, random slopes",
        )


# -- degenerate limits -----------------------------------------------------------------------------


@claim("TAT-prop2", "App. A.2, Proposition 2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\lim_{L\to\infty}\mathcal C_f(c)=c^*\in[0,1]$ for all $c\in(-1,1)$

    But: the activation must not be linear, because the identity map keeps every c
    """
    C = c_map(architectures.vanilla(50, "identity"))
    yield counterexample(
        abs(C(0.8) - C(0.2)),
        "50 linear layers keep c = .2 and c = .8 apart",
        values=[C(0.2), C(0.8)],
    )
    weights = np.array([C.weights for C in power_maps(bench, 100, 1000) if C.weights[1] < 0.9])
    values = np.tile([-0.99, -0.5, 0.0, 0.3, 0.9, 0.999], (len(weights), 1))
    for _ in bench.rounds(3000, 20000):
        total = np.zeros_like(values)
        for n in range(weights.shape[1] - 1, -1, -1):
            total = total * values + weights[:, n, None]
        values = total
    yield at_most(
        np.ptp(values, axis=1),
        bench.size(2e-2, 4e-3),
        "random maps with C'(0) < .9, iterated: the largest distance between any two c values",
    )
    yield at_most([-values.min(), values.max() - 1], 1e-9, "the limits lie in [0, 1]")
    for name in ("softplus", "gelu", "sigmoid", "cos", "gaussian", "swish")[: bench.size(4, 6)]:
        phi, x = SMOOTH[name][0], 0.4
        size = one(lambda z, f=phi: f(z) ** 2)
        for _ in bench.rounds(60, 300):
            x = min(pair(phi, phi, x) / size, 1.0)
        block = chain(L.Affine(), L.Nonlinear(name), L.Affine(sigma_w=size**-0.5))
        yield equal(
            depth_limit(block, 1.0).c,
            x,
            "kcalc's c* against independently computed iterates, with weights that preserve q = 1",
            2e-2,
        )
    refused = 0.0
    try:
        depth_limit(chain(L.Affine(), L.Nonlinear("identity"), L.Affine()))
    except KcalcError:
        refused = 1.0
    yield equal(refused, 1.0, "kcalc raises an error for the limit of linear layers", 0.5)


def _psi(c: float, time: float) -> float:
    """Integrate the flow psi by a Runge-Kutta method, dt/ds = -(sin t - t cos t)/sin t."""
    angle = acos(c)
    run = integrate.solve_ivp(
        lambda _, t: -(np.sin(t) - t * np.cos(t)) / np.sin(t),
        (0, time),
        [angle],
        "DOP853",
        rtol=1e-12,
        atol=1e-14,
    )
    return float(np.cos(run.y[0, -1]))


@claim("TAT-prop3", "App. C, Proposition 3, eqs. 27-29")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for TReLU with $\mathcal C_f(0)=\eta$, $\mathcal C_f(c)\to\psi(c,T)$ as $L\to\infty$, where
    $\psi$ is the flow of $\dot x=\sqrt{1-x^2}-x\cos^{-1}x$ and $\psi(0,T)=\eta$

    Under: $0<\eta<1$
    """
    etas = (0.5, 0.9, 0.95)
    times = [flow_time(eta) for eta in etas]
    yield equal(
        [_psi(0.0, t) for t in times],
        etas,
        "the flow from 0, integrated by a Runge-Kutta method, reaches eta at time T(eta)",
        1e-10,
    )
    starts = (-0.9, -0.5, 0.3, 0.8)
    for t in times:
        for c in starts:
            yield equal(flow(c, t), _psi(c, t), "kcalc's psi(c, T) against Runge-Kutta", 1e-9)
    yield equal(
        [times[1], flow(-0.5, times[1])],
        [4.50994, 0.888242],
        "T and psi(-1/2, T) at eta = .9",
        1e-5,
    )
    depths = (100, 200, 400) if bench.budget == "quick" else (100, 400, 1600, 6400)
    for eta, time in list(zip(etas, times, strict=True))[1 : bench.size(2, 3)]:
        limit, errors = np.array([flow(x, time) for x in starts]), []
        c, predicted = np.zeros(1), flow_slope(architectures.vanilla(4000), eta)
        for _ in range(4000):
            c = tailored_map(predicted, c)
        yield equal(
            c,
            eta,
            f"4000 layers with the slope that the flow predicts map 0 to eta = {eta}",
            2e-3,
            slope=predicted,
        )
        for depth in depths:
            slope = (
                shape(architectures.vanilla(depth), method="tat", eta=eta)
                .constants["relu"]
                .negative_slope
            )
            c = np.array(starts)
            for _ in range(depth):
                c = tailored_map(slope or 0.0, c)
            errors.append(np.abs(c - limit).max())
        yield equal(
            np.polyfit(np.log(depths), np.log(errors), 1)[0],
            -1.0,
            f"eta = {eta}: |C_f - psi| falls like 1/L",
            0.1,
            depths=list(depths),
            errors=errors,
        )


@claim("TAT-eq30", "App. C, eq. 30")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$g(x)=\sqrt{1-x^2}-x\cos^{-1}x>0$ on $(-1,1)$, $g(1)=0$, $g'(x)=-\cos^{-1}x$"""
    x = Symbol("x", real=True)
    g = sp.sqrt(1 - x**2) - x * sp.acos(x)
    yield exact(diff(g, x) + sp.acos(x), "g' + arccos x = 0")
    yield exact(g.subs(x, 1), "g(1) = 0")
    yield certified(
        _direct, "0.5", "3.14159265358979323846264338328", "g(cos t)/t^3 for t in [1/2, pi]"
    )
    # sin t - t cos t = t^3/3 - t^5/30 + ... alternates with falling terms for t <= 1/2
    yield certified(
        lambda t: 1 / (3 + 0 * t) - t**2 / 30,
        0,
        "0.5",
        "g(cos t)/t^3 >= 1/3 - t^2/30 for t in [0, 1/2]",
    )
    c = np.append(_C[1:-1], 0.999)
    corner = np.asarray(activation("relu").c_map(c)) - c
    yield at_most(1e-9, corner, "C(c) - c is positive for ReLUs in kcalc")
    yield equal(
        corner * np.pi, np.sqrt(1 - c**2) - c * np.arccos(c), "C(c) - c, times pi, equals g(c)"
    )


def _direct(t):
    return (t.sin() - t * t.cos()) / t**3


@claim("TAT-eq31", "App. C, eq. 31")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$g(x)\ge\frac{2\sqrt2}{3}(1-x)^{3/2}$ on $[-1,1]$"""
    t, x = symbols("t x", positive=True)
    half = 2 * sp.sqrt(2) / 3 * (2 * sp.sin(t / 2) ** 2) ** Rational(3, 2)
    yield exact(
        simplify(half.subs(t, x) - Rational(8, 3) * sp.Abs(sp.sin(x / 2)) ** 3),
        "at x = cos t the right side is (8/3) sin(t/2)^3",
    )

    def far(t):
        return (t.sin() - t * t.cos() - (t / 2).sin() ** 3 * 8 / 3) / t**5

    yield certified(
        far, "0.5", "3.14159265358979323846264338328", "(difference)/t^5 for t in [1/2, pi]"
    )
    u = t / 2
    near = Poly(
        expand((t**3 / 3 - t**5 / 30 - Rational(8, 3) * (u - u**3 / 6 + u**5 / 120) ** 3) / t**5), t
    )
    terms = [(int(n), c) for (n,), c in near.terms()]
    yield exact(near.eval(0) - Rational(1, 120), "the value of this quotient at t = 0 is 1/120")
    yield certified(
        lambda t: sum((t**n * int(c.p) / int(c.q) for n, c in terms), start=0 * t), 0, "0.5",
        "a lower bound of (difference)/t^5 for t in [0, 1/2], by alternating series",
    )  # fmt: skip
    slope = sp.sqrt(2) * sp.sqrt(1 - x)
    yield exact(
        diff(2 * sp.sqrt(2) / 3 * (1 - x) ** Rational(3, 2), x) + slope,
        "h' = -arccos x + sqrt(2 - 2x)",
    )


@claim("TAT-eq31sol", "App. C, proof of Proposition 3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\dot x=\frac{2\sqrt2}{3}(1-x)^{3/2}$, $x(0)=0$ has the solution
    $1-\left(3/(\sqrt2\,t+3)\right)^2$; it tends to 1 and lies below $\psi(0,t)$
    """
    t = Symbol("t", positive=True)
    root = 3 / (sp.sqrt(2) * t + 3)
    yield exact(diff(1 - root**2, t) - 2 * sp.sqrt(2) / 3 * root**3, "the differential equation")
    yield exact((1 - root**2).subs(t, 0), "the initial value")
    times = np.linspace(0, 60, 31)
    yield at_most(
        1 - (3 / (sqrt(2) * times + 3)) ** 2,
        [flow(0.0, s) for s in times],
        "it lies below kcalc's psi(0, t)",
        1e-11,
    )
    run = integrate.solve_ivp(
        lambda _, x: 2 * sqrt(2) / 3 * (1 - x) ** 1.5,
        (0, 7),
        [0.0],
        "DOP853",
        rtol=1e-12,
        atol=1e-13,
    )
    yield equal(1 - (3 / (7 * sqrt(2) + 3)) ** 2, run.y[0, -1], "t = 7, by Runge-Kutta", 1e-10)


# -- rectifiers from rectifiers --------------------------------------------------------------------


@claim("TAT-prop4", "App. C, Proposition 4, eqs. 38-39")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\phi_0(x)=\frac{1}{1-\alpha^2}(\phi_\alpha(x)+\alpha\phi_\alpha(-x))$, so leaky ReLUs of
    double width compute any ReLU network

    Under: $\alpha\ne\pm1$
    """
    a, x = symbols("a x", positive=True)
    phi = {1: x, -1: -a * x}  # phi_a(x) and phi_a(-x) for x > 0
    yield exact((phi[1] + a * phi[-1]) / (1 - a**2) - x, "the identity for x > 0")
    yield exact((phi[-1] + a * phi[1]) / (1 - a**2), "the identity for x < 0")
    for slope in (-0.6, 0.0, 0.3, 0.9, 2.0, *bench.uniform(-3, 3, bench.size(5, 50))):
        weights = [bench.normal(*s) for s in ((5, 7), (7,), (7, 6), (6,), (6, 2))]
        v = bench.normal(4, 5)
        hidden = np.maximum(np.maximum(v @ weights[0] + weights[1], 0) @ weights[2] + weights[3], 0)
        y, numeric = v, leaky(slope)
        for w, b in ((weights[0], weights[1]), (weights[2], weights[3])):
            doubled = numeric(y @ np.concatenate([w, -w], axis=1) + np.concatenate([b, -b]))
            # this factor is absorbed in the next weights
            y = doubled @ np.concatenate([np.eye(len(b)), slope * np.eye(len(b))]) / (1 - slope**2)
        yield equal(
            y @ weights[4],
            hidden @ weights[4],
            "networks of two hidden layers with random weights, random slopes",
            1e-8,
        )


@claim("TAT-eq40", "App. C, eq. 40")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\phi_\alpha(-x)=-\alpha\,\phi_{1/\alpha}(x)$ (used in the last step)

    But: only for $\alpha\ne0$
    """
    a, x = symbols("a x", positive=True)
    # the sign of the slope does not matter, because both sides are linear on each side of 0
    for sign in (1, -1):
        slope = sign * a
        for at, where in ((x, "the identity for x > 0"), (-x, "the identity for x < 0")):
            sides = [
                sp.Piecewise((u, u >= 0), (s * u, True)) for s, u in ((slope, -at), (1 / slope, at))
            ]
            yield exact(sides[0] + slope * sides[1], f"{where}, slope of sign {sign}")
    v = bench.normal(200)
    slopes = np.append(bench.uniform(-3, 3, 20), [1e-3, -1.0, 1.0])
    for s in slopes:
        yield equal(leaky(s)(-v), -s * leaky(1 / s)(v), "random x and slopes", 1e-11)
    zero = leaky(0.0)(np.array(1.0))
    yield counterexample(
        zero,
        "slope 0 at x = -1: the left side is 1, but the right side is 0 times an undefined value",
        left=zero,
    )
