"""The moments of a squared norm, as floats with their logarithms, or as SymPy expressions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import sympy as sp

Number = Any
LARGEST = 307.0
DIGITS = 12


@dataclass(frozen=True)
class Moment:
    """The moments of a squared norm s.

    Values beyond the range of double precision are inf or 0; the logarithms remain valid. For
    networks with symbols, the values are SymPy expressions, and the logarithms are None.

    Attributes
    ----------
    mean
        E s.
    fourth
        E s^2.
    variance
        Var s.
    relative
        Var s / (E s)^2.
    log10_mean
        The logarithm of ``mean``, -inf for 0.
    log10_fourth
        The logarithm of ``fourth``, -inf for 0.
    log10_variance
        The logarithm of ``variance``, -inf for 0.

    """

    mean: Any
    fourth: Any
    variance: Any
    relative: Any
    log10_mean: float | None = None
    log10_fourth: float | None = None
    log10_variance: float | None = None

    @property
    def deviation(self) -> float | sp.Expr:
        """The standard deviation of s."""
        return (
            sp.sqrt(self.variance)
            if isinstance(self.variance, sp.Basic)
            else math.sqrt(self.variance)
        )

    @property
    def in_range(self) -> bool:
        """Whether all values are within the range of double precision."""
        logs = (self.log10_mean, self.log10_fourth, self.log10_variance)
        return all(v is None or v == -math.inf or abs(v) < LARGEST for v in logs)

    def subs(self, values: Any) -> Moment:
        """Substitute numbers for symbols; the results are floats once no symbol is left.

        Parameters
        ----------
        values
            {symbol or its name: number}.

        Returns
        -------
        Moment
            The moments at these values.

        """
        if not isinstance(self.mean, sp.Basic):
            return self
        second: Any = sp.sympify(self.mean, strict=True).subs(values)
        fourth: Any = sp.sympify(self.fourth, strict=True).subs(values)
        if second.free_symbols or fourth.free_symbols:
            return Moment.of_expressions(second, fourth)
        from .numbers import Numeric

        field = Numeric()
        with field.working():
            return Moment.of_balls(field.number(second), field.number(fourth))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, in which expressions and values beyond double precision are text.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {name: _plain(value) for name, value in vars(self).items()}

    @classmethod
    def of_balls(cls, mean: Number, fourth: Number) -> Moment:
        """Construct the moments from 128-bit balls; a variance whose ball contains 0 becomes 0."""
        variance = fourth - mean * mean
        if not variance > 0:
            variance = variance * 0
        relative = variance / (mean * mean) if mean > 0 else mean * 0
        return cls(
            _float(mean),
            _float(fourth),
            _float(variance),
            _float(relative),
            _log10(mean),
            _log10(fourth),
            _log10(variance),
        )

    @classmethod
    def of_expressions(cls, mean: sp.Expr, fourth: sp.Expr) -> Moment:
        """Construct the moments from SymPy expressions."""
        relative = fourth / mean**2 - 1 if mean != 0 else sp.Integer(0)
        return cls(mean, fourth, fourth - mean**2, relative)

    def text(self, name: str) -> str:
        """Format a value for a table; values beyond double precision are powers of ten."""
        value = getattr(self, name)
        if isinstance(value, sp.Basic):
            return str(value)
        log = getattr(self, f"log10_{name}", None)
        if log is not None and log != -math.inf and abs(log) >= LARGEST:
            whole = math.floor(log)
            return f"{10 ** (log - whole):.4f}e{whole:+d}"
        return f"{value:.6g}"


def _float(ball: Number) -> float:
    return float(ball.mid())


def _log10(ball: Number) -> float:
    middle = ball.mid()
    plain = float(middle)
    if 1e-300 < plain < 1e300:
        return math.log10(plain)
    if middle == 0:
        return -math.inf
    mantissa, exponent = middle.man_exp()
    man = abs(int(mantissa))
    shift = max(man.bit_length() - 60, 0)
    return math.log10(man >> shift) + (int(exponent) + shift) * math.log10(2)


def _plain(value: Any) -> Any:
    if isinstance(value, sp.Basic):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
