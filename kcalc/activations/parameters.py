"""The parameters of activation factories.

Each parameter is checked and converted to a real number. Error messages name the factory, the
parameter and the value.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sympy as sp

from kcalc.fields import NUMPY, SYMPY
from kcalc.foundation import plain_arguments
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.plain_arguments import text

_LARGEST_DENOMINATOR = 1024
TAKEN = {"x", "c", "q", "p", "phi", "pi"}  # names of other quantities in formulas of maps


def real(factory: str, parameter: str, value: Any, symbolic: bool = False) -> sp.Expr:
    """Convert ``value`` to a SymPy number; floats such as 0.5 and 1.25 become fractions.

    With ``symbolic``, a real expression in symbols is accepted too.

    Raises KcalcError for text, nan, infinities, complex values and symbols that are not allowed.
    """
    try:
        number = SYMPY.number(value)
    except KcalcError as error:
        raise KcalcError(
            f"{factory}: {parameter} must be a finite real number, got {glimpse(value, 80)}"
        ) from error
    if number.free_symbols and symbolic:
        return real_expression(number, f"{factory}: {parameter}")
    if number.free_symbols or number.is_real is not True:
        raise KcalcError(f"{factory}: {parameter} must be a real number, got {glimpse(value, 80)}")
    NUMPY.number(number)  # rejects numbers beyond double precision
    if not isinstance(number, sp.Float):
        return number
    fraction = Fraction(float(number))
    return (
        sp.Rational(fraction.numerator, fraction.denominator)
        if fraction.denominator <= _LARGEST_DENOMINATOR
        else number
    )


def real_expression(value: sp.Expr, what: str) -> sp.Expr:
    """Check that ``value`` is a real expression.

    Raises KcalcError if it is not, and for symbols that represent other quantities in formulas.
    """
    if value.is_real is not True:
        raise KcalcError(
            f"{what} = {glimpse(value, 80)} is not known to be real; declare its symbols with "
            "real=True or positive=True"
        )
    for symbol in sorted(value.free_symbols, key=str):
        if symbol.name in TAKEN:  # type: ignore[attr-defined]
            raise KcalcError(
                f"{what} = {glimpse(value, 80)}: {symbol} already denotes another quantity in "
                "formulas; use a different letter for the parameter"
            )
    return value


def check_constant(symbol: sp.Symbol, text: str) -> None:
    """Raise KcalcError for a symbol that cannot be a constant of an activation."""
    if symbol.is_real is False:
        raise KcalcError(f"{text}: the constant {symbol} must be real")
    if symbol.name in TAKEN:
        raise KcalcError(
            f"{text}: {symbol} already denotes another quantity in formulas; use a different "
            "letter for the constant"
        )


def named(name: Any, usual: str) -> str:
    """Return the given name of an activation, or the default.

    Raises KcalcError unless the name is text.
    """
    return usual if name is None else text(name, "an activation's name")


def label(value: sp.Expr) -> str:
    """Return a parameter as shown in an activation's name: 1/2, 0.03, sqrt(2)."""
    return repr(float(value)) if value.is_Float else str(value).replace(" ", "")


def positive(factory: str, parameter: str, value: Any) -> sp.Expr:
    """Return ``value`` as a SymPy number.

    Raises KcalcError unless it is a positive real number.
    """
    number = real(factory, parameter, value)
    if not float(number) > 0:
        raise KcalcError(f"{factory}: {parameter} must be positive, got {value}")
    return number


def whole(factory: str, parameter: str, value: Any, low: int, high: int) -> int:
    """Return ``value`` as an integer.

    Raises KcalcError unless it is an integer in [low, high].
    """
    return plain_arguments.whole(value, f"{factory}: {parameter}", low, high)
