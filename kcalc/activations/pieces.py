"""The smooth pieces of a SymPy expression in one real symbol, and their fast numeric form.

The pieces lie between the kinks of the expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import sympy as sp
from sympy.functions.elementary.hyperbolic import HyperbolicFunction

from kcalc.activations.cancellation import NearZero, kept, near_zero
from kcalc.activations.wide import compile_wide
from kcalc.fields import SYMPY
from kcalc.fields.degrees import poly
from kcalc.fields.expressions import CORNERED, Rewriting, factors, rational, switches
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.process_state import alone, decimal_digits, lambdify
from kcalc.foundation.rootfinding import zero_between
from kcalc.gaussian.expectations.quadrature import Array

X = sp.Symbol("x", real=True)
"""The argument in the expression of every activation."""

MOST_KINKS = 500
KINK_REACH = 128
"""Kinks with |x| <= 128 are found, enough for q = 100. For polynomials, all kinks are found."""
_SOUGHT = KINK_REACH + 2
_DIGITS = 50
_SAME = 4e-15  # roots at a smaller relative distance are the same root in two forms
_MOST_BITS = 10_000  # limit for a number that is exponentiated
_BALL_BITS = (200, 1200)  # 1200 bits enclose even values that underflow
_ISOLATED = 8  # more sign changes than this beyond KINK_REACH indicate an undersampled wave
_SPECIAL = (sp.erf, sp.erfc, sp.erfi, sp.gamma, sp.loggamma, sp.besselj, sp.Si, sp.Ci, sp.LambertW)


@alone
def switch_points(expr: sp.Expr) -> tuple[sp.Expr, ...]:
    """Return sorted points where a Piecewise, Abs, Max, Min, Heaviside or sign switches.

    These points are the candidates for kinks of ``expr``.

    If the zeros of polynomials in X determine the switches, all of them are found. Otherwise, all
    switches are found for |x| <= 128, and only isolated switches beyond. Raises KcalcError for more
    than 500 points.
    """
    roots = sorted((root for level in switches(expr) for root in real_roots(level)), key=float)
    points: list[sp.Expr] = []
    for root in roots:
        if points and float(root - points[-1]) <= _SAME * abs(float(root)):
            points[-1] = min(points[-1], root, key=_roughness)
        else:
            points.append(root)
    if len(points) > MOST_KINKS:
        raise KcalcError(
            f"{glimpse(expr)} has {len(points)} kinks, but at most {MOST_KINKS} are supported"
        )
    return tuple(points)


def _roughness(point: sp.Expr) -> float:
    """Return 0 for an exact number, and a positive value for a number that contains floats.

    The value is larger if the floats have fewer digits.
    """
    floats: Any = point.atoms(sp.Float)
    return max((1 / number._prec for number in floats), default=0.0)


@alone
def real_roots(expr: sp.Expr) -> list[sp.Expr]:
    """Return the real zeros of ``expr`` in X.

    The zeros are exact if SymPy finds them. Otherwise they are sign changes between samples,
    refined to 50 digits (see :func:`crossings`).
    """
    if not expr.has(X):
        return []
    if expr.has(*CORNERED):
        inner = switch_points(expr)
        roots = [
            root
            for index in range(len(inner) + 1)
            for root in _roots_between(resolve(expr, inner, index), inner, index)
        ]
        return [*roots, *inner]
    exact = _polynomial_roots(expr) if expr.is_polynomial(X) else _wave_roots(expr)
    if exact is not None:
        return exact
    if (parts := factors(expr)) != (expr,):  # multiple zeros would be inaccurate
        return [root for part in parts for root in real_roots(part)]
    return _sharpened(expr, crossings(_compile(expr, patient=False)))


def _polynomial_roots(expr: sp.Expr) -> list[sp.Expr] | None:
    """Return the real zeros of a polynomial.

    Returns None if the degree is above 2 and the coefficients are not rational.
    """
    level = poly(rational(expr), X)
    if level.domain.is_QQ or level.domain.is_ZZ:
        roots = sp.real_roots(level)
    elif level.degree() <= 2:
        roots = [root for root in sp.roots(level) if sp.re(root).evalf() == root.evalf()]
    else:
        return None
    return _in_digits(roots, expr)


def _in_digits(roots: Sequence[Any], expr: sp.Expr) -> list[sp.Expr]:
    """Return the roots unchanged, or with 50 digits if ``expr`` contains floats."""
    if not expr.has(sp.Float):
        return list(roots)
    return [sp.Float(root.evalf(_DIGITS), _DIGITS) if root else root for root in roots]


def _wave_roots(expr: sp.Expr) -> list[sp.Expr] | None:
    """Return the exact zeros with |x| <= 128 of k sin(a x + b) or k cos(a x + b).

    Returns None for other functions.
    """
    wave: Any = expr.as_independent(X, as_Add=False)[1]
    if not isinstance(wave, sp.sin | sp.cos) or sp.diff(wave.args[0], X, 2) != 0:
        return None
    a, b = sp.Poly(rational(wave.args[0]), X).all_coeffs()
    start = sp.pi / 2 if isinstance(wave, sp.cos) else sp.Integer(0)
    ends = sorted(float((a * x + b - start) / sp.pi) for x in (-_SOUGHT, _SOUGHT))
    first, last = math.ceil(ends[0]), math.floor(ends[1])
    if last - first >= MOST_KINKS:
        raise _too_many(last - first + 1)
    return _in_digits([(start + n * sp.pi - b) / a for n in range(first, last + 1)], wave)


def _too_many(count: int) -> KcalcError:
    return KcalcError(
        f"the activation has {count} or more kinks in |x| <= {KINK_REACH}, but at most "
        f"{MOST_KINKS} are supported"
    )


def crossings(f: Callable[[Array], Array]) -> list[float]:
    """Return the zeros where f changes sign, and the isolated zeros of f on the sampling grid.

    The grid spacing is 1/64 for |x| <= 128 (the reach of inputs with q <= 100), and is finer near
    0. Between 128 and 1000 only isolated zeros are found. Raises KcalcError for more than 500
    zeros.
    """
    side = np.concatenate(
        [np.geomspace(1e-6, 1 / 64, 300, endpoint=False), np.arange(1, 64 * _SOUGHT + 1) / 64]
    )
    side = np.concatenate([side, np.geomspace(_SOUGHT, 1e3, 400)[1:]])
    x = np.concatenate([-side[::-1], [0.0], side])
    heights = f(x)
    zero = heights == 0
    found = x[zero & ~np.roll(zero, 1) & ~np.roll(zero, -1)]
    with np.errstate(invalid="ignore", over="ignore"):
        changes = np.nonzero(np.sign(heights[:-1]) * np.sign(heights[1:]) < 0)[0]
    far = np.abs(x[changes]) >= _SOUGHT
    changes = changes[~far] if far.sum() > _ISOLATED else changes
    if found.size + changes.size > MOST_KINKS:
        raise _too_many(found.size + changes.size)

    def root(low: float, high: float) -> float:
        height = lambda t: float(f(np.array([t]))[0])  # noqa: E731
        return zero_between(height, low, high, 1e-25, rtol=1e-15, maxiter=300, disp=False)

    return [*found.tolist(), *(root(float(x[i]), float(x[i + 1])) for i in changes)]


def _sharpened(expr: sp.Expr, roots: list[float]) -> list[sp.Expr]:
    """Refine the roots to 50 digits by Newton's method; leave a root unchanged if this fails."""
    if not roots:
        return []
    try:
        value, slope = (lambdify([X], part, modules="mpmath") for part in (expr, sp.diff(expr, X)))
        with decimal_digits(_DIGITS + 10):
            return [_newton(value, slope, root) for root in roots]
    except (NotImplementedError, NameError, TypeError, ValueError, ArithmeticError):
        return [SYMPY.number(root) for root in roots]


def _newton(value: Callable[[Any], Any], slope: Callable[[Any], Any], start: float) -> sp.Expr:
    point = mpmath.mpf(start)
    for _ in range(3):
        rate = slope(point)
        if rate == 0:
            return SYMPY.number(start)
        point -= value(point) / rate
    if not abs(point - start) <= 1e-13 * (1 + abs(start)):
        return SYMPY.number(start)
    return SYMPY.number(start) if point == start else sp.Float(point, _DIGITS)


def _roots_between(expr: sp.Expr, points: Sequence[sp.Expr], index: int) -> list[sp.Expr]:
    low = float(points[index - 1]) if index else -np.inf
    high = float(points[index]) if index < len(points) else np.inf
    return [root for root in real_roots(expr) if low < float(root) < high]


def _between(points: Sequence[sp.Expr], index: int) -> sp.Expr:
    """Return a point inside the index-th interval between ``points``."""
    if not points:
        return sp.Float("0.0123456789", 30)
    if index == 0:
        return (points[0] - _step(points[:2])).evalf(30)
    if index == len(points):
        return (points[-1] + _step(points[-2:])).evalf(30)
    return ((points[index - 1] + points[index]) / 2).evalf(30)


def _step(last: Sequence[sp.Expr]) -> sp.Expr:
    """Return the distance between the probe point of an outermost piece and its kink.

    The distance is at most half the distance between the last two kinks, so the probe does not pass
    the next kink of an oscillation.
    """
    return sp.Min(1, (last[1] - last[0]).evalf(30) / 2) if len(last) > 1 else sp.Integer(1)


@alone
def resolve(expr: sp.Expr, points: Sequence[sp.Expr], index: int) -> sp.Expr:
    """Return the smooth expression that equals ``expr`` on the index-th interval between points.

    Raises KcalcError if no condition of a Piecewise holds, or if a condition has no truth value.
    """
    return _Resolved(_between(points, index))(expr)


def smooth_pieces(expr: sp.Expr, points: Sequence[sp.Expr]) -> list[sp.Expr]:
    """Return the pieces between the points, from left to right.

    If there are no points, the only piece is ``expr`` itself.
    """
    if not points:
        return [expr]
    return [resolve(expr, points, index) for index in range(len(points) + 1)]


class _Resolved(Rewriting):
    """Replace expressions with corners by the smooth expressions that equal them near a point."""

    def __init__(self, inside: sp.Expr) -> None:
        super().__init__()
        self.inside = inside

    def visit(self, expr: Any) -> Any:
        return super().visit(expr) if expr.has(*CORNERED) else expr

    def corner(self, kind: Any, *arguments: Any) -> Any:
        if kind in (sp.Max, sp.Min):
            return self((max if kind is sp.Max else min)(arguments, key=self._at))
        positive = self._at(arguments[0]) > 0
        if kind is sp.Abs:
            return self(arguments[0]) if positive else -self(arguments[0])
        return sp.Integer(1 if positive else -1 if kind is sp.sign else 0)

    def choice(self, rows: list[tuple[Any, Any]]) -> Any:
        for value, condition in rows:
            if self._holds(condition):
                return self(value)
        raise KcalcError(
            f"the activation is not defined at x = {sp.N(self.inside, 5)}; end the Piecewise "
            "with a row (value, True)"
        )

    def _at(self, value: Any) -> float:
        try:
            return float(value.subs(X, self.inside))
        except (TypeError, ValueError, OverflowError) as error:
            raise KcalcError(
                f"{glimpse(value)} has no real value at x = {sp.N(self.inside, 5)}"
            ) from error

    def _holds(self, condition: Any) -> bool:
        known = condition in (sp.true, sp.false)
        outcome = condition if known else condition.subs(X, self.inside)
        if outcome not in (sp.true, sp.false):
            raise KcalcError(
                f"the condition {glimpse(condition)} is neither true nor false at x = "
                f"{sp.N(self.inside, 5)}"
            )
        return outcome == sp.true


def landmark(inner: sp.Expr) -> list[tuple[float, float]]:
    """Return a list with the (centre, width) of the narrow feature of a function of ``inner``.

    The list is empty unless ``inner`` is linear or quadratic.
    """
    if not inner.is_polynomial(X) or not inner.has(X):
        return []
    try:
        coefficients = [float(c) for c in poly(inner, X).all_coeffs()]
    except (TypeError, OverflowError):  # complex, or beyond double precision
        return []
    if len(coefficients) == 2:
        return [(-coefficients[1] / coefficients[0], 1 / abs(coefficients[0]))]
    if len(coefficients) == 3:
        return [(-coefficients[1] / (2 * coefficients[0]), abs(coefficients[0]) ** -0.5)]
    return []


def compile_pieces(pieces: Sequence[sp.Expr], kinks: Sequence[float]) -> Callable[[Array], Array]:
    """Compile the pieces to one vectorised function, right-continuous at kinks.

    Values that overflow are recomputed with a wider exponent range.

    Raises KcalcError for functions that have no numeric form.
    """
    distinct = list(dict.fromkeys(pieces))
    compiled = [_compile(piece) for piece in distinct]
    if len(pieces) == 1:
        return compiled[0]
    edges = np.array(kinks, dtype=float)
    number = np.array([distinct.index(piece) for piece in pieces])

    def values(x: Array) -> Array:
        x = np.asarray(x, dtype=float)
        if x.size == 0:
            return np.zeros_like(x)
        first, last = np.searchsorted(edges, (x.min(), x.max()), side="right")
        if first == last:
            return compiled[number[first]](x)
        out = np.empty_like(x)
        which = number[np.searchsorted(edges, x, side="right")]
        for index in np.unique(number[first : last + 1]):
            here = which == index
            out[here] = compiled[index](x[here])
        return out

    return values


def _compile(piece: sp.Expr, patient: bool = True) -> Callable[[Array], Array]:
    """Compile a smooth expression to a NumPy function.

    With ``patient``, values that overflow are recomputed with a wider exponent range, and a series
    replaces values that cancel near 0.
    """
    plain = _plain(piece)
    series = series_near_zero(piece) if patient else None

    def values(x: Array) -> Array:
        x = np.asarray(x, dtype=float)
        out = plain(x)
        if series is not None:
            near = np.abs(x) < series.radius
            out[near] = series(x[near])
        broken = ~np.isfinite(out)
        if patient and broken.any():
            out[broken] = _exact_values(piece, x[broken])
        return out

    return values


@lru_cache(maxsize=1024)
def _plain(piece: sp.Expr) -> Callable[[Array], Array]:
    try:
        function = lambdify(
            [X],
            kept(piece),
            modules=["scipy", "numpy"] if piece.has(*_SPECIAL) else "numpy",
            cse=True,
        )
        with np.errstate(all="ignore"):
            function(np.array([0.5]))
    except Exception as error:  # SymPy's code printers and the code they print fail in many ways
        raise KcalcError(
            f"{glimpse(piece)} cannot be evaluated numerically ({type(error).__name__})"
        ) from error

    def values(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.array(np.broadcast_to(_real(np.asarray(function(x))), x.shape), dtype=float)

    return values


@lru_cache(maxsize=1024)
def series_near_zero(piece: sp.Expr) -> NearZero | None:
    """Return the Taylor series of a smooth expression if floats lose digits near 0, else None."""
    return near_zero(piece, _plain(piece))


def _real(values: Any) -> Any:
    return (
        np.where(np.imag(values) == 0, np.real(values), np.nan)
        if np.iscomplexobj(values)
        else values
    )


def _exact_values(piece: sp.Expr, points: Array) -> Array:
    """Evaluate ``piece`` at points without intermediate overflow.

    Wide floats are tried first, then balls, then SymPy.
    """
    if piece.has(sp.I):  # its values may be real only after SymPy has simplified it
        return np.array([_exact_value(piece, point) for point in points])
    try:
        out = np.array(compile_wide(piece, X)(points))
    except KcalcError:
        out = np.full(points.shape, np.nan)
    for index in np.flatnonzero(np.isnan(out)).tolist():
        value = _by_ball(piece, points[index])
        out[index] = _exact_value(piece, points[index]) if value is None else value
    return out


def _by_ball(piece: sp.Expr, point: float) -> float | None:
    """Return the value of ``piece`` at a point, from a narrow enclosure, or None."""
    from flint import arb

    from kcalc.fields.balls import working

    smooth = _on_balls(piece)
    if smooth is None:
        return None
    for bits in _BALL_BITS:
        with working(bits):
            ball = smooth(arb(float(point)))
            if ball.is_finite() and (ball.rel_accuracy_bits() > 60 or ball.abs_upper() < 1e-300):
                return float(ball)
    return None


@lru_cache(maxsize=1024)
def _on_balls(piece: sp.Expr) -> Callable[[Any], Any] | None:
    """Return an expression as a function of balls; None if it has corners or no enclosures."""
    from kcalc.fields.balls import Numbers
    from kcalc.fields.programs import Program

    try:
        return None if piece.has(*CORNERED) else Program([piece], X).function_of(Numbers())
    except KcalcError:
        return None


def _refuse_towers(piece: Any, at: dict[Any, Any]) -> None:
    """Raise OverflowError for exponentials of numbers with thousands of digits.

    SymPy does not terminate on them, for example on exp(exp(1e6)). Inner powers are tested first.
    """
    for part in sorted(piece.atoms(sp.exp, sp.Pow, HyperbolicFunction), key=sp.count_ops):
        exponent: Any = part.args[-1]
        size = abs(exponent.xreplace(at).evalf(5))
        if size.is_Float and size._mpf_[2] + size._mpf_[3] > _MOST_BITS:
            raise OverflowError


@alone
def _exact_value(piece: sp.Expr, point: float) -> float:
    """Return the value of ``piece`` at ``point`` without overflow; nan if it is not real."""
    if not np.isfinite(point):
        return float("nan")
    try:
        at = {X: sp.Float(point, 40)}
        _refuse_towers(piece, at)
        given: Any = piece.xreplace(at)
        value = given.evalf(30)
        return float(value) if value.is_real else (float("inf") if value == sp.oo else float("nan"))
    except (TypeError, ValueError, ZeroDivisionError):
        return float("nan")
    except OverflowError:
        return float("inf")
