"""Claims of sections 10 and 11: uniform q values, and C maps as positive definite functions."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import factorial, sqrt
from typing import Any

import numpy as np
from scipy import special

from ... import activation, activations, c_map, normalise_locations
from ..bench import Array, Bench, at_most, certified, equal, proved
from ..claim import Evidence
from ..families import power_maps, residual_network
from ..functions import FUNCTIONS
from . import reference
from .coefficients import NAMES, enclosed
from .paper import claim
from .reference import power_series, second_moment


@claim("DKS-pln", "Sec. 10.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""an extra channel $s$, with $s^2=\frac1k E_j\|x_j\|^2$ over the locations $j$ or $s=1$, and
    the factor $(k+1)^{1/2}(\|x_i\|^2+s^2)^{-1/2}$ give $q=1$ everywhere. If there is one location,
    $s=\|x\|/\sqrt k$ gives $[\sqrt k\,x/\|x\|,\,1]$, which loses $\|x\|$, while $s=1$ preserves it
    """
    for k, locations in ((1, 6), (3, 5), (16, 4)):
        x = bench.normal(4, locations, k) * bench.uniform(0.01, 30, 4, 1, 1)
        own = normalise_locations(x)
        squares = (x**2).sum(axis=2, keepdims=True)
        s2 = squares.mean(axis=1, keepdims=True) / k
        direct = np.concatenate([x, np.broadcast_to(np.sqrt(s2), squares.shape)], axis=2) * np.sqrt(
            (k + 1) / (squares + s2)
        )
        yield equal(own, direct, f"kcalc against the formula, {k} channels", 1e-13)
        yield equal((direct**2).mean(axis=2), 1.0, "q values by the formula", 1e-13)
        yield equal(
            (normalise_locations(x, "constant") ** 2).mean(axis=2),
            1.0,
            "q values with the constant",
            1e-13,
        )
    x = bench.normal(7, 1, 5)
    norm = np.sqrt((x**2).sum(axis=2, keepdims=True))
    yield equal(
        normalise_locations(x),
        np.concatenate([sqrt(5) * x / norm, np.ones_like(norm)], axis=2),
        "one location: the special form",
        1e-13,
    )
    yield equal(
        normalise_locations(3.7 * x),
        normalise_locations(x),
        "one location: the norm is lost",
        1e-13,
    )
    kept = normalise_locations(x, "constant")
    yield equal(kept[..., :5] / kept[..., 5:], x, "with s = 1 the vector can be recovered")


@claim("DKS-eq14", "Sec. 11.1, eq. 14")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_f^{(i)}(0) = \dfrac{q^i}{Q_f(q)}\,E[\phi^{(i)}(\sqrt q x)]^2 \ge 0$

    Under: uniform q values
    """
    # by parts i times, q^{i/2} E phi^(i)(sqrt q x) = E[phi(sqrt q x) He_i(x)], which has no
    # derivatives and therefore allows kinks
    names = bench.size(NAMES[::2], NAMES)
    for name in names:
        q = bench.uniform(0.3, 0.6 if name == "exp" else 2.5)
        truth = power_series(name, 9, q)
        yield equal(
            activation(name).c_map.series(9, q),
            truth,
            "$C^{(i)}(0)/i!$ for i = 0 ... 8 against Hermite integrals",
            1e-11,
            activations=len(names),
        )
        yield at_most(0.0, truth, "the derivatives at 0 are not negative", 0.0)
    for name in ("tanh", "relu", "gelu", "exp", "selu", "hard_tanh", "softplus"):
        phi, q = FUNCTIONS[name], 0.6
        size = second_moment(name, q)
        C = activation(name).c_map
        yield equal(
            [C(0.0, q), C.derivative(1)(0.0, q)],
            [
                reference.mean(phi.value, q, phi.kinks) ** 2 / size,
                q * reference.mean(phi.slope, q, phi.kinks) ** 2 / size,
            ],
            "i = 0, 1: C and C' at 0 against the means of phi and phi'",
            1e-11,
        )
    yield equal(
        [activation(name).c_map(0.0) for name in ("tanh", "sin", "erf", "cube", "asinh")],
        0.0,
        "C(0) = 0 for functions of mean 0",
        1e-15,
    )
    yield at_most(
        1e-3,
        [enclosed(name)[0].lower() for name in ("relu", "gelu", "cos", "sigmoid", "elu")],
        "C(0) > 0 for other activations, by enclosures",
        0.0,
    )


def _series(bench: Bench, degree: int) -> list[Fraction]:
    return [
        Fraction(int(a), 7)
        for a in bench.rng.integers(0, 6, size=degree + 1) * (bench.rng.random(degree + 1) < 0.7)
    ]


def _product(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    out = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return out


def _composed(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    out = [a[-1]]
    for coefficient in reversed(a[:-1]):
        out = _product(out, b)
        out[0] += coefficient
    return out


@claim("DKS-pd", "Sec. 11.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""positive definite functions $\sum b_ic^i$, $b_i\ge0$, are closed under differentiation,
    composition and averaging with weights $\ge0$; they are $\ge0$, non-decreasing and convex for
    $c\ge0$
    """
    for _ in bench.rounds(20, 200):
        a, b = _series(bench, 5), _series(bench, 4)
        inner = _composed(a, b)
        point = Fraction(3, 8)
        yield equal(
            _at(inner, point) - _at(a, _at(b, point)),
            0.0,
            "compositions of power series, in fractions, have the right values",
            0.0,
        )
        yield proved([float(min(inner))], "the least coefficients of compositions")
        yield proved(
            [float(min(2 * x + 3 * y for x, y in zip(a, [*b, Fraction(0)], strict=True)))],
            "the least coefficients of averages",
        )
        yield proved(
            [float(min(i * x for i, x in enumerate(a)))], "the least coefficients of derivatives"
        )
    for C in power_maps(bench, 5, 40):
        for order, what in ((0, "value"), (1, "slope"), (2, "curvature")):
            weights = C.derivative(order).weights
            yield certified(
                lambda c, weights=weights: _horner(weights, c),
                0,
                1,
                f"the {what} of a random C map over [0, 1]",
            )
    for name in ("tanh", "gelu", "softplus"):
        yield at_most(
            0.0,
            c_map(residual_network(bench, name)).series(6),
            f"the series of a random network of residual blocks with {name}",
        )


def _at(series: list[Fraction], x: Fraction) -> Fraction:
    return sum((b * x**i for i, b in enumerate(series)), Fraction(0))


def _horner(weights: Array, c: Any) -> Any:
    from flint import arb

    out = arb(0)
    for weight in weights[::-1]:
        out = out * c + arb(weight)
    return out


@claim("DKS-dual", "Sec. 11.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the dual activation is $\tilde\phi(c)=\Gamma_\phi(c,1,1)$, the C map without its
    normalisation

    Under: input q value 1
    """
    c = np.linspace(-1, 1, 21)
    known = {
        "exp": np.exp(1 + c),
        "sin": np.exp(-1) * np.sinh(c),
        "cos": np.exp(-1) * np.cosh(c),
        "erf": 2 / np.pi * np.arcsin(2 * c / 3),
        "probit": 0.25 + np.arcsin(c / 2) / (2 * np.pi),
        "square": 1 + 2 * c**2,
        "cube": 9 * c + 6 * c**3,
        "relu": (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c) / (2 * np.pi),
        "abs": 2 / np.pi * (np.sqrt(1 - c**2) + c * np.arcsin(c)),
        "heaviside": 0.5 - np.arccos(c) / (2 * np.pi),
        "sign": 2 / np.pi * np.arcsin(c),
    }
    for name, dual in known.items():
        phi = activation(name)
        yield equal(phi.c_map(c) * phi.q_map(1.0), dual, f"{name}: a closed form", 1e-13)
    for n in (1, 2, 3, 4):
        z, w = reference.line()
        yield equal(
            w @ (reference.density(z) * special.eval_hermitenorm(n, z) ** 2),
            factorial(n),
            f"the square of He_{n}",
            1e-10,
        )
        yield equal(
            activations.hermite(n).c_map(c), c**n, f"Hermite polynomial {n}: $c^{n}$", 1e-13
        )
    inside = c[1:-1]
    names = ("tanh", "gelu", "softplus", "selu")
    for name in names:
        yield equal(
            activation(name).c_map(inside) * activation(name).q_map(1.0),
            [reference.gamma(name, x) for x in inside],
            "without a closed form: the joint density",
            1e-10,
        )
    phi = activation("gelu")
    unit = phi.transformed(output_scale=1 / sqrt(second_moment("gelu")))
    yield equal(unit.q_map(1.0), 1.0, "normalised by quadrature", 1e-13)
    yield equal(
        unit.c_map(c), phi.c_map(c), "for a normalised function the dual is the C map", 1e-13
    )
