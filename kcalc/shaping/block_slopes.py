"""Find a residual weight, common to all blocks, for a given maximal slope.

The maximal slope is the largest slope over the network's subnetworks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import sympy as sp

from ..activations import Activation
from ..calculi.convex import ConvexCalculus
from ..calculi.subnetworks import subnetworks
from ..foundation.errors import KcalcError, UnreachableTarget
from ..foundation.rootfinding import least_between, zero_between
from ..network.network import Network
from ..network.primitives import Post, Primitive
from .residual_blocks import ResidualBlock

Node = Hashable
GRID = 65
ROUNDING = 8.9e-16
CONTRACTS = 1e-12


class _LogSlopes(ConvexCalculus[float]):
    """Compute the logarithm of the slope V from the input to every node of a network.

    The squared weights of shortcut and branch are ``1 - y`` and ``y`` in every block. Each
    activation contributes its own slope.
    """

    def __init__(
        self, network: Network, blocks: Mapping[Node, int], slopes: Mapping[Activation, float]
    ) -> None:
        super().__init__(network)
        self.blocks = blocks
        self.logs = {phi: math.log(slope) for phi, slope in slopes.items()}
        self.y = 0.0

    def start(self) -> float:
        return 0.0

    def nonlinear(self, op: Post, node: Node, state: float) -> float:
        return state + self.logs[op.activation]

    def normalise(self, slope: sp.Expr, state: float) -> float:
        return state + math.log(float(slope))

    def mix(self, shares: Sequence[sp.Expr], states: Sequence[float]) -> float:
        return _mixed([float(share) for share in shares], states)

    def rule(self, op: Primitive, node: Node, inputs: list[float]) -> float:
        slot = self.blocks.get(node)
        if slot is None:
            return super().rule(op, node, inputs)
        return _mixed([1 - self.y, self.y], [inputs[slot], inputs[1 - slot]])


def _mixed(shares: Sequence[float], logs: Sequence[float]) -> float:
    """Return ``log sum_i s_i exp(l_i)`` for shares that sum to one, accurately near 0."""
    if not shares[0]:
        return logs[1] if len(logs) == 2 else _mixed(shares[1:], logs[1:])
    least = min(logs)
    spread = max(logs) - least
    if spread < 30:
        return least + math.log1p(
            sum(s * math.expm1(log - least) for s, log in zip(shares, logs, strict=True))
        )
    top = least + spread
    return top + math.log(sum(s * math.exp(log - top) for s, log in zip(shares, logs, strict=True)))


def common_weights(
    network: Network,
    blocks: Sequence[ResidualBlock],
    slopes: Mapping[Activation, float],
    target: float,
) -> tuple[float, float]:
    """Return the (shortcut weight, residual weight) of all blocks for a target maximal slope.

    With these weights, the largest slope of any subnetwork equals ``target``.

    A subnetwork (s, t) has slope V(t)/V(s), where V is a polynomial in ``y``, the square of the
    residual weight. Brent's method solves for ``y`` in terms of the logarithm of the slope. If
    several weights are possible, the result is the smallest residual weight.

    Raises: KcalcError for slopes < 1; an UnreachableTarget that names the slopes reachable with
    weights in (0, 1).
    """
    for phi, slope in slopes.items():
        if slope < 1 - CONTRACTS:
            raise KcalcError(
                f"{phi.name} has C'(1) = {slope:.6g} < 1, so slopes decrease with depth; "
                "shape the activations first, or pass local_slope > 1"
            )
    calculus = _LogSlopes(network, {block.node: block.slot for block in blocks}, slopes)
    pairs = [(piece.entry, piece.exit) for piece in subnetworks(network)]
    wanted = math.log(target)

    def miss(y: float) -> float:
        calculus.y = y
        states = calculus.read()
        return max(states[end] - states[start] for start, end in pairs) - wanted

    ends = miss(0.0), miss(1.0)
    grid, values = [0.0, 1.0], list(ends)
    if not ends[0] * ends[1] < 0:
        grid = list(0.5 - 0.5 * np.cos(np.pi * np.arange(GRID) / (GRID - 1)))
        values = [miss(float(y)) for y in grid]
        _insert_extremum(miss, grid, values)
    cell = next((k for k in range(len(grid) - 1) if values[k] * values[k + 1] < 0), None)
    if cell is None:
        raise _unreachable(target, [target * math.exp(value) for value in values])
    y = zero_between(miss, grid[cell], grid[cell + 1], 1e-300, rtol=ROUNDING, maxiter=300)
    return math.sqrt(1 - y), math.sqrt(y)


def _insert_extremum(
    miss: Callable[[float], float], grid: list[float], values: list[float]
) -> None:
    """Add to the grid the interior point whose slope is closest to the target.

    The point helps if the slope touches the target without crossing it on the grid.
    """
    sign = 1.0 if min(values) > 0 else -1.0
    k = int(np.argmin(sign * np.array(values)))
    if not 0 < k < len(grid) - 1:
        return
    y, _ = least_between(lambda y: sign * miss(y), grid[k - 1], grid[k + 1], 1e-12)
    place = k + 1 if y > grid[k] else k
    grid.insert(place, y)
    values.insert(place, miss(y))


def _unreachable(target: float, reached: Sequence[float]) -> UnreachableTarget:
    low, high = min(reached), max(reached)
    if high - low <= 1e-12 * high:
        return UnreachableTarget(
            f"the maximal slope is {low:.10g} for all weights and cannot be {target:g}: blocks "
            "have the same slope as their shortcuts, perhaps because C'(1) = 1 for the "
            "activations; choose another activation, or pass local_slope"
        )
    near = low if target <= low else high
    return UnreachableTarget(
        f"no shortcut weight in (0, 1) gives a maximal slope of {target:g}. The attainable slopes "
        f"lie between {low:.10g} and {high:.10g}, and the nearest is {near:.10g}"
    )
