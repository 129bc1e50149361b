"""Derivatives of expectations E f(u) with respect to q, where u = sqrt(q) z.

One formula differentiates the Gaussian: ``d^k/dq^k E f(u) = E[f(u) He_2k(z)] / (2q)^k``. Kinks and
jumps of f need no special care, but digits cancel at small q. There, the other formula is used,
which differentiates f: ``E f^(2k)(u) / 2^k``. A jump J of f^(j) at x then adds the derivative of
order 2k - 1 - j of J delta(u - x).
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from operator import mul

import numpy as np

from kcalc.fields.jets import Jet
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations.quadrature import (
    Array,
    Profile,
    Rule,
    joint_edges,
    normal_rule,
    rule,
    split,
)

# relative error of a coefficient above which the second formula is also tried
ROUNDED = 1e-12
LOST = 1e-7  # larger errors, relative to a coefficient or to E |f|, raise a KcalcError
MOST = 12  # highest derivative of f; expressions for higher derivatives are too large
EPS = float(np.finfo(float).eps)
Factors = tuple[Profile, ...]


@lru_cache(maxsize=4096)
def moment_series(profile: Profile, power: int, q: float, order: int) -> tuple[float, ...]:
    """Return the Taylor coefficients in q of E phi(u)^power.

    Raises KcalcError if a coefficient loses its digits to rounding.
    """
    return _series((profile,) * power, rule(profile, q), q, order)


@lru_cache(maxsize=4096)
def product_series(phi: Profile, psi: Profile, q: float, order: int) -> tuple[float, ...]:
    """Return the Taylor coefficients in q of E[phi(u) psi(u)].

    Raises KcalcError if a coefficient loses its digits to rounding.
    """
    return _series((phi, psi), normal_rule(split(joint_edges(phi, q, psi, q, 1), 1.0)), q, order)


@lru_cache(maxsize=4096)
def slope_series(profile: Profile, q: float, order: int) -> tuple[float, ...]:
    """Return Taylor coefficients in q of E phi'(u).

    The coefficients come from the identity E[phi' He_n(z)] = E[phi He_(n+1)(z)] / sqrt(q). Raises
    KcalcError if a coefficient loses its digits to rounding.
    """
    return _series((profile,), rule(profile, q), q, order, first=1)


def _series(
    factors: Factors, nodes: Rule, q: float, order: int, first: int = 0
) -> tuple[float, ...]:
    """Return E D^(2k + first) f(u) / (2^k k!), k = 0 ... order, where f is the factors' product."""
    u = math.sqrt(q) * nodes.z
    weighted = nodes.w * math.prod(factor.numeric(0)(u) for factor in factors)
    scale = float(np.abs(weighted).sum())
    previous, current, out = np.zeros_like(nodes.z), np.ones_like(nodes.z), list[float]()
    for n in range(2 * order + first + 1):
        k, odd = divmod(n - first, 2)
        if k >= 0 and not odd:
            size = q ** (k + first / 2) * 2**k * math.factorial(k)
            found = float(weighted @ current) / size
            error = EPS * float(np.abs(weighted) @ np.abs(current)) / size
            out.append(
                found
                if error <= ROUNDED * abs(found)
                else _more_accurate(factors, u, nodes.w, q, n, k, (found, error), scale)
            )
        previous, current = current, nodes.z * current - n * previous
    return tuple(out)


def _more_accurate(
    factors: Factors,
    u: Array,
    w: Array,
    q: float,
    n: int,
    k: int,
    given: tuple[float, float],
    scale: float,
) -> float:
    """Return the coefficient from the formula with the smaller error bound.

    ``given`` is the (value, error) of the first formula. The second formula differentiates f.
    """
    found, error = given
    if n and n <= MOST and not any(getattr(f, "rough", False) for f in factors):
        try:
            other, its_error = _by_derivatives(factors, u, w, q, n)
        except KcalcError:  # a callable with unknown derivatives
            pass
        else:
            size = 2**k * math.factorial(k)
            if its_error / size < error:
                found, error = other / size, its_error / size
    if n > 1 and error > LOST * max(abs(found), scale):
        names = " and ".join(dict.fromkeys(factor.name for factor in factors))
        raise KcalcError(
            f"the derivative of order {k} with respect to q of the moments of {names} loses too "
            f"many digits at q = {q:g}; use a larger q, or pass the activation as an expression"
        )
    return found


def _by_derivatives(factors: Factors, u: Array, w: Array, q: float, n: int) -> tuple[float, float]:
    """Return (E D^n f(u), a bound on its rounding error), with D in the sense of distributions."""
    smooth = w * _taylor(factors, u, n)[n] * math.factorial(n)
    total, size = float(smooth.sum()), float(np.abs(smooth).sum())
    for x in sorted({k for factor in factors for k in factor.kink_points}):
        tails = _delta_derivatives(x, q, n)
        for j, jump in enumerate(_product_jumps(factors, x, n - 1)):
            if jump:
                total += jump * math.factorial(j) * tails[n - 1 - j]
                size += abs(jump * math.factorial(j) * tails[n - 1 - j])
    return total, EPS * size


def _product_jumps(factors: Factors, x: float, order: int) -> list[float]:
    """Return the jumps of f^(j) / j! at x for j = 0 ... order, from the jumps of the factors.

    The factors are evaluated on one side only, so a factor without jumps adds no rounding error.
    """
    here, jumps = np.array([np.nextafter(x, -math.inf)]), [0.0] * (order + 1)
    left = Jet((1.0, *[0.0] * order))
    for factor in factors:
        values = Jet(
            tuple(float(factor.numeric(j)(here)[0]) / math.factorial(j) for j in range(order + 1))
        )
        own = Jet(tuple(_jump(factor, x, j) / math.factorial(j) for j in range(order + 1)))
        # (left + jumps) (values + own) - left values
        joined = Jet(tuple(jumps)) * (values + own) + left * own
        left, jumps = left * values, list(joined.coefficients)
    return jumps


def _jump(factor: Profile, x: float, order: int) -> float:
    """Return the jump of a derivative of one factor at x, or 0 if x is not one of its kinks."""
    sizes = zip(factor.kink_points, factor.jump_sizes(order), strict=True)
    return sum(size for point, size in sizes if point == x)


def _taylor(factors: Factors, u: Array, order: int) -> list[Array]:
    """Return f^(j)(u) / j! for j = 0 ... order, from the derivatives of the factors."""
    jets = (
        Jet(tuple(f.numeric(j)(u) / math.factorial(j) for j in range(order + 1))) for f in factors
    )
    return list(reduce(mul, jets).coefficients)


def _delta_derivatives(x: float, q: float, count: int) -> list[float]:
    """Return the expectations E delta^(m)(u - x) for m = 0 ... count - 1.

    The expectations are He_m(x / sqrt q) q^(-m/2) times the density of u at x.
    """
    at = x / math.sqrt(q)
    density = math.exp(-at * at / 2) / math.sqrt(2 * math.pi * q)
    if density == 0:
        return [0.0] * count
    previous, current, out = 0.0, 1.0, []
    for m in range(count):
        out.append(current * q ** (-m / 2) * density)
        previous, current = current, at * current - m * previous
    return out
