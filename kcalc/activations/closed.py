"""Base classes for activations with an elementary Gamma(c) = E[phi(u) phi(v)] at every (q1, q2).

Each activation has two forms: Gamma(c) as in textbooks, for SymPy, and Gamma(1) - Gamma(c) without
cancellation, for floating point. If the norms in the denominator of C use the same expression as
Gamma(1), the gap 1 - C is exactly 0 at c = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mpmath
import numpy as np
import sympy as sp

from kcalc.activations.base import Activation
from kcalc.fields import NUMPY, SYMPY, Field, Number
from kcalc.gaussian.expectations.single import pair_distance

NEARLY_ONE = 1e-7  # below this gap, unequal q values need an integral to keep the digits


def diverging(numerator: Number, denominator: Number, field: Field) -> Number:
    """Return numerator/denominator, or infinity if the denominator is zero.

    For example, the denominator of a derivative of C is zero at c = +-1.
    """
    try:
        ratio = numerator / denominator
    except ZeroDivisionError:
        return numerator * mpmath.inf
    return sp.oo * numerator if field is SYMPY and ratio.has(sp.zoo) else ratio


def half_distance(q1: Number, q2: Number, field: Field) -> Number:
    """Return (sqrt q1 - sqrt q2)^2/2 = Var(u - v)/2 at c = 1; exactly 0 for q1 = q2."""
    distance = field.sqrt(q1) - field.sqrt(q2)
    return distance * distance / 2


def whole_power(x: Number, n: int) -> Number:
    """Return x^n for n >= 1 by repeated products, because balls around 0 do not support ``**``."""
    return math.prod([x] * (n - 1), start=x)


@dataclass(frozen=True, eq=False, repr=False)
class Closed(Activation):
    """An activation with closed forms for Q and C.

    Subclasses define ``_cosine`` and ``_gap``, or the hooks of :class:`ClosedKernel`.
    """

    closed_in_numpy = True

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        """Return C in textbook form, as a SymPy expression."""
        raise NotImplementedError

    def _gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        """Return 1 - C(1 - gap) without cancellation."""
        raise NotImplementedError

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        if field is SYMPY:
            return 1 - self._cosine(SYMPY.cosine(gap), q1, q2)
        return self._gap(gap, q1, q2, field)


@dataclass(frozen=True, eq=False, repr=False)
class ClosedKernel(Closed):
    """A :class:`Closed` activation defined by Gamma(1), Gamma(1) - Gamma(c), Gamma' and Gamma''.

    Q(q) is Gamma(1) at q1 = q2 = q.
    """

    def _top(self, q1: Number, q2: Number, field: Field) -> Number:
        """Return Gamma(1) = E[phi(sqrt(q1) z) phi(sqrt(q2) z)]."""
        raise NotImplementedError

    def _drop(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        """Return Gamma(1) - Gamma(1 - gap) without cancellation.

        Implementations must not use tanh, which jets do not support.
        """
        raise NotImplementedError

    def _slopes(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        """Return (Gamma', Gamma'') at c = 1 - gap."""
        raise NotImplementedError

    def _norm(self, q1: Number, q2: Number, field: Field) -> Number:
        return field.sqrt(
            self._closed_second_moment(q1, field) * self._closed_second_moment(q2, field)
        )

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return self._top(q, q, field)

    def _gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        norm = self._norm(q1, q2, field)
        apart = (norm - self._top(q1, q2, field)) / norm
        drop = self._drop(gap, q1, q2, field) / norm
        return (self._refined(apart, drop, q1, q2) if field is NUMPY else apart) + drop

    def _refined(self, apart: Number, drop: Number, q1: Number, q2: Number) -> Number:
        """Return 1 - C(1, q1, q2), to full accuracy even if q1 and q2 are almost equal.

        ``apart`` is the same value, computed as a difference. This difference loses digits if
        ``apart + drop``, which is 1 - C(c), is small. In that case, 1 - C(1) is integrated instead.
        """
        close = np.asarray((apart + drop < NEARLY_ONE) & (q1 != q2))
        if not close.any():
            return apart
        out, first, second = (
            np.array(np.broadcast_to(a, np.broadcast(apart, drop).shape)) for a in (apart, q1, q2)
        )
        rows, inverse = np.unique(
            np.stack([first[close], second[close]]), axis=1, return_inverse=True
        )
        found = [pair_distance(self, *map(float, pair)) for pair in rows.T]  # type: ignore[arg-type]
        out[close] = np.array(found)[inverse.ravel()]
        return out[()]

    def _closed_derivatives(
        self, gap: Number, q1: Number, q2: Number, field: Field
    ) -> tuple[Number, Number]:
        norm = self._norm(q1, q2, field)
        slope, bend = self._slopes(gap, q1, q2, field)
        return slope / norm, bend / norm
