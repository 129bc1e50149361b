"""Polynomials: their kernels are polynomials in c."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.registry import register
from kcalc.fields import Field, Number


@dataclass(frozen=True, eq=False, repr=False)
class Polynomial(Activation):
    """p(x) = sum_m p_m x^m: Gamma(c) = sum_n n! A_n(q1) A_n(q2) c^n where p(sqrt q z) = sum_n A_n(q) He_n(z)."""

    closed_in_numpy = True

    @cached_property
    def _coefficients(self) -> tuple[sp.Expr, ...]:
        return tuple(reversed(sp.Poly(self.expr, X).all_coeffs()))

    def _hermite(self, n: int, q: Number, field: Field) -> Number:
        """A_n(q) = sum_j p_(n+2j) q^(n/2+j) (n+2j)!/(2^j j! n!)."""
        root = field.sqrt(q)
        total = 0 * q
        for m in range(n, len(self._coefficients), 2):
            j = (m - n) // 2
            weight = sp.Rational(math.factorial(m), 2**j * math.factorial(j) * math.factorial(n))
            total = total + field.number(self._coefficients[m] * weight) * root**m
        return total

    def _products(self, q1: Number, q2: Number, field: Field) -> list[Number]:
        """n! A_n(q1) A_n(q2) for n = 0, 1, ..."""
        degree = len(self._coefficients)
        return [math.factorial(n) * self._hermite(n, q1, field) * self._hermite(n, q2, field) for n in range(degree)]

    def _norm(self, q1: Number, q2: Number, field: Field) -> Number:
        return field.sqrt(sum(self._products(q1, q1, field)) * sum(self._products(q2, q2, field)))

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return self._hermite(0, q, field)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return self._hermite(1, q, field) / field.sqrt(q) if len(self._coefficients) > 1 else 0 * q

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return sum(self._products(q, q, field))

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        c, norm, products = field.cosine(gap), self._norm(q1, q2, field), self._products(q1, q2, field)
        suffix, quotient = 0 * gap, 0 * gap
        for product in reversed(products[1:]):  # (1 - c^n)/(1 - c) = 1 + c + ... + c^(n-1)
            suffix = suffix + product
            quotient = quotient * c + suffix
        return ((norm - sum(products)) + gap * quotient) / norm

    def _closed_derivatives(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        c, norm, products = field.cosine(gap), self._norm(q1, q2, field), self._products(q1, q2, field)
        slope, bend = 0 * gap, 0 * gap
        for n in range(len(products) - 1, 0, -1):
            slope = slope * c + n * products[n]
        for n in range(len(products) - 1, 1, -1):
            bend = bend * c + n * (n - 1) * products[n]
        return slope / norm, bend / norm


def polynomial(expr: sp.Expr, name: str) -> Polynomial:
    """The activation of a polynomial in X."""
    poly = sp.Poly(expr, X)
    degree = poly.degree() if len(poly.terms()) == 1 else None
    return Polynomial(name, poly.as_expr(), (), None if degree is None else int(degree))


register(polynomial(X**2, "square"))
register(polynomial(X**3, "cube"), "cubic")
