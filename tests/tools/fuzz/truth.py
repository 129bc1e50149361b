"""What kernel maps must give, node by node, from mpmath and 80-bit quadrature.

Nothing here calls a rule or an integral of kcalc.

Second moments travel through the graph by the rules of ``second_moments``, in 50 digits. E[phi(u)
phi(v)] of a catalogue entry is its textbook closed form where it has one, else the 80-bit
quadrature that made the frozen truth of local maps; typed and transformed activations have their
pieces written out below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import sympy as sp
from fuzz.second_moments import Feature, mixed, number, step
from scipy import special

import kcalc as kc

before = mpmath.mp.dps
from oracles.closed_forms import CLOSED, Closed, two_slopes  # noqa: E402
from oracles.pair_functions import FUNCTIONS, line_piece  # noqa: E402
from oracles.pair_quadrature import PI, Function, gammas, graded, line, one_dimensional  # noqa: E402

mpmath.mp.dps = before

L = kc.layers
DIGITS, NODES = 50, 16
# how far the truth itself may be off, of closed forms and of integrals
EXACT = 1e-40
QUADRATURE = 3e-15
x = sp.Symbol("x", real=True)
Array = np.ndarray


def piece(expr: Any) -> Callable[[Array], tuple[Array, ...]]:
    """An expression in x with two derivatives, on long doubles."""
    parts = [sp.lambdify(x, sp.diff(expr, x, n), [SPECIAL, "numpy"]) for n in range(3)]
    return lambda t: tuple(part(t) + 0 * t for part in parts)


def _wide(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda t: function(np.asarray(t, float)).astype(np.longdouble)


SPECIAL = {
    "erf": _wide(special.erf),
    "sqrt": lambda t: np.sqrt(np.longdouble(t)),
    "pi": np.longdouble(PI),
}
NEAR = ((0.0, 1.5),)
TYPED: dict[str, tuple[Any, Function]] = {
    "typed bump": (
        x * sp.exp(-(x**2) / 2) + x / 2,
        Function((piece(x * sp.exp(-(x**2) / 2) + x / 2),), poles=NEAR),
    ),
    "typed ramp": (
        sp.Piecewise(
            (x / 4 - 1, x < -2), (x * sp.Rational(3, 4), x < 1), (sp.Rational(1, 2) + x / 4, True)
        ),
        Function((line_piece(0.25, -1), line_piece(0.75), line_piece(0.25, 0.5)), (-2.0, 1.0)),
    ),
    "typed tent": (
        sp.Max(x, -x / 3, 1 - 2 * x),
        Function((line_piece(-2, 1), line_piece(1)), (1 / np.longdouble(3),)),
    ),
    "typed gate": (
        x * sp.tanh(x) / 2 + x / 3,
        Function((piece(x * sp.tanh(x) / 2 + x / 3),), poles=NEAR),
    ),
    "typed wave": (sp.sin(2 * x) + x / 2, Function((piece(sp.sin(2 * x) + x / 2),), poles=NEAR)),
    "typed log": (
        sp.log(1 + x**2) + x / 5,
        Function((piece(sp.log(1 + x**2) + x / 5),), poles=((0.0, 1.0),)),
    ),
}
"""Name -> (what a user types, the same written out with its kinks and singularities)."""


def _wave(c: Any, q1: Any, q2: Any) -> Any:
    """E of (sin 2u + u/2)(sin 2v + v/2).

    E sin 2u sin 2v = exp(-2(q1 + q2)) sinh 4k, E u sin 2v = 2 k exp(-2 q2).
    """
    k = c * mpmath.sqrt(q1 * q2)
    return (
        mpmath.exp(-2 * (q1 + q2)) * mpmath.sinh(4 * k)
        + k * (mpmath.exp(-2 * q1) + mpmath.exp(-2 * q2))
        + k / 4
    )


TEXTBOOK = CLOSED | {
    "typed wave": Closed(
        _wave, lambda q: mpmath.mpf(0), lambda q: 2 * mpmath.exp(-2 * q) + mpmath.mpf(1) / 2
    )
}

FORMS: dict[str, Function] = {name: function for name, (_, function) in TYPED.items()} | {
    **FUNCTIONS,
    "identity": Function((line_piece(1),)),
    "relu": Function((line_piece(0), line_piece(1)), (0.0,)),
    "leaky_relu": Function((line_piece(1 / np.longdouble(100)), line_piece(1)), (0.0,)),
    "abs": Function((line_piece(-1), line_piece(1)), (0.0,)),
    "relu2": Function((line_piece(0), piece(x**2)), (0.0,)),
    "erf": Function((piece(sp.erf(x)),), poles=NEAR),
    "probit": Function((piece((1 + sp.erf(x / sp.sqrt(2))) / 2),), poles=NEAR),
    "gelu": Function((piece(x * (1 + sp.erf(x / sp.sqrt(2))) / 2),), poles=NEAR),
    "sin": Function((piece(sp.sin(x)),), poles=NEAR),
    "cos": Function((piece(sp.cos(x)),), poles=NEAR),
    "rbf": Function((piece(sp.sin(x) + sp.cos(x)),), poles=NEAR),
    "gaussian": Function((piece(sp.exp(-(x**2))),), poles=((0.0, 1.0),)),
    "snake": Function((piece(x + sp.sin(x) ** 2),), poles=((0.0, 1.0),)),
    "celu(2)": Function((piece(2 * (sp.exp(x / 2) - 1)), line_piece(1)), (0.0,)),
}
"""Activations as functions in pieces, for where they have been transformed."""


@lru_cache(maxsize=512)
def typed(name: str) -> kc.Activation:
    """The activation of a typed expression."""
    return kc.activation(TYPED[name][0], name=name)


class NoTruth(Exception):
    """An activation of which nothing is written out here."""


def real(value: Any) -> Any:
    """An mpmath number as a long double, and back: :func:`wide`."""
    high = float(value)
    return np.longdouble(high) + np.longdouble(float(value - mpmath.mpf(high)))


def wide(value: Any) -> Any:
    high = float(value)
    return mpmath.mpf(high) + mpmath.mpf(float(value - np.longdouble(high)))


def closed_form(phi: kc.Activation) -> Any:
    """The textbook closed form, None where there is none."""
    if phi.transformation is not None:
        return None
    slope = getattr(phi, "negative_slope", None)
    if slope is not None and phi.name.startswith("leaky_relu"):
        return two_slopes(number(sp.sympify(slope)), 1)
    return TEXTBOOK.get(phi.name)


@lru_cache(maxsize=512)
def written_out(phi: kc.Activation) -> Function:
    """phi in pieces. Raises: NoTruth."""
    slope = getattr(phi.base, "negative_slope", None)
    base = FORMS.get(phi.base.name)
    if slope is not None and phi.base.name.startswith("leaky_relu"):
        with mpmath.workdps(DIGITS):
            base = Function((line_piece(real(number(sp.sympify(slope)))), line_piece(1)), (0.0,))
    if base is None:
        raise NoTruth(phi.base.name)
    t = phi.transformation
    if t is None:
        return base
    a, b, scale, shift = (
        np.longdouble(float(n))
        for n in (t.input_scale, t.input_shift, t.output_scale, t.output_shift)
    )
    pieces = [_transformed(part, a, b, scale, shift) for part in base.pieces][:: 1 if a > 0 else -1]
    kinks = sorted(float((np.longdouble(k) - b) / a) for k in base.kinks)
    return Function(
        tuple(pieces),
        tuple(kinks),
        poles=tuple((float((p - b) / a), float(d / abs(a))) for p, d in base.poles),
    )


def _transformed(part: Any, a: Any, b: Any, scale: Any, shift: Any) -> Any:
    def values(t: Array) -> tuple[Array, ...]:
        f, slope, bend = part(a * t + b)
        return scale * (f + shift), scale * a * slope, scale * a * a * bend

    return values


def conditions(phi: kc.Activation) -> dict[str, Any]:
    """Q(1), Q'(1), C(0), C'(1) and C''(1) (of smooth phi) by Gauss-Legendre panels in 80 bits.

    Raises: NoTruth.
    """
    function = written_out(phi)
    t, w = line([k + offset for k, d in function.centres() for offset in graded(float(d))], 24)
    f, slope, bend = function(t)
    mean, square, gradient = (w * f).sum(), (w * f * f).sum(), (w * slope * slope).sum()
    found = {
        "Q(1)": square,
        "Q'(1)": (w * f * slope * t).sum(),
        "C(0)": mean**2 / square,
        "C'(1)": gradient / square,
    }
    return found | {"C''(1)": (w * bend * bend).sum() / square}


@lru_cache(maxsize=4096)
def local_moments(phi: kc.Activation, k: Any) -> tuple[Any, Any]:
    """(E phi^2, E phi) at variance k."""
    form = closed_form(phi)
    if form is not None:
        return form.second(k), form.mean(k)
    mean, second, *_ = one_dimensional(written_out(phi), real(k), NODES)
    return wide(second), wide(mean)


@lru_cache(maxsize=4096)
def local_product(phi: kc.Activation, k1: Any, k2: Any, k12: Any) -> Any:
    """E phi(u) phi(v)."""
    c = k12 / mpmath.sqrt(k1 * k2)
    c = max(min(c, mpmath.mpf(1)), mpmath.mpf(-1))
    form = closed_form(phi)
    if form is not None:
        return form.gamma(c, k1, k2)
    gap = real(1 - c) if c >= 0 else None
    return wide(
        gammas(written_out(phi), real(c), real(k1), real(k2), (0,), gap=gap, nodes=NODES)[0]
    )


def _activated(phi: kc.Activation, f: Feature) -> Feature:
    k1, k2, k12 = f.k
    (second1, mean1), (second2, mean2) = local_moments(phi, k1), local_moments(phi, k2)
    return Feature(f.width, (second1, second2, local_product(phi, k1, k2, k12)), (mean1, mean2))


def _multiplied(row: list[Feature]) -> Feature:
    """Independent factors."""
    k, m = [mpmath.mpf(1)] * 3, [mpmath.mpf(1)] * 2
    for f in row:
        k = [a * b for a, b in zip(k, f.k, strict=True)]
        m = [a * b for a, b in zip(m, f.m, strict=True)]
    return Feature(row[0].width, tuple(k), tuple(m))


def _centred(features: list[Feature]) -> list[Feature]:
    """What weights of mean 0 see: the second moments about the means over all channels."""
    k, m = mixed(features)
    return [
        Feature(
            sum(f.width for f in features),
            (k[0] - m[0] * m[0], k[1] - m[1] * m[1], k[2] - m[0] * m[1]),
        )
    ]


def _rows(below: list[list[Feature]]) -> Iterator[list[Feature]]:
    from fuzz.second_moments import cut

    edges = sorted(
        {
            sum(f.width for f in features[: i + 1])
            for features in below
            for i in range(len(features))
        }
    )
    for row in zip(*(cut(features, edges) for features in below), strict=True):
        yield list(row)


def truth(
    net: kc.Network, c: Mapping[Any, Any], q1: Any, q2: Any
) -> dict[Any, tuple[Any, Any, Any]]:
    """(q1, q2, c) of every node, to :func:`accuracy`. Raises: NoTruth."""
    states: dict[Any, list[Feature]] = {}
    with mpmath.workdps(DIGITS):
        one, two = mpmath.mpf(q1), mpmath.mpf(q2)
        for node, layer, parents in net.steps():
            below = [states[p] for p in parents]
            if isinstance(layer, L.Input):
                states[node] = [
                    Feature(
                        layer.features or 1, (one, two, number(c[node]) * mpmath.sqrt(one * two))
                    )
                ]
            elif isinstance(layer, L.Nonlinear):
                states[node] = [_activated(layer.activation, f) for f in below[0]]
            elif isinstance(layer, L.Product):
                states[node] = [_multiplied(row) for row in _rows(below)]
            else:
                states[node] = step(
                    layer,
                    [_centred(below[0])] if getattr(layer, "standardised", False) else below,
                    node,
                )
        return {node: _cosine(mixed(features)[0]) for node, features in states.items()}


def _cosine(k: Any) -> tuple[Any, Any, Any]:
    return k[0], k[1], k[2] / mpmath.sqrt(k[0] * k[1])


def accuracy(net: kc.Network) -> float:
    """How far the truth may be off."""
    return (
        EXACT
        if all(closed_form(net.layer(node).activation) for node in net.nodes_of(L.Nonlinear))
        else QUADRATURE
    )  # type: ignore[attr-defined]
