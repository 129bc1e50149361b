"""Claims of sections 17 and 21.3: slope polynomials, maximal slopes, removal of subnetworks."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp
from sympy import Expr, Max, Poly, Rational, Symbol, cancel, expand, nsimplify

from ... import Network, activation, c_map, chain, maximal_slope, repeat, residual, slope_polynomial
from ... import layers as L
from ...foundation.symbols import psi as kcalc_psi
from ..bench import Bench, at_most, counterexample, equal, proved
from ..claim import Evidence
from ..families import graph
from .normal_means import Phi
from .paper import claim
from .random_networks import largest_slope, random_network, slopes, values, weighed_slope

PSI = Symbol("psi", positive=True)
X = Symbol("x", real=True)
HALF = sp.sqrt(2) / 2
COMBINED = chain(L.Nonlinear("tanh"), L.Affine())


def rational(value: Fraction) -> Any:
    """Convert a fraction to a SymPy rational."""
    return Rational(value.numerator, value.denominator)


def expanded(network: Network) -> Any:
    """Return kcalc's slope polynomial of a network with one output."""
    return slope_polynomial(network, expand=True)


def at_one(polynomial: Any) -> list[Any]:
    """Return the Taylor coefficients of a polynomial at 1.

    If all of them are >= 0, the polynomial is >= 0 on [1, inf).
    """
    shifted = polynomial.compose(Poly(polynomial.gen + 1, polynomial.gen))
    return [Rational(c) for c in shifted.all_coeffs()]


def proved_above(bench: Bench, differences: list[Any], what: str) -> Evidence:
    """Prove that polynomials are >= 0 on [1, inf), by exact Taylor coefficients at 1."""
    least = [min(at_one(p)) for p in differences]
    return proved([float(v) for v in least], what)


@claim("DKS-171a", "Sec. 17.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""Slope polynomials have $p_f(1)=1$ and coefficients $\ge0$, so $p_f(\psi)\ge1$ for $\psi\ge1$"""
    nets = [
        random_network(bench, "tanh", bench.whole(1, 9), norms=True) for _ in bench.rounds(15, 150)
    ]
    polynomials = [expanded(net) for net in nets]
    yield equal([p.eval(1) for p in polynomials], 1, "$p_f(1)$ over random networks", 0.0)
    yield proved(
        [float(min(p.all_coeffs())) for p in polynomials],
        "coefficients of these polynomials are not negative, in exact arithmetic",
    )
    yield proved_above(
        bench, [p - 1 for p in polynomials], r"$p_f-1\ge0$ on $[1,\infty)$, in exact arithmetic"
    )
    at = [Fraction(bench.whole(1, 60), 20) for _ in nets]
    off = [
        p.eval(rational(psi)) - rational(slopes(net, psi)[net.outputs[0]])
        for net, p, psi in zip(nets, polynomials, at, strict=True)
    ]
    yield equal(
        list(off), 0, "the polynomials against the chain rule on the graph, in exact fractions", 0.0
    )


@claim("DKS-171b", "Sec. 17.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mu$ and $p_f$ are strictly increasing, continuous and invertible if the network has a
    nonlinear layer

    But: only for $\psi\ge1$; $p_f$ also needs a nonlinear layer that reaches the output with a
    weight other than 0. Moreover, $\log\mu$ is convex in $\log\psi$
    """
    idle = graph(
        x=L.Input(),
        a=(L.Affine(), "x"),
        phi=(L.Nonlinear("tanh"), "a"),
        b=(L.Affine(), "phi"),
        s=(L.Sum((1, 0)), "a", "b"),
    )
    rise = float(slope_polynomial(idle).subs(kcalc_psi, 2)) - 1
    yield counterexample(
        1.0 * (rise == 0),
        r"$1\cdot x+0\cdot\varphi(x)$ has a nonlinear layer, and $p_f(2)=p_f(1)=1$",
    )
    grid = np.exp(np.linspace(0, 1.5, 31))
    for _ in bench.rounds(8, 60):
        net = random_network(bench, "tanh", bench.whole(1, 4))
        mu = maximal_slope(net)
        values = np.log(mu(grid))
        yield at_most(
            0.04,
            np.diff(values).min(),
            r"$\log\mu$ grows at least as fast as $\log\psi$, because every nonlinear layer is a "
            r"subnetwork",
            0.0,
        )
        yield at_most(
            0, np.diff(values, 2).min(), r"second differences of $\log\mu$ in $\log\psi$", 1e-11
        )
        yield equal(
            [mu.inverse(mu(psi)) - psi for psi in (1.01, 1.7)],
            0,
            r"$\mu^{-1}(\mu(\psi))=\psi$",
            1e-9,
        )
        if len(net) <= 14:
            psi = Fraction(bench.whole(11, 40), 10)
            yield equal(
                float(largest_slope(net, psi)) / mu(float(psi)) - 1,
                0,
                r"$\mu$ against the largest slope over all subsets of layers that are subnetworks",
            )


@claim("DKS-172comp", "Sec. 17.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$p_{f\circ g}=p_f\,p_g$, which is $\ge p_f$ and $\ge p_g$ for $\psi\ge1$"""
    gaps = []
    for _ in bench.rounds(10, 100):
        f, g = (random_network(bench, "tanh", bench.whole(1, 6), norms=True) for _ in range(2))
        whole, one, other = expanded(chain(g, f)), expanded(f), expanded(g)
        yield equal(
            max(abs(v) for v in (whole - one * other).all_coeffs()),
            0,
            "chains of random networks: the coefficients, in exact arithmetic",
            0.0,
        )
        gaps += [whole - one, whole - other]
    yield proved_above(bench, gaps, r"the two differences on $[1,\infty)$, in exact arithmetic")


def branches(polynomial: Any) -> Network:
    """Build a normalised sum of chains with the given slope polynomial."""
    steps: list = [("input", L.Input(), ()), ("stem", L.Affine(), ("input",))]
    ends, weights = [], []
    for (degree,), share in polynomial.terms():
        end = "stem"
        for i in range(degree):
            steps.append((f"phi_{degree}_{i}", L.Nonlinear("tanh"), (end,)))
            end = f"affine_{degree}_{i}"
            steps.append((end, L.Affine(), (f"phi_{degree}_{i}",)))
        steps.append((f"own_{degree}", L.Affine(), (end,)))
        ends.append(f"own_{degree}")
        weights.append(sp.sqrt(share))
    return Network.from_steps([*steps, ("sum", L.Sum(tuple(weights)), tuple(ends))])


@claim("DKS-172fac", "Secs. 17.2, 21.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a subnetwork $f$ whose slope polynomial $p_f$ is a factor of $p_h$ may be ignored if
    $p_h/p_f\ge1$ on $\psi\ge1$, for example if $p_h/p_f$ is a product of slope polynomials

    Printed: $p_h/p_f$ is always a slope polynomial, so $p_h\ge p_f$ and $f$ may be ignored
    """
    f = repeat(residual(COMBINED, HALF), 13)
    product: Any = Poly(((1 + PSI) / 2) ** 13 * (PSI**2 - 3 * PSI + 3), PSI)
    h = branches(product)
    at = Rational(3, 2)
    small, large = (nsimplify(slope_polynomial(net).subs(kcalc_psi, at)) for net in (h, f))
    yield counterexample(
        large - small,
        r"$p_f=(\frac{1+\psi}{2})^{13}$, $p_h=p_f(\psi^2-3\psi+3)$ at $\psi=3/2$",
        p_f=str(large),
        p_h=str(small),
        one_sided=True,
    )
    yield proved(
        [float(min(product.all_coeffs())), -abs(float(product.eval(1) - 1))],
        "$p_h$ has coefficients >= 0 with the sum 1",
    )
    yield equal(
        [float(large) - 1.25**13, float(small) - 1.25**13 * 0.75],
        0,
        "the slope polynomials of both networks at 3/2, by hand",
        1e-10,
    )
    gaps = []
    for _ in bench.rounds(10, 100):
        one, two, three = (
            expanded(random_network(bench, "tanh", bench.whole(1, 6))) for _ in range(3)
        )
        gaps.append(one * two * three - one)
    yield proved_above(
        bench,
        gaps,
        r"quotients that are products of slope polynomials: $p_h-p_f\ge0$ on $[1,\infty)$",
    )


def _divided(f: Any, g: Any) -> tuple[Any, Any]:
    return sp.div(f, g)


def skipping(depth: int, last: bool) -> Network:
    """Build ``depth`` nonlinear layers with a skip connection over all of them.

    ``last`` adds a nonlinear layer after the sum.
    """
    body = residual(repeat(COMBINED, depth), HALF)
    return chain(L.Affine(), body, COMBINED) if last else chain(L.Affine(), body)


@claim("DKS-172ex1", "Sec. 17.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\frac12(1+\psi^D)$ is strictly smaller than $\psi^D$ for all $\psi>1$, and
    $\mu(\psi)=\psi^D$
    """
    depths = range(1, bench.size(12, 60))
    gen: Any = Poly(kcalc_psi, kcalc_psi)
    off = []
    for depth in depths:
        polynomial = expanded(skipping(depth, False))
        off.append(
            max(abs(v) for v in (polynomial - (gen**depth + 1) * Rational(1, 2)).all_coeffs())
        )
        quotient, rest = _divided(gen**depth - polynomial, gen - 1)
        off.append(rest.as_expr())
        yield at_most(
            0.5,
            min(quotient.all_coeffs()),
            r"the difference divided by $\psi-1$ has coefficients $\frac12$, so it is positive",
            0.0,
        )
        yield equal(
            maximal_slope(skipping(depth, False))(1.3) / 1.3**depth - 1, 0, r"$\mu(1.3)=1.3^D$"
        )
    yield equal(
        off, 0, r"kcalc's polynomial is $(1+\psi^D)/2$, and $\psi-1$ divides the difference", 0.0
    )


@claim("DKS-172ex2", "Sec. 17.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mu(\psi)=\max\{\psi^D,\psi(1+\psi^D)/2\}$ is not a polynomial, because each of the two
    terms is the larger one for some $\psi$

    But: only for $D\ge3$; for $D\le2$, the second term is never smaller than the first
    """
    psi = kcalc_psi
    gap = expand(expanded(skipping(2, True)).as_expr() - psi**2 - psi * (psi - 1) ** 2 / 2)
    grid = np.linspace(1, 4, 50)
    lead = grid * (grid - 1) ** 2 / 2
    yield counterexample(
        1.0 * (gap == 0 and lead.min() >= 0),
        r"$D=2$: the difference is $\psi(\psi-1)^2/2\ge0$",
        least=lead.min(),
    )
    for depth in range(3, bench.size(9, 30)):
        second = psi * (1 + psi**depth) / 2
        first_wins, second_wins = (
            float((psi**depth - second).subs(psi, v)) for v in (1 + Rational(1, 10 * depth), 2)
        )
        yield at_most(
            1e-9,
            [first_wins, -second_wins],
            r"$D\ge3$: the first is larger near 1, the second at 2",
            0.0,
        )
        yield equal(
            Poly(cancel((second - psi**depth) / (psi * (psi - 1))), psi).count_roots(1, 2),
            1,
            "the two terms cross once in (1, 2), by Sturm's theorem",
            0.0,
        )
        mu = maximal_slope(skipping(depth, True))
        yield equal(len(mu.pieces), 2, "kcalc keeps both polynomials", 0.0)
        for v in (1.01, 1.2, 2.0):
            yield equal(
                mu(v) / max(v**depth, v * (1 + v**depth) / 2) - 1,
                0,
                r"kcalc's $\mu$ is the larger of both terms",
            )
    small = [
        maximal_slope(skipping(depth, True))(v) / (v * (1 + v**depth) / 2) - 1
        for depth in (1, 2)
        for v in (1.01, 1.2, 2.0)
    ]
    yield equal(small, 0, r"$D\le2$: $\mu$ is the second polynomial")


def polynomial_layer(bench: Bench) -> tuple[Expr, Phi, Any]:
    """Return a random odd cubic with mean 0 and second moment 1, in SymPy and NumPy, and C'(1)."""
    share = Rational(bench.whole(1, 20), 40)
    a, b = sp.sqrt(1 - share), sp.sqrt(share)
    fa, fb = float(a), float(b) / 6**0.5
    own = Phi(lambda x: fa * x + fb * (x**3 - 3 * x), lambda x: fa + fb * (3 * x**2 - 3))
    return a * X + b * (X**3 - 3 * X) / sp.sqrt(6), own, 1 + 2 * share


@claim("DKS-213", "Sec. 21.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""Rules 1 to 8 compute $C_f'(1)$: compositions multiply; affine layers, LayerNorms, pools and
    the input give 1, nonlinear layers $\psi$, concatenations $\sum k_ip_i/\sum k_i$, and normalised
    sums $\sum w_i^2p_i$
    """
    for _ in bench.rounds(15, 150):
        net = random_network(bench, "tanh", bench.whole(1, 9), norms=True)
        psi = Fraction(bench.whole(1, 60), 20)
        yield equal(
            expanded(net).eval(rational(psi)) - rational(slopes(net, psi)[net.outputs[0]]),
            0,
            "random networks with LayerNorms and pools against the chain rule in fractions",
            0.0,
        )
    for _ in bench.rounds(2, 10):
        phi, own, psi = polynomial_layer(bench)
        net = random_network(bench, phi, bench.whole(2, 6), norms=True)
        polynomial: Any = slope_polynomial(net)
        truth = float(polynomial.subs(kcalc_psi, psi))
        yield equal(
            c_map(net).derivative(1)(1.0) / truth - 1,
            0,
            r"$C_f'(1)$ of networks whose layers have $C'(1)=\psi$: kcalc's C map",
            1e-10,
        )
        h, end = 1e-3, net.outputs[0]
        c = [values(net, 1 - i * h, 1.0, 1.0, {activation(phi): own})[end].c for i in range(1, 6)]
        stencil = (137 / 60 - 5 * c[0] + 5 * c[1] - 10 / 3 * c[2] + 5 / 4 * c[3] - c[4] / 5) / h
        yield equal(
            stencil / truth - 1,
            0,
            "these slopes against difference quotients of cosines by quadrature",
            1e-7,
        )


@claim("DKS-fn10", "Sec. 21.3, footnote 10")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""If q values vary, the rule for sums is $\sum w_i^2q_ip_i/\sum w_i^2q_i$"""
    # C'(1) = 4/3 at every q, and Q(q) is not a multiple of q
    half = activation(Max(0, X) ** 2 * Rational(4, 5))
    own = Phi(lambda x: 0.8 * np.maximum(x, 0) ** 2, lambda x: 1.6 * np.maximum(x, 0), (0.0,))
    differ = []
    for _ in bench.rounds(6, 40):
        net = random_network(bench, half, bench.whole(2, 6), plain=True)
        q = bench.uniform(0.6, 1.5)
        weighed = float(slope_polynomial(net, q=q).subs(kcalc_psi, Rational(4, 3)))
        yield equal(
            c_map(net).derivative(1)(1.0, q) / weighed - 1,
            0,
            "random networks of unnormalised sums: the slope of kcalc's C map",
            1e-10,
        )
        yield equal(
            weighed_slope(net, q, own, half) / weighed - 1,
            0,
            "these slopes against the chain rule on the graph, with q values by quadrature",
            1e-10,
        )
        differ.append(
            abs(
                float(slope_polynomial(net.normalised()).subs(kcalc_psi, Rational(4, 3))) / weighed
                - 1
            )
        )
    yield at_most(
        1e-3,
        max(differ),
        "shares computed from the squared weights only give a different slope",
        0.0,
    )
