"""Truncated Taylor series in one perturbation: derivatives of a whole network from one pass.

A :class:`Jet` holds the coefficients ``a_0, a_1, ..., a_n`` of ``a_0 + a_1 e + ... + a_n e^n``; each coefficient is a
number of some field (a float, a NumPy array, an mpmath or SymPy number). Rules written with ``+ - * /`` and
:func:`sqrt` work on jets unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Number = Any


@dataclass(frozen=True, eq=False)
class Jet:
    """The truncated series ``sum_k coefficients[k] e^k``."""

    coefficients: tuple[Number, ...]

    __array_ufunc__ = None  # so that NumPy arrays on the left defer to the jet's own arithmetic

    @classmethod
    def variable(cls, value: Number, order: int, direction: Number = 1) -> Jet:
        """``value + direction * e`` to the given order."""
        zero = value * 0
        return cls((value, zero + direction, *([zero] * (order - 1)))[: order + 1])

    @property
    def order(self) -> int:
        """The highest power kept."""
        return len(self.coefficients) - 1

    @property
    def value(self) -> Number:
        """The constant term."""
        return self.coefficients[0]

    def __add__(self, other: Number) -> Jet:
        if isinstance(other, Jet):
            return Jet(tuple(a + b for a, b in zip(self.coefficients, other.coefficients, strict=True)))
        return Jet((self.value + other, *self.coefficients[1:]))

    __radd__ = __add__

    def __neg__(self) -> Jet:
        return Jet(tuple(-a for a in self.coefficients))

    def __sub__(self, other: Number) -> Jet:
        return self + (-other)

    def __rsub__(self, other: Number) -> Jet:
        return (-self) + other

    def __mul__(self, other: Number) -> Jet:
        if isinstance(other, Jet):
            a, b = self.coefficients, other.coefficients
            return Jet(tuple(sum(a[i] * b[k - i] for i in range(k + 1)) for k in range(len(a))))
        return Jet(tuple(a * other for a in self.coefficients))

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Jet:
        if not isinstance(other, Jet):
            return Jet(tuple(a / other for a in self.coefficients))
        b = other.coefficients
        quotient: list[Number] = []
        for k, a in enumerate(self.coefficients):
            quotient.append((a - sum(quotient[i] * b[k - i] for i in range(k))) / b[0])
        return Jet(tuple(quotient))

    def __rtruediv__(self, other: Number) -> Jet:
        return Jet((self.value * 0 + other, *(a * 0 for a in self.coefficients[1:]))) / self

    def sqrt(self, root: Callable[[Number], Number]) -> Jet:
        """The square root, given the field's own square root for the constant term."""
        a = self.coefficients
        out = [root(a[0])]
        for k in range(1, len(a)):
            inner = sum(out[i] * out[k - i] for i in range(1, k))
            out.append((a[k] - inner) / (2 * out[0]))
        return Jet(tuple(out))

    def compose(self, outer: Sequence[Number]) -> Jet:
        """The series of ``f(self)`` from ``outer[k] = f^{(k)}(self.value) / k!`` (Faa di Bruno).

        Terms that vanish by order are never formed, so an infinite ``outer[k]`` (a kinked activation at ``c = 1``)
        reaches only the coefficients of order ``k`` and above.
        """
        result = [outer[0], *([self.value * 0] * self.order)]
        power: list[Number] = list(self.coefficients)  # coefficients of (self - value)^k, valid from index k on
        for k in range(1, self.order + 1):
            if k > 1:
                power = [
                    sum(power[i] * self.coefficients[j - i] for i in range(k - 1, j)) if j >= k else 0 for j in range(self.order + 1)
                ]
            for j in range(k, self.order + 1):
                result[j] = result[j] + outer[k] * power[j]
        return Jet(tuple(result))
