"""Claims of sections 6 and 7: Q and C maps of layers and of networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import mpmath
import numpy as np

from ... import Network, activation, c_map, chain, q_map
from ... import layers as L
from ...foundation.process_state import decimal_digits
from ..bench import Bench, at_most, counterexample, equal, proved, statistical
from ..claim import Evidence
from ..families import graph, residual_network
from ..functions import FUNCTIONS
from . import reference
from .paper import claim
from .reference import second_moment

_ALL = tuple(FUNCTIONS)
_FEW = (
    "tanh",
    "relu",
    "gelu",
    "softplus",
    "selu",
    "sin",
    "hard_tanh",
    "cos",
    "elu",
    "abs",
    "sigmoid",
    "gaussian",
)


def _names(bench: Bench) -> tuple[str, ...]:
    return bench.size(_FEW, _ALL)


def _q(bench: Bench, name: str) -> float:
    """Draw a random q value at which second moments are not huge."""
    return bench.uniform(0.2, 0.8 if name == "exp" else 3.0)


def random_c(bench: Bench) -> float:
    """Draw a random c value away from -1 and 1."""
    return bench.uniform(-0.95, 0.95)


@claim("DKS-eq5", "Sec. 6.1, eq. 5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$q_{out} = Q_f(q_{in}) = E[\phi(u)^2]_{u\sim N(0,q_{in})} = E[\phi(\sqrt{q_{in}}\,x)^2]$"""
    for name in _names(bench):
        for q in (_q(bench, name), _q(bench, name)):
            yield equal(
                np.divide(activation(name).q_map(q), second_moment(name, q)),
                1.0,
                "Q maps against quadrature",
                activations=len(_names(bench)),
            )
    slow: dict[str, Callable[[Any], Any]] = {
        "tanh": mpmath.tanh,
        "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
        "gelu": lambda x: x * mpmath.ncdf(x),
    }
    panels = np.linspace(-14, 14, 29).tolist()
    with decimal_digits(30):
        for name in bench.size(("tanh",), tuple(slow)):
            f, root = slow[name], mpmath.sqrt(1.5)
            value = mpmath.quad(lambda x, f=f, root=root: f(root * x) ** 2 * mpmath.npdf(x), panels)
            ball = activation(name).q_map.ball(1.5, digits=25)
            off = float(abs(ball.mid - value))
            yield at_most(
                [off, ball.radius],
                [1e-22, 1e-24],
                f"{name} at q = 1.5: 22 digits from mpmath against an enclosure",
                0.0,
                off=off,
            )


@claim("DKS-eq6", "Sec. 6.2, eq. 6")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$m_{out} = E[\phi(u_1)\phi(u_2)]$ for $(u_1,u_2)$ normal with variances $q_1,q_2$ and
    covariance $m_{in}$
    """
    for name in _names(bench):
        c, q1, q2 = random_c(bench), _q(bench, name), _q(bench, name)
        phi = activation(name)
        yield equal(
            phi.c_map(c, q1, q2) * sqrt(phi.q_map(q1) * phi.q_map(q2)),
            reference.gamma(name, c, q1, q2),
            "the joint density on a product rule",
            1e-11,
        )
    for name in ("relu", "tanh", "gelu"):
        covariance = np.array([[1.3, -0.5], [-0.5, 0.6]])
        u = bench.rng.multivariate_normal([0, 0], covariance, size=bench.size(20000, 400000))
        phi = activation(name)
        m = phi.c_map(-0.5 / sqrt(1.3 * 0.6), 1.3, 0.6) * sqrt(phi.q_map(1.3) * phi.q_map(0.6))
        plain = FUNCTIONS[name].value
        yield statistical(
            plain(u[:, 0]) * plain(u[:, 1]), m, f"{name}: samples of the pair", draws=len(u)
        )


@claim("DKS-eq7", "Sec. 6.2, eq. 7")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_f(c,q_1,q_2) =
    E[\phi(\sqrt{q_1}x)\,\phi(\sqrt{q_2}(cx+\sqrt{1-c^2}\,y))]\,/\sqrt{Q_f(q_1)Q_f(q_2)}$
    """
    found, truth = [], []
    for name in _names(bench):
        c, q1, q2 = random_c(bench), _q(bench, name), _q(bench, name)
        found += [activation(name).c_map(c, q1, q2), activation(name).c_map(c, q1)]
        truth += [reference.cosine(name, c, q1, q2), reference.cosine(name, c, q1)]
    yield equal(
        found, truth, "C maps at unequal and at equal q values against the joint density", 1e-11
    )
    # the form with x and y, on a product rule; smooth functions only
    z, w = reference.line(panel=1.0)
    w = w * reference.density(z)
    found, truth = [], []
    for name in ("tanh", "gelu", "sin", "softplus"):
        f = FUNCTIONS[name].value
        c, q1, q2 = random_c(bench), _q(bench, name), _q(bench, name)
        inner = f(sqrt(q2) * (c * z[:, None] + sqrt(1 - c * c) * z)) @ w
        scale = sqrt(second_moment(name, q1) * second_moment(name, q2))
        truth.append((w * f(sqrt(q1) * z)) @ inner / scale)
        found.append(activation(name).c_map(c, q1, q2))
    yield equal(found, truth, "the form with two independent normals", 1e-11)


@claim("DKS-range", "Sec. 6.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_f(\cdot,q_1,q_2)$ maps $[-1,1]$ into $[-1,1]$"""
    ratios = [
        abs(reference.cosine(name, random_c(bench), _q(bench, name), _q(bench, name)))
        for name in _names(bench)
        for _ in range(2)
    ]
    yield at_most(ratios, 1.0, "quotients by quadrature")
    grid = np.linspace(-1, 1, 21)
    values = [
        activation(name).c_map(grid, _q(bench, name), _q(bench, name)) for name in _names(bench)
    ]
    yield at_most(np.abs(values), 1.0, "C maps of activations", 1e-14)
    yield equal(
        [activation(name).c_map(1.0, _q(bench, name)) for name in _names(bench)],
        1.0,
        "equality at c = 1 and equal q values",
        1e-14,
    )
    for name in bench.size(_FEW[:4], _FEW):
        ball = activation(name).c_map.ball(-1, 2, 0.5, digits=15)
        yield proved(
            [float(1 - abs(ball.mid) - ball.radius)], "enclosures at c = -1 and unequal q values"
        )
    C = c_map(residual_network(bench, "selu"))
    yield at_most(
        np.abs(C(grid, 0.7, 1.9)), 1.0, "c values of a random network at unequal q values", 1e-14
    )


def _concatenated(k1: int, k2: int, first: str = "relu", second: str = "tanh") -> Network:
    return graph(
        x=L.Input(),
        a0=(L.Affine(features=k1), "x"),
        a1=(L.Affine(features=k2), "x"),
        n0=(L.Nonlinear(first), "a0"),
        n1=(L.Nonlinear(second), "a1"),
        z=(L.Concat(), "n0", "n1"),
    )


def branches(
    names: tuple[str, str], c: float, q1: float, q2: float
) -> tuple[list[float], list[float], list[float]]:
    """Compute q and c values at the outputs of combined layers by quadrature."""
    one, two = ([second_moment(name, q) for name in names] for q in (q1, q2))
    return one, two, [reference.cosine(name, c, q1, q2) for name in names]


@claim("DKS-eq8", "Sec. 7.2, eq. 8")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a concatenation of $k_1$ and $k_2$ channels has $q = (k_1q_1+k_2q_2)/(k_1+k_2)$"""
    k = bench.rng.integers(1, 50, size=(12, 2))
    x, y = ([bench.normal(int(n)) for n in column] for column in k.T)
    whole = [np.mean(np.concatenate(pair) ** 2) for pair in zip(x, y, strict=True)]
    parts = [
        (a * np.mean(u**2) + b * np.mean(v**2)) / (a + b)
        for (a, b), u, v in zip(k, x, y, strict=True)
    ]
    yield equal(parts, whole, "q of concatenated vectors")
    for k1, k2 in k[:6]:
        q = bench.uniform(0.2, 3)
        yield equal(
            q_map(_concatenated(int(k1), int(k2)))(q),
            (k1 * second_moment("relu", q) + k2 * second_moment("tanh", q)) / (k1 + k2),
            "q of networks with a concatenation",
        )


@claim("DKS-eq9", "Sec. 7.2, eq. 9")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""concatenation of $k_1$ and $k_2$ channels: $c =
    \dfrac{k_1\sqrt{q_{1,1}q_{1,2}}\,c_1+k_2\sqrt{q_{2,1}q_{2,2}}\,c_2}{\sqrt{(k_1q_{1,1}+k_2q_{2,1})(k_1q_{1,2}+k_2q_{2,2})}}$

    Printed: the denominator $k_1\sqrt{q_{1,1}q_{1,2}}+k_2\sqrt{q_{2,1}q_{2,2}}$, which is the same
    only if $q_{i,1}/q_{i,2}$ does not depend on $i$
    """
    cosine = np.array([1, 2]) @ np.array([2, 1]) / 5
    yield counterexample(
        1 - cosine,
        "one channel each, vectors (1, 2) and (2, 1): $c_1 = c_2 = 1$ give $c = 1$; the cosine is "
        "4/5",
        found=1.0,
        cosine=cosine,
    )
    off_printed = []
    for _ in bench.rounds(6, 40):
        k1, k2 = bench.wholes(1, 20, 2)
        c = random_c(bench)
        q1 = bench.uniform(0.1, 1)
        q2 = bench.uniform(2, 5)
        one, two, inner = branches(("relu", "tanh"), c, q1, q2)
        sizes = [k1 * sqrt(one[0] * two[0]), k2 * sqrt(one[1] * two[1])]
        top = sizes[0] * inner[0] + sizes[1] * inner[1]
        right = top / sqrt((k1 * one[0] + k2 * one[1]) * (k1 * two[0] + k2 * two[1]))
        C = c_map(_concatenated(k1, k2))
        off_printed.append(abs(top / sum(sizes) - right))
        yield equal(abs(C(c, q1, q2) - right), 0.0, "networks at unequal q values", 1e-11)
        uniform, _, same = branches(("relu", "tanh"), c, q1, q1)
        averaged = (k1 * uniform[0] * same[0] + k2 * uniform[1] * same[1]) / (
            k1 * uniform[0] + k2 * uniform[1]
        )
        yield equal(
            abs(C(c, q1) - averaged),
            0.0,
            "networks at uniform q values, where both forms agree",
            1e-11,
        )
    yield counterexample(max(off_printed), "ReLU and tanh side by side at unequal q values")
    x, y = bench.normal(2, 30, 7)
    k = np.array([3.0, 4.0])
    pieces = [(a[:, :3], a[:, 3:]) for a in (x, y)]
    q = [[(part**2).mean(axis=1) for part in side] for side in pieces]
    m = [(a * b).mean(axis=1) for a, b in zip(*pieces, strict=True)]
    cosine = (x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    formula = (k[0] * m[0] + k[1] * m[1]) / np.sqrt(
        (k[0] * q[0][0] + k[1] * q[0][1]) * (k[0] * q[1][0] + k[1] * q[1][1])
    )
    yield equal(formula, cosine, "the cosine of concatenated random vectors")


@claim("DKS-comp", "Sec. 7.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for $h=g\circ f$: $Q_h(q)=Q_g(Q_f(q))$ and
    $C_h(c,q_1,q_2)=C_g(C_f(c,q_1,q_2),Q_f(q_1),Q_f(q_2))$
    """
    for _ in bench.rounds(5, 40):
        names = bench.rng.choice(_FEW, size=3)
        q1, q2 = bench.uniform(0.3, 2, 2)
        covariance = np.array([[q1, 0.4 * sqrt(q1 * q2)], [0.4 * sqrt(q1 * q2), q2]])
        for name in names:  # kernels of wide layers, one after another
            covariance = reference.layer(str(name), covariance)
        whole = chain(
            L.Input(), *[layer for name in names for layer in (L.Affine(), L.Nonlinear(str(name)))]
        )
        cosine = covariance[0, 1] / sqrt(covariance[0, 0] * covariance[1, 1])
        yield equal(
            c_map(whole)(0.4, q1, q2) - cosine,
            0.0,
            "C maps of three layers against the composition of kernels of covariances",
            1e-10,
        )
        yield equal(
            q_map(whole)(q1) / covariance[0, 0] - 1,
            0.0,
            "Q maps of three layers against kernels of covariances",
            1e-10,
        )


@claim("DKS-scal", "Sec. 7.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""multiplication by a constant $\alpha\ne0$ maps $q$ to $\alpha^2q$ and does not change $c$

    But: both feature maps of the pair must be multiplied by the same constant; in this case its
    sign does not matter
    """
    alpha = bench.uniform(-3, 3, 20)
    x, y = bench.normal(2, 20, 6)
    scaled, plain = alpha[:, None] * x, (x**2).mean(axis=1)
    yield equal((scaled**2).mean(axis=1), alpha**2 * plain, "q of multiplied vectors")

    def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))

    yield equal(cosine(scaled, alpha[:, None] * y), cosine(x, y), "c of multiplied vectors")
    for factor in (-1.7, 0.3):
        net = chain(
            L.Input(),
            L.Affine(),
            L.Nonlinear("gelu"),
            L.Scale(factor),
            L.Affine(),
            L.Nonlinear("gelu"),
        )
        inner = factor**2 * second_moment("gelu", 0.9)
        yield equal(
            q_map(net)(0.9),
            second_moment("gelu", inner),
            f"Q with a factor {factor} inside",
        )
        yield equal(
            c_map(net)(0.3, 0.9),
            reference.cosine("gelu", reference.cosine("gelu", 0.3, 0.9), inner),
            f"C with a factor {factor} inside",
        )
    yield counterexample(
        2 * abs(cosine(x, y)[0]), "factors 1 and -1 for the two feature maps: c changes its sign"
    )
    yield equal(
        cosine(scaled, -alpha[:, None] * y),
        -cosine(x, y),
        "factors of opposite sign reverse the sign of c",
    )
