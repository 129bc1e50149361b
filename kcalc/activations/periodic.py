"""Sines, exponentials and the Gaussian: activations whose expectations are elementary."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.registry import register
from kcalc.fields import Field, Number


def _half_square(gap: Number, q1: Number, q2: Number, field: Field) -> Number:
    """Var(u - v)/2 = (q1 + q2)/2 - c sqrt(q1 q2), without cancellation near c = 1."""
    return (field.sqrt(q1) - field.sqrt(q2)) ** 2 / 2 + field.sqrt(q1 * q2) * gap


@dataclass(frozen=True, eq=False, repr=False)
class Wave(Activation):
    """sin x (parity -1) or cos x (parity +1): Gamma = (e^(-Var(u-v)/2) + parity e^(-Var(u+v)/2))/2  [Rahimi and Recht 2007]."""

    parity: int = 1

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return field.exp(-q / 2) if self.parity > 0 else 0 * q

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return field.exp(-q / 2) if self.parity < 0 else 0 * q

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return (1 + self.parity * field.exp(-2 * q)) / 2

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        k = field.cosine(gap) * field.sqrt(q1 * q2)
        over = (field.cosh, field.sinh)[self.parity < 0]
        return 1 - over(k) / field.sqrt(over(q1) * over(q2))


@dataclass(frozen=True, eq=False, repr=False)
class Rbf(Activation):
    """sin x + cos x: Q = 1 and C = exp(-Var(u-v)/2), the Gaussian kernel."""

    closed_in_numpy = True

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return field.exp(-q / 2)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return field.exp(-q / 2)

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return q / q

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        return -field.expm1(-_half_square(gap, q1, q2, field))

    def _closed_derivatives(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        p, value = field.sqrt(q1 * q2), field.exp(-_half_square(gap, q1, q2, field))
        return p * value, p**2 * value


@dataclass(frozen=True, eq=False, repr=False)
class Exponential(Rbf):
    """e^x: Q = e^(2q), and the same C as sin + cos, exp(-Var(u-v)/2)."""

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return field.exp(q / 2)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return field.exp(q / 2)

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return field.exp(2 * q)


@dataclass(frozen=True, eq=False, repr=False)
class Gaussian(Activation):
    """e^(-x^2): Gamma = ((1+2q1)(1+2q2) - 4 c^2 q1 q2)^(-1/2), Q = (1+4q)^(-1/2)."""

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return 1 / field.sqrt(1 + 2 * q)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return 0 * q

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return 1 / field.sqrt(1 + 4 * q)

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        norm = field.sqrt(field.sqrt((1 + 4 * q1) * (1 + 4 * q2)))
        return 1 - norm / field.sqrt((1 + 2 * q1) * (1 + 2 * q2) - 4 * field.cosine(gap) ** 2 * q1 * q2)


register(Wave("sin", sp.sin(X), parity=-1), "sine")
register(Wave("cos", sp.cos(X), parity=1), "cosine")
register(Rbf("rbf", sp.sin(X) + sp.cos(X)), "sincos", "sin_plus_cos")
register(Exponential("exp", sp.exp(X)))
register(Gaussian("gaussian", sp.exp(-(X**2))))
