"""Acceptance tests for user-defined activations.

They check that kinks are numbers, values are real and finite, Gaussian moments exist, and no
corners are hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from kcalc.activations.pieces import MOST_KINKS, X
from kcalc.fields import SYMPY
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.process_state import decimal_digits, lambdify
from kcalc.gaussian.expectations.quadrature import Array, mesh, z_range

PROBES = np.concatenate([np.linspace(-30, 30, 121), np.geomspace(1e-6, 20, 15)])
FAR_PROBES = np.array([-1e3, -1e2, 1e2, 1e3])
DIGIT_PROBES = np.concatenate([np.arange(0.37, 16), -np.arange(0.37, 16)])
# a relative error above LOST means lost digits; values below TINY are ignored as underflow
LOST = 1e-5
TINY = 1e-200
_APART = 1e-9


def read_kinks(kinks: Any) -> tuple[sp.Expr, ...]:
    """Return the given kinks, sorted and without duplicates.

    Raises KcalcError for anything but a list of finite real numbers, for two kinks that are almost
    equal, and for more than 500 kinks.
    """
    if isinstance(kinks, str) or not isinstance(kinks, Iterable):
        raise KcalcError(
            f"kinks must be a list of numbers, as in kinks=[0, 1.5], got {glimpse(kinks)}"
        )
    numbers = [SYMPY.number(kink) for kink in kinks]
    for kink in numbers:
        if kink.free_symbols:
            raise KcalcError(f"kinks must be numbers, got {str(kink)[:60]}")
    places = {kink: _place(kink) for kink in numbers}
    points = sorted(set(numbers), key=lambda kink: places[kink])
    out: list[sp.Expr] = []
    for point in points:
        if out and abs(places[point] - places[out[-1]]) <= _APART * (1 + abs(places[point])):
            if places[point] == places[out[-1]]:
                continue
            raise KcalcError(
                f"the kinks {out[-1]} and {point} are almost equal; pass each kink once, to full "
                "precision"
            )
        out.append(point)
    if len(out) > MOST_KINKS:
        raise KcalcError(f"{len(out)} kinks are too many; pass at most {MOST_KINKS}")
    return tuple(out)


def simplest(where: float, reach: float = 2e-6) -> float:
    """Return the number with the fewest decimals within ``reach`` of ``where``.

    The tolerance is absolute up to |where| = 1 and relative beyond. The default is slightly larger
    than the precision of the search for kinks, about 1e-6.
    """
    rounded = (round(where, decimals) for decimals in range(12))
    return next(
        (value for value in rounded if abs(value - where) <= reach * (1 + abs(where))), where
    )


def _place(kink: sp.Expr) -> float:
    try:
        place = float(kink)
    except (TypeError, ValueError, OverflowError):
        place = float("nan")
    if not abs(place) <= 1e150:
        raise KcalcError(
            f"kinks must be finite real numbers in double precision, got {glimpse(kink)}"
        )
    return place


def check_values(candidate: Any, values: Callable[[Array], Array], extra: Any = ()) -> Array:
    """Reject functions that return nan, are infinite near 0 or are zero everywhere.

    Returns the function's values at the points PROBES and ``extra``.
    """
    probes = np.concatenate([PROBES, np.asarray(extra, dtype=float)])
    with np.errstate(all="ignore"):
        found = values(probes)
    if np.isnan(found).all():
        raise KcalcError(
            f"activation {candidate.name!r} has no real value anywhere, but an activation must "
            "be real on the whole line"
        )
    if np.isnan(found).any():
        where = probes[np.isnan(found)][0]
        ends = max((abs(_place(k)) for k in getattr(candidate, "kinks", ())), default=math.inf)
        if abs(where) > ends:
            raise KcalcError(
                f"activation {candidate.name!r} has no real value at x = {where:.6g}, beyond its "
                f"last known kink at {ends:.4g}. Roots of functions with infinitely many kinks "
                "are not supported; use a function with finitely many kinks"
            )
        raise KcalcError(
            f"activation {candidate.name!r} has no real value at x = {where:.6g}, but an "
            "activation must be real on the whole line"
        )
    near = np.abs(probes) < 1
    if np.isinf(found[near]).any():
        raise KcalcError(
            f"activation {candidate.name!r} is infinite at x = "
            f"{probes[near][np.isinf(found[near])][0]:.6g}"
        )
    if not found[np.isfinite(found)].any():
        raise KcalcError(f"activation {candidate.name!r} is zero everywhere, so it has no C map")
    return found


def check_moments(candidate: Any) -> None:
    """Reject functions with divergent Gaussian moments, poles or undeclared kinks."""
    check_growth(candidate)
    z_range(candidate, 0.01)
    try:
        mesh(candidate, 16.0)
    except KcalcError:
        check_digits(candidate)
        raise
    check_corners(candidate)


def check_digits(candidate: Any) -> None:
    """Reject expressions that lose their accuracy to rounding when evaluated in floats.

    Both values and slopes are tested. Quadrature would mistake the rounding noise for fast
    variation.
    """
    if candidate.numeric_only:
        return
    for n, what in enumerate(("value", "slope")):
        with np.errstate(all="ignore"):
            found = candidate.numeric(n)(DIGIT_PROBES)
        with decimal_digits(60):
            exact = lambdify([X], candidate.derivative_expr(n) if n else candidate.expr, "mpmath")
            lost = [
                where
                for where, value in zip(DIGIT_PROBES, found, strict=True)
                if _is_lost(exact, float(where), float(value))
            ]
        if lost:
            raise KcalcError(
                f"activation {candidate.name!r} loses digits to rounding: fewer than five digits "
                f"of its {what} at x = {lost[0]:g} are correct in double precision. Avoid points "
                "with infinite slope (acos near 1, sqrt near 0) and differences of nearly equal "
                "numbers, or pass a callable that is accurate to full precision"
            )


def _is_lost(exact: Callable[[Any], Any], where: float, found: float) -> bool:
    try:
        truth = exact(mpmath.mpf(where))
        return bool(
            mpmath.isfinite(truth)
            and abs(truth) > TINY
            and not abs(found - truth) <= LOST * abs(truth)
        )
    except (ArithmeticError, ValueError, TypeError, NameError):
        return False


def check_growth(candidate: Any) -> None:
    """Reject functions that grow faster than exp(a x^2) for every a, such as exp(x^4).

    Their Gaussian moments diverge for every variance.
    """
    points = np.array([3.0, 5.0])
    with np.errstate(all="ignore"):
        for side in (1, -1):
            slow, fast = np.log(np.abs(candidate.numeric(0)(side * points))) / points**2
            if fast > 1 and fast > 1.2 * max(slow, 0.0):
                raise KcalcError(
                    f"activation {candidate.name!r} grows too fast: E[phi(sqrt(q) z)^2] diverges "
                    f"for every q > 0"
                )


def check_corners(candidate: Any) -> None:
    """Reject undeclared kinks at mesh edges (0, +-2^k, the middle of a narrow feature).

    Mesh refinement cannot detect a kink at these points, because the mesh always has an edge there.
    """
    places = np.concatenate([mesh(candidate, 16.0), [32.0, 64.0, -32.0, -64.0]])
    kinks = np.append(np.array(candidate.kink_points), np.inf)
    places = places[np.abs(places[:, None] - kinks).min(axis=1) > 1e-6 * (1 + np.abs(places))]
    with np.errstate(all="ignore"):
        places = places[
            np.maximum(
                np.abs(candidate.numeric(0)(2 * places)), np.abs(candidate.numeric(0)(-2 * places))
            )
            < 1e100
        ]
        step = 1e-10 * (1 + np.abs(places))
        for n in range(3):
            f, slope = candidate.numeric(n), candidate.numeric(n + 1)
            above, below = f(places + step), f(places - step)
            expected = (
                2 * step * np.maximum(np.abs(slope(places + step)), np.abs(slope(places - step)))
            )
            size = np.maximum(np.abs(above), np.abs(below))
            around = np.abs(f(np.linspace(-4.1, 4.3, 41)))
            rounding = (
                1e-4 * size
                + 1e-6 * np.abs(candidate.numeric(0)(places))
                + 1e-7 * around[np.isfinite(around)].max(initial=0.0)
            )
            jumps = np.isfinite(size) & (np.abs(above - below) > 10 * expected + rounding)
            if jumps.any():
                where = simplest(float(places[jumps][0]))
                raise KcalcError(
                    f"activation {candidate.name!r} is not smooth near x = {where:g}; pass "
                    "kinks=[...] with every point at which the function or one of its "
                    "derivatives jumps"
                )
