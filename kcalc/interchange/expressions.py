"""Convert SymPy expressions to JSON trees and back.

Only a small whitelist of functions is allowed. Trees are read node by node and never evaluated as
text.

A tree is an integer, a float, ``{"rational": [p, q]}``, ``{"symbol": name, "is": flags}``,
``{"constant": "pi" | "E"}`` or ``{"op": name, "args": [trees]}``; a Piecewise contains rows
``{"value": tree, "if": relation}``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy as sp
from mpmath import libmp
from sympy.core.function import UndefinedFunction
from sympy.logic.boolalg import BooleanTrue

from ..activations import X
from ..fields.degrees import Degrees, check_degree
from ..fields.expressions import ELEMENTARY, Fold
from ..foundation.errors import KcalcError

MAX_DEPTH = 60
MAX_NODES = 5_000
MAX_INTEGER = 10**40
MAX_POWER = 64
MAX_COMPARED = 20
MAX_BITS = 4096  # maximum size of numerators and denominators

OPERATIONS: dict[str, Any] = {
    name: getattr(sp, name)
    for name in ("Add", "Mul", "Pow", "Abs", "Max", "Min", "sign", "Heaviside", *ELEMENTARY)
}
RELATIONS: dict[str, Any] = {
    "<": sp.StrictLessThan,
    "<=": sp.LessThan,
    ">": sp.StrictGreaterThan,
    ">=": sp.GreaterThan,
}
FLAGS = ("real", "positive", "negative", "nonnegative", "nonzero", "integer", "rational")
CONSTANTS: dict[str, sp.Expr] = {"pi": sp.pi, "E": sp.E}
_NAMES = {cls: name for name, cls in OPERATIONS.items()}
_SIGNS = {cls: sign for sign, cls in RELATIONS.items()}


def to_tree(expr: Any) -> Any:
    """Convert a Python number, a SymPy number or an expression to a JSON tree.

    Raises: KcalcError if a function is not in the whitelist.
    """
    if isinstance(expr, bool):
        raise KcalcError(f"{expr!r} is not a number")
    if isinstance(expr, int | float):
        return expr
    return _Trees()(expr)


class _Trees(Fold[Any]):
    """Converts expressions to trees part by part."""

    def number(self, expr: Any) -> Any:
        if isinstance(expr, sp.Integer):
            return int(expr) if abs(int(expr)) < 2**53 else {"rational": [str(expr), "1"]}
        if isinstance(expr, sp.Rational):
            return {"rational": [str(expr.p), str(expr.q)]}
        if isinstance(expr, sp.Float):
            return _float_tree(expr) if expr._prec > 53 else float(expr)
        if isinstance(expr, sp.Symbol):
            declared = {} if expr == X else {"is": _declared(expr)}
            return {"symbol": expr.name, **declared}
        for name, value in CONSTANTS.items():
            if expr == value:
                return {"constant": name}
        raise _unwritten(expr)

    def sum(self, terms: Sequence[Any]) -> Any:
        return self.function(sp.Add, *terms)

    def product(self, factors: Sequence[Any]) -> Any:
        return self.function(sp.Mul, *factors)

    def choice(self, rows: list[tuple[Any, Any]]) -> Any:
        written = [{"value": self(value), "if": self(test)} for value, test in rows]
        return {"op": "Piecewise", "rows": written}

    def condition(self, kind: Any, *arguments: Any) -> Any:
        if not arguments:
            return kind is BooleanTrue
        if kind not in _SIGNS:
            raise KcalcError(
                f"the condition {str(kind(*arguments))[:80]} cannot be written to JSON; use <, <=, "
                f">, >="
            )
        return {"rel": _SIGNS[kind], "args": list(map(self, arguments))}

    def function(self, kind: Any, *arguments: Any) -> Any:
        if isinstance(kind, UndefinedFunction):
            raise KcalcError(
                f"activation {kind.__name__!r} is a callable, which cannot be written to JSON; "
                "pass it as a SymPy expression"
            )
        if kind not in _NAMES:
            raise _unwritten(kind(*arguments))
        args = arguments[:1] if kind is sp.Heaviside else arguments
        return {"op": _NAMES[kind], "args": list(map(self, args))}


def _unwritten(expr: Any) -> KcalcError:
    return KcalcError(
        f"{type(expr).__name__} in {str(expr)[:80]} cannot be written to JSON; the functions "
        f"are {', '.join(OPERATIONS)}"
    )


def _float_tree(number: sp.Float) -> dict[str, Any]:
    """Convert a long float to a tree with its precision and enough digits to restore every bit."""
    digits = libmp.prec_to_dps(number._prec)
    exact = next(
        (d for d in (digits, digits + 1, digits - 1) if libmp.dps_to_prec(d) == number._prec),
        digits + 1,
    )
    return {"float": libmp.to_str(number._mpf_, exact + 4), "digits": exact}


class TreeReader:
    """Reads trees, with limits on the number of nodes and the depth of the whole document."""

    def __init__(self, budget: int = 200_000) -> None:
        self.budget = budget
        self.degrees = Degrees()

    def number(self, tree: Any, where: str) -> Any:
        """Read a numerical field of a layer: an int, a float or a SymPy expression."""
        if isinstance(tree, bool) or tree is None:
            raise KcalcError(f"{where}: expected a number, got {tree!r}")
        if isinstance(tree, int | float):
            return _plain(tree, where)
        return self.expression(tree, where)

    def expression(self, tree: Any, where: str) -> sp.Expr:
        """Read a SymPy expression.

        Raises: KcalcError if it contains anything outside the whitelist, or is too large.
        """
        self.left = MAX_NODES
        expr = self._read(tree, where, 0)
        if expr.has(sp.nan, sp.zoo, sp.oo, -sp.oo, sp.I):
            raise KcalcError(f"{where}: the expression must be finite and real")
        return expr

    def _read(self, tree: Any, where: str, depth: int) -> sp.Expr:
        self.budget -= 1
        self.left -= 1
        if depth > MAX_DEPTH or self.left < 0 or self.budget < 0:
            raise KcalcError(
                f"{where}: the expression is too large (at most {MAX_NODES} terms, nested "
                f"{MAX_DEPTH} deep)"
            )
        if isinstance(tree, int | float) and not isinstance(tree, bool):
            plain = _plain(tree, where)
            return sp.Integer(plain) if isinstance(plain, int) else sp.Float(plain)
        if not isinstance(tree, dict):
            raise KcalcError(
                f"{where}: expected a number or an expression tree, got {str(tree)[:60]!r}"
            )
        if "rational" in tree:
            return _rational(tree["rational"], where)
        if "float" in tree:
            return _long_float(tree, where)
        if "symbol" in tree:
            return _symbol(tree, where)
        if "constant" in tree:
            if not isinstance(tree["constant"], str) or tree["constant"] not in CONSTANTS:
                raise KcalcError(
                    f"{where}: unknown constant {str(tree['constant'])[:40]!r}; the constants are "
                    f"pi and E"
                )
            return CONSTANTS[tree["constant"]]
        return self._operation(tree, where, depth)

    def _operation(self, tree: dict[str, Any], where: str, depth: int) -> sp.Expr:
        name = tree.get("op")
        if name == "Piecewise":
            rows = tree.get("rows")
            if (
                not isinstance(rows, list)
                or not rows
                or not all(isinstance(row, dict) for row in rows)
            ):
                raise KcalcError(f"{where}: a Piecewise needs rows with a value and a condition")
            values = [self._read(row.get("value"), where, depth + 1) for row in rows]
            tests = [self._relation(row.get("if"), where, depth) for row in rows]
            try:
                return sp.Piecewise(*zip(values, tests, strict=True))
            except (TypeError, ValueError, ArithmeticError):
                raise KcalcError(f"{where}: SymPy rejects the rows of a Piecewise") from None
        if (
            not isinstance(name, str)
            or name not in OPERATIONS
            or not isinstance(tree.get("args"), list)
        ):
            raise KcalcError(
                f"{where}: unknown operation {str(name)[:40]!r}; the operations are "
                f"{', '.join(OPERATIONS)}"
            )
        args = [self._read(arg, where, depth + 1) for arg in tree["args"]]
        if name == "Pow":
            _check_power(args, where)
        if name in ("Max", "Min"):
            _check_many(OPERATIONS[name], args, where)
        try:
            expr = OPERATIONS[name](*args)
        except (TypeError, ValueError, ArithmeticError):
            raise KcalcError(
                f"{where}: {name} does not accept these {len(args)} arguments"
            ) from None
        try:
            check_degree(expr, self.degrees)
        except KcalcError as error:
            raise KcalcError(f"{where}: {error}") from None
        return _bounded(expr, where)

    def _relation(self, tree: Any, where: str, depth: int) -> Any:
        if isinstance(tree, bool):
            return sp.true if tree else sp.false
        args = tree.get("args") if isinstance(tree, dict) else None
        if (
            not isinstance(args, list)
            or len(args) != 2
            or not isinstance(tree.get("rel"), str)
            or tree["rel"] not in RELATIONS
        ):
            raise KcalcError(f"{where}: a condition must be {{'rel': '<', 'args': [tree, tree]}}")
        sides = [self._read(arg, where, depth + 1) for arg in args]
        try:
            return RELATIONS[tree["rel"]](*sides)
        except (TypeError, ValueError, ArithmeticError):
            raise KcalcError(f"{where}: the sides of a condition must be real numbers") from None


def _bounded(expr: Any, where: str) -> Any:
    """Return the expression after checking that it is not a huge or nonfinite number.

    Raises: KcalcError if the check fails.
    """
    parts = (expr, *expr.args)
    if any(p.is_Rational and (abs(p.p) | p.q).bit_length() > MAX_BITS for p in parts):
        raise KcalcError(f"{where}: a number in the expression has too many digits")
    try:
        good = (
            bool(expr.free_symbols)
            or bool(expr.is_Rational)
            or bool(abs(sp.N(expr, 5)) <= MAX_INTEGER)
        )
    # N may return nan, which cannot be compared with numbers
    except (TypeError, ValueError, ArithmeticError):
        good = False
    if not good:
        raise KcalcError(f"{where}: a number in the expression is too large or not finite")
    return expr


def _plain(value: int | float, where: str) -> int | float:
    if isinstance(value, float) and not math.isfinite(value):
        raise KcalcError(f"{where}: {value} is not a finite number")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise KcalcError(f"{where}: the integer is too large")
    return value


def _rational(pair: Any, where: str) -> sp.Expr:
    if (
        not isinstance(pair, list)
        or len(pair) != 2
        or not all(isinstance(v, str | int) and len(str(v)) <= 200 for v in pair)
    ):
        raise KcalcError(f"{where}: a rational must be [numerator, denominator]")
    try:
        top, bottom = (int(v) for v in pair)
    except ValueError:
        raise KcalcError(f"{where}: expected [numerator, denominator], got {pair}") from None
    if bottom == 0:
        raise KcalcError(f"{where}: the denominator of a rational must not be 0")
    return sp.Rational(top, bottom)


def _long_float(tree: dict[str, Any], where: str) -> sp.Expr:
    text, digits = tree.get("float"), tree.get("digits", 15)
    good = (
        isinstance(text, str)
        and len(text) <= 1200
        and isinstance(digits, int)
        and 1 <= digits <= 1000
    )
    if not good or not set(text) <= set("0123456789+-.eE"):  # type: ignore[arg-type]
        raise KcalcError(
            f"{where}: a long float must be {{'float': text, 'digits': n}} with n <= 1000"
        )
    try:
        return sp.Float(text, digits)
    except ValueError:
        raise KcalcError(f"{where}: {str(text)[:40]!r} is not a number") from None


def _symbol(tree: dict[str, Any], where: str) -> sp.Expr:
    name = tree["symbol"]
    if not isinstance(name, str) or not 0 < len(name) <= 40 or not name.replace("_", "").isalnum():
        raise KcalcError(
            f"{where}: a symbol must be a short word of letters, digits and _, got "
            f"{str(name)[:40]!r}"
        )
    if "is" not in tree:
        return X if name == X.name else sp.Symbol(name, real=True)
    flags = tree["is"]
    if not isinstance(flags, list) or not all(isinstance(f, str) and f in FLAGS for f in flags):
        raise KcalcError(
            f"{where}: the flags of a symbol must be a list with entries from "
            f"{', '.join(FLAGS)}, got {str(flags)[:60]}"
        )
    try:
        return sp.Symbol(name, **dict.fromkeys(flags, True))
    except ValueError:
        raise KcalcError(
            f"{where}: the symbol {name!r} cannot be {' and '.join(flags)} at the same time"
        ) from None


def _declared(symbol: sp.Symbol) -> list[str]:
    """Return the assumptions declared for a symbol."""
    given = getattr(symbol, "_assumptions_orig", symbol.assumptions0)
    return [flag for flag in FLAGS if given.get(flag)]


def _check_many(kind: Any, args: list[sp.Expr], where: str) -> None:
    """Reject a Max or Min with many arguments, because SymPy compares all pairs."""
    if sum(len(arg.args) if isinstance(arg, kind) else 1 for arg in args) > MAX_COMPARED:
        raise KcalcError(f"{where}: {kind.__name__} takes at most {MAX_COMPARED} arguments")


def _check_power(args: list[sp.Expr], where: str) -> None:
    """Reject powers that would be too large to evaluate."""
    if len(args) != 2:
        raise KcalcError(f"{where}: Pow needs a base and an exponent")
    base, exponent = args
    if exponent.is_number and (not exponent.is_real or abs(exponent) > MAX_POWER):
        raise KcalcError(
            f"{where}: the exponent {str(exponent)[:40]} is too large (at most {MAX_POWER} in "
            f"absolute value)"
        )
    if base.is_number and base == 0 and exponent.is_number and exponent.is_negative:
        raise KcalcError(f"{where}: a negative power of 0")
