"""Truncated Taylor series in one perturbation: derivatives of a whole network from one pass.

A :class:`Jet` contains the coefficients ``a_0, a_1, ..., a_n`` of ``a_0 + a_1 e + ... + a_n e^n``.
Each coefficient is a number of some field: a float, a NumPy array, an mpmath or SymPy number. Rules
written with ``+ - * /`` and :func:`sqrt` work on jets unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .systems import Field

Number = Any


@dataclass(frozen=True, eq=False)
class Jet:
    """The truncated series ``sum_k coefficients[k] e^k``."""

    coefficients: tuple[Number, ...]

    __array_ufunc__ = None  # NumPy arrays on the left defer to the jet's arithmetic

    @classmethod
    def variable(cls, value: Number, order: int, direction: Number = 1) -> Jet:
        """Return ``value + direction * e`` to the given order."""
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
            return Jet(
                tuple(a + b for a, b in zip(self.coefficients, other.coefficients, strict=True))
            )
        return Jet((self.value + other, *self.coefficients[1:]))

    __radd__ = __add__

    def __neg__(self) -> Jet:
        return Jet(tuple(-a for a in self.coefficients))

    def __sub__(self, other: Number) -> Jet:
        return self + (-other)

    def __rsub__(self, other: Number) -> Jet:
        return Jet((other - self.value, *(-a for a in self.coefficients[1:])))

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

    def __pow__(self, exponent: int) -> Jet:
        if not isinstance(exponent, int) or exponent < 0:
            return NotImplemented
        result = Jet((self.value * 0 + 1, *(a * 0 for a in self.coefficients[1:])))
        for _ in range(exponent):
            result = result * self
        return result

    def sqrt(self, root: Callable[[Number], Number]) -> Jet:
        """Return the square root, given the field's square root for the constant term."""
        a = self.coefficients
        out = [root(a[0])]
        for k in range(1, len(a)):
            inner = sum(out[i] * out[k - i] for i in range(1, k))
            out.append((a[k] - inner) / (2 * out[0]))
        return Jet(tuple(out))

    def compose(self, outer: Sequence[Number]) -> Jet:
        """Return the series of ``f(self)``, given ``outer[k] = f^{(k)}(self.value) / k!``.

        Terms beyond the order are never computed. An infinite ``outer[k]`` (a kinked activation at
        ``c = 1``) therefore affects only coefficients of order ``k`` and above.
        """
        result = [outer[0], *([self.value * 0] * self.order)]
        # coefficients of (self - value)^k, valid from index k
        power: list[Number] = list(self.coefficients)
        for k in range(1, self.order + 1):
            if k > 1:
                power = [
                    sum(power[i] * self.coefficients[j - i] for i in range(k - 1, j))
                    if j >= k
                    else 0
                    for j in range(self.order + 1)
                ]
            for j in range(k, self.order + 1):
                result[j] = result[j] + outer[k] * power[j]
        return Jet(tuple(result))


class JetField(Field):
    """Jets over another field, for Taylor coefficients of any order.

    Closed forms written over a field give these coefficients when they are evaluated on jets.

    For a function with an algebraic derivative ``f' = r(x)``, ``x' r(x)`` is integrated term by
    term.
    """

    def __init__(self, base: Field) -> None:
        self.base = base
        self.name = f"jets over {base.name}"
        self.pi = base.pi

    def number(self, value: object) -> Number:
        """Return jets unchanged, and other values as numbers of the base field."""
        return value if isinstance(value, Jet) else self.base.number(value)

    def _integral(self, x: Jet, value: Number, rate: Jet) -> Jet:
        """Return the series with the given constant term and the derivative ``x' rate``."""
        out = [value]
        for k in range(1, x.order + 1):
            out.append(
                sum(i * x.coefficients[i] * rate.coefficients[k - i] for i in range(1, k + 1)) / k
            )
        return Jet(tuple(out))

    def _lifted(self, name: str, x: Number, rate: Callable[[Jet], Jet]) -> Number:
        plain = getattr(self.base, name)
        return self._integral(x, plain(x.value), rate(x)) if isinstance(x, Jet) else plain(x)

    def sqrt(self, x: Number) -> Number:
        return x.sqrt(self.base.sqrt) if isinstance(x, Jet) else self.base.sqrt(x)

    def exp(self, x: Number) -> Number:
        if not isinstance(x, Jet):
            return self.base.exp(x)
        out = [self.base.exp(x.value)]
        for k in range(1, x.order + 1):
            out.append(sum(i * x.coefficients[i] * out[k - i] for i in range(1, k + 1)) / k)
        return Jet(tuple(out))

    def expm1(self, x: Number) -> Number:
        if not isinstance(x, Jet):
            return self.base.expm1(x)
        return Jet((self.base.expm1(x.value), *self.exp(x).coefficients[1:]))

    def log(self, x: Number) -> Number:
        return self._lifted("log", x, lambda y: 1 / y)

    def sinh(self, x: Number) -> Number:
        return self._hyperbolic(x)[0] if isinstance(x, Jet) else self.base.sinh(x)

    def cosh(self, x: Number) -> Number:
        return self._hyperbolic(x)[1] if isinstance(x, Jet) else self.base.cosh(x)

    def _hyperbolic(self, x: Jet) -> tuple[Jet, Jet]:
        return self._oscillating(x, self.base.sinh(x.value), self.base.cosh(x.value), 1)

    def sin(self, x: Number) -> Number:
        return self._circular(x)[0] if isinstance(x, Jet) else self.base.sin(x)

    def cos(self, x: Number) -> Number:
        return self._circular(x)[1] if isinstance(x, Jet) else self.base.cos(x)

    def _circular(self, x: Jet) -> tuple[Jet, Jet]:
        return self._oscillating(x, self.base.sin(x.value), self.base.cos(x.value), -1)

    @staticmethod
    def _oscillating(x: Jet, first: Number, second: Number, sign: int) -> tuple[Jet, Jet]:
        """Return the pair (s, c) with ``s' = c`` and ``c' = sign s``."""
        s, c = [first], [second]
        for k in range(1, x.order + 1):
            rows = range(1, k + 1)
            s.append(sum(i * x.coefficients[i] * c[k - i] for i in rows) / k)
            c.append(sign * sum(i * x.coefficients[i] * s[k - i] for i in rows) / k)
        return Jet(tuple(s)), Jet(tuple(c))

    def asin(self, x: Number) -> Number:
        return self._lifted("asin", x, lambda y: 1 / self.sqrt(1 - y * y))

    def acos(self, x: Number) -> Number:
        return self._lifted("acos", x, lambda y: -1 / self.sqrt(1 - y * y))

    def atan(self, x: Number) -> Number:
        return self._lifted("atan", x, lambda y: 1 / (1 + y * y))

    def erf(self, x: Number) -> Number:
        return self._lifted(
            "erf", x, lambda y: 2 / self.base.sqrt(self.base.pi) * self.exp(-(y * y))
        )

    def angle(self, gap: Number) -> Number:
        return self._lifted("angle", gap, lambda u: 1 / self.sqrt(u * (2 - u)))

    def sine_excess(self, gap: Number) -> Number:
        return self._lifted("sine_excess", gap, self.angle)
