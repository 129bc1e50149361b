"""Arguments of maps, checked: c values, angles, q values, orders; numbers, arrays, or one value per input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

import mpmath
import numpy as np
import sympy as sp

from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.plain_arguments import is_key, whole
from . import NUMPY, SYMPY

Node = Hashable
Array = np.ndarray
Result = TypeVar("Result")
ROUNDING = 1e-12
EXACT = sp.Basic | Fraction | Decimal | mpmath.mpf | int
TINY = float(np.finfo(float).tiny)  # below it numbers lose digits
MOST_COEFFICIENTS = 10**6


MEANT = {"c": "a c value", "theta": "an angle", "psi": "a slope", "kappa": "a curvature"}


def real_array(value: Any, what: str) -> Array:
    """``value`` as a float64 array. Raises: KcalcError for text, complex numbers, nan, infinities or symbols."""
    if isinstance(value, sp.Basic) and value.free_symbols:
        raise KcalcError(f"{what} = {value} has symbols; evaluate with numbers, or use .expr for the symbolic map")
    array = raw_array(value, what)
    if array.dtype.kind == "b":
        raise KcalcError(f"{what} must be a real number or an array of real numbers, got {glimpse(value)}")
    array = array.astype(np.float64)
    if not np.all(np.isfinite(array)):
        raise KcalcError(f"{what} must be finite, got {array[~np.isfinite(array)].ravel()[0]}")
    return array


def raw_array(value: Any, what: str) -> Array:
    """``value`` as an array of its own kind of real numbers (or truth values). Raises: KcalcError for ragged lists, text, objects, ..."""
    try:
        if hasattr(value, "__len__") and not (isinstance(value, Sequence | memoryview) or hasattr(value, "__array__")):
            raise TypeError  # NumPy would read the members of a graph
        exact = isinstance(value, EXACT) and not isinstance(value, bool)
        array = np.asarray(NUMPY.number(value) if exact else value)
        if array.dtype.kind == "O" and isinstance(value, list | tuple):  # of exact numbers, or of no numbers
            array = NUMPY.number(array)
        if array.dtype.kind in "OSUmMc" or (array.dtype.kind == "V" and not np.can_cast(array.dtype, float)):
            raise TypeError
    except KcalcError as error:
        raise KcalcError(f"{what}: {error}") from None
    except ValueError:
        raise KcalcError(f"{what} must have rows of equal length, got rows of different lengths, {glimpse(value)}") from None
    except Exception:  # user objects may raise anything as they are read
        raise KcalcError(f"{what} must be a real number or an array of real numbers, got {glimpse(value)}") from None
    return array


def as_number(value: Any, what: str) -> Any:
    """``value`` as a Python or SymPy real number (or symbolic expression).

    Raises: KcalcError for nan, infinities, complex numbers, booleans, strings and arrays; ``what`` names the field.
    """
    if isinstance(value, bool | str | bytes) or value is None:
        raise KcalcError(f"{what} must be a number, got {glimpse(value)}")
    if isinstance(value, sp.Basic) and value.free_symbols:
        if not isinstance(value, sp.Expr) or value.has(sp.nan, sp.oo, -sp.oo, sp.zoo) or value.is_real is False:
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
    except Exception:  # user objects may raise anything as they are read
        raise KcalcError(f"{what} must be a finite real number of ordinary size, got {glimpse(value)}") from None
    if not finite:
        raise KcalcError(f"{what} must be finite, got {glimpse(value)}")
    return number


def one_number(value: Any, what: str) -> float:
    """One finite real number as a float. Raises: KcalcError for anything else."""
    array = real_array(value, what)
    if array.ndim:
        raise KcalcError(f"{what} must be one number here, got {glimpse(value)}")
    return float(array)


def positive_number(value: Any, what: str) -> float:
    """One finite number > 0 as a float. Raises: KcalcError for anything else."""
    number = one_number(value, what)
    if not number > 0:
        raise KcalcError(f"{what} must be a number > 0, got {glimpse(value)}")
    return number


def cosine_array(c: Any) -> Array:
    """c values clipped to [-1, 1] after a check. Raises: KcalcError where |c| > 1 beyond rounding."""
    array = real_array(c, "c")
    if np.any(np.abs(array) > 1 + ROUNDING):
        raise KcalcError(f"a c value is a cosine and must lie in [-1, 1], got {array[np.abs(array) > 1 + ROUNDING].ravel()[0]}")
    return np.clip(array, -1.0, 1.0)


def q_array(q: Any, what: str = "q") -> Array:
    """q values. Raises: KcalcError where one is not positive."""
    array = real_array(q, what)
    if np.any(array <= 0):
        raise KcalcError(f"{what} is a mean square and must be > 0, got {array[array <= 0].ravel()[0]}")
    if np.any(array < TINY):
        raise KcalcError(f"{what} = {array[array < TINY].ravel()[0]} has too few digits in double precision; give at least {TINY:.3g}")
    return array


def angle_array(theta: Any) -> Array:
    """Angles in radians. Raises: KcalcError outside [0, pi]."""
    array = real_array(theta, "theta")
    if np.any((array < 0) | (array > np.pi + ROUNDING)):
        raise KcalcError("theta is an angle between two vectors and must lie in [0, pi]")
    return array


def derivative_order(n: Any) -> int:
    """The order of a derivative. Raises: KcalcError unless it is a whole number from 0 to 100."""
    return whole(n, "the order of a derivative", 0, 100)


def pair_arrays(c: Any, q1: Any, q2: Any = None) -> tuple[Array, Array, Array]:
    """c, q1 and q2 (None: q1) checked and broadcast together. Raises: KcalcError outside their domains and for shapes that do not fit."""
    cosine, (one, two) = cosine_array(c), read_pair(q_array, q1, q2)
    try:
        return np.broadcast_arrays(cosine, one, one if two is None else two)  # type: ignore[return-value]
    except ValueError:
        shapes = [a.shape for a in (cosine, one, two) if a is not None]
        raise KcalcError(f"c, q1 and q2 do not broadcast together: shapes {shapes}") from None


def q_pair(q1: Any, q2: Any, q: Any) -> tuple[Any, Any]:
    """(q1, q2) of two inputs: ``q`` for both, or ``q1`` (None: 1) and ``q2`` (None: q1). Raises: KcalcError for ``q`` beside the others."""
    if q is not None and not (q1 is None and q2 is None):
        raise KcalcError(f"q={glimpse(q)} is the q value of both inputs; give it alone, or q1= and q2= where they differ")
    return (q1 if q is None else q) if q1 is not None or q is not None else 1, q2


def read_pair(read: Callable[[Any, str], Result], q1: Any, q2: Any) -> tuple[Result, Result | None]:
    """``read(value, name)`` of both q values; the second is None where one q serves both inputs, whose name is then q."""
    return read(q1, "q" if q2 is None else "q1"), None if q2 is None else read(q2, "q2")


def one_q(q: Any, what: str = "q") -> float:
    """One q value as a float. Raises: KcalcError for arrays and for values that are not positive."""
    array = q_array(q, what)
    if array.ndim:
        raise KcalcError(f"{what} must be one number here, got {glimpse(q)}")
    return float(array)


def symbolic_q(value: Any, what: str, signature: str, cosines: Iterable[sp.Symbol] = ()) -> sp.Expr:
    """A q value as a SymPy number or expression.

    ``what`` and ``signature`` are the names of the argument and of the call, for messages;
    ``cosines`` are symbols of c values in the formula, beside those of ``kc.symbols``.
    Raises: KcalcError for values that are not positive, and for symbols of other quantities.
    """
    q = SYMPY.number(value)
    if q.is_real is False or q.is_nonpositive:
        raise KcalcError(f"{what} is a mean square and must be > 0, got {glimpse(value)}")
    meant = MEANT | {symbol.name: "a c value" for symbol in cosines}
    for name in sorted(str(symbol) for symbol in q.free_symbols if str(symbol) in meant):
        raise KcalcError(
            f"{what} = {glimpse(value)}: the symbol {name} is {meant[name]}, but {signature} takes "
            "the mean squares of inputs there, numbers or symbols such as kc.symbols.q"
        )
    return q


def formula_symbols(own: Iterable[sp.Symbol], others: Iterable[Any]) -> tuple[sp.Symbol, ...]:
    """``own``, the arguments of a formula, and the other symbols in it, sorted by name.

    Raises: KcalcError where two of them have one name.
    """
    every = (*own, *sorted(others, key=str))
    names = Counter(sp.latex(symbol) for symbol in every)
    twice = next((symbol for symbol in every if names[sp.latex(symbol)] > 1), None)
    if twice is not None:
        raise KcalcError(
            f"two quantities of one formula have the name {twice}; rename the symbol of a layer, "
            f"net.subs({{'{twice}': sympy.Symbol(...)}}), or the input, net.relabelled(...)"
        )
    return every


def series_length(n: Any) -> int:
    """A number of series coefficients. Raises: KcalcError unless it is a whole number from 1 to a million."""
    return whole(n, "a number of coefficients", 1, MOST_COEFFICIENTS)


def per_input(inputs: tuple[Node, ...]) -> Callable[[Any, Callable[[Any], Any], str], dict[Node, Any]]:
    """A reader of arguments that are one value for all inputs or {input: value}: (given, convert, name) -> {input: array}."""

    def values(given: Any, convert: Callable[[Any], Any], what: str) -> dict[Node, Any]:
        if not isinstance(given, Mapping):
            return dict.fromkeys(inputs, convert(given))
        for node in given:
            if not is_key(node, inputs):
                raise unknown("input", node, map(str, inputs))
        missing = [node for node in inputs if node not in given]
        if missing:
            raise KcalcError(f"no {what} is given for the input {missing[0]!r}; the inputs are {', '.join(map(str, inputs))}")
        return {node: convert(given[node]) for node in inputs}

    return values


def q_balls(inputs: tuple[Node, ...], q: Any, what: str, field: Any) -> dict[Node, Any]:
    """One q value per input as balls of a field. Raises: KcalcError where one is not positive."""
    given = per_input(inputs)(q, field.number, what)
    for value in given.values():
        if not value > 0:
            raise KcalcError(f"{what} is a mean square and must be > 0, got {value.str(12)}")
    return given


def gap_balls(inputs: tuple[Node, ...], c: Any, field: Any) -> dict[Node, Any]:
    """1 - c per input as balls of a field. Raises: KcalcError where |c| > 1."""
    given = per_input(inputs)(c, field.number, "c")
    with field.working():
        for node, value in given.items():
            if value > 1 or value < -1:
                raise KcalcError(f"a c value is a cosine and must lie in [-1, 1], got {value.str(12)} at {node}")
        return {node: 1 - value for node, value in given.items()}


def single_precision(*values: Any) -> bool:
    """True if every argument that is an array is single precision."""
    kinds = [np.asarray(v).dtype for v in values if isinstance(v, np.ndarray | np.floating)]
    return bool(kinds) and all(k == np.float32 for k in kinds)


def finished(array: Any, shape: tuple[int, ...], single: bool) -> Any:
    """``array`` broadcast to ``shape`` as a new float64 array (float32 if ``single``), or a number where the shape is ()."""
    out = np.broadcast_to(np.asarray(array, dtype=float), shape)
    return (out.astype(np.float32) if single else out.copy())[()]
