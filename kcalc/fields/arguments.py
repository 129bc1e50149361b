"""Checks for the arguments of maps: c values, angles, q values and orders.

Arguments are numbers, arrays, or one value per input.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import sympy as sp
from numpy.typing import ArrayLike

from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.plain_arguments import is_key, whole
from ..foundation.real_numbers import (
    TINY,
    one_number,
    one_q,
    positive_number,
    q_array,
    q_pair,
    raw_array,
    real_array,
)
from . import NUMPY, SYMPY
from .gaps import Gap

__all__ = [
    "TINY",
    "angle_array",
    "as_number",
    "cosine_array",
    "derivative_order",
    "finished",
    "formula_symbols",
    "gap_balls",
    "gaps_at",
    "gaps_at_angle",
    "one_cosine",
    "one_number",
    "one_q",
    "pair_arrays",
    "per_input",
    "positive_number",
    "q_array",
    "q_balls",
    "q_of_inputs",
    "q_pair",
    "raw_array",
    "read_pair",
    "real_array",
    "series_length",
    "single_precision",
    "symbolic_q",
]

Node = Hashable
Array = np.ndarray
# what maps accept: numbers give a float, everything else an array; also {input: value}
Number = float | np.floating | np.integer | sp.Expr | Mapping[Any, float]
Numbers = ArrayLike | sp.Expr | Mapping[Any, Any] | None
Result = TypeVar("Result")
ROUNDING = 1e-12
MOST_COEFFICIENTS = 10**6


MEANT = {"c": "a c value", "theta": "an angle", "psi": "a slope", "kappa": "a curvature"}


def as_number(value: Any, what: str) -> Any:
    """Return ``value`` as a Python or SymPy real number (or symbolic expression).

    Raises KcalcError for nan, infinities, complex numbers, Booleans, strings and arrays. ``what``
    is the name of the value in messages.
    """
    if isinstance(value, bool | str | bytes) or value is None:
        raise KcalcError(f"{what} must be a number, got {glimpse(value)}")
    if isinstance(value, sp.Basic) and value.free_symbols:
        if (
            not isinstance(value, sp.Expr)
            or value.has(sp.nan, sp.oo, -sp.oo, sp.zoo)
            or value.is_real is False
        ):
            raise KcalcError(f"{what} must be a finite real number, got {glimpse(value)}")
        return value
    try:
        if isinstance(value, sp.Basic):
            NUMPY.number(value)
            return value
        if np.iscomplexobj(value):
            raise TypeError
        number = value if isinstance(value, int) else float(value)
        finite = math.isfinite(number)
    except Exception:  # user objects may raise any error
        raise KcalcError(
            f"{what} must be a finite real number that is neither huge nor tiny, got "
            f"{glimpse(value)}"
        ) from None
    if not finite:
        raise KcalcError(f"{what} must be finite, got {glimpse(value)}")
    return number


def number_within(value: Any, what: str, allowed: Callable[[Any], Any], refusal: str) -> float:
    """Return a number without symbols, as a float, if ``allowed`` accepts it.

    Raises KcalcError with the text ``refusal`` for other values.
    """
    number = as_number(value, what)
    if getattr(number, "free_symbols", None) or not allowed(number):
        raise KcalcError(f"{refusal}, got {value}")
    return float(number)


def cosine_array(c: Any) -> Array:
    """Check c values and clip them to [-1, 1].

    Raises KcalcError if |c| > 1 beyond rounding.
    """
    array = real_array(c, "c")
    if np.any(np.abs(array) > 1 + ROUNDING):
        raise KcalcError(
            "a c value is a cosine and must be in [-1, 1], got "
            f"{array[np.abs(array) > 1 + ROUNDING].ravel()[0]}"
        )
    return np.clip(array, -1.0, 1.0)


def one_cosine(c: Any, what: str = "c") -> float:
    """Return one c value as a float, clipped to [-1, 1].

    Raises KcalcError for anything else, and if |c| > 1 beyond rounding.
    """
    return float(cosine_array(one_number(c, what)))


def angle_array(theta: Any) -> Array:
    """Return angles in radians.

    Raises KcalcError for angles outside [0, pi].
    """
    array = real_array(theta, "theta")
    if np.any((array < 0) | (array > np.pi + ROUNDING)):
        raise KcalcError("theta is an angle between two vectors and must be in [0, pi]")
    return array


def derivative_order(n: Any) -> int:
    """Return the order of a derivative.

    Raises KcalcError unless it is an integer from 0 to 100.
    """
    return whole(n, "the order of a derivative", 0, 100)


def pair_arrays(c: Any, q1: Any, q2: Any = None) -> tuple[Array, Array, Array]:
    """Check c, q1 and q2 (None means q1) and broadcast them together.

    Raises KcalcError for values outside the domain, and for shapes that do not broadcast.
    """
    cosine, (one, two) = cosine_array(c), read_pair(q_array, q1, q2)
    try:
        return np.broadcast_arrays(cosine, one, one if two is None else two)  # type: ignore[return-value]
    except ValueError:
        shapes = [a.shape for a in (cosine, one, two) if a is not None]
        raise KcalcError(
            f"c, q1 and q2 cannot be broadcast together; got shapes {shapes}"
        ) from None


def read_pair(read: Callable[[Any, str], Result], q1: Any, q2: Any) -> tuple[Result, Result | None]:
    """Return ``read(value, name)`` for both q values.

    If both inputs have the same q value (``q2`` is None), ``name`` is "q" and the second result is
    None. Otherwise the names are "q1" and "q2".
    """
    return read(q1, "q" if q2 is None else "q1"), None if q2 is None else read(q2, "q2")


def symbolic_q(value: Any, what: str, signature: str, cosines: Iterable[sp.Symbol] = ()) -> sp.Expr:
    """Return a q value as a SymPy number or expression.

    ``what`` and ``signature`` name the argument and the call in messages. ``cosines`` are symbols
    of c values in the formula, in addition to those of ``kc.symbols``. Raises KcalcError for
    values that are not positive, and for symbols of other quantities.
    """
    q = SYMPY.number(value)
    if q.is_real is False or q.is_nonpositive:
        raise KcalcError(f"{what} is a mean square and must be > 0, got {glimpse(value)}")
    meant = MEANT | {symbol.name: "a c value" for symbol in cosines}
    for name in sorted(str(symbol) for symbol in q.free_symbols if str(symbol) in meant):
        raise KcalcError(
            f"{what} = {glimpse(value)}: the symbol {name} is {meant[name]}, but {signature} "
            "needs the mean squares of the inputs; use numbers, or symbols such as kc.symbols.q"
        )
    return q


def formula_symbols(own: Iterable[sp.Symbol], others: Iterable[Any]) -> tuple[sp.Symbol, ...]:
    """Return ``own``, the arguments of a formula, followed by its other symbols sorted by name.

    Raises KcalcError if two symbols have the same name.
    """
    every = (*own, *sorted(others, key=str))
    names = Counter(sp.latex(symbol) for symbol in every)
    twice = next((symbol for symbol in every if names[sp.latex(symbol)] > 1), None)
    if twice is not None:
        raise KcalcError(
            f"two quantities in the formula have the name {twice}; rename the symbol of a layer "
            f"with net.subs({{'{twice}': sympy.Symbol(...)}}), or the input with "
            "net.relabelled(...)"
        )
    return every


def series_length(n: Any) -> int:
    """Check and return a number of series coefficients.

    Raises KcalcError unless it is an integer from 1 to a million.
    """
    return whole(n, "a number of coefficients", 1, MOST_COEFFICIENTS)


def per_input(
    inputs: tuple[Node, ...],
) -> Callable[[Any, Callable[[Any], Any], str], dict[Node, Any]]:
    """Return a function that reads an argument given as one value or as {input: value}.

    A single value applies to all inputs. The function maps (given, convert, name) to
    {input: converted value}.
    """

    def values(given: Any, convert: Callable[[Any], Any], what: str) -> dict[Node, Any]:
        if not isinstance(given, Mapping):
            return dict.fromkeys(inputs, convert(given))
        for node in given:
            if not is_key(node, inputs):
                raise unknown("input", node, map(str, inputs))
        missing = [node for node in inputs if node not in given]
        if missing:
            raise KcalcError(
                f"{what} is missing for the input {missing[0]!r}; the inputs are "
                f"{', '.join(map(str, inputs))}"
            )
        return {node: convert(given[node]) for node in inputs}

    return values


def gaps_at(inputs: tuple[Node, ...], c: Any) -> dict[Node, Gap]:
    """Return 1 - c for each input from c values.

    Raises KcalcError if a c value is outside [-1, 1].
    """
    return {
        node: Gap.from_cosine(value)
        for node, value in per_input(inputs)(c, cosine_array, "c").items()
    }


def gaps_at_angle(inputs: tuple[Node, ...], theta: Any) -> dict[Node, Gap]:
    """Return 1 - c for each input from angles theta = arccos c. Small angles keep their digits.

    Raises KcalcError for angles outside [0, pi].
    """
    angles = per_input(inputs)(theta, angle_array, "theta")
    return {
        node: Gap.of(2 * np.sin(value / 2) ** 2, 2 * np.cos(value / 2) ** 2)
        for node, value in angles.items()
    }


def q_of_inputs(
    inputs: tuple[Node, ...], q1: Any, q2: Any, gap: Mapping[Node, Any]
) -> tuple[dict[Node, Any], dict[Node, Any] | None, tuple[int, ...]]:
    """Return ({input: q1}, {input: q2} or None if equal, common shape of the q values and gaps).

    All q values are broadcast to this shape. Raises KcalcError if a q value is not positive, or if
    shapes do not broadcast.
    """
    first, second = read_pair(
        lambda given, what: per_input(inputs)(given, lambda v: q_array(v, what), what), q1, q2
    )
    if second is not None and all(np.array_equal(first[n], second[n]) for n in inputs):
        second = None
    arrays = [*gap.values(), *first.values(), *(second or {}).values()]
    try:
        return first, second, np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        raise KcalcError(
            f"c, q1 and q2 cannot be broadcast together; got shapes {[a.shape for a in arrays]}"
        ) from None


def q_balls(inputs: tuple[Node, ...], q: Any, what: str, field: Any) -> dict[Node, Any]:
    """Return the q value of each input as a ball in ``field``.

    Raises KcalcError if a q value is not positive.
    """
    given = per_input(inputs)(q, field.number, what)
    for value in given.values():
        if not value > 0:
            raise KcalcError(f"{what} is a mean square and must be > 0, got {value.str(12)}")
    return given


def gap_balls(inputs: tuple[Node, ...], c: Any, field: Any) -> dict[Node, Any]:
    """Return 1 - c for each input as a ball in ``field``.

    Raises KcalcError if |c| > 1.
    """
    given = per_input(inputs)(c, field.number, "c")
    with field.working():
        for node, value in given.items():
            if value > 1 or value < -1:
                raise KcalcError(
                    f"a c value is a cosine and must be in [-1, 1], got {value.str(12)} at {node}"
                )
        return {node: 1 - value for node, value in given.items()}


def single_precision(*values: Any) -> bool:
    """Return whether the NumPy arrays among the arguments all have single precision."""
    kinds = [np.asarray(v).dtype for v in values if isinstance(v, np.ndarray | np.floating)]
    return bool(kinds) and all(k == np.float32 for k in kinds)


def finished(array: Any, shape: tuple[int, ...], single: bool) -> Any:
    """Return ``array`` broadcast to ``shape`` as a new array, or as a number for shape ``()``.

    The result is float32 if ``single`` is set, and float64 otherwise.
    """
    out = np.broadcast_to(np.asarray(array, dtype=float), shape)
    return (out.astype(np.float32) if single else out.copy())[()]
