"""Kernel maps of networks whose q values, unlike their c values, overflow or underflow.

Every feature map is stored divided by a power of two, which is chosen at new weights and sums so
that q stays near 1. The stored values correspond to a network with rescaled weights and the same c
values. If the input of an activation of degree k is divided by 2^p, its output is divided by
2^(k p). Before any operation that is not homogeneous, the feature map is restored to its original
size, if that is within double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..network import primitives as P
from .channels import Channels
from .checks import refuse_exploded
from .kernel import Kernel

Node = Hashable
_CALM = 64  # q values with |log2 q| up to this stay unchanged
_LEAST = -500  # addends smaller than the largest by this power of two are ignored


class Scaled(NamedTuple):
    """A feature map divided by ``2**power``."""

    state: Channels
    power: int


class Renormalised:
    """The rules of ``kernel`` for feature maps divided by powers of two."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[Scaled]) -> Scaled:
        """Return the state that a primitive emits.

        Raises: the errors of the kernel's rules.
        """
        powers = [one.power for one in inputs]
        if isinstance(op, P.Fresh):
            return self._fresh(op, node, inputs[0])
        if isinstance(op, P.Mix):
            return self._mixed(op, node, inputs, max(powers))
        if isinstance(op, P.Join):
            return self._joined(op, node, inputs)
        power = self._passed_on(op, powers)
        if power is None:
            inputs, power = [self._scaled(one, one.power, node) for one in inputs], 0
        emitted = Scaled(self.kernel.rule(op, node, [one.state for one in inputs]), power)
        return self._scaled(emitted, -_excess(emitted.state), node)

    @staticmethod
    def _passed_on(op: P.Primitive, powers: Sequence[int]) -> int | None:
        """Return the power of two for the result, or None if the inputs must be restored first."""
        if not any(powers):
            return 0
        if isinstance(op, P.Post | P.Surrogate):
            degree = op.activation.degree
            return None if degree is None else degree * powers[0]
        if isinstance(op, P.Prod):
            return sum(powers)
        if isinstance(op, P.Norm):
            return 0
        if isinstance(op, P.Passing | P.Window):
            return powers[0]
        return None

    def _fresh(self, op: P.Fresh, node: Node, below: Scaled) -> Scaled:
        """Apply new weights; their bias is an addend of power 0."""
        power = max(below.power, 0) if op.bias and op.sigma_b != 0 else below.power

        def emitted(power: int) -> Channels:
            sigma_w, sigma_b = (
                _times(sigma, own - power)
                for sigma, own in ((op.sigma_w, below.power), (op.sigma_b, 0))
            )
            made = replace(op, sigma_w=sigma_w, sigma_b=sigma_b)
            return self.kernel.rule(made, node, [below.state])

        return self._near_one(emitted, power)

    def _mixed(self, op: P.Mix, node: Node, inputs: Sequence[Scaled], power: int) -> Scaled:
        def emitted(power: int) -> Channels:
            weights = tuple(
                _times(weight, one.power - power)
                for weight, one in zip(op.weights, inputs, strict=True)
            )
            made = replace(op, weights=weights)
            return self.kernel.rule(made, node, [one.state for one in inputs])

        return self._near_one(emitted, power)

    @staticmethod
    def _near_one(emitted: Callable[[int], Channels], power: int) -> Scaled:
        """The output feature map, divided by a power of two so that q is near 1."""
        state = emitted(power)
        excess = _excess(state)
        return Scaled(emitted(power + excess), power + excess) if excess else Scaled(state, power)

    def _joined(self, op: P.Join, node: Node, inputs: Sequence[Scaled]) -> Scaled:
        power = max(one.power for one in inputs)
        alike = [self._scaled(one, one.power - power, node).state for one in inputs]
        return Scaled(self.kernel.rule(op, node, alike), power)

    def _scaled(self, one: Scaled, power: int, node: Node) -> Scaled:
        """Multiply the state by ``2**power``, and reduce its stored power by the same amount."""
        if not power:
            return one
        factor = _times(1.0, power)
        if not math.isfinite(factor):
            refuse_exploded(node, math.inf)
        mix = P.Mix(origin=None, weights=(factor,))
        return Scaled(self.kernel.rule(mix, node, [one.state]), one.power - power)


def _times(number: Any, power: int) -> float:
    if not number:  # a bias of 0, however small the feature map
        return 0.0
    return math.ldexp(float(number), max(power, _LEAST)) if power < 1000 else math.inf


def _excess(state: Channels) -> int:
    """The power of two that brings q values close to 1, or 0 if they are already close."""
    sizes = np.concatenate(
        [np.ravel(q) for pair in state.pairs for q in (pair.moments.q1, pair.moments.q2)]
    )
    bits = [math.log2(q) for q in (sizes.min(), sizes.max()) if 0 < q < math.inf]
    return round(sum(bits) / 4) if len(bits) == 2 and max(map(abs, bits)) > _CALM else 0


__all__ = ["Renormalised", "Scaled"]
