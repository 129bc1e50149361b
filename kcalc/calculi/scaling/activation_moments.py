"""Second moments after an activation: at one location, at two locations, or after max pooling."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from ...activations import Activation, X
from ...fields import SYMPY
from ...fields.jets import Jet
from ...gaussian.expectations.quadrature import panel_nodes
from ..location_maps import LocationMaps
from .levels import Level

Array = np.ndarray
LOCAL = LocationMaps()
REACH = 12.0  # standard deviations: exp(-12^2 / 2) = 5e-32
HIGHEST = 0.9999  # greater correlations within a window are replaced by this value


@lru_cache(maxsize=512)
def rectifier(phi: Activation) -> tuple[sp.Expr, sp.Expr] | None:
    """Return (a, b) if phi(x) = a x for x >= 0 and b x for x < 0; None for other activations."""
    if phi.degree != 1 or any(k != 0 for k in phi.kinks) or phi.numeric_only:
        return None
    return SYMPY.number(phi.expr.subs(X, 1)), SYMPY.number(-phi.expr.subs(X, -1))


@lru_cache(maxsize=512)
def half(phi: Activation) -> sp.Expr | None:
    """Return ``(a^2 + b^2) / 2`` for a rectifier, and None for other activations.

    A rectifier multiplies second moments of symmetric values by this factor.
    """
    sides = rectifier(phi)
    return None if sides is None else (sides[0] ** 2 + sides[1] ** 2) / 2


def after(phi: Activation, q: Level, what: str) -> Level:
    """Return E phi(z)^2 for z with mean square q, at every location.

    ``what`` names q in messages. Raises: KcalcError if q is beyond double precision.
    """
    factor = half(phi)
    if factor is not None:
        return q.scaled(factor if q.symbolic else float(factor))
    values = q.plain(what)
    return Level(phi.second_moment(values, SYMPY) if q.symbolic else LOCAL.q(phi, values)[0])


def slope_square(phi: Activation, q: Level, what: str) -> Any:
    """Return E phi'(z)^2 for z with mean square q: one number, or one number per location."""
    factor = half(phi)
    if factor is not None:
        return factor if q.symbolic else float(factor)
    values = q.plain(what)
    if q.symbolic:
        slope = phi.taylor(sp.Integer(0), values, values, 1, SYMPY)[1]
        return slope * phi.second_moment(values, SYMPY) / values
    distinct, place = np.unique(values, return_inverse=True)
    live = np.where(distinct > 0, distinct, 1.0)
    found = (
        np.asarray(phi.taylor(np.zeros_like(live), live, live, 1)[1])
        * np.asarray(phi.second_moment(live))
        / live
    )
    return np.where(distinct > 0, found, float(phi.numeric(1)(np.zeros(1))[0]) ** 2)[
        place.reshape(values.shape)
    ]


def mean_slope(phi: Activation, q: Level, what: str) -> Any:
    """Return E phi'(z), which is E z phi(z) / E z^2."""
    sides = rectifier(phi)
    if sides is not None:
        mean = (sides[0] + sides[1]) / 2
        return mean if q.symbolic else float(mean)
    values = q.plain(what)
    return (
        phi.mean_slope(values, SYMPY)
        if q.symbolic
        else np.asarray(phi.mean_slope(np.where(values > 0, values, 1.0)))
    )


def correlation_after(phi: Activation, rho: Any, q: Level, what: str) -> Any:
    """Return the cosine of phi(z_p), phi(z_r); z_p, z_r have correlation rho and mean square q."""
    if q.symbolic:
        found = phi.c_expr(rho, q.values)
        return sp.Function(f"C_{phi.name}")(rho, q.values) if found is None else sp.simplify(found)
    sides = rectifier(phi)
    size = np.ones(1) if sides is not None else np.mean(q.plain(what), keepdims=True)
    gap = LOCAL.gap(phi, Jet((np.asarray([1 - rho]),)), size, size)
    return float(1 - np.asarray(gap.value).ravel()[0])


def pairs_after(phi: Activation, q: Level, pairs: Level | None, what: str) -> tuple[Level, Array]:
    """Return (E phi(z_p) phi(z_r), E phi'(z_p) phi'(z_r)) for all pairs of locations, both (P, P).

    ``pairs`` contains E z_p z_r, or is None if locations are uncorrelated. The diagonals of the
    results are meaningless.
    """
    size = np.where(q.values > 0, q.values, 1.0)
    roots = np.sqrt(size)
    norm = np.outer(roots, roots)
    cosine = (
        np.zeros_like(norm)
        if pairs is None
        else np.ldexp(pairs.values, pairs.exponent - q.exponent) / norm
    )
    cosine = np.clip(cosine, -1.0, 1.0)
    np.fill_diagonal(cosine, 0.0)
    homogeneous = half(phi) is not None
    values = q.values if homogeneous else q.plain(what)
    first = np.broadcast_to(values[:, None], cosine.shape)
    second = np.broadcast_to(values[None, :], cosine.shape)
    jet = LOCAL.gap(phi, Jet((1 - cosine, -np.ones_like(cosine))), first, second)
    after_one = LOCAL.q(phi, values)[0]
    outer = np.sqrt(np.outer(after_one, after_one))
    covariance = Level(outer * (1 - jet.value), q.exponent if homogeneous else 0)
    live = np.where(values > 0, values, 1.0)
    return covariance, outer / np.sqrt(np.outer(live, live)) * -jet.coefficients[1]


# -- the maximum of a window -----------------------------------------------------------------------


def maximum(
    power: int, phi: Activation | None, q: float, rho: float, count: int, derivative: int = 0
) -> float:
    """Return ``E phi^(derivative)(Y)^power``, where Y is the maximum of ``count`` normals.

    ``phi=None`` is the identity. The normals have mean square q and mutual correlation rho. For
    four independent standard normals E Y^2 = 1 + sqrt(3)/pi = 1.5513.
    """
    root = math.sqrt(q)
    kinks = () if phi is None else phi.kink_points
    edges = sorted(
        {
            *np.arange(-REACH, REACH + 1).tolist(),
            *(k / root for k in kinks if abs(k) < REACH * root),
        }
    )
    y, weights = (part.ravel() for part in panel_nodes(np.array(edges), 24))
    value = y * root if phi is None else np.asarray(phi.numeric(derivative)(y * root))
    return float(np.sum(weights * value**power * _density(y, rho, count)))


def _density(y: Array, rho: float, count: int) -> Array:
    """Return the density of the maximum of ``count`` standard normals with correlation rho >= 0."""
    rho = min(max(rho, 0.0), HIGHEST)
    if rho < 1e-12:
        return _largest(y, count)
    own, step = math.sqrt(1 - rho), min(0.1, 0.25 * math.sqrt(1 - rho))
    shared = np.arange(-9.0, 9.0 + step, step)
    inner = _largest((y[:, None] - math.sqrt(rho) * shared) / own, count) / own
    return inner @ (step * np.exp(-(shared**2) / 2) / math.sqrt(2 * math.pi))


def _largest(y: Array, count: int) -> Array:
    from scipy.special import ndtr

    return count * np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi) * ndtr(y) ** (count - 1)
