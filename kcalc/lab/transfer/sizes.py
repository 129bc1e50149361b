"""Sizes of feature maps and of their gradients, as powers of width and depth.

The sizes come from two folds over the primitives of a network. The forward fold computes the
typical size of a coordinate, and the initial values and changes of weights that give feature maps
of size 1. The backward fold computes the typical size of the derivative of the loss with respect to
a coordinate, through initial weights or through their changes, whichever is larger. The derivations
are on the documentation page on the theory of transfer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Any

from ... import Network
from ... import network as P
from ...foundation.errors import KcalcError
from ...network import interpret, interpret_back, no_rule, owner
from .branches import Branch
from .powers import DEPTH, HALF, ONE, ZERO, Order, Power

Node = Hashable
NAME = "exponents of width and depth"


@dataclass(frozen=True)
class Part:
    """Some of the channels of a concatenation, with the node that produces them."""

    node: Node
    of: Power
    channels: Power


@dataclass(frozen=True)
class Size:
    """The size of a coordinate of a feature map, and the growth of its number of channels.

    ``unlike`` lists the parts if their sizes or numbers of channels grow differently. It is None if
    all channels are equivalent.
    """

    of: Power
    channels: Power
    unlike: tuple[Part, ...] | None = None


@dataclass(frozen=True)
class Setting:
    """The settings of both folds.

    ``channels`` is {node with weights, or attention: growth of the channels that it emits}, and
    ``groups`` is {node: growth of the number of groups}. ``branches`` are the residual branches, or
    empty if the depth does not change. ``branch`` is the exponent a of ``x + L^-a f(x)``, and
    ``absorb`` says whether weights that end a branch take the factor ``L^-a``. ``aligned`` says
    whether weight changes are aligned with the layer's input. ``initial`` is {role: size of initial
    weights relative to the size chosen here}, for other parametrisations. ``capped`` says whether
    changes may not exceed the weights; this does not apply to ``zeros``, the weights that start at
    0. ``order`` compares powers. ``given`` is {branch: p} if the network already multiplies
    the branch by L^-p.
    """

    channels: Mapping[Node, Power]
    groups: Mapping[Node, Power] = field(default_factory=dict)
    branches: tuple[Branch, ...] = ()
    branch: Any = 1
    absorb: bool = True
    aligned: bool = True
    initial: Mapping[str, Power] = field(default_factory=dict)
    capped: bool = False
    zeros: frozenset[Node] = frozenset()
    order: Order = field(default_factory=Order)
    given: Mapping[Branch, Any] = field(default_factory=dict)

    def target(self, node: Node) -> tuple[Power, Power]:
        """Return (size of the weights' output, size of its change) that training needs."""
        ended = next((branch for branch in self.branches if node == branch.last), None)
        own = self.factor(ended) if self.absorb and ended is not None else ONE
        return own, own * self.share(node)

    def share(self, node: Node) -> Power:
        """Return the size of the allowed change of a node's output, relative to the output."""
        inside = any(node in branch.inside for branch in self.branches)
        return DEPTH ** (self.branch - 1) if inside else ONE

    def factor(self, branch: Branch) -> Power:
        """Return ``L^-a``, divided by the factor that the network already has."""
        return DEPTH ** (self.given.get(branch, ZERO) - self.branch)

    def factors(self, node: Node, count: int) -> list[Power]:
        """Return the multipliers of all inputs of a sum."""
        found = [ONE] * count
        for branch in self.branches:
            if branch.sum == node:
                taken = self.absorb and branch.last is not None
                own = DEPTH ** -self.given.get(branch, ZERO)
                found[branch.slot] = own if taken else own * self.factor(branch)
        return found


@dataclass(frozen=True)
class Use:
    """The use of weights at one place in a network.

    ``role`` is "embedding", "input" (few channels to many), "hidden" (many to many), "readout"
    (many to few), "elementwise" (groups of a few channels) or "finite" (few to few). ``reads`` and
    ``output`` are the sizes of input and output. ``fan_in`` and ``fan_out`` are the growth factors
    for the number of inputs per output and for the number of outputs per input. ``initial`` and
    ``change`` are the sizes of an initial weight and of its change, multipliers included, and
    ``size`` is the larger of the two. ``shift`` is the change of a bias.
    """

    node: Node
    role: str
    reads: Power
    fan_in: Power
    fan_out: Power
    channels: Power
    output: Power
    initial: Power
    change: Power
    size: Power
    shift: Power


def used(
    setting: Setting,
    node: Node,
    reads: Power,
    fans: tuple[Power, Power, Power],
    one_hot: bool = False,
) -> Use:
    """Return the required initial size and change of weights at a node.

    ``reads`` is the size of the weights' input. ``fans`` contains the growth of three numbers:
    inputs per output, outputs per input, and channels.
    """
    order, (fan_in, fan_out, channels) = setting.order, fans
    role = "embedding" if one_hot else _role(order, fan_in, fan_out, channels)
    output, change = setting.target(node)
    # with fewer outputs than inputs, their change must not grow with the change of the inputs
    narrowed = order.smaller(ONE, (fan_out / fan_in) ** HALF)
    initial = output / reads / fan_in**HALF * (ONE if one_hot else narrowed)
    initial *= setting.initial.get(role, ONE)
    moved = change / reads / fan_in ** (ONE if setting.aligned else HALF)
    if setting.capped and node not in setting.zeros:
        moved = order.smaller(moved, initial)
    size = order.larger(initial, moved)
    return Use(
        node,
        role,
        reads,
        fan_in,
        fan_out,
        channels,
        output,
        initial,
        moved,
        size,
        change,
    )


def passed(setting: Setting, use: Use) -> Power:
    """Return the factor by which gradients grow through weights.

    This is the larger of two factors, one from the initial weights and one from their changes.
    """
    along = ONE if setting.aligned else HALF
    return setting.order.larger(use.initial * use.fan_out**HALF, use.change * use.fan_out**along)


class Forward:
    """The forward fold. ``uses`` collects the weights."""

    def __init__(self, setting: Setting, reads: Mapping[Node, Sequence[Node]]) -> None:
        self.setting, self.reads = setting, reads
        self.uses: dict[Node, Use] = {}

    def rule(self, op: P.Primitive, node: Node, inputs: list[Size]) -> Size:
        """Return the size of a primitive's output.

        Channels that need different rules are kept apart until weights read them.
        """
        found = self.size(op, node, inputs)
        unlike = next((one.unlike for one in inputs if one.unlike is not None), None)
        if unlike is None:
            return found
        one_each = isinstance(op, P.Fresh) and op.groups > 1  # such as depthwise convolutions
        if isinstance(op, P.Fresh) and (
            not one_each or self.setting.order.grows(self.uses[node].fan_in)
        ):
            raise two_roles(self.setting.order, node, unlike)
        return replace(found, unlike=unlike)

    @singledispatchmethod
    def size(self, op: P.Primitive, node: Node, inputs: list[Size]) -> Size:
        raise no_rule(NAME, op, node)

    @size.register
    def _(self, op: P.Positions, node: Node, inputs: list[Size]) -> Size:
        return Size(ONE, ONE)

    @size.register
    def _(self, op: P.Fresh, node: Node, inputs: list[Size]) -> Size:
        (read,) = inputs
        channels = self.setting.channels[owner(node)]
        groups = self.setting.groups.get(owner(node), ONE)
        fan_in = ONE if op.one_hot else read.channels / groups
        fans = (fan_in, channels / groups, channels)
        use = used(self.setting, node, read.of, fans, op.one_hot)
        self.uses[node] = use
        return Size(use.output, channels)

    @size.register
    def _(
        self,
        op: P.Post | P.Surrogate | P.Mask | P.Reshape | P.Stop | P.Window,
        node: Node,
        inputs: list[Size],
    ) -> Size:
        if isinstance(op, P.Blend) and op.weighted:
            raise no_rule(NAME, op, node)
        return inputs[0]

    @size.register
    def _(self, op: P.Norm, node: Node, inputs: list[Size]) -> Size:
        return Size(ONE, inputs[0].channels)

    @size.register
    def _(self, op: P.Mix, node: Node, inputs: list[Size]) -> Size:
        factors = self.setting.factors(node, len(inputs))
        return Size(
            self.setting.order.larger(*(f * s.of for f, s in zip(factors, inputs, strict=True))),
            self.setting.order.larger(*(s.channels for s in inputs)),
        )

    @size.register
    def _(self, op: P.Prefix, node: Node, inputs: list[Size]) -> Size:
        """Put tokens in front of others; the larger size counts."""
        return Size(self.setting.order.larger(*(s.of for s in inputs)), inputs[0].channels)

    @size.register
    def _(self, op: P.Join, node: Node, inputs: list[Size]) -> Size:
        return Size(
            self.setting.order.larger(*(s.of for s in inputs)),
            self.setting.order.larger(*(s.channels for s in inputs)),
            self._unlike(self.reads[node], inputs),
        )

    def _unlike(self, reads: Sequence[Node], inputs: list[Size]) -> tuple[Part, ...] | None:
        """Return the parts of a concatenation if they cannot share a rule."""
        parts = tuple(Part(n, s.of, s.channels) for n, s in zip(reads, inputs, strict=True))
        return parts if differing(self.setting.order, parts) else None

    @size.register
    def _(self, op: P.Prod, node: Node, inputs: list[Size]) -> Size:
        size = ONE
        for one in inputs:
            size *= one.of
        return Size(size, self.setting.order.larger(*(s.channels for s in inputs)))

    @size.register
    def _(self, op: P.Attend, node: Node, inputs: list[Size]) -> Size:
        """Return the size of the values.

        Scores have size 1, because they are divided by the number of a head's channels.
        """
        values = inputs[2]
        return Size(values.of, self.setting.channels.get(owner(node), values.channels))


class Backward:
    """The backward fold.

    A message is the size of the derivative of the loss with respect to a coordinate.
    """

    def __init__(
        self, setting: Setting, states: Mapping[Node, Size], uses: Mapping[Node, Use]
    ) -> None:
        self.setting, self.states, self.uses = setting, states, uses

    @singledispatchmethod
    def rule(
        self, op: P.Primitive, node: Node, message: Power, reads: Sequence[Node]
    ) -> list[Power]:
        return [message] * len(reads)

    @rule.register
    def _(self, op: P.Fresh, node: Node, message: Power, reads: Sequence[Node]) -> list[Power]:
        return [message * passed(self.setting, self.uses[node])]

    @rule.register
    def _(self, op: P.Norm, node: Node, message: Power, reads: Sequence[Node]) -> list[Power]:
        return [message / self.states[reads[0]].of]

    @rule.register
    def _(self, op: P.Mix, node: Node, message: Power, reads: Sequence[Node]) -> list[Power]:
        return [message * factor for factor in self.setting.factors(node, len(reads))]

    @rule.register
    def _(
        self, op: P.Prod | P.Attend, node: Node, message: Power, reads: Sequence[Node]
    ) -> list[Power]:
        """Multiply the message by the sizes of the other factors.

        A score is a sum over the channels of a head, divided by the number of channels. Keys and
        values that several heads share receive the sum of the gradients of these heads.
        """
        sizes = [self.states[read].of for read in reads]
        out = []
        for slot in range(len(reads)):
            sent = message
            for other, size in enumerate(sizes):
                sent = sent * size if other != slot else sent
            out.append(sent)
        if isinstance(op, P.Attend):
            shared = self.states[node].channels / self.states[reads[2]].channels
            out[1:] = [out[1] * shared, message * shared]
        return out


@dataclass(frozen=True)
class Sizes:
    """The result of both folds: the uses of weights, and sizes, gradients and channels by node."""

    uses: Mapping[Node, Use]
    states: Mapping[Node, Size]
    gradients: Mapping[Node, Power]


def sizes(network: Network, setting: Setting) -> Sizes:
    """Return the sizes of feature maps, weights, changes and gradients of a network.

    Raises: NoRule for layers without a rule, and KcalcError if an output grows with the width.
    """
    forward = Forward(setting, {node: reads for node, _, reads in network.operations})
    start = dict.fromkeys(network.inputs, Size(ONE, ONE))
    states = interpret(network, forward, start)
    for node in network.outputs:
        if setting.order.grows(states[node].channels):
            raise KcalcError(
                f"the output {node!r} grows with the width, so losses at different widths are not "
                f"comparable; use a readout with a fixed number of channels"
            )
    ends: dict[Node, Power] = dict.fromkeys(states, ZERO)
    ends |= dict.fromkeys(network.outputs, ONE)
    backward = Backward(setting, states, forward.uses)
    found = interpret_back(network, backward.rule, ends, setting.order.larger)
    return Sizes(forward.uses, states, found)


class TwoRoles(KcalcError):
    """Raised if columns of one matrix need different rules."""


def differing(order: Order, parts: Sequence[Part]) -> tuple[Part, Part] | None:
    """Return the first part and the first other part that differs from it in growth or size."""
    for part in parts[1:]:
        alike = order.alike(part.channels, parts[0].channels) and order.alike(part.of, parts[0].of)
        if not alike:
            return parts[0], part
    return None


def two_roles(order: Order, node: Node, parts: Sequence[Part]) -> TwoRoles:
    """Return the error for weights that read parts of a concatenation with different rules."""
    unlike = differing(order, parts)
    assert unlike is not None
    names = [repr(owner(part.node)) for part in unlike]
    grown = [str(part.channels).replace("**", "^") for part in unlike]
    what = f"whose numbers grow as {grown[0]} and {grown[1]}"
    if grown[0] == grown[1]:
        sizes = [str(part.of).replace("**", "^") for part in unlike]
        what = f"whose sizes are {sizes[0]} and {sizes[1]}"
    return TwoRoles(
        f"the weights of {owner(node)!r} read the concatenated channels of {names[0]} and "
        f"{names[1]}, {what}. These columns have two roles, but a parameter can have only one "
        "rule. Read the parts with separate layers and add the results: use a(h) + b(x) instead of "
        "layer(cat([h, x]))"
    )


def _role(order: Order, fan_in: Power, fan_out: Power, channels: Power) -> str:
    if order.grows(fan_in):
        return "hidden" if order.grows(fan_out) else "readout"
    if order.grows(fan_out):
        return "input"
    return "elementwise" if order.grows(channels) else "finite"
