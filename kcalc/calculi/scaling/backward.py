"""Backward second moments: the scaling calculus as a reversed fold [Scaling sec. 4, App. A, B]."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Any

import numpy as np

from ...activations import Activation
from ...network import primitives as P
from ...network.compose import no_rule
from . import activation_moments as act
from .forward import ScalingForward
from .levels import Level
from .linear import combined
from .state import SERIAL, ChannelPart, State, weighted, with_diagonal
from .windows import spread, spread_apart, spread_pairs

Node = Hashable
Number = Any
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class ScalingMessage:
    """The gradient with respect to a feature map: E[(d loss/d x)^2] per part and location.

    ``mask``: the bits of the first Affine layers (or outputs) after the feature map, through which
    the gradient arrives. ``terms``, ``source``, ``gate``, ``sides`` and ``slopes`` are defined as
    for a :class:`State`, with the derivative of the activation in place of the activation.
    """

    parts: tuple[ChannelPart, ...]
    mask: int
    terms: tuple[tuple[Number, ScalingMessage], ...] = ()
    source: ScalingMessage | None = None
    gate: int | None = None
    sides: tuple[Number, Number] | None = None
    slopes: tuple[Number, ...] = ()
    serial: int = field(default_factory=lambda: next(SERIAL))


def apart(one: ScalingMessage, two: ScalingMessage) -> bool:
    """True if two gradients arrive through different weights."""
    return not one.mask & two.mask


@dataclass
class ScalingBackward:
    """The rules of the backward fold for second moments.

    ``edges``: {(node, slot): the message to the parent in that slot}, filled during the fold.
    """

    forward: ScalingForward
    states: Mapping[Node, State]
    edges: dict[tuple[Node, int], ScalingMessage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at: Node = None
        self.network = self.forward.network
        self.outputs = {
            node: 1 << (len(self.forward.bits) + i) for i, node in enumerate(self.network.outputs)
        }

    def start(self, cotangent: Number) -> dict[Node, ScalingMessage | None]:
        """Return {node: first message}; None at nodes that are not outputs.

        Outputs start with independent cotangents with mean square ``cotangent``.
        """
        out: dict[Node, ScalingMessage | None] = dict.fromkeys(self.network)
        for node in self.network.outputs:
            parts = (
                ChannelPart(p.channels, p.level.filled(cotangent)) for p in self.states[node].parts
            )
            out[node] = ScalingMessage(tuple(parts), self.outputs[node])
        return out

    def add(self, one: ScalingMessage | None, two: ScalingMessage | None) -> ScalingMessage | None:
        """Return the sum of the gradients from two nodes that read the same feature map."""
        if one is None or two is None:
            return one or two
        unit = self.forward.number(1)
        parts = combined([one, two], [unit, unit], apart, f"the input of node {self.at!r}")
        return ScalingMessage(parts, one.mask | two.mask, ((unit, one), (unit, two)))

    def send(
        self, op: P.Primitive, node: Node, message: ScalingMessage | None, parents: Sequence[Node]
    ) -> list[ScalingMessage | None]:
        """Return one message per parent, in slot order."""
        if message is None:  # no output depends on the node
            return [None] * len(parents)
        self.at = node
        sent = self.rule(op, node, message, parents)
        self.edges.update({(node, slot): one for slot, one in enumerate(sent)})
        return list(sent)

    # -- rules -------------------------------------------------------------------------------------

    @singledispatchmethod
    def rule(
        self, op: P.Primitive, node: Node, message: ScalingMessage, parents: Sequence[Node]
    ) -> list[ScalingMessage]:
        """Return the messages from a primitive to the nodes that it reads."""
        raise no_rule("weight scalings", op, node)

    @rule.register
    def _(
        self, op: P.Fresh, node: Node, message: ScalingMessage, parents: Sequence[Node]
    ) -> list[ScalingMessage]:
        """b_in = E[W^2] (m / groups) sum_p b_out(p) over the outputs p that read the location."""
        weight, below = self.forward.weights[node], self.states[parents[0]]
        level = weighted([(part.channels, part.level) for part in message.parts])
        factor = weight.variance * self.forward.number(weight.outputs) / weight.groups
        pairs = message.parts[0].pairs if len(message.parts) == 1 else None
        pairs = pairs if parents[0] in self.forward.pairs else None  # otherwise they have no effect
        if weight.window is None:
            sent = (
                level
                if level.symbolic
                else Level(np.broadcast_to(level.values, (below.size,)).copy(), level.exponent)
            )
            pairs = None
        elif level.symbolic:
            sent, pairs = level.scaled(self._share(node, parents[0]) * weight.taps), None
        else:
            window = weight.window
            sent = level if window.trivial else level.mapped(lambda values: spread(window, values))
            if pairs is not None and not window.trivial:
                pairs = pairs.mapped(lambda values: spread_pairs(window, values))
        part = ChannelPart(1, sent, pairs).scaled(factor)
        parts = tuple(replace(part, channels=own.channels) for own in below.parts)
        return [ScalingMessage(parts, self.forward.bits[node])]

    def _share(self, node: Node, parent: Node) -> Number:
        return self.forward.number(self.states[node].size) / self.states[parent].size

    @rule.register
    def _(
        self, op: P.Post, node: Node, message: ScalingMessage, parents: Sequence[Node]
    ) -> list[ScalingMessage]:
        below, slopes = self.states[parents[0]], self.forward.slopes[node]
        aligned = self._aligned(message.parts, below.parts)
        followed = parents[0] in self.forward.pairs
        rows = zip(aligned, below.parts, slopes, strict=True)
        parts = tuple(
            self._through(op.activation, node, part, own, slope, followed)
            for part, own, slope in rows
        )
        top = self.states[node]
        return [
            ScalingMessage(
                parts,
                message.mask,
                source=message,
                gate=below.serial,
                sides=top.sides,
                slopes=top.slopes,
            )
        ]

    def _through(
        self,
        phi: Activation,
        node: Node,
        part: ChannelPart,
        below: ChannelPart,
        slope: Any,
        followed: bool,
    ) -> ChannelPart:
        level = part.level.scaled(slope)
        if part.pairs is None or not followed:
            return ChannelPart(part.channels, level)
        _, factors = act.pairs_after(
            phi, below.level, below.pairs, f"the mean square before node {node!r}"
        )
        return ChannelPart(
            part.channels,
            level,
            with_diagonal(Level(part.pairs.values * factors, part.pairs.exponent), level),
        )

    @rule.register
    def _(
        self, op: P.Mix, node: Node, message: ScalingMessage, parents: Sequence[Node]
    ) -> list[ScalingMessage]:
        weights = [self.forward.number(w) for w in op.weights]
        return [
            self._scaled(message, w, self.states[p]) for w, p in zip(weights, parents, strict=True)
        ]

    def _scaled(self, message: ScalingMessage, factor: Number, below: State) -> ScalingMessage:
        square = factor * factor
        parts = tuple(part.scaled(square) for part in self._aligned(message.parts, below.parts))
        return ScalingMessage(parts, message.mask, ((factor, message),))

    @rule.register
    def _(
        self, op: P.Reshape, node: Node, message: ScalingMessage, parents: Sequence[Node]
    ) -> list[ScalingMessage]:
        """After a Flatten, locations are channels whose cotangents are uncorrelated."""
        return [replace(message, parts=tuple(replace(part, pairs=None) for part in message.parts))]

    @rule.register
    def _(
        self, op: P.Mask, node: Node, message: ScalingMessage, parents: Sequence[Node]
    ) -> list[ScalingMessage]:
        keep = 1 - self.forward.number(op.rate)
        if keep == 1:
            return [message]
        parts = tuple(part.masked(keep) for part in message.parts)
        unit = self.forward.number(1)
        return [ScalingMessage(parts, message.mask, source=message, slopes=(unit,) * len(parts))]

    @rule.register
    def _(
        self, op: P.Join, node: Node, message: ScalingMessage, parents: Sequence[Node]
    ) -> list[ScalingMessage]:
        out, start = [], 0
        aligned = self._aligned(message.parts, self.states[node].parts)
        for parent in parents:
            stop = start + len(self.states[parent].parts)
            out.append(ScalingMessage(aligned[start:stop], message.mask))
            start = stop
        return out

    @rule.register
    def _(
        self, op: P.Window, node: Node, message: ScalingMessage, parents: Sequence[Node]
    ) -> list[ScalingMessage]:
        window = self.forward.windows.get(node)
        if window is None or window.trivial:
            return [message]
        below = self.states[parents[0]]
        parts = self._aligned(message.parts, below.parts)
        if self.forward.symbolic:
            share = self._share(node, parents[0]) / window.taps
            return [ScalingMessage(tuple(part.scaled(share) for part in parts), message.mask)]
        send = self._mean_part if isinstance(op, P.Blend) else self._largest_part
        return [
            ScalingMessage(tuple(send(part, window, parents[0]) for part in parts), message.mask)
        ]

    def _mean_part(self, part: ChannelPart, window: Any, parent: Node) -> ChannelPart:
        number = window.counts
        level = part.level.mapped(lambda values: spread(window, values / number**2))
        pairs = None
        if parent in self.forward.pairs:
            joint = part.pair_values()
            pairs = joint.mapped(
                lambda values: spread_apart(window, values / np.outer(number, number))
            )
            level = Level(np.diag(pairs.values).copy(), pairs.exponent)
        return ChannelPart(part.channels, level, pairs)

    def _largest_part(self, part: ChannelPart, window: Any, parent: Node) -> ChannelPart:
        """Send the whole gradient to one location of the window, each with probability 1/k^2."""
        number = window.counts
        level = part.level.mapped(lambda values: spread(window, values / number))
        if part.pairs is None or parent not in self.forward.pairs:
            return ChannelPart(part.channels, level)
        between = part.pairs.values / np.outer(number, number)
        np.fill_diagonal(between, 0.0)
        pairs = spread_apart(window, between)
        return ChannelPart(
            part.channels, level, with_diagonal(Level(pairs, part.pairs.exponent), level)
        )

    def _aligned(
        self, parts: tuple[ChannelPart, ...], below: tuple[ChannelPart, ...]
    ) -> tuple[ChannelPart, ...]:
        """Merge the parts of a message into the parts of the feature map that receives it.

        Each range of channels in ``below`` is a union of ranges in ``parts``.
        """
        if len(parts) == len(below):
            return parts
        out, rest = [], list(parts)
        for own in below:
            taken, covered = [], 0
            while covered != own.channels:
                taken.append(rest.pop(0))
                covered = covered + taken[-1].channels
            pairs = taken[0].pairs if len(taken) == 1 else None
            out.append(
                ChannelPart(own.channels, weighted([(p.channels, p.level) for p in taken]), pairs)
            )
        return tuple(out)
