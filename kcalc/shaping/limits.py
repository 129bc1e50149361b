"""Infinite depth: limits of q and c values, and the flow of tailored ReLUs [TAT Prop. 3].

The limits and rates of convergence refer to a repeated block. The flow is the limit of deep
networks of tailored ReLUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..calculi.global_maps import c_map, node_values, q_map
from ..calculi.subnetworks import maximal_curvature
from ..fields.arguments import number_within
from ..foundation.errors import KcalcError, without_option
from ..foundation.printing import Shown
from ..foundation.rootfinding import zero_between
from ..maps.maps import Assumption, FixedPoint, QMap
from ..network.combinators import chain
from ..network.layers import Affine, Input
from ..network.network import Network
from .q_limits import GROWS, SETTLED, SHRINKS, QRatioTable, length_scale, q_limits

STEPS = 300  # largest number of blocks in the iteration of q values
ARRIVED = 1e-9  # tolerance in log q for reaching a fixed point
EDGE = 1e-9  # rounding tolerance for slopes of size 1
BETWEEN = 65
ROUNDED = 1e-13
SAME = 1e-6  # relative tolerance when comparing three blocks with one block applied three times
START = 0.3  # cosine in this comparison


@dataclass(frozen=True)
class DepthLimit(Shown):
    """The limit of q and c values over many copies of a block.

    Each block multiplies the distance of c from its limit by ``rate``, and the distance of q by
    ``q_rate``. The depth scales ``xi_c = -1/log |rate|`` and ``xi_q`` count blocks. The scales are
    infinite if the slope is 1 or -1, because convergence is then slower than exponential. xi_q is
    also infinite if q* is a repelling fixed point.

    Attributes
    ----------
    q
        The limit q* of q values.
    c
        The limit c* of c values.
    rate
        The slope C'(c*).
    q_rate
        The slope Q'(q*).
    assumptions
        The assumptions.

    """

    q: float
    c: float
    rate: float
    q_rate: float
    assumptions: tuple[Assumption, ...] = field(default=(), repr=False, compare=False)
    listed = ("xi_c", "xi_q")

    @property
    def xi_c(self) -> float:
        """Number of blocks over which |c - c*| shrinks by a factor of e."""
        return float(length_scale(np.asarray(self.rate)))

    @property
    def xi_q(self) -> float:
        """Number of blocks over which |q - q*| shrinks by a factor of e."""
        return float(length_scale(np.asarray(self.q_rate)))


@without_option()
def depth_limit(block: Network, q: float = 1.0) -> DepthLimit:
    """Find the limit of infinitely many copies of ``block``.

    The inputs have q value ``q`` and any c in (-1, 1). q* is the fixed point of Q that repeated
    blocks reach from ``q`` (attracting, or with slope 1 or -1), or ``q`` itself if it is a fixed
    point. c* is the fixed point of C at q* with slope <= 1, which is unique in [0, 1]. [DKS App. C]
    Opposite inputs, c = -1, may stay opposite (odd maps) or become equal (even maps).

    The input of the block is treated as fresh, like the output of another block. A block may
    therefore begin or end with an activation.

    Parameters
    ----------
    block
        A network with one input and one output, such as a ``kc.chain``.
    q
        The mean square of the inputs, > 0.

    Returns
    -------
    DepthLimit
        q* and c*, with the rates of convergence.

    Raises
    ------
    KcalcError
        If the block has several inputs or outputs, q is invalid, or q values diverge, vanish,
        alternate or do not settle. The error is also raised if the output of the block is not
        fresh. Examples are blocks with activations at both ends, and sums of activations without an
        Affine after them.

    """
    if not isinstance(block, Network):
        raise KcalcError(f"depth_limit needs a kcalc.Network, got {type(block).__name__}")
    if len(block.inputs) != 1 or len(block.outputs) != 1:
        raise KcalcError(
            "depth_limit needs a block with one input and one output, because it feeds the output "
            "back into the input"
        )
    value = number_within(q, "q", lambda q: q > 0, "q is a mean square and must be > 0")
    check_repeats(block, value, START)
    repeated = between_blocks(block)
    level, q_rate = _q_limit(repeated, value)
    cosines = c_map(repeated)
    notes = (*cosines.assumptions, *_about_kept(level, q_rate))
    points = [p for p in cosines.fixed_points(level) if p.value >= -1e-12]
    if not points:
        raise KcalcError(
            "the C map of the block is the identity at q*: every c value stays unchanged"
        )
    best = min(points, key=lambda p: abs(p.slope))
    return DepthLimit(level, best.value, best.slope, q_rate, notes)


def between_blocks(block: Network) -> Network:
    """Return the block as if it followed another block, with an Affine of sigma_w = 1 before it.

    The Affine makes the block's input fresh, so the block may begin with an activation.
    :func:`check_repeats` checks whether the output of the block allows this.
    """
    entry = block.inputs[0]
    below = (entry, "input")
    steps = list(block.steps())[1:]
    return Network.from_steps([(below, Input(), ()), (entry, Affine(bias=False), (below,)), *steps])


def _behind(block: Network, q: float, x: float) -> tuple[float, float]:
    """Return (q, c) of a stream after a block."""
    value = node_values(between_blocks(block), x, q=q)[block.outputs[0]]
    return float(value.q1), float(value.c)


def check_repeats(
    block: Network,
    q: float,
    x: float,
    behind: Callable[[Network, float, float], tuple[float, float]] = _behind,
) -> None:
    """Reject blocks whose output depends on more than (q, x), such as nonzero channel means.

    Several such blocks in a row do not compute the repeated map of a single block. ``behind``
    computes (q, x) after a block.

    Raises: KcalcError for such blocks.
    """
    three = behind(chain(block, block, block), q, x)
    for _ in range(3):
        q, x = behind(block, q, x)
    if not np.allclose(three, (q, x), rtol=SAME):
        raise KcalcError(
            f"three of these blocks in sequence give q = {three[0]:.6g}, but applying the Q map "
            f"of one block three times gives {q:.6g}. The reason is that a Sum or another "
            "activation reads an activation without an Affine in between; end the branches of "
            "the block in an Affine"
        )


def _about_kept(q: float, rate: float) -> tuple[Assumption, ...]:
    """Return a note on a repelling fixed point of Q."""
    if abs(rate) <= 1 + EDGE:
        return ()
    return (
        Assumption(
            "network",
            f"q = {q:g} is a repelling fixed point: the slope of Q there is {rate:.6g}, so any "
            "other q moves away from it",
        ),
    )


def _q_limit(block: Network, q: float) -> tuple[float, float]:
    """Return (q*, Q'(q*)).

    Raises: KcalcError if q values have no limit.
    """
    squares = q_map(block)
    found = q_limits(
        QRatioTable(lambda level: np.asarray(squares(level)), q), np.ones(1), np.zeros(1)
    )
    outcome = found.outcome[0]
    if outcome in (GROWS, SHRINKS):
        way, side = ("grow", "above") if outcome == GROWS else ("shrink", "below")
        raise KcalcError(
            f"q values {way} without bound: Q has no fixed point {side} q = "
            f"{math.exp(found.last[0]):g}"
        )
    if outcome == SETTLED:
        return float(found.q[0]), float(squares.derivative(1)(float(found.q[0])))
    limit = _settled(squares, squares.fixed_points(), [q, float(squares(q))])
    return limit.value, limit.slope


def _settled(squares: QMap, points: Sequence[FixedPoint], trail: list[float]) -> FixedPoint:
    """Return the limit of the iterates in a range in which Q is decreasing.

    Raises: KcalcError if the iterates alternate or do not settle.
    """
    bearable = [p for p in points if abs(p.slope) <= 1 + EDGE]
    for _ in range(STEPS):
        found = next((p for p in bearable if abs(math.log(trail[-1] / p.value)) < ARRIVED), None)
        if found is not None:
            return found
        trail.append(float(squares(trail[-1])))
        first, second, third = (math.log(value) for value in trail[-3:])
        if abs(third - first) < ARRIVED * abs(second - first):
            raise _unsettled(
                points,
                trail[0],
                f"they alternate between {min(trail[-2:]):.6g} and {max(trail[-2:]):.6g}",
            )
    slow = next((p for p in bearable if _approached(squares, p, trail)), None)
    if slow is None:
        late = trail[-STEPS // 2 :]
        raise _unsettled(
            points,
            trail[0],
            f"after {STEPS} blocks they are still between {min(late):.6g} and {max(late):.6g}",
        )
    return slow


def _approached(squares: QMap, point: FixedPoint, trail: Sequence[float]) -> bool:
    """Whether iterates that have not converged yet will converge.

    They converge if Q (or Q applied twice, if the iterates change sides) is increasing and has no
    other fixed point in between.
    """
    before, last = (math.log(value / point.value) for value in trail[-2:])
    between = point.value * np.exp(last * np.linspace(1, 0, BETWEEN)[:-1])
    after = squares(between) if before * last > 0 else squares(squares(between))
    far, near = (
        np.log(values / point.value) * math.copysign(1, last) for values in (between, after)
    )
    return bool(np.all(near < far + ROUNDED) and np.all(np.diff(near) < ROUNDED))


def _unsettled(points: Sequence[FixedPoint], q: float, what: str) -> KcalcError:
    known = ", ".join(f"q = {p.value:.6g} with slope {p.slope:.6g}" for p in points)
    return KcalcError(
        f"q values starting from q = {q:g} have no limit: {what}. Fixed points of Q: {known} "
        "(repelling if the slope is outside [-1, 1]). Choose a smaller sigma_w, or iterate "
        "kc.q_map(block)"
    )


# -- the flow of tailored ReLUs --------------------------------------------------------------------


def flow_time(c: float, start: float = 0.0) -> float:
    """Return T with psi(start, T) = c, where psi is the flow dx/dT = sqrt(1 - x^2) - x arccos x.

    Domain: -1 <= start <= c < 1.

    For deep networks of tailored ReLUs with k = (1 - slope)^2 / (pi (1 + slope^2)), C_f(c) ->
    psi(c, k * multiplier).
    """
    low, high = _cosine(start, "start"), _cosine(c, "c")
    if not low <= high < 1:
        raise KcalcError(
            f"start and c must satisfy -1 <= start <= c < 1, got start = {start} and c = {c}"
        )

    return _time_between(math.acos(high), math.acos(low))


def _time_between(near: float, far: float) -> float:
    """Return T from the angle ``far`` to the smaller angle ``near``."""
    from scipy.integrate import quad

    return float(
        quad(
            lambda t: math.sin(t) / flow_speed(t), near, far, epsabs=1e-14, epsrel=1e-13, limit=200
        )[0]
    )


def flow_speed(theta: float) -> float:
    """Return ``sin t - t cos t``, using its series near 0.

    This is the speed of the flow at ``c = cos t``.
    """
    if theta < 0.2:
        t = theta * theta
        return theta**3 * (1 / 3 - t * (1 / 30 - t * (1 / 840 - t * (1 / 45360 - t / 3991680))))
    return math.sin(theta) - theta * math.cos(theta)


def _cosine(value: Any, name: str) -> float:
    refusal = f"{name} must be a c value in [-1, 1]"
    return number_within(value, name, lambda c: -1 <= c <= 1, refusal)


def flow(c: float, time: float) -> float:
    """Return psi(c, T), the image of ``c`` under the flow of tailored ReLUs for time T >= 0."""
    start = _cosine(c, "c")
    span = number_within(time, "time", lambda t: t >= 0, "time must be a number >= 0")
    if start == 1 or span == 0:
        return start

    far = math.acos(start)

    def late(log_theta: float) -> float:
        return _time_between(min(math.exp(log_theta), far), far) - float(span)

    low = math.log(far) - 1.0
    while late(low) < 0:
        low -= 1.0
        if low < -15:  # closer to 1 than double precision resolves
            return 1.0
    root = zero_between(late, low, math.log(far), 1e-15, rtol=1e-14)
    return math.cos(math.exp(root))


def flow_slope(network: Network, eta: float) -> float:
    """Predict the negative slope for a deep network from the flow, with k = T(eta) / multiplier.

    The multiplier is the mean number of nonlinear layers on a path through the steepest subnetwork.
    The exact slope, ``kc.shape(..., method="tat", eta=eta)``, tends to this prediction with depth.

    Raises: KcalcError if eta is outside (0, 1) or the network is too shallow for the prediction.
    """
    target = _cosine(eta, "eta")
    if not 0 < target < 1:
        raise KcalcError(f"eta must lie in (0, 1), got {eta}")
    w = math.pi * flow_time(target) / maximal_curvature(network).multiplier
    if w >= 1:
        raise KcalcError(
            f"the flow predicts that the network is too shallow for eta = {target:g}: even "
            "ReLUs do not reach it"
        )
    return (1 - w) / (1 + math.sqrt(w * (2 - w)))
