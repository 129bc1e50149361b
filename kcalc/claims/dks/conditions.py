"""Claims of sections 14 to 17: nearly linear layers, errors in q values, local conditions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import sympy as sp
from sympy import Expr, Max, Poly, Rational, Symbol, expand, symbols

from ... import activation, c_map, maximal_slope, q_map, shape, subnetworks
from ..bench import Bench, at_most, counterexample, equal, exact
from ..claim import Evidence
from ..families import PowerMap, power_maps
from .normal_means import KNOWN, Phi
from .paper import claim
from .random_networks import random_network, values

X = Symbol("x", real=True)
GRID = np.cos(np.linspace(np.pi, 0.0, 101))


@claim("DKS-lin", "Sec. 14.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""Combined layers with $\varphi(u)=au$, $a\ne0$, and weighted sums of such layers have the C
    map $C(c)=c$
    """
    a, c, s, q1, q2, x, y = symbols("a c s q1 q2 x y", positive=True)
    # sqrt(q_i) written q_i
    product = Poly(expand((a * q1 * x) * (a * q2 * (c * x + s * y))), x, y)
    mean = product.coeff_monomial(x**2) + product.coeff_monomial(y**2)
    yield exact(
        mean / sp.sqrt((a * q1) ** 2 * (a * q2) ** 2) - c,
        "one layer: the cosine of the second moments is $c$",
    )
    for _ in bench.rounds(5, 40):
        slope = Rational(bench.whole(1, 30), 7) * int(bench.rng.choice([-1, 1]))
        net = random_network(bench, slope * X, bench.whole(2, 7))
        c0, (p1, p2) = bench.uniform(-1, 1), bench.uniform(0.2, 4, 2)
        yield equal(
            [c_map(net)(c0, p1, p2) - c0, c_map(net)(c0) - c0],
            0,
            "random networks of linear layers, at equal and at unequal q values",
            1e-13,
        )


@claim("DKS-143a", "Sec. 14.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""an activation that equals $(x+1)/\sqrt2$ on all inputs that occur has $Q(q)=(q+1)/2$ and
    $C(c)=(qc+1)/(q+1)$, which equal $q$ and $(c+1)/2$ only at $q=1$

    Printed: $Q(q)\approx q$ and $C(c)\approx(c+1)/2$ at every $q$
    """
    shifted = activation((Max(0, X + 12) - 12 + 1) / sp.sqrt(2))
    yield counterexample(
        abs(shifted.q_map(3.0) - 3), "$q=3$: $Q$ is 2, not 3", q=3, found=shifted.q_map(3.0)
    )
    own = Phi(
        lambda x: (np.maximum(x + 12, 0) - 11) / np.sqrt(2),
        lambda x: (x > -12) / np.sqrt(2),
        (-12.0,),
    )
    q1, q2 = bench.uniform(0.2, 3, 2, bench.size(12, 60))
    c = bench.uniform(-1, 1, q1.size)
    yield equal(shifted.q_map(q1), (q1 + 1) / 2, "the shifted rectifier at random $q$", 1e-10)
    yield equal(
        shifted.c_map(c, q1), (q1 * c + 1) / (q1 + 1), "its C map at random $q$ and $c$", 1e-10
    )
    yield equal(
        [own.c_map(*row) for row in zip(c, q1, q2, strict=True)],
        (np.sqrt(q1 * q2) * c + 1) / np.sqrt((q1 + 1) * (q2 + 1)),
        "its C map for two q values, by quadrature",
        1e-10,
    )
    yield equal(shifted.c_map(GRID), (GRID + 1) / 2, "at $q=1$ the C map is as printed")


@claim("DKS-143b", "Sec. 14.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{na}(\varphi)^2 = 1-C'(0)/C'(1) \ge 1-1/C'(1)$

    Under: input q value 1; phi continuous and piecewise differentiable
    """
    for name, phi in KNOWN.items():
        alpha, beta = bench.uniform(0.2, 1.5), bench.uniform(-1, 1)
        own, C = phi.transformed(alpha, beta, 1, 0), activation(name).transformed(alpha, beta).c_map
        slope = C.derivative(1)(1.0)
        truth = 1 - own.integral(own.slopes) ** 2 / own.steepness()
        yield equal(
            1 - C.derivative(1)(0.0) / slope,
            truth,
            "the distance of phi' from its mean for transformed activations, by quadrature",
            1e-9,
        )
        yield at_most(1 - 1 / slope, truth, "the bound $1-1/C'(1)$ for these activations", 1e-10)
    maps = power_maps(bench, 300, 3000)
    one = np.array([C.derivative(1)(1.0) for C in maps])
    zero = np.array([C.derivative(1)(0.0) for C in maps])
    some = one > 0
    yield at_most(
        1 - 1 / one[some],
        1 - zero[some] / one[some],
        "the bound $1-1/C'(1)$ for random positive definite maps",
    )


def _bump(k: int, b: float, size: float) -> Expr:
    return size * X**k * sp.exp(-sp.Float(b) * X**2)


@claim("DKS-151", "Sec. 15.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""A fixed point $q^*$ of a local Q map is attractive if $Q'(q^*)<0$

    But: this holds only because every combined layer has $Q'(q) \ge -Q(q)/(2q)$ and therefore
    $Q'(q^*)\ge-\tfrac12$. The actual criterion is $|Q'(q^*)|<1$, and attractive fixed points of the
    usual activations have $Q'(q^*)\ge0$
    """
    for _ in bench.rounds(2, 12):
        k, b = bench.whole(1, 4), bench.uniform(0.5, 2)
        # q Q'/Q = k - (k + 1/2) 4 b q / (1 + 4 b q) < 0 for 2 b q > k
        phi = activation(_bump(k, b, 1.0))
        fixed = max(2.0, k) / b
        scaled = activation(_bump(k, b, np.sqrt(fixed / phi.q_map(fixed))))
        yield at_most(
            scaled.q_map.derivative(1)(fixed),
            0,
            "bumps $x^k e^{-bx^2}$ scaled to have a fixed point with $Q'<0$",
            0.0,
        )
        q = fixed * 1.05
        for _ in range(80):
            q = scaled.q_map(q)
        yield equal(
            q / fixed, 1, "80 layers return to this fixed point from a distance of 5 %", 1e-9
        )
    rows = []
    for name, phi in KNOWN.items():
        for q in (0.1, 7.0):
            spread = phi.integral(lambda x, f=phi.values, q=q: f(x) ** 2 * (x**2 / q - 1), q)
            rows.append(
                [activation(name).q_map.derivative(1)(q), spread / (2 * q), -phi.q_map(q) / (2 * q)]
            )
    slope, truth, floor = np.array(rows).T
    yield equal(
        slope,
        truth,
        r"$Q'(q) = \frac{1}{2q} E[\varphi^2 (x^2/q-1)]$, from the density, by quadrature",
        1e-9,
    )
    yield at_most(floor, slope, r"$Q'(q) \ge -Q(q)/(2q)$")
    yield from _attraction(bench)


def _attraction(bench: Bench) -> Iterator[Evidence]:
    """Check that fixed points attract if |Q'(q*)| < 1, and repel if |Q'(q*)| > 1."""
    stays, leaves, missed = [], [], 0
    for name, gain in (
        ("erf", 1.6),
        ("tanh", 1.5),
        ("selu", 1.0),
        ("swish", 1.9),
        ("square", 0.4),
        ("cube", 0.3),
    ):
        phi = activation(name).transformed(output_scale=gain)
        for point in phi.q_map.fixed_points():
            q, slope = point.value, phi.q_map.derivative(1)(point.value)
            if abs(abs(slope) - 1) < 0.02:
                continue
            near = q * (1 + 1e-4)
            for _ in range(60):
                near = phi.q_map(near) if abs(near / q - 1) < 0.5 else near
            (stays if abs(slope) < 1 else leaves).append(abs(near / q - 1) / 1e-4)
            missed += 0 <= slope < 1
    yield at_most(
        stays, 0.5, "fixed points with $|Q'|<1$ attract", attractive_with_positive_slope=missed
    )
    yield at_most(2, leaves, "fixed points with $|Q'|>1$ repel")
    yield at_most(
        3, missed, "attractive fixed points with $Q'\\ge0$, where the printed condition fails"
    )


@claim("DKS-164", "Sec. 16.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""If $C_f(0)=0$, then the deviation of $C_f$ from the identity is roughly $C_f'(1)-1$

    But: only in the sense of the bounds $\max|C-c|\le2(C'(1)-1)$ and
    $C'(1)-1\le\max|C'-1|\le3(C'(1)-1)$; $\max|C-c|$ can be arbitrarily smaller
    """
    weights = np.zeros(401)
    weights[[1, 400]] = 0.99, 0.01
    C = PowerMap(weights)
    excess, far = C.derivative(1)(1.0) - 1, np.abs(C(GRID) - GRID).max()
    yield counterexample(
        excess / far - 100,
        "$0.99c+0.01c^{400}$: the deviation is less than a hundredth of $C'(1)-1$",
        excess=excess,
        deviation=far,
        one_sided=True,
    )
    maps = power_maps(bench, 300, 3000, zero=True)
    one = np.array([C.derivative(1)(1.0) for C in maps]) - 1
    far_off = np.array([np.abs(C(GRID) - GRID).max() for C in maps])
    steep = np.array([np.abs(C.derivative(1)(GRID) - 1).max() for C in maps])
    yield at_most(far_off, 2 * one, r"the upper bound on $\max|C-c|$ for random maps")
    yield at_most(one, steep, r"the lower bound on $\max|C'-1|$ for random maps")
    yield at_most(steep, 3 * one, r"the upper bound on $\max|C'-1|$ for random maps")
    rows = []
    for name in ("tanh", "softplus", "gelu", "swish")[: bench.size(2, 4)]:
        net = random_network(bench, name, 5)
        shaped = c_map(shape(net, method="dks", zeta=bench.uniform(1.1, 3)).network)
        over = shaped.derivative(1)(1.0) - 1
        rows.append(
            [over, np.abs(shaped(GRID) - GRID).max(), np.abs(shaped.derivative(1)(GRID) - 1).max()]
        )
    over, far_off, steep = np.array(rows).T
    yield at_most(far_off, 2 * over, "random networks shaped by DKS: the bound on $|C-c|$", 1e-9)
    yield at_most(steep, 3 * over, "random networks shaped by DKS: the bound on $|C'-1|$", 1e-9)


@claim("DKS-173", "Sec. 17.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""If every nonlinear layer has $Q(1)=1$, $Q'(1)=1$, $C(0)=0$, $C'(1)=\mu^{-1}(\zeta)$ and sums
    are normalised, then every subnetwork $f$ has $Q_f(1)=1$, $Q_f'(1)=1$, $C_f(0)=0$ and
    $C_f'(1)\le\zeta$, and some $f$ attains equality
    """
    for _ in bench.rounds(3, 16):
        name = str(bench.rng.choice(["tanh", "softplus", "swish", "gelu", "atan"]))
        zeta = bench.uniform(1.05, 1.4)
        net = random_network(bench, name, bench.whole(2, 7))
        shaped = shape(net, method="dks", zeta=zeta)
        k = shaped.constants[name]
        own = KNOWN[name].at(k)
        yield equal(
            [
                own.q_map() - 1,
                own.q_slope() - 1,
                own.mean(),
                own.slope() - maximal_slope(net).inverse(zeta),
            ],
            0,
            "the four local conditions of kcalc's constants, by quadrature",
            1e-9,
        )
        nets = [shaped.network, *(part.network for part in subnetworks(shaped.network).nonlinear)]
        tops = []
        for part in nets:
            Q, C = q_map(part), c_map(part)
            yield equal(
                [Q(1.0) - 1, Q.derivative(1)(1.0) - 1, C(0.0)],
                0,
                "the three global conditions over random networks and their maximal subnetworks",
                1e-8,
            )
            tops.append(C.derivative(1)(1.0))
        yield equal(max(tops) / zeta - 1, 0, r"the largest $C_f'(1)$ divided by $\zeta$", 1e-8)
        end, c = shaped.network.outputs[0], bench.uniform(-1, 1)
        activations = set(shaped.network.activations)
        state = values(shaped.network, c, 1.0, 1.0, dict.fromkeys(activations, own))[end]
        yield equal(
            [state.q1 - 1, state.c - c_map(shaped.network)(c)],
            0,
            "q and c values of the shaped networks, node by node, by independent quadrature",
            1e-9,
        )
