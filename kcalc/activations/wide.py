"""Arrays of floats with unlimited exponents, for intermediate values that would overflow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from kcalc.fields.expressions import CORNERED
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.process_state import lambdify

Array = np.ndarray

_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_FAR = 5000  # exponents this large overflow, and terms this much smaller do not affect a sum
_MOST = 500  # the largest power of a mantissa that is computed directly


@dataclass(frozen=True, eq=False)
class Wide:
    """Numbers ``mantissa * 2^exponent``; |mantissa| is 0 or in [1/2, 1), exponents are integers."""

    mantissa: Array
    exponent: Array

    __array_ufunc__ = None  # so NumPy numbers on the left defer to this class

    @classmethod
    def of(cls, values: Any, exponent: Any = 0.0) -> Wide:
        """Return ``values * 2^exponent``."""
        mantissa, shift = np.frexp(np.asarray(values, dtype=float))
        return cls(mantissa, np.where(mantissa == 0, 0.0, exponent + shift))

    def floats(self) -> Array:
        """Return the nearest floats, infinite or 0 beyond their range."""
        return _shifted(self.mantissa, self.exponent) + 0 * self.exponent

    def __add__(self, other: Any) -> Wide:
        other = _wide(other)
        sizes = [np.where(w.mantissa == 0, -np.inf, w.exponent) for w in (self, other)]
        top = np.maximum(*sizes)
        top = np.where(np.isneginf(top), 0.0, top)
        first, second = (_shifted(w.mantissa, w.exponent - top) for w in (self, other))
        return Wide.of(first + second + 0 * (self.exponent + other.exponent), top)

    __radd__ = __add__

    def __neg__(self) -> Wide:
        return Wide(-self.mantissa, self.exponent)

    def __sub__(self, other: Any) -> Wide:
        return self + -_wide(other)

    def __rsub__(self, other: Any) -> Wide:
        return -self + other

    def __mul__(self, other: Any) -> Wide:
        other = _wide(other)
        return Wide.of(self.mantissa * other.mantissa, self.exponent + other.exponent)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Wide:
        other = _wide(other)
        return Wide.of(self.mantissa / other.mantissa, self.exponent - other.exponent)

    def __rtruediv__(self, other: Any) -> Wide:
        return _wide(other) / self

    def __pow__(self, power: float) -> Wide:
        if abs(power) > _MOST:
            side = np.sign(self.mantissa) if power % 2 else np.abs(np.sign(self.mantissa))
            return exp(log(Wide(np.abs(self.mantissa), self.exponent)) * power) * Wide.of(side)
        whole = np.floor(self.exponent * power)
        return Wide.of(self.mantissa**power * np.exp2(self.exponent * power - whole), whole)

    def __rpow__(self, base: float) -> Wide:
        return exp(self * math.log(base))


def _shifted(mantissa: Array, exponent: Array) -> Array:
    """Return ``mantissa * 2^exponent`` as floats."""
    return np.ldexp(mantissa, np.clip(np.nan_to_num(exponent), -_FAR, _FAR).astype(int))


def _wide(value: Any) -> Wide:
    return value if isinstance(value, Wide) else Wide.of(value)


def exp(x: Any) -> Wide:
    """Return e^x; its only significant error comes from the rounding of x."""
    u = _wide(x).floats()
    power = np.rint(u / math.log(2))
    return Wide.of(np.exp(u - power * _LN2_HIGH - power * _LN2_LOW), power)


def log(x: Any) -> Wide:
    """Return log x."""
    x = _wide(x)
    return Wide.of(np.log(x.mantissa) + x.exponent * math.log(2))


def _sinh(x: Any) -> Wide:
    return (exp(x) - exp(-x)) / 2


def _cosh(x: Any) -> Wide:
    return (exp(x) + exp(-x)) / 2


def _of_floats(function: Callable[[Array], Array]) -> Callable[[Any], Wide]:
    return lambda x: Wide.of(function(_wide(x).floats()))


def _functions() -> dict[str, Any]:
    from scipy import special

    plain: dict[str, Any] = {"tanh": np.tanh, "sin": np.sin, "cos": np.cos, "atan": np.arctan}
    plain |= {"asinh": np.arcsinh, "erf": special.erf, "erfc": special.erfc}
    own = {"exp": exp, "log": log, "sinh": _sinh, "cosh": _cosh}
    own |= {"sech": lambda x: 1 / _cosh(x), "sqrt": lambda x: x**0.5, "pi": math.pi}
    return {name: _of_floats(function) for name, function in plain.items()} | own


_KNOWN = (sp.exp, sp.log, sp.sinh, sp.cosh, sp.sech, sp.tanh, sp.sin, sp.cos, sp.atan, sp.asinh)
_KNOWN += (sp.erf, sp.erfc)


@lru_cache(maxsize=1024)
def compile_wide(expr: sp.Expr, symbol: sp.Symbol) -> Callable[[Array], Array]:
    """Compile a smooth expression to a function of float arrays; nan if the value is not real.

    Raises KcalcError for unsupported functions.
    """
    unknown = [f for f in expr.atoms(sp.Function, *CORNERED) if not isinstance(f, _KNOWN)]
    if unknown:
        raise KcalcError(
            f"{glimpse(unknown[0])} is not supported if intermediate values overflow double "
            "precision"
        )
    function = lambdify([symbol], expr, modules=[_functions(), "math"], cse=True)

    def values(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.broadcast_to(_wide(function(Wide.of(x))).floats(), x.shape)

    return values
