"""Claims of section 8: derivatives of Q and C maps."""

from __future__ import annotations

from collections.abc import Iterator
from math import pi, sqrt

import numpy as np
import sympy as sp
from sympy import Symbol, diff

from ... import activation
from ..bench import Bench, at_most, counterexample, equal, exact
from ..claim import Evidence
from ..functions import FUNCTIONS
from . import reference
from .maps import random_c
from .paper import claim
from .reference import cosine, second_moment

_ALL = tuple(FUNCTIONS)
_HIGHER = {
    "sin": [np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)],
    "cos": [np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin],
    "exp": [np.exp] * 4,
    "cube": [lambda x: x**3, lambda x: 3 * x**2, lambda x: 6 * x, lambda x: 6 * np.ones_like(x)],
    "tanh": [
        np.tanh,
        lambda x: 1 - np.tanh(x) ** 2,
        lambda x: -2 * np.tanh(x) * (1 - np.tanh(x) ** 2),
        lambda x: (6 * np.tanh(x) ** 2 - 2) * (1 - np.tanh(x) ** 2),
    ],
    "gaussian": [
        lambda x: np.exp(-(x**2)),
        lambda x: -2 * x * np.exp(-(x**2)),
        lambda x: (4 * x**2 - 2) * np.exp(-(x**2)),
        lambda x: (12 * x - 8 * x**3) * np.exp(-(x**2)),
    ],
}  # fmt: skip
"""phi, phi', phi'' and phi'''."""


def _q(bench: Bench, name: str) -> float:
    return bench.uniform(0.3, 0.7 if name == "exp" else 2.5)


def _names(bench: Bench) -> tuple[str, ...]:
    return bench.size(_ALL[::2], _ALL)


def _central(values: list[float], h: float) -> float:
    """Compute f' at 0 from f at -2h, -h, h and 2h."""
    a, b, c, d = values
    return (a - 8 * b + 8 * c - d) / (12 * h)


@claim("DKS-Qp", "Sec. 8.1.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$Q_f'(q) = q^{-1/2}\,E[\phi(\sqrt q x)\,\phi'(\sqrt q x)\,x]$

    Under: $\phi$ continuous
    """
    own, formula, quotients = [], [], []
    for name in _names(bench):
        phi, q = FUNCTIONS[name], _q(bench, name)
        root = sqrt(q)
        formula.append(
            reference.mean(
                lambda u, phi=phi, root=root: phi.value(u) * phi.slope(u) * u / root, q, phi.kinks
            )
            / root
        )
        own.append(activation(name).q_map.derivative(1)(q))
        h = 1e-3 * q
        quotients.append(_central([second_moment(name, q + s * h) for s in (-2, -1, 1, 2)], h))
    yield equal(
        quotients, formula, "difference quotients of the second moment against the formula", 1e-8
    )
    yield equal(
        own,
        formula,
        "kcalc's derivative against the formula by quadrature",
        1e-11,
        activations=len(own),
    )


@claim("DKS-eq10", "Sec. 8.1.2, eq. 10")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\partial_c\Gamma_\phi(c,q_1,q_2) = \sqrt{q_1q_2}\;\Gamma_{\phi'}(c,q_1,q_2)$

    Under: $\phi$ continuous
    """
    own, formula, quotients = [], [], []
    for name in _names(bench):
        phi, q1, q2 = FUNCTIONS[name], _q(bench, name), _q(bench, name)
        c, h = bench.uniform(-0.8, 0.8), 2e-3
        formula.append(
            sqrt(q1 * q2) * reference.pair(phi.slope, q1, phi.slope, q2, c, phi.kinks, phi.kinks)
        )
        quotients.append(
            _central([reference.gamma(name, c + s * h, q1, q2) for s in (-2, -1, 1, 2)], h)
        )
        size = sqrt(second_moment(name, q1) * second_moment(name, q2))
        own.append(activation(name).c_map.derivative(1)(c, q1, q2) * size)
    scale = np.maximum(1, np.abs(formula))
    yield equal(
        np.divide(quotients, scale),
        np.divide(formula, scale),
        "difference quotients of Gamma against the formula",
        1e-8,
    )
    yield equal(
        own,
        formula,
        "kcalc's derivative against the formula by quadrature",
        1e-10,
        activations=len(own),
    )


@claim("DKS-eq11", "Sec. 8.1.2, eq. 11")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_f^{(i)}(c,q_1,q_2) =
    \dfrac{(q_1q_2)^{i/2}}{\sqrt{Q_f(q_1)Q_f(q_2)}}\,\Gamma_{\phi^{(i)}}(c,q_1,q_2)$ for all $i\ge0$

    But: if $\phi$ has kinks, only as long as $\phi^{(i-1)}$ is continuous; for ReLU up to $i=1$
    """
    for order in (0, 1, 2, 3):
        own, formula = [], []
        for name, derivatives in _HIGHER.items():
            c, q1, q2 = random_c(bench), _q(bench, name), _q(bench, name)
            size = sqrt(second_moment(name, q1) * second_moment(name, q2))
            top = (q1 * q2) ** (order / 2) * reference.pair(
                derivatives[order], q1, derivatives[order], q2, c
            )
            formula.append(top / size)
            C = activation(name).c_map
            own.append(C.derivative(order)(c, q1, q2) if order else C(c, q1, q2))
        yield equal(own, formula, f"i = {order}, functions without kinks", 1e-9)
    own, formula = [], []
    for name in ("relu", "abs", "selu", "hard_tanh", "leaky_relu"):
        phi, c, q = FUNCTIONS[name], random_c(bench), _q(bench, name)
        own.append(activation(name).c_map.derivative(1)(c, q))
        formula.append(
            q
            * reference.pair(phi.slope, q, phi.slope, q, c, phi.kinks, phi.kinks)
            / second_moment(name, q)
        )
    yield equal(own, formula, "i = 1, functions with kinks", 1e-10)
    h = 2e-3
    curved = [
        _central([activation("relu").c_map.derivative(1)(c + s * h) for s in (-2, -1, 1, 2)], h)
        for c in (0.0, 0.3)
    ]
    yield counterexample(
        min(curved),
        "i = 2 for ReLU: $\\phi''=0$ almost everywhere, so the formula gives 0, but C'' is "
        "positive",
        at=[0.0, 0.3],
    )
    right = [1 / (pi * sqrt(1 - c * c)) for c in (0.0, 0.3)]
    own = [activation("relu").c_map.derivative(2)(c) for c in (0.0, 0.3)]
    yield equal(curved, right, "i = 2 for ReLU: the kink gives $1/(\\pi\\sqrt{1-c^2})$", 1e-8)
    yield equal(own, right, "kcalc's second derivative has this term")


@claim("DKS-rel2", "Sec. 8.1.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for ReLU, $C_f''(c,1,1)\to\infty$ as $c\to1$, although equation 11 would give 0"""
    c = Symbol("c", real=True)
    C = (sp.sqrt(1 - c**2) + (sp.pi - sp.acos(c)) * c) / sp.pi
    yield exact(
        diff(C, c, 2) - 1 / (sp.pi * sp.sqrt(1 - c**2)), "the second derivative of the closed form"
    )
    points = 1 - 10.0 ** -np.arange(1, 13)
    gaps = 1 - points
    own = activation("relu").c_map.derivative(2)(points)
    truth = 1 / (np.pi * np.sqrt(gaps * (2 - gaps)))
    yield equal(
        own / truth, 1.0, "kcalc's second derivative at 1 - c = 0.1 ... 1e-12", last=own[-1]
    )
    yield at_most(
        own[:-1],
        own[1:] / 3,
        "the second derivative grows by a factor above 3 for each additional digit of c",
    )
    h = 1e-6
    quotient = (
        cosine("relu", 0.95 + h) - 2 * cosine("relu", 0.95) + cosine("relu", 0.95 - h)
    ) / h**2
    yield equal(
        quotient,
        1 / (pi * sqrt(1 - 0.95**2)),
        "against a second difference by quadrature at 0.95",
        2e-2,
    )
