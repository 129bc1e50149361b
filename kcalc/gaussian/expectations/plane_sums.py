"""E[phi(u) psi(v)] at a few values of c, by a trapezoid rule over two standard normals.

A Hermite series serves every c of a pair of q values, and takes as long to make as some ten such
sums. For functions without kinks; the step is tested once for each function and range of q.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from kcalc.foundation.errors import KcalcError
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.quadrature import (
    WINDOW,
    Array,
    Profile,
    normal_density,
    z_edges,
)
from kcalc.gaussian.expectations.single import fastest, second_moment

_NEAR = 1e-3  # gaps from which the difference of two values has the digits of the drop
_STEPS = 0.5 * 0.8 ** np.arange(10)
_EXACT = 4e-15
_DEPTH = 44.0  # the integrand is followed down to exp(-44) of its peak
_NODES = 60_000  # spent on one pair of q values; then its series takes less


def _grid(step: float, reach: float) -> tuple[Array, Array]:
    """Nodes z = 0, +-h, ... up to the reach, and h times the standard normal density there."""
    count = math.ceil(reach / step)
    z: Array = np.arange(-count, count + 1) * np.float64(step)
    return z, step * normal_density(z)


def _squares(profile: Profile, q: float, step: float, reach: float) -> Array:
    """E of the squares of phi, phi' and phi'' by the trapezoid rule."""
    z, w = _grid(step, reach)
    return np.array([w @ profile.numeric(n)(math.sqrt(q) * z) ** 2 for n in range(3)])


@lru_cache(maxsize=1024)
def _rule(profile: Profile, half_octave: int) -> tuple[float, float] | None:
    """A step and a reach for all q up to ``2^(half_octave / 2)``; None where none is found.

    At smaller q the function varies more slowly over the standard normal, so that a step that is
    exact at this q is exact there as well. The step resolves products of the fastest waves that
    the panels of the mesh may hold, beside the normal density. The sums must agree with those of
    half the step, and that of phi^2 with the panels, which narrow features do not escape.
    """
    q = 2.0 ** (half_octave / 2)
    try:
        edges, truth = z_edges(profile, q, _DEPTH), second_moment(profile, q)
    except KcalcError:  # the expectation may diverge at this q and not at a smaller one
        return None
    reach, longest = max(-edges[0], edges[-1]), 2 * math.pi / (2 * fastest(edges) + WINDOW)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in map(float, _STEPS[longest >= _STEPS]):
            found, finer = (_squares(profile, q, h, reach) for h in (step, step / 2))
            known = np.append(finer, truth)
            if (np.abs(np.append(found, found[0]) - known) <= _EXACT * known).all():
                return step, reach
    return None


class PlaneSum:
    """Gamma(c) = E[phi(u) psi(v)] with u = sqrt(q1) (a x + b y), v = sqrt(q2) (a x - b y).

    a^2 = (1 + c)/2, b^2 = (1 - c)/2, and x, y are independent standard normals, so that Gamma(1) -
    Gamma(c) = E[(phi(u) - phi(u')) (psi(v') - psi(v))]/2, where u' and v' have -y for y.
    """

    def __init__(self, phi: Profile, q1: float, psi: Profile, q2: float) -> None:
        self._sides = ((phi, math.sqrt(q1)), (psi, math.sqrt(q2)))
        self._left = _NODES

    @cached_property
    def _nodes(self) -> tuple[Array, Array] | None:
        if any(profile.kink_points for profile, _ in self._sides):
            return None
        rules = [_rule(f, math.ceil(4 * math.log2(root))) for f, root in self._sides]
        if None in rules:
            return None
        steps, reaches = zip(*filter(None, rules), strict=True)
        return _grid(min(steps), max(reaches))

    def serves(self, gap: Array, order: int) -> bool:
        """Whether these gaps, of flat shape, are few enough and far enough from 0."""
        if order > 2 or (gap < _NEAR).any() or self._nodes is None:
            return False
        cost = gap.size * self._nodes[0].size ** 2 // 2
        if cost > self._left:
            return False
        self._left -= cost
        return True

    @cached_property
    def _line(self) -> tuple[Array, ...]:
        """Weights, and the values of both functions at the nodes."""
        assert self._nodes is not None
        z, w = self._nodes
        return (w, *(profile.numeric(0)(root * z) for profile, root in self._sides))

    @cached_property
    def whole(self) -> float:
        """Gamma(1)."""
        w, first, second = self._line
        return float(w @ (first * second))

    def taylor(self, gap: Array, order: int, rest: Array | None = None) -> list[Array]:
        """[Gamma(1) - Gamma(c), Gamma'(c), Gamma''(c)/2] up to ``order`` at c = 1 - gap.

        ``rest`` is 1 + c where that is known better than 2 - gap.
        """
        beyond = 2 - gap if rest is None else rest
        return list(
            np.array(
                [
                    self._at(float(one), float(other), order)
                    for one, other in zip(gap, beyond, strict=True)
                ]
            ).T
        )

    def _at(self, gap: float, rest: float, order: int) -> list[float]:
        assert self._nodes is not None
        z, w = self._nodes
        upper = z[z.size // 2 :]
        doubled = 2 * w[z.size // 2 :]
        doubled[0] /= 2
        along, across = math.sqrt(rest / 2) * z[:, None], math.sqrt(gap / 2) * upper
        sides = self._sides[:1] if self._sides[0] == self._sides[1] else self._sides
        found, scale = [], math.prod(root for _, root in self._sides)
        for n in range(order + 1):
            values = [
                (
                    profile.numeric(n)(root * (along + across)),
                    profile.numeric(n)(root * (along - across)),
                )
                for profile, root in sides
            ]
            (u, u_), (v_, v) = values[0], values[-1]
            terms = (u - u_) * (v_ - v) if n == 0 else u * v + u_ * v_
            found.append(scale**n / 2 / math.factorial(n) * float(w @ terms @ doubled))
        if gap == 1:
            w, first, second = self._line
            found[0] = self.whole - float(w @ first) * float(w @ second)
        return found


@lru_cache(maxsize=512)
def plane_sum(phi: Profile, q1: float, psi: Profile, q2: float) -> PlaneSum:
    """The cached :class:`PlaneSum` of (phi, q1) and (psi, q2)."""
    return PlaneSum(phi, q1, psi, q2)
