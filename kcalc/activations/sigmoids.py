"""Bounded, S-shaped activations."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.registry import register
from kcalc.fields import Field, Number


@dataclass(frozen=True, eq=False, repr=False)
class Erf(Activation):
    """erf(x): with s = 2q/(1+2q) and t = 2 sqrt(q1 q2)/sqrt((1+2q1)(1+2q2)), Q = (2/pi) asin s and
    C = asin(t c)/sqrt(asin s1 asin s2)  [Williams 1998; kernel calculus section 3].
    """

    closed_in_numpy = True

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return 0 * q

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return 2 / field.sqrt(field.pi * (1 + 2 * q))

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return 2 * field.asin(2 * q / (1 + 2 * q)) / field.pi

    def _norm(self, q1: Number, q2: Number, field: Field) -> Number:
        return field.sqrt(field.asin(2 * q1 / (1 + 2 * q1)) * field.asin(2 * q2 / (1 + 2 * q2)))

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        product = (1 + 2 * q1) * (1 + 2 * q2)
        t = 2 * field.sqrt(q1 * q2) / field.sqrt(product)
        cos_one = field.sqrt((1 + 2 * q1 + 2 * q2) / product)
        cos_here = field.sqrt((1 + 2 * q1 + 2 * q2) / product + t**2 * field.sine(gap) ** 2)
        norm = self._norm(q1, q2, field)
        drop = field.asin_difference(t, t * field.cosine(gap), t * gap, cos_one, cos_here)
        return (norm - field.asin(t) + drop) / norm

    def _closed_derivatives(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        product = (1 + 2 * q1) * (1 + 2 * q2)
        t = 2 * field.sqrt(q1 * q2 / product)
        cos_square = (1 + 2 * q1 + 2 * q2) / product + t**2 * field.sine(gap) ** 2
        slope = t / field.sqrt(cos_square) / self._norm(q1, q2, field)
        return slope, slope * t**2 * field.cosine(gap) / cos_square


_SIGMOID = (1 + sp.tanh(X / 2)) / 2

register(Erf("erf", sp.erf(X)))
register(Activation("tanh", sp.tanh(X)))
register(Activation("sigmoid", 1 / (1 + sp.exp(-X)), stable=(_SIGMOID,)), "logistic")
register(Activation("softsign", X / (1 + sp.Abs(X)), (sp.Integer(0),)))
register(Activation("atan", sp.atan(X)), "arctan")
