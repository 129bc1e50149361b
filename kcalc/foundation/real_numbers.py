"""Check real arguments: a single number, an array or a q value.

Numbers may come from Python, NumPy, mpmath or SymPy.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from .errors import KcalcError, glimpse
from .process_state import alone

Array = np.ndarray
EXACT = sp.Basic | Fraction | Decimal | mpmath.mpf | int
TINY = float(np.finfo(float).tiny)  # numbers below this lose digits


def refused(value: object, reason: str) -> KcalcError:
    """Return the error for a value that is not a finite real number."""
    return KcalcError(f"{glimpse(value, 80)} is not a finite real number: {reason}")


@alone
def closed_value(value: sp.Basic) -> sp.Expr:
    """Check that ``value`` is a real, finite SymPy number without free symbols.

    Raises KcalcError otherwise.
    """
    if not isinstance(value, sp.Expr):
        raise refused(value, "pass a number")
    if value.free_symbols:
        names = sorted(str(symbol) for symbol in value.free_symbols)
        hint = ", ".join(f"{name}: ..." for name in names)
        remedy = f"substitute numbers in the network or activation first: net.subs({{{hint}}})"
        raise KcalcError(f"{glimpse(value)} has free symbols ({', '.join(names)}); {remedy}")
    if value.is_real is False or value.has(sp.nan, sp.oo, -sp.oo, sp.zoo, sp.I):
        raise refused(value, "nan, infinite and complex values are not allowed")
    return value


def plain_number(value: object) -> int | float | Fraction | sp.Expr:
    """Convert a number from the caller; every numerical argument passes through this function.

    It accepts finite real scalars of Python, NumPy, mpmath and SymPy.
    """
    if isinstance(value, sp.Basic):
        return value if isinstance(value, sp.Expr) and value.free_symbols else closed_value(value)
    if isinstance(value, bool | np.bool_):
        raise refused(value, "a Boolean is not a number")
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, Decimal) and value.is_finite():
        return Fraction(value)
    if isinstance(value, Fraction):
        return value
    if isinstance(value, numbers.Real | np.floating | mpmath.mpf) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    ):
        number = float(np.float64(value))  # pyright: ignore[reportArgumentType]
        if not math.isfinite(number):
            raise refused(value, "nan and infinite values are not allowed")
        return number
    raise refused(value, f"it is a {type(value).__name__}")


@lru_cache(maxsize=4096)
@alone
def _sympy_float(value: sp.Basic) -> float:
    """Convert a SymPy number to float; cached, because the same numbers recur often."""
    return _as_float(closed_value(value))


def _as_float(value: int | float | Fraction | sp.Expr) -> float:
    try:
        number = float(value)
    except (TypeError, OverflowError) as error:
        raise refused(value, "it is not real, or beyond double precision") from error
    if not math.isfinite(number):
        raise refused(value, "it is beyond double precision")
    return number


def floats(value: object) -> Any:
    """Convert a value to a float, or to a float64 array of the same shape.

    Raises KcalcError for nan, infinities, complex values and text.
    """
    if isinstance(value, sp.Basic):
        return _sympy_float(value)
    if isinstance(value, np.ndarray | list | tuple):
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise refused(value, "its rows have different lengths") from error
        if array.ndim > 0:
            return _float_array(array)
    return _as_float(plain_number(value))


def _float_array(values: Array) -> Array:
    if values.dtype == object:
        return np.array([floats(value) for value in values.ravel()], dtype=float).reshape(
            values.shape
        )
    if not (np.issubdtype(values.dtype, np.floating) or np.issubdtype(values.dtype, np.integer)):
        raise refused(values.dtype, "an array of real numbers is needed")
    out = values.astype(np.float64)
    if not np.all(np.isfinite(out)):
        raise refused("array", "it contains nan or infinite values")
    return out


# -- arguments -------------------------------------------------------------------------------------


def real_array(value: Any, what: str) -> Array:
    """Convert ``value`` to a float64 array.

    Raises KcalcError for text, complex numbers, nan, infinities or symbols.
    """
    if isinstance(value, sp.Basic) and value.free_symbols:
        raise KcalcError(
            f"{what} = {value} contains symbols; evaluate the map with numbers, or use .expr for "
            "the symbolic map"
        )
    array = raw_array(value, what)
    if array.dtype.kind == "b":
        raise KcalcError(
            f"{what} must be a real number or an array of real numbers, got {glimpse(value)}"
        )
    array = array.astype(np.float64)
    if not np.all(np.isfinite(array)):
        raise KcalcError(f"{what} must be finite, got {array[~np.isfinite(array)].ravel()[0]}")
    return array


def raw_array(value: Any, what: str) -> Array:
    """Convert ``value`` to a real (or boolean) array and keep the dtype.

    Raises KcalcError for anything else, such as ragged lists, text and objects.
    """
    try:
        if hasattr(value, "__len__") and not (
            isinstance(value, Sequence | memoryview) or hasattr(value, "__array__")
        ):
            raise TypeError  # NumPy would iterate over a network
        exact = isinstance(value, EXACT) and not isinstance(value, bool)
        array = np.asarray(floats(value) if exact else value)
        # a list of exact numbers, or of objects that are not numbers
        if array.dtype.kind == "O" and isinstance(value, list | tuple):
            array = floats(array)
        if array.dtype.kind in "OSUmMc" or (
            array.dtype.kind == "V" and not np.can_cast(array.dtype, float)
        ):
            raise TypeError
    except KcalcError as error:
        raise KcalcError(f"{what}: {error}") from None
    except ValueError:
        raise KcalcError(f"{what} must have rows of equal length, got {glimpse(value)}") from None
    except Exception:  # user objects may raise anything as they are read
        raise KcalcError(
            f"{what} must be a real number or an array of real numbers, got {glimpse(value)}"
        ) from None
    return array


def one_number(value: Any, what: str) -> float:
    """Return one finite real number as a float.

    Raises KcalcError for anything else.
    """
    array = real_array(value, what)
    if array.ndim:
        raise KcalcError(f"{what} must be a single number here, got {glimpse(value)}")
    return float(array)


def positive_number(value: Any, what: str) -> float:
    """Return one finite number > 0 as a float.

    Raises KcalcError for anything else.
    """
    number = one_number(value, what)
    if not number > 0:
        raise KcalcError(f"{what} must be a number > 0, got {glimpse(value)}")
    return number


def q_array(q: Any, what: str = "q") -> Array:
    """Return q values as an array.

    Raises KcalcError if a value is not positive.
    """
    array = real_array(q, what)
    if np.any(array <= 0):
        raise KcalcError(
            f"{what} is a mean square and must be > 0, got {array[array <= 0].ravel()[0]}"
        )
    if np.any(array < TINY):
        raise KcalcError(
            f"{what} = {array[array < TINY].ravel()[0]} is too small for double precision; use at "
            f"least {TINY:.3g}"
        )
    return array


def q_pair(q1: Any, q2: Any, q: Any) -> tuple[Any, Any]:
    """Return (q1, q2) for two inputs.

    If ``q`` is given, it applies to both inputs. Otherwise ``q1`` defaults to 1 and ``q2`` to
    ``q1``. Raises KcalcError if ``q`` is given together with ``q1`` or ``q2``.
    """
    if q is not None and not (q1 is None and q2 is None):
        raise KcalcError(
            f"q={glimpse(q)} sets the q values of both inputs; pass only q=, or pass q1= and q2= "
            "if they differ"
        )
    return (q1 if q is None else q) if q1 is not None or q is not None else 1, q2


def one_q(q: Any, what: str = "q") -> float:
    """Return one q value as a float.

    Raises KcalcError for arrays and for values that are not positive.
    """
    array = q_array(q, what)
    if array.ndim:
        raise KcalcError(f"{what} must be a single number here, got {glimpse(q)}")
    return float(array)
