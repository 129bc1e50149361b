"""Gaussian means of products of powers of activations.

The means are computed by quadrature and by Hermite series in the correlation.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ...activations import Activation, activation
from ...foundation.errors import KcalcError
from ...gaussian.expectations.quadrature import Rule, joint_edges, normal_rule, split
from ...gaussian.expectations.single import q_slope, second_moment

Array = np.ndarray
TERMS = 320
_CUT = 1e-9  # a larger share of the mean at the ends of the rule means that it goes on beyond them
IDENTITY = activation("identity")


@lru_cache(maxsize=512)
def _rule(phi: Any, psi: Any, q: float) -> Rule:
    return normal_rule(split(joint_edges(phi, q, psi, q, 1), 1.0))


@lru_cache(maxsize=512)
def moment(phi: Activation, i: int, psi: Activation, j: int, q: float) -> float:
    """Return E phi(u)^i psi(u)^j for u with variance q.

    Raises: KcalcError if the mean is not finite.
    """
    nodes = _rule(phi, psi, q)
    u = math.sqrt(q) * nodes.z
    with np.errstate(over="ignore", invalid="ignore"):
        addends = nodes.w * (phi.numeric(0)(u) ** i * psi.numeric(0)(u) ** j)
    value, sizes = float(addends.sum()), np.abs(addends)
    if not math.isfinite(value) or max(sizes[0], sizes[-1]) > _CUT * sizes.max():
        raise KcalcError(
            f"E {phi.name}(u)^{i} {psi.name}(u)^{j} at q = {q:g} is infinite or beyond double "
            "precision, so fluctuations cannot be computed; use a smaller q or sigma_w"
        )
    return value


@lru_cache(maxsize=1024)
def series(phi: Activation, i: int, psi: Activation, j: int, q: float) -> Array:
    """Return Hermite coefficients E[phi(u)^i psi(u)^j h_n(u / sqrt(q))], n < TERMS, Var u = q."""
    nodes = _rule(phi, psi, q)
    u = math.sqrt(q) * nodes.z
    half = np.exp(-(nodes.z**2) / 4)
    weighted = (
        np.where(half > 1e-150, nodes.w / np.maximum(half, 1e-150), 0.0)
        * phi.numeric(0)(u) ** i
        * psi.numeric(0)(u) ** j
    )
    out = np.empty(TERMS)
    before, now = np.zeros_like(half), half
    for n in range(TERMS):
        out[n] = weighted @ now
        before, now = now, (nodes.z * now - math.sqrt(n) * before) / math.sqrt(n + 1)
    return out


def correlated(first: Array, second: Array, c: float) -> float:
    """Return E f(u1) g(u2) = sum_n f_n g_n c^n, where u1 and u2 have correlation c.

    ``first`` and ``second`` are the Hermite coefficients f_n and g_n.
    """
    return float(np.sum(first * second * c ** np.arange(first.size)))


def _rescaled(at_one: Array, q: float, power: int, phi: Activation) -> Array:
    """Return ``q^power`` times the moments of a homogeneous activation at q = 1.

    The integrals at q = 1 are cached and shared by all layers. Raises: KcalcError beyond double
    precision.
    """
    with np.errstate(over="ignore"):
        found = np.float64(q) ** power * at_one
    if not np.all(np.isfinite(found)):
        raise KcalcError(
            f"moments of {phi.name} at q = {q:g} are beyond double precision, so fluctuations "
            f"cannot be computed"
        )
    return found


def slopes(phi: Activation, q: float, c: float | None) -> Array:
    """Return the derivative of the local kernel map.

    For one input, the derivative is dQ/dq. For two inputs, it is a 3 x 3 matrix in the order (q11,
    q12, q22), at q11 = q22 = q and cosine c.
    """
    if phi.degree is None:
        return _slopes(phi, q, c)
    return _rescaled(_slopes(phi, 1.0, c), q, phi.degree - 1, phi)


@lru_cache(maxsize=512)
def _slopes(phi: Activation, q: float, c: float | None) -> Array:
    own = q_slope(phi, q) if phi != IDENTITY else 1.0
    if c is None:
        return np.array([[own]])
    a = series(phi, 1, IDENTITY, 0, q)
    n = np.arange(a.size)
    across = float(np.sum(n[1:] * a[1:] ** 2 * c ** (n[1:] - 1.0))) / q
    side = float(
        np.sum(
            np.sqrt((n[:-2] + 1.0) * (n[:-2] + 2.0)) * a[2:] * a[:-2] * c ** n[:-2].astype(float)
        )
    ) / (2 * q)
    return np.array([[own, 0.0, 0.0], [side, across, side], [0.0, 0.0, own]])


COMPONENTS = ((0, 0), (0, 1), (1, 1))


def alike(phi: Activation, psi: Activation, q: float, c: float | None) -> Array:
    """Return Cov(phi_a phi_b, psi_c psi_d) for activations of one Gaussian pair.

    If ``c`` is None, the activations act on one Gaussian. The result is a matrix over the
    components of the kernel.
    """
    if phi.degree is None or psi.degree is None:
        return _alike(phi, psi, q, c)
    return _rescaled(_alike(phi, psi, 1.0, c), q, phi.degree + psi.degree, phi)


@lru_cache(maxsize=512)
def _alike(phi: Activation, psi: Activation, q: float, c: float | None) -> Array:
    if c is None:
        return np.array(
            [[moment(phi, 2, psi, 2, q) - second_moment(phi, q) * second_moment(psi, q)]]
        )

    def mean(i1: int, j1: int, i2: int, j2: int) -> float:
        return correlated(series(phi, i1, psi, j1, q), series(phi, i2, psi, j2, q), c)

    out = np.empty((3, 3))
    for x, one in enumerate(COMPONENTS):
        for y, two in enumerate(COMPONENTS):
            powers = one.count(0), two.count(0), one.count(1), two.count(1)
            apart = mean(one.count(0), 0, one.count(1), 0) * mean(0, two.count(0), 0, two.count(1))
            out[x, y] = (
                moment(phi, 2, psi, 2, q)
                if 4 in (powers[0] + powers[1], powers[2] + powers[3])
                else mean(*powers)
            ) - apart
    return out


def wick(cross: Array, fixed: Any = 0.0) -> Array:
    """Return the covariances Cov(u_a u_b, w_c w_d) of Gaussians.

    The covariances are ``T_ac S_bd + T_ad S_bc + X_bc S_ad + X_bd S_ac`` with ``T = S + X``.
    ``cross``: S with S_ac = Cov(u_a, w_c), 1 x 1 or 2 x 2; ``fixed``: X with X_ac = x_a x_c for
    non-random parts x of u and w.
    """
    parts = ((0, 0),) if cross.shape == (1, 1) else COMPONENTS
    fixed = np.broadcast_to(fixed, cross.shape)
    whole = cross + fixed

    def entry(a: int, b: int, c: int, d: int) -> Any:
        return (
            whole[a, c] * cross[b, d]
            + whole[a, d] * cross[b, c]
            + fixed[b, c] * cross[a, d]
            + fixed[b, d] * cross[a, c]
        )

    return np.array([[entry(a, b, c, d) for c, d in parts] for a, b in parts])
