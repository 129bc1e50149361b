"""Inequalities that are linear in the coefficients of C(c) = sum_n b_n c^n.

A family of polynomials p_n with integer coefficients defines the inequality sum_n b_n p_n(c) >= 0
on [-1, 1]. The inequality is proved term by term for all C maps, and with enclosures for
activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyval

from ... import activation
from ...fields.balls import ball_field
from ...gaussian.certified import hermite_coefficients
from ..bench import Bench, at_most, certified, equal, proved
from ..claim import Evidence
from .reference import power_series

NAMES = (
    "tanh",
    "erf",
    "gelu",
    "swish",
    "softplus",
    "sigmoid",
    "sin",
    "atan",
    "relu",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "abs",
    "gaussian",
    "cos",
    "hard_tanh",
    "relu6",
    "mish",
    "asinh",
    "exp",
    "square",
    "cube",
    "softsign",
    "logcosh",
    "probit",
    "squareplus",
    "relu2",
)
Terms = dict[int, int]
"""{power of c: integer coefficient}."""
Family = Callable[[int], Terms]
TERMS = 16
_DIGITS = 15
_EVERY = 1000  # number of terms that are proved individually


@lru_cache(maxsize=64)
def enclosed(name: str, centred: bool = False) -> tuple[Any, ...]:
    """Compute balls around b_0 ... b_16 at q = 1 with certified integrals.

    With ``centred``, they are the coefficients of phi - E phi, for which b_0 = 0.
    """
    from flint import arb

    field = ball_field(_DIGITS)
    one = arb(1)
    with field.working():
        phi = activation(name)
        found = hermite_coefficients(phi, one, TERMS + 1, field)
        squares = [a * a for a in found]  # a**2 is not finite for balls that contain 0
        whole = phi.second_moment(one, field)
        whole = whole - squares[0] if centred else whole
        return tuple(
            arb(0) if centred and n == 0 else square / whole for n, square in enumerate(squares)
        )


def curved(name: str, centred: bool = False) -> bool:
    """Whether C is proved not to be affine."""
    return any(b.lower() > 1e-9 for b in enclosed(name, centred)[2:])


def quotient(terms: Terms) -> list[int]:
    """Return the coefficients of p(c)/(1 + c) in ascending order, for a p with p(-1) = 0."""
    degree = max(terms)
    out, carried = [0] * degree, 0
    for power in range(degree, 0, -1):
        carried = terms.get(power, 0) - carried
        out[power - 1] = carried
    return out


def margin(bench: Bench, name: str, family: Family, first: int, centred: bool) -> float:
    """Return a proven lower bound of sum_n b_n p_n(c)/(1 + c) over [-1, 1], or nan.

    If p_n does not vanish at -1, p_n(c)/2 replaces p_n(c)/(1 + c). Terms after the 16th are >= 0
    and are left out.
    """
    from flint import arb, arb_poly

    total = arb_poly([])
    for n, b in enumerate(enclosed(name, centred)):
        if n < first:
            continue
        terms = {power: value for power, value in family(n).items() if value}
        if not terms:
            continue
        if sum(value * (-1) ** power for power, value in terms.items()) == 0:
            total += arb_poly(quotient(terms)) * b
        else:
            total += arb_poly([terms.get(power, 0) for power in range(max(terms) + 1)]) * (b / 2)
    found = certified(lambda c: total(c), arb(-1), arb(1), name, digits=_DIGITS)
    return math.nan if found.holds is None or found.margin is None else found.margin


def everywhere(family: Family, first: int, what: str, bench: Bench) -> Evidence:
    """Prove p_n >= 0 on [-1, 1] for first <= n < 1000.

    This holds because the constant coefficient is at least the sum of the absolute values of the
    other coefficients.
    """
    slack = []
    for n in range(first, _EVERY):
        terms = family(n)
        slack.append(terms.get(0, 0) - sum(abs(value) for power, value in terms.items() if power))
    return proved(
        slack,
        f"{what}: for every term of the power series, and therefore for all C maps",
        terms=_EVERY,
        linear_in_n=True,
    )


def on_activations(
    bench: Bench, sides: Iterable[tuple[str, Family]], first: int, centred: bool = False
) -> Iterator[Evidence]:
    """Prove the inequalities ``sides`` on [-1, 1] for all activations, with enclosures."""
    names = [name for name in NAMES if curved(name, centred)]
    for what, family in sides:
        margins = {name: margin(bench, name, family, first, centred) for name in names}
        yield proved(
            list(margins.values()),
            f"{what}: enclosed on all of [-1, 1] for {len(names)} activations, divided by 1 + c",
            margins=margins,
        )


def agreement(bench: Bench) -> Iterator[Evidence]:
    """Compare enclosed coefficients and the library's series and enclosures with quadrature."""
    series = {name: power_series(name, TERMS + 1) for name in NAMES}
    balls = np.array([[float(b.mid()) for b in enclosed(name)] for name in NAMES])
    wide = float(max(b.rad() for name in NAMES for b in enclosed(name)))
    yield equal(
        balls,
        list(series.values()),
        "coefficients: certified integrals against quadrature",
        1e-11,
        radius=wide,
    )
    yield equal(
        [activation(name).c_map.series(TERMS + 1) for name in NAMES],
        list(series.values()),
        "the series of the C map against quadrature",
        1e-11,
    )
    beyond = []
    for name in bench.size(NAMES[::3], NAMES):
        b = series[name]
        for c in (-0.5, 0.25):
            off = abs(float(activation(name).c_map.ball(c, digits=15).mid) - polyval(c, b))
            beyond.append((1 - b.sum()) * abs(c) ** (TERMS + 1) + 1e-12 - off)
    yield at_most(
        np.zeros(len(beyond)),
        beyond,
        "the C map and its first 17 terms differ by no more than the other terms allow",
        0.0,
    )


# --- the bounds on the distance from the identity -------------------------------------------------


def collected(*parts: tuple[int, int]) -> Terms:
    """Return the polynomial with the given (power, coefficient) terms; like terms are added."""
    out: Terms = {}
    for power, value in parts:
        out[power] = out.get(power, 0) + value
    return out


def value_from_zero(sign: int) -> Family:
    """Return the family of 2 (1 - C'(0)) - sign (C(c) - c)."""
    return lambda n: {} if n == 1 else collected((0, 2), (n, -sign), (1, sign))


def slope_from_both(sign: int) -> Family:
    """Return the family of 2 (1 - C'(0)) + C'(1) - 1 - sign (C'(c) - 1)."""
    return lambda n: {} if n == 1 else collected((0, 2 + n - 1 + sign), (max(n - 1, 0), -sign * n))


def value_from_one(sign: int) -> Family:
    """Return the family of 2 (C'(1) - 1) - sign (C(c) - c), for C(0) = 0."""
    return lambda n: {} if n == 1 else collected((0, 2 * (n - 1)), (n, -sign), (1, sign))


def slope_from_one(sign: int) -> Family:
    """Return the family of 3 (C'(1) - 1) - sign (C'(c) - 1), for C(0) = 0."""
    return lambda n: {} if n == 1 else collected((0, 3 * (n - 1) + sign), (n - 1, -sign * n))
