"""Bounded, S-shaped activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy as sp
from scipy.special import ndtr

from kcalc.activations.base import Activation, X
from kcalc.activations.closed import ClosedKernel
from kcalc.activations.parameters import label, named, positive
from kcalc.activations.registry import register
from kcalc.activations.tails import tails
from kcalc.fields import SYMPY, Field, Number
from kcalc.gaussian.expectations.quadrature import Array

_ONE = sp.Integer(1)
_ODD = (-1,), (1,)


@dataclass(frozen=True, eq=False, repr=False)
class Erf(ClosedKernel):
    """The activation (erf(a x) + b)/(1 + b) with b = 0 or 1; probit has a = 1/sqrt 2 and b = 1.

    With p = a^2 q and D = (1+2p1)(1+2p2) - 4 c^2 p1 p2,
    E[erf erf] = (2/pi) asin(2 c sqrt(p1 p2/((1+2p1)(1+2p2)))) = (2/pi) atan(2 c sqrt(p1 p2/D))
    [Williams 1998].
    """

    steepness: sp.Expr = field(default=sp.Integer(1))
    offset: int = 0

    def _compile(self, n: int) -> Callable[[Array], Array]:
        if n or not self.offset:
            return super()._compile(n)
        scale = float(self.steepness) * math.sqrt(2)  # ndtr keeps its digits for large negative x
        return lambda x: ndtr(scale * np.asarray(x, dtype=float))

    def _widths(self, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        square = field.number(self.steepness) ** 2
        return square * q1, square * q2

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return q / q / 2 if self.offset else 0 * q

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        a = field.number(self.steepness)
        return 2 * a / field.sqrt(field.pi * (1 + 2 * a * a * q)) / (1 + self.offset)

    def _arc(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        """Return E[erf erf] multiplied by pi/2, in SymPy."""
        p1, p2 = self._widths(q1, q2, SYMPY)
        if p1 == p2:
            return sp.asin(2 * p1 * c / (1 + 2 * p1))
        return sp.asin(2 * c * sp.sqrt(p1 * p2) / sp.sqrt((1 + 2 * p1) * (1 + 2 * p2)))

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        gamma, first, second = (
            self.offset * sp.pi + 2 * self._arc(*at)
            for at in ((c, q1, q2), (_ONE, q1, q1), (_ONE, q2, q2))
        )
        return gamma / (first if first == second else sp.sqrt(first * second))

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        if field is SYMPY:
            return (2 * self._arc(_ONE, q, q) / sp.pi + self.offset) / (1 + self.offset) ** 2
        return self._top(q, q, field)

    def _top(self, q1: Number, q2: Number, field: Field) -> Number:
        p1, p2 = self._widths(q1, q2, field)
        arc = field.atan(2 * field.sqrt(p1 * p2) / field.sqrt(1 + 2 * (p1 + p2)))
        return (2 * arc / field.pi + self.offset) / (1 + self.offset) ** 2

    def _drop(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        p1, p2 = self._widths(q1, q2, field)
        at_one = 1 + 2 * (p1 + p2)
        here = at_one + 4 * p1 * p2 * gap * (2 - gap)
        half = field.atan(2 * field.sqrt(p1 * p2) * gap / (field.sqrt(at_one) + field.sqrt(here)))
        return 4 * half / field.pi / (1 + self.offset) ** 2

    def _slopes(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        p1, p2 = self._widths(q1, q2, field)
        here = 1 + 2 * (p1 + p2) + 4 * p1 * p2 * gap * (2 - gap)
        slope = 4 * field.sqrt(p1 * p2 / here) / field.pi / (1 + self.offset) ** 2
        return slope, slope * 4 * p1 * p2 * field.cosine(gap) / here


def scaled_erf(a: Any, name: str | None = None) -> Activation:
    """Return the activation erf(a x).

    Parameters
    ----------
    a
        A number > 0.
    name
        The printed name; by default, it is derived from the constants.

    Returns
    -------
    Activation
        The error function with this input scale.

    Raises
    ------
    KcalcError
        Unless a is a positive number.

    """
    steepness = positive("scaled_erf", "a", a)
    title = named(name, "erf" if steepness == 1 else f"scaled_erf({label(steepness)})")
    bound = tails(1 / steepness, *_ODD)
    return Erf(title, sp.erf(steepness * X), tails=bound, steepness=steepness)


def sigmoid(argument: sp.Expr) -> sp.Expr:
    """Return 1/(1 + exp(-argument)) in a form that is accurate on both sides of 0.

    ``argument`` must have the same sign as X.
    """
    w, v = sp.exp(argument), sp.exp(-argument)
    return sp.Piecewise((w / (1 + w), X < 0), (1 / (1 + v), True))


register(scaled_erf(1), source="Williams 1998")
register(
    Erf(
        "probit",
        (1 + sp.erf(X / sp.sqrt(2))) / 2,
        tails=tails(2, (0,), (1,)),
        steepness=1 / sp.sqrt(2),
        offset=1,
    ),
    "normal_cdf",
    "gaussian_cdf",
    source="Bliss 1934; kernel: Williams 1998",
)
register(
    Activation("tanh", sp.tanh(X), tails=tails(1, *_ODD)), source="LeCun, Bottou, Orr, Mueller 1998"
)
register(
    Activation("sigmoid", 1 / (1 + sp.exp(-X)), stable=(sigmoid(X),), tails=tails(2, (0,), (1,))),
    "logistic",
    source="Verhulst 1838; Rumelhart, Hinton, Williams 1986",
)
register(
    Activation("softsign", X / (1 + sp.Abs(X)), (sp.Integer(0),), tails=tails(0, *_ODD)),
    source="Bergstra, Desjardins, Lamblin, Bengio 2009",
)
register(
    Activation("atan", sp.atan(X), tails=tails(1, (-sp.pi / 2,), (sp.pi / 2,))),
    "arctan",
    source="Kamruzzaman, Aziz 2002",
)

__all__ = ["Erf", "scaled_erf", "sigmoid"]
