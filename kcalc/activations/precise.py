"""Local kernel quantities to any number of digits, for activations without closed forms.

They are computed by Gauss-Legendre panels in mpmath.

The panels are those on which the double-precision mesh found phi, phi', phi'' to be polynomials of
degree 19 to 2e-14: analytic inside an ellipse of parameter about 4.8, so n nodes give 1.36 n
digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import sympy as sp
from mpmath.calculus.quadrature import GaussLegendre

from kcalc.activations.pieces import X
from kcalc.fields import Field, Number, mpmath_field
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.process_state import decimal_digits, lambdify
from kcalc.gaussian.expectations.quadrature import split, z_edges

_GUARD = 10
_PANEL = 2.5
_TERMS = 400  # Hermite terms; their fastest oscillation needs panels of width 1


def moment(phi: Any, quantity: str, q: Number, field: Field) -> Number:
    """``quantity`` ("mean", "second_moment", "mean_slope", "q_slope") of phi at q.

    Derivatives are moved onto the density: E phi' = E[phi z]/sqrt q and dQ/dq = E[phi^2 (z^2 -
    1)]/(2q), jumps included.
    """
    with decimal_digits(_digits(field) + _GUARD):
        total = _integral(phi, quantity, q, field)
    return field.number(total)


def _integral(phi: Any, quantity: str, q: Number, field: Field) -> Any:
    """The same at the working precision."""
    weights: dict[str, Callable[[Any, Any], Any]] = {
        "mean": lambda f, z: f,
        "second_moment": lambda f, z: f * f,
        "mean_slope": lambda f, z: f * z / mpmath.sqrt(q),
        "q_slope": lambda f, z: f * f * (z * z - 1) / (2 * q),
    }
    weight, value, root = weights[quantity], _function(phi), mpmath.sqrt(q)
    return mpmath.fsum(
        w * mpmath.npdf(z) * weight(value(root * z), z)
        for z, w in _nodes(_edges(phi, q, field), field)
    )


def taylor(
    phi: Any, gap: Number, q1: Number, q2: Number, order: int, field: Field
) -> tuple[Number, ...]:
    """(1 - C, C', C''/2) up to ``order`` at c = 1 - gap.

    By Hermite series where 400 terms suffice (a second or two), else by nested
    panels (tens of seconds) for E(phi(u)-phi(v))^2 and, with Plackett's d/dc N2 = d^2/dx dw N2, for
    the derivatives.

    Raises KcalcError for orders above 2, and for derivatives at c = +-1.
    """
    if order > 2:
        raise KcalcError(
            f"order {order}: mpmath Taylor coefficients of {phi.name!r} stop at order 2"
        )
    if not 0 <= gap <= 2:
        raise KcalcError(f"c = {1 - gap}: a c value must lie in [-1, 1]")
    if order and gap in (0, 2):
        raise KcalcError(
            f"derivatives of the C map of {phi.name!r} at c = +-1 have no mpmath rule; use the "
            f"NumPy field"
        )
    lost = _lost(gap, order)
    with decimal_digits(_digits(field) + _GUARD + lost):
        # with all digits: for two q values 1 - C is a difference
        first = _integral(phi, "second_moment", q1, field)
        second = first if q1 == q2 else _integral(phi, "second_moment", q2, field)
        norm = mpmath.sqrt(first * second)
        series = _series(phi, mpmath.mpf(gap), q1, q2, order, field, norm)
        if series is not None:
            return tuple(field.number(value) for value in series)
        # the tails, too, are multiplied by the cancelling factor
        wide = mpmath_field(_digits(field) + lost)
        drop, *derivatives = _integrals(phi, mpmath.mpf(gap), q1, q2, order, wide)
        difference = (drop - (mpmath.sqrt(first) - mpmath.sqrt(second)) ** 2) / (2 * norm)
        values = [
            difference if q1 != q2 else drop / (2 * norm),
            *(d / norm / (i + 1) for i, d in enumerate(derivatives)),
        ]
    return tuple(field.number(value) for value in values)


def _series(
    phi: Any, gap: Any, q1: Number, q2: Number, order: int, field: Field, norm: Any
) -> list[Any] | None:
    """The same from the Hermite series, or None where the terms left out could matter."""
    (mean1, tail1, a), (mean2, tail2, b) = _hermite(phi, q1, field), _hermite(phi, q2, field)
    c, products = 1 - gap, [x * y for x, y in zip(a, b, strict=True)]
    error = mpmath.sqrt(tail1 * tail2) * abs(c) ** (_TERMS + 1 - order) * _TERMS ** (2 * order)
    if error > mpmath.mpf(10) ** (-_digits(field) - 1) * norm * min(gap, 1):
        return None
    powers = [c**n for n in range(_TERMS + 1)]
    if q1 == q2:
        out = [
            (mpmath.fsum(p * (1 - powers[n]) for n, p in enumerate(products, start=1)) + tail1)
            / norm
        ]
    else:
        out = [
            1
            - (mean1 * mean2 + mpmath.fsum(p * powers[n] for n, p in enumerate(products, start=1)))
            / norm
        ]
    for k in range(1, order + 1):
        out.append(
            mpmath.fsum(
                math.comb(n, k) * p * powers[n - k]
                for n, p in enumerate(products, start=1)
                if n >= k
            )
            / norm
        )
    return out


@lru_cache(maxsize=32)
def _coefficients(phi: Any, q: Number, field: Field, bits: int) -> tuple[Any, Any, list[Any]]:
    value, root = _function(phi), mpmath.sqrt(q)
    nodes = _nodes(_edges(phi, q, field, width=1.0), field)
    z = [node for node, _ in nodes]
    f = [value(root * node) for node in z]
    weights = [w * mpmath.npdf(node) for node, w in nodes]
    mean = mpmath.fsum(w * v for w, v in zip(weights, f, strict=True))
    weighted = [w * (v - mean) for w, v in zip(weights, f, strict=True)]
    variance = mpmath.fsum(w * (v - mean) for w, v in zip(weighted, f, strict=True))
    previous, current, out = [mpmath.mpf(0)] * len(z), [mpmath.mpf(1)] * len(z), []
    for n in range(_TERMS):
        up, down = 1 / mpmath.sqrt(n + 1), mpmath.sqrt(mpmath.mpf(n) / (n + 1))
        previous, current = (
            current,
            [x * h * up - g * down for x, h, g in zip(z, current, previous, strict=True)],
        )
        out.append(mpmath.fdot(weighted, current))
    return mean, max(variance - mpmath.fsum(x * x for x in out), mpmath.mpf(0)), out


def _hermite(phi: Any, q: Number, field: Field) -> tuple[Any, Any, list[Any]]:
    """E phi, the variance left out, and a_1 ... a_400 of phi(sqrt q .) at the working precision."""
    return _coefficients(phi, q, field, mpmath.mp.prec)


def _digits(field: Field) -> int:
    return field.digits  # type: ignore[attr-defined]


def _lost(gap: Number, order: int) -> int:
    """Digits that the factors 1/s^2 of the density's derivatives cancel."""
    return math.ceil(-order * math.log10(float(gap * (2 - gap)))) if order else 0


@lru_cache(maxsize=64)
def _compiled(phi: Any) -> tuple[Callable[[Any], Any], ...]:
    return tuple(lambdify([X], piece, modules="mpmath") for piece in phi.pieces)


def _function(phi: Any) -> Callable[[Any], Any]:
    """phi on mpmath numbers at the current working precision."""
    phi.refuse_numeric_only("digits beyond double precision")
    pieces = _compiled(phi)
    kinks = [mpmath.mpf(sp.Float(k.evalf(mpmath.mp.dps), mpmath.mp.dps)._mpf_) for k in phi.kinks]
    return lambda x: mpmath.mpf(pieces[sum(1 for k in kinks if x >= k)](x))


@lru_cache(maxsize=8)
def _legendre(degree: int, bits: int) -> list[tuple[Any, Any]]:
    return GaussLegendre(mpmath.mp).calc_nodes(degree, bits)


def _nodes(edges: list[Any], field: Field) -> list[tuple[Any, Any]]:
    """Composite Gauss-Legendre nodes: 24, 48, 96 ... a panel, enough for the field's digits."""
    degree = 4 + max(0, math.ceil(math.log2((_digits(field) + 4) / 32)))
    rule = _legendre(degree, mpmath.mp.prec + 10)
    out = []
    for a, b in pairwise(edges):
        middle, half = (mpmath.mpf(a) + b) / 2, (mpmath.mpf(b) - a) / 2
        out += [(middle + half * x, half * w) for x, w in rule]
    return out


def _reach(field: Field) -> float:
    return math.sqrt(2 * (_digits(field) + 6) * math.log(10))


def _edges(
    phi: Any, q: Number, field: Field, extra: tuple[float, ...] = (), width: float = _PANEL
) -> list[Any]:
    """Panel edges on the z axis; kinks are edges to full precision."""
    coarse = z_edges(phi, float(q))
    beyond = max(0.0, _reach(field) - 12)
    edges = np.unique(
        np.concatenate([coarse[1:-1], [coarse[0] - beyond, coarse[-1] + beyond], extra])
    )
    return _sharpened(split(edges, width), _images(phi, q))


def _images(phi: Any, q: Number) -> list[Any]:
    """kink/sqrt q at the working precision."""
    return [
        mpmath.mpf(sp.Float(k.evalf(mpmath.mp.dps), mpmath.mp.dps)._mpf_) / mpmath.sqrt(q)
        for k in phi.kinks
    ]


def _sharpened(edges: np.ndarray, exact: list[Any]) -> list[Any]:
    """``edges`` with those that stand for a kink replaced by its exact place."""
    kept = [
        mpmath.mpf(float(e))
        for e in edges
        if all(abs(float(e) - float(k)) > 1e-14 * (1 + abs(float(k))) for k in exact)
    ]
    low, high = kept[0], kept[-1]
    return sorted([*kept, *(k for k in exact if low < k < high)])


def _integrals(phi: Any, gap: Any, q1: Number, q2: Number, order: int, field: Field) -> list[Any]:
    """[E(phi(u) - phi(v))^2, Gamma', Gamma''] by nested panels: x outside, w = c x + s y inside."""
    value, r1, r2 = _function(phi), mpmath.sqrt(q1), mpmath.sqrt(q2)
    c, square = 1 - gap, gap * (2 - gap)
    s = mpmath.sqrt(square)
    totals = [mpmath.mpf(0)] * (order + 1)
    inner_kinks = _images(phi, q2)
    slope = float(s / abs(c)) if abs(c) > 0.05 else 0.0
    graded = tuple(
        float(k / c) + slope * t
        for k in inner_kinks
        for t in (-12, -8, -5, -2.5, 0, 2.5, 5, 8, 12)
        if slope
    )
    base = z_edges(phi, float(q2))
    for x, wx in _nodes(_edges(phi, q1, field, graded), field):
        fx, sums = value(r1 * x), [mpmath.mpf(0)] * (order + 1)
        for y, wy in _inner(base, x, c, s, inner_kinks, field):
            w = c * x + s * y
            fw, weight = value(r2 * w), wy * mpmath.npdf(y)
            sums[0] += weight * (fx - fw) ** 2
            for i, factor in enumerate(_plackett(x, w, c, square, order), start=1):
                sums[i] += weight * fx * fw * factor
        density = wx * mpmath.npdf(x)
        totals = [total + density * part for total, part in zip(totals, sums, strict=True)]
    return totals


def _inner(
    base: np.ndarray, x: Any, c: Any, s: Any, kinks: list[Any], field: Field
) -> list[tuple[Any, Any]]:
    if s == 0:
        return [(mpmath.mpf(0), 1 / mpmath.npdf(0))]
    reach = _reach(field)
    cuts = (base - float(c * x)) / float(s)
    edges = np.concatenate([[-reach], np.sort(cuts[(cuts > -reach) & (cuts < reach)]), [reach]])
    return _nodes(_sharpened(split(edges, _PANEL), [(k - c * x) / s for k in kinks]), field)


def _plackett(x: Any, w: Any, c: Any, square: Any, order: int) -> list[Any]:
    """d/dc and d^2/dc^2 of the bivariate density, divided by the density."""
    if order == 0:
        return []
    a, b, lam, kap = (x - c * w) / square, (w - c * x) / square, 1 / square, c / square
    first = a * b + kap
    return [first, lam**2 + kap**2 - lam * (a * a + b * b) + 2 * kap * a * b + first**2][:order]
