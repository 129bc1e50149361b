"""Polynomial activations, whose kernels are polynomials in c."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy as sp

from kcalc.activations.base import X
from kcalc.activations.closed import Closed, whole_power
from kcalc.activations.parameters import whole
from kcalc.activations.registry import register
from kcalc.fields import NUMPY, SYMPY, Field, Number, mpmath_field
from kcalc.fields.degrees import poly
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.quadrature import Array

_CANCELLED = 0.2  # sums below this share of their terms' absolute sum need more digits
_HIGHEST = 30


@dataclass(frozen=True, eq=False, repr=False)
class Polynomial(Closed):
    """The polynomial p(x) = sum_m p_m x^m.

    Gamma(c) = sum_n n! A_n(q1) A_n(q2) c^n where p(sqrt q z) = sum_n A_n(q) He_n(z).
    """

    closed_over_jets = False  # coefficients may cancel

    @cached_property
    def _coefficients(self) -> tuple[sp.Expr, ...]:
        return tuple(reversed(poly(self.expr, X).all_coeffs()))

    def _hermite(self, n: int, q: Number, field: Field) -> Number:
        """Return A_n(q) = sum_j p_(n+2j) q^(n/2+j) (n+2j)!/(2^j j! n!)."""
        terms = [0 * q]
        for m in range(n, len(self._coefficients), 2):
            j = (m - n) // 2
            weight = sp.Rational(math.factorial(m), 2**j * math.factorial(j) * math.factorial(n))
            power = q ** (m // 2) if m > 1 else 1
            terms.append(
                field.number(self._coefficients[m] * weight)
                * (power * field.sqrt(q) if m % 2 else power + 0 * q)
            )
        total = sum(terms)
        return (
            self._restored(n, q, total, sum(abs(term) for term in terms))
            if field is NUMPY
            else total
        )

    def _restored(self, n: int, q: Number, total: Number, size: Number) -> Array:
        """Return A_n in float64, recomputed with at least 50 digits if its terms cancel.

        For example, the terms of He_n cancel near q = 1.
        """
        lost = np.abs(total) < _CANCELLED * size
        if not np.any(lost):
            return total
        exact = mpmath_field(50 + 2 * len(self._coefficients))
        values, inverse = np.unique(np.asarray(q)[lost], return_inverse=True)
        out = np.array(total, dtype=float)
        out[lost] = np.array(
            [float(self._hermite(n, exact.number(float(value)), exact)) for value in values]
        )[inverse]
        return out

    def _products(self, q1: Number, q2: Number, field: Field) -> list[Number]:
        """Return n! A_n(q1) A_n(q2) for n = 0, 1, ..."""
        degree = len(self._coefficients)
        return [
            field.number(math.factorial(n))
            * self._hermite(n, q1, field)
            * self._hermite(n, q2, field)
            for n in range(degree)
        ]

    def _norm(self, q1: Number, q2: Number, field: Field) -> Number:
        return field.sqrt(sum(self._products(q1, q1, field)) * sum(self._products(q2, q2, field)))

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return self._hermite(0, q, field)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return self._hermite(1, q, field) / field.sqrt(q) if len(self._coefficients) > 1 else 0 * q

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return sum(self._products(q, q, field))

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        gamma = sum(product * c**n for n, product in enumerate(self._products(q1, q2, SYMPY)))
        ratio = gamma / self._norm(q1, q2, SYMPY)
        return (
            sp.Add(*sp.cancel(ratio).as_ordered_terms())
            if self.degree is not None and q1 == q2
            else sp.factor_terms(ratio)
        )  # type: ignore[return-value]

    def _gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        c = field.cosine(gap)
        norm = self._norm(q1, q2, field)
        products = self._products(q1, q2, field)
        suffix, quotient = 0 * gap, 0 * gap
        for product in reversed(products[1:]):  # (1 - c^n)/(1 - c) = 1 + c + ... + c^(n-1)
            suffix = suffix + product
            quotient = quotient * c + suffix
        return ((norm - sum(products)) + gap * quotient) / norm

    def _closed_derivatives(
        self, gap: Number, q1: Number, q2: Number, field: Field
    ) -> tuple[Number, Number]:
        c = field.cosine(gap)
        norm = self._norm(q1, q2, field)
        products = self._products(q1, q2, field)
        slope, bend = 0 * gap, 0 * gap
        for n in range(len(products) - 1, 0, -1):
            slope = slope * c + n * products[n]
        for n in range(len(products) - 1, 1, -1):
            bend = bend * c + n * (n - 1) * products[n]
        return slope / norm, bend / norm


@dataclass(frozen=True, eq=False, repr=False)
class HermitePolynomial(Polynomial):
    """The probabilists' Hermite polynomial He_n.

    A_(n-2j)(q) = n!/(2^j j! (n-2j)!) (q-1)^j q^(n/2-j); C = c^n at q = 1.
    """

    order: int = 1

    def _hermite(self, n: int, q: Number, field: Field) -> Number:
        j, odd = divmod(self.order - n, 2)
        if odd:
            return 0 * q
        weight = field.number(
            math.factorial(self.order) // (2**j * math.factorial(j) * math.factorial(n))
        )
        power = q ** (n // 2) if n > 1 else q / q
        return (
            weight
            * (whole_power(q - 1, j) if j else 1)
            * (power * field.sqrt(q) if n % 2 else power)
        )

    def _compile(self, n: int) -> Callable[[Array], Array]:
        """Return He_m^(n) = m!/(m-n)! He_(m-n), by the three-term recurrence.

        Summing the powers of x would lose digits to cancellation.
        """
        top = self.order - n

        def values(x: Array) -> Array:
            x = np.asarray(x, dtype=float)
            before = np.zeros_like(x)
            here = np.ones_like(x) * (math.perm(self.order, n) if top >= 0 else 0)
            for k in range(max(top, 0)):
                before, here = here, x * here - k * before
            return here

        return values


def polynomial(expr: sp.Expr, name: str) -> Polynomial:
    """Make an activation from a polynomial in X.

    The polynomial keeps its given form, because expanding it would lose digits. Hermite polynomials
    are recognised.
    """
    expanded = poly(expr, X)
    order = int(expanded.degree())
    coefficients = {power: coefficient for (power,), coefficient in expanded.terms()}
    if 2 <= order <= _HIGHEST and coefficients == _hermite_coefficients(order):
        return replace(hermite(order), name=name)
    degree = order if len(coefficients) == 1 else None
    return Polynomial(name, expr, (), degree)


def _hermite_coefficients(n: int) -> dict[int, int]:
    """Return {power: coefficient} of He_n; for x^(n-2j) it is (-1)^j n!/(2^j j! (n-2j)!)."""
    sizes = {
        n - 2 * j: math.factorial(n) // (2**j * math.factorial(j) * math.factorial(n - 2 * j))
        for j in range(n // 2 + 1)
    }
    return {power: (-1) ** ((n - power) // 2) * size for power, size in sizes.items()}


def hermite(n: Any) -> HermitePolynomial:
    """Return the probabilists' Hermite polynomial He_n, for n = 1 ... 30.

    Parameters
    ----------
    n
        The degree, an integer from 1 to 30.

    Returns
    -------
    HermitePolynomial
        The polynomial as an activation.

    Raises
    ------
    KcalcError
        For any other n.

    """
    order = whole("hermite", "n", n, 1, _HIGHEST)
    return HermitePolynomial(
        f"hermite{order}",
        sp.Add(*(k * X**power for power, k in _hermite_coefficients(order).items())),
        (),
        1 if order == 1 else None,
        order=order,
    )


register(
    polynomial(X**2, "square"), source="polynomial networks; Livni, Shalev-Shwartz, Shamir 2014"
)
register(polynomial(X**3, "cube"), "cubic", source="Chen, Manning 2014")
for _order in (2, 3, 4):
    register(hermite(_order), source="Hermite 1864; Daniely, Frostig, Singer 2016")

__all__ = ["HermitePolynomial", "Polynomial", "hermite", "polynomial"]
