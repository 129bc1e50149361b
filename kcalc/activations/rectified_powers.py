"""Rectified powers max(x, 0)^k and their kernels, the arc-cosine kernels of order k."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.closed import Closed, diverging
from kcalc.activations.parameters import whole
from kcalc.activations.rectifiers import relu
from kcalc.activations.registry import register
from kcalc.fields import Field, Number

_ORIGIN = (sp.Integer(0),)


def _double_factorial(n: int) -> int:
    """Return n!! = n (n-2) (n-4) ..., and 1 for n <= 0."""
    return math.prod(range(n, 0, -2))


@dataclass(frozen=True, eq=False, repr=False)
class RectifiedPower(Closed):
    """The activation max(x, 0)^k, with the arc-cosine kernel of order k [Cho and Saul 2009].

    Q = (2k-1)!! q^k/2 and C_k = J_k/(pi (2k-1)!!) at every q1, q2.

    Here t = arccos c, J_0 = pi - t, J_1 = sin t + (pi - t) cos t and
    J_k = (2k-1) c J_(k-1) + (k-1)^2 (1-c^2) J_(k-2). The derivative is C_k' = k^2/(2k-1) C_(k-1).
    In the same recursion for 1 - C_k all terms have the same sign for c >= 0, so nothing cancels.
    """

    power: int = 2

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return self._half_moment(self.power, q, field)

    def _half_moment(self, k: int, q: Number, field: Field) -> Number:
        """Return E max(u, 0)^k = (k-1)!! q^(k/2)/2, divided by sqrt(pi/2) for odd k."""
        value = _double_factorial(k - 1) * (field.sqrt(q) ** k if k else q / q)
        return value / field.sqrt(2 * field.pi) if k % 2 else value / 2

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        if self.power == 0:
            return 1 / field.sqrt(2 * field.pi * q)
        return self.power * self._half_moment(self.power - 1, q, field)

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return _double_factorial(2 * self.power - 1) * (q**self.power if self.power else q / q) / 2

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        symbol = sp.Symbol("c", real=True)
        angular: list[sp.Expr] = [sp.Integer(1), symbol]
        # J_k = angular (pi - t) + straight sin t
        straight: list[sp.Expr] = [
            sp.Integer(0),
            sp.Integer(1),
        ]
        for k in range(2, self.power + 1):
            for parts in (angular, straight):
                parts.append(
                    sp.expand(
                        (2 * k - 1) * symbol * parts[-1]
                        + (k - 1) ** 2 * (1 - symbol**2) * parts[-2]
                    )
                )
        first, second = (parts[self.power].subs(symbol, c) for parts in (angular, straight))
        return (first * (sp.pi - sp.acos(c)) + second * sp.sqrt(1 - c**2)) / (
            _double_factorial(2 * self.power - 1) * sp.pi
        )

    def _gaps(self, gap: Number, field: Field) -> list[Number]:
        """Return 1 - C_j for j = 0 ... max(k, 1)."""
        c, square = field.cosine(gap), gap * (2 - gap)
        out = [field.angle(gap) / field.pi, gap - field.sine_excess(gap) / field.pi]
        for k in range(2, self.power + 1):
            share = Fraction((k - 1) ** 2, (2 * k - 1) * (2 * k - 3))
            beta, rest = field.number(share), field.number(1 - 2 * share)
            out.append(gap * (rest + beta * gap) + c * out[-1] + beta * square * out[-2])
        return out

    def _gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        return self._gaps(gap, field)[self.power]

    def _closed_derivatives(
        self, gap: Number, q1: Number, q2: Number, field: Field
    ) -> tuple[Number, Number]:
        return self._derivative(self.power, 1, gap, field), self._derivative(
            self.power, 2, gap, field
        )

    def _derivative(self, k: int, order: int, gap: Number, field: Field) -> Number:
        """Return the derivative of C_k with the given order.

        It is k^2/(2k-1) times the derivative of C_(k-1) with order ``order - 1``. The recursion
        ends with C_0' = 1/(pi sin t).
        """
        if order == 0:
            return 1 - self._gaps(gap, field)[k]
        if k > 0:
            return field.number(Fraction(k * k, 2 * k - 1)) * self._derivative(
                k - 1, order - 1, gap, field
            )
        sine = field.sine(gap)
        if order == 1:
            return diverging(1 / field.pi, sine, field)
        return diverging(field.cosine(gap) / field.pi, sine**3, field)


def rectified_power(k: Any) -> Activation:
    """Return max(x, 0)^k for k = 0 (heaviside), 1 (relu), ..., 5.

    Parameters
    ----------
    k
        The power, an integer from 0 to 5.

    Returns
    -------
    Activation
        The ``k``-th power of relu.

    Raises
    ------
    KcalcError
        For any other k.

    """
    power = whole("rectified_power", "k", k, 0, 5)
    if power == 1:
        return relu
    value = sp.Integer(1) if power == 0 else X**power
    name = "heaviside" if power == 0 else f"relu{power}"
    return RectifiedPower(
        name, sp.Piecewise((0, X < 0), (value, True)), _ORIGIN, power, power=power
    )


heaviside = register(
    rectified_power(0), "step", source="McCulloch, Pitts 1943; kernel: Cho, Saul 2009"
)
register(
    rectified_power(2),
    "relu_squared",
    "squared_relu",
    source="Cho, Saul 2009; So et al. 2021 (Primer)",
)
for _power in (3, 4, 5):
    register(
        rectified_power(_power), source="Cho, Saul 2009; Li, Tang, Yu 2020 (rectified power units)"
    )

__all__ = ["RectifiedPower", "heaviside", "rectified_power"]
