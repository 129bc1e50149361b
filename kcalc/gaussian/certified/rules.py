"""Gauss-Legendre rules with certified nodes and error bounds.

The bounds are for functions that are bounded and analytic in an ellipse. Let |f| <= M inside the
Bernstein ellipse of parameter rho (foci +-1, semi-axes (rho +- 1/rho)/2). Then the error of the
n-point rule is at most (64/15) M rho^(-2n)/(1 - rho^(-2)), because the rule is exact to degree 2n -
1 and the Chebyshev coefficients of f decay like 2 M rho^(-k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any

from kcalc.fields.balls import Ball, working
from kcalc.gaussian.certified.ranges import above

Slab = tuple[float, float, float]
"""left, right and height of a box over a piece of the upper half of an ellipse."""

LADDER = (1.12, 1.35, 1.7, 2.3, 3.5)
FEWEST = 8  # fewest points of a rule
"""``LADDER``: ellipses to try, as multiples of the one that a function bounded by 1 needs"""


@lru_cache(maxsize=256)
def legendre(n: int, bits: int) -> tuple[tuple[Ball, Ball], ...]:
    """Return the nodes and weights of the n-point rule on [-1, 1] as balls of ``bits`` bits."""
    from flint import arb

    with working(bits):
        return tuple(arb.legendre_p_root(n, k, weight=True) for k in range(n))


@lru_cache(maxsize=256)
def slabs(rho: float, count: int) -> tuple[Slab, ...]:
    """Return boxes, equally spaced in angle, that cover the upper half of the ellipse for rho."""
    long, short = above((rho + 1 / rho) / 2), above((rho - 1 / rho) / 2)
    cuts = [-long * math.cos(math.pi * k / count) for k in range(count + 1)]
    cuts[0], cuts[-1] = -above(long), above(long)
    out = []
    for left, right in pairwise(cuts):
        nearest = 0.0 if left <= 0 <= right else min(abs(left), abs(right))
        out.append(
            (left, right, above(short * math.sqrt(max(0.0, 1 - (nearest / long) ** 2)) + 1e-12))
        )
    return tuple(out)


def log_error(log_bound: float, rho: float, n: int) -> float:
    """Return the log of the error bound for the n-point rule on [-1, 1].

    The function is bounded by exp(log_bound) in the ellipse.
    """
    return above(
        log_bound + math.log(64 / 15) - 2 * n * math.log(rho) - math.log1p(-(rho**-2)) + 1e-9
    )


def best_rule(
    bound: Callable[[Iterable[Slab]], float],
    log_allowed: float,
    most: int,
    count: int = 8,
) -> tuple[int, float] | None:
    """Return the smallest n that reaches ``log_allowed``, and the log of its error bound.

    n is a multiple of 4 and at most ``most``. Returns None if no such n reaches ``log_allowed``.

    ``bound`` maps boxes to the log of a bound on the function there, or to inf if the function is
    not analytic there.
    """
    start = math.exp(max(-log_allowed, 4.0) / (2 * most))
    found: tuple[int, float] | None = None
    for factor in LADDER:
        rho = start * factor
        size = bound(slabs(rho, count))
        if size == math.inf:
            break
        if size == -math.inf:
            return FEWEST, -math.inf
        for n in range(FEWEST, (found[0] if found else most + 4), 4):
            error = log_error(size, rho, n)
            if error <= log_allowed:
                found = (n, error)
                break
    return found


def box(slab: Slab) -> Any:
    """Return a slab as a complex ball."""
    from flint import acb, arb

    left, right, height = slab
    return acb(arb(left).union(arb(right)), arb(0).union(arb(height)))


def log_size(value: Any) -> float:
    """Return the log of an upper bound on |value|, or inf if the value is not finite."""
    size = value.abs_upper()
    if not size.is_finite():
        return math.inf
    return -math.inf if size == 0 else above(float(size.log().upper()))
