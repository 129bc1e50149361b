"""The two equations in (log alpha, beta) that a shaping method solves.

The equations follow from the method's local conditions after gamma and delta are eliminated.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..activations import Activation
from ..foundation.errors import Advice, Remedy, UnreachableTarget
from .moments import Moments, Pair

UNREACHED = 1e6


class OutOfReach(UnreachableTarget):
    """The target cannot be reached.

    ``nearest`` is the closest value of C'(1) or C''(1) that was found, and ``above`` states whether
    the target is greater. ``exact`` states whether the closest value is an extremum, rather than
    the end of the search.
    """

    def __init__(self, text: str, nearest: float, above: bool, exact: bool) -> None:
        super().__init__(text)
        self.nearest, self.above, self.exact = nearest, above, exact


def inwards(value: float, above: bool | None, digits: int = 6) -> str:
    """Format ``value`` with ``digits`` digits, rounded away from unreachable targets.

    The value is rounded down if targets ``above`` it are unreachable, and up if targets below it
    are unreachable.
    """
    if above is None or not 0 < abs(value) < math.inf:
        return f"{value:.{digits}g}"
    rounding = decimal.ROUND_FLOOR if above else decimal.ROUND_CEILING
    number = decimal.Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(number):.{digits}g}"


def slope_text(excess: float, above: bool | None = None, digits: int = 6) -> str:
    """Format 1 + excess, as a sum if rounding would lose the excess."""
    return (
        inwards(1 + excess, above, digits)
        if not 0 < excess < 1e-4
        else f"1 + {inwards(excess, above, digits)}"
    )


class Equations(NamedTuple):
    """Two residuals (value - target, of order one) and their derivatives in (log alpha, beta).

    ``moments`` contains the moments from which they were computed.
    """

    first: float
    second: float
    d_first: Pair
    d_second: Pair
    moments: Moments

    @property
    def residual(self) -> float:
        """Return the larger of the two residuals."""
        return max(abs(self.first), abs(self.second))

    @property
    def step(self) -> Pair | None:
        """Return the Newton step in (log alpha, beta), or None if the equations are singular."""
        (a, b), (c, d) = self.d_first, self.d_second
        determinant = a * d - b * c
        if determinant == 0:
            return None
        step = (
            (b * self.second - d * self.first) / determinant,
            (c * self.first - a * self.second) / determinant,
        )
        return step if all(map(math.isfinite, step)) else None


class EquationPair(Protocol):
    """A pair of equations for one activation.

    ``target`` is a small positive quantity. As it grows from 0, branches start from alpha = 0.
    """

    @property
    def phi(self) -> Activation: ...
    @property
    def target(self) -> float: ...
    @property
    def order(self) -> int:
        """Return the order of the highest derivative of phi that the equations use."""
        ...

    @property
    def condition(self) -> str:
        """Return a description of the first equation for messages."""
        ...

    @property
    def remedies(self) -> tuple[Advice, ...]:
        """Return the remedies to suggest if the first equation cannot be met."""
        ...

    def named(self, target: float, above: bool | None = None, digits: int = 6) -> str:
        """Describe the condition for a target, with the target rounded by :func:`inwards`."""
        ...

    def value(self, target: float) -> float:
        """Return the value that appears in the condition for a target."""
        ...

    def at(self, target: float) -> EquationPair:
        """Return the same equations with another target."""
        ...

    def equations(self, m: Moments) -> Equations: ...
    def surfaces(
        self, variance: Any, excess: Any, turn: Any, tilt: Any, bend: Any
    ) -> tuple[Any, Any]:
        """Return (first residual, quantity that must equal ``target``) for arrays of moments."""
        ...

    def limit(self, one: Any, two: Any, three: Any) -> Any:
        """Return the value, at one shift, of the function whose zeros are the starts of branches.

        As alpha -> 0, the shift of a branch tends to such a zero. The arguments are phi', phi'',
        phi''' at the shift.
        """
        ...

    def first_scale(self, ratio: float) -> float:
        """Return alpha to leading order in the target; ``ratio`` is |phi'/phi''| at the start."""
        ...

    def output(self, m: Moments) -> tuple[float, float]:
        """Return (gamma, delta), the output scale and shift."""
        ...


@dataclass(frozen=True)
class SlopeSystem:
    """DKS: C'(1) - 1 = ``target`` and Q'(1) - 1 = ``ratio * target`` [DKS sec. 18].

    gamma and delta ensure Q(1) = 1 and C(0) = 0.
    """

    phi: Activation
    target: float
    ratio: float = 0.0
    order = 2

    @property
    def remedies(self) -> tuple[Advice, ...]:
        words = f"drop {self.condition} with q_slope=None"
        return "use another activation", Remedy("dks", {"q_slope": None}, words)

    @property
    def condition(self) -> str:
        return f"Q'(1) = {1 + self.ratio * self.target:.6g}"

    def named(self, target: float, above: bool | None = None, digits: int = 6) -> str:
        return f"C'(1) = {slope_text(target, above, digits)}"

    def value(self, target: float) -> float:
        return 1 + target

    def at(self, target: float) -> SlopeSystem:
        return replace(self, target=target)

    def equations(self, m: Moments) -> Equations:
        v, turn, excess = m.variance, m.turn / m.variance, m.excess / m.variance
        return Equations(
            turn - self.ratio * self.target,
            excess - self.target,
            (
                (m.d_turn[0] - turn * m.d_variance[0]) / v,
                (m.d_turn[1] - turn * m.d_variance[1]) / v,
            ),
            (
                (m.d_excess[0] - excess * m.d_variance[0]) / v,
                (m.d_excess[1] - excess * m.d_variance[1]) / v,
            ),
            m,
        )

    def surfaces(
        self, variance: Any, excess: Any, turn: Any, tilt: Any, bend: Any
    ) -> tuple[Any, Any]:
        return turn / variance - self.ratio * self.target, excess / variance

    def limit(self, one: Any, two: Any, three: Any) -> Any:
        return (1 - self.ratio) * two**2 + 2 * one * three

    def first_scale(self, ratio: float) -> float:
        return math.sqrt(2 * self.target) * ratio

    def output(self, m: Moments) -> tuple[float, float]:
        return m.variance**-0.5, -m.mean


class LeastQSlope(SlopeSystem):
    """C'(1) - 1 = ``target`` with the smallest possible Q'(1).

    The equations of :class:`SlopeSystem` are in reverse order: the first fixes C'(1), and the
    second measures Q'(1) relative to a bound that no activation reaches.
    """

    def equations(self, m: Moments) -> Equations:
        found = super().equations(m)
        return Equations(
            found.second, found.first + UNREACHED, found.d_second, found.d_first, found.moments
        )


@dataclass(frozen=True)
class CurvatureSystem:
    """Smooth TAT: C''(1) = ``target`` and Q'(1) = 1 [TAT sec. 4.2].

    gamma and delta ensure Q(1) = 1 and C'(1) = 1.

    ``side`` is the sign of the mean of the transformed activation; the squared mean is E f'^2 - Var
    f.
    """

    phi: Activation
    target: float
    side: int = 1
    order = 3
    condition = "Q'(1) = C'(1) = 1"

    @property
    def remedies(self) -> tuple[Advice, ...]:
        return "use another activation", Remedy("dks")

    def named(self, target: float, above: bool | None = None, digits: int = 6) -> str:
        return f"C''(1) = {inwards(target, above, digits)}"

    def value(self, target: float) -> float:
        return target

    def at(self, target: float) -> CurvatureSystem:
        return replace(self, target=target)

    def equations(self, m: Moments) -> Equations:
        g, mean = m.gradient, self.side * math.sqrt(max(m.excess, 1e-300))
        first, second = (m.turn - m.excess + mean * m.tilt) / g, m.bend / g
        rows = []
        for i in (0, 1):
            dg, d_mean = m.d_variance[i] + m.d_excess[i], m.d_excess[i] / (2 * mean)
            d_first = (
                m.d_turn[i] - m.d_excess[i] + d_mean * m.tilt + mean * m.d_tilt[i] - first * dg
            ) / g
            rows.append((d_first, (m.d_bend[i] - second * dg) / g))
        return Equations(
            first, second - self.target, (rows[0][0], rows[1][0]), (rows[0][1], rows[1][1]), m
        )

    def surfaces(
        self, variance: Any, excess: Any, turn: Any, tilt: Any, bend: Any
    ) -> tuple[Any, Any]:
        gradient = variance + excess
        return (
            turn - excess + self.side * np.sqrt(np.maximum(excess, 0)) * tilt
        ) / gradient, bend / gradient

    def limit(self, one: Any, two: Any, three: Any) -> Any:
        return one * three + self.side * two * np.abs(two) / math.sqrt(2)

    def first_scale(self, ratio: float) -> float:
        return math.sqrt(self.target) * ratio

    def output(self, m: Moments) -> tuple[float, float]:
        return m.gradient**-0.5, self.side * math.sqrt(max(m.excess, 0.0)) - m.mean
