"""Absorb the transformations of activations into the Affine layers of a network.

Absorption takes one backward and one forward pass.

A feature map z^ of the given network and the feature map z of the plain network satisfy z^ = s z +
t, with constants s and t for each node (or for each block of channels after a concatenation). At
inputs and outputs, (s, t) = (1, 0). The activation gamma (phi(alpha x + beta) + delta) needs
(1/alpha, -beta/alpha) before it and produces (gamma, gamma delta). An Affine can map any (s, t) to
any (S, T).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any, NamedTuple

from ..foundation.errors import KcalcError
from ..maps.maps import Assumption
from ..network import layers as L
from ..network.network import Network, concat_channels, sum_weights

Node = Hashable
BORDERS = ("refuse", "interior")
EXACT = 1e-12


class Form(NamedTuple):
    """A shift: a constant plus multiples of the undetermined shifts of Affine layers."""

    number: float
    terms: dict[Node, float] = {}

    def plus(self, other: Form, factor: float = 1.0) -> Form:
        terms = dict(self.terms)
        for node, value in other.terms.items():
            old = terms.pop(node, 0.0)
            new = old + factor * value
            if abs(new) > EXACT * abs(old):  # otherwise they cancel up to rounding
                terms[node] = new
        return Form(self.number + factor * other.number, terms)


class ChannelBlock(NamedTuple):
    """A fraction ``share`` of a node's channels, for which z^ = scale z + shift."""

    share: float
    scale: float
    shift: Form


class Relation(NamedTuple):
    """The numerical relation z^ = scale z + shift for a block of channels."""

    share: float
    scale: float
    shift: float


class Need(NamedTuple):
    """The relation that a reader of a node requires; None if any relation will do.

    ``reader`` is the node that requires it.
    """

    scale: float | None = None
    shift: float | None = None
    reader: Node = None


# -- transformations to absorb ---------------------------------------------------------------------


def _constants(layer: L.Nonlinear) -> tuple[float, float, float, float]:
    """Return (alpha, beta, gamma, delta) for a layer."""
    t = layer.activation.transformation
    return (
        (1.0, 0.0, 1.0, 0.0)
        if t is None
        else tuple(map(float, (t.input_scale, t.input_shift, t.output_scale, t.output_shift)))
    )  # type: ignore[return-value]


def same(one: float, two: float) -> bool:
    """Whether two constants agree up to rounding."""
    return abs(one - two) <= EXACT * max(1.0, abs(one), abs(two))


class Needs:
    """The relations that readers require, collected from the outputs backwards.

    ``firm`` contains strict requirements. ``wish`` contains scales that are preferred because they
    leave the weights of Sums unchanged.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.firm: dict[Node, Need] = {}
        self.wish: dict[Node, float] = {}
        for node in network.outputs:
            self._ask(node, Need(1.0, 0.0, "the output"))
        for node, layer, parents in reversed(list(network.steps())):
            for parent in parents:
                self._backward(node, layer, parent)

    def of(self, node: Node) -> Need:
        return self.firm.get(node, Need())

    def _backward(self, node: Node, layer: L.Layer, parent: Node) -> None:
        need = self.of(node)
        wish = need.scale if need.scale is not None else self.wish.get(node)
        match layer:
            case L.Nonlinear():
                alpha, beta, _, _ = _constants(layer)
                self._ask(parent, Need(1 / alpha, -beta / alpha, node))
            case L.Sum():
                if wish is not None:
                    self.wish.setdefault(parent, wish)
            case L.Affine() | L.Normalisation(over="channels", centred=True):
                pass
            case L.Normalisation(over="channels"):
                self._ask(parent, Need(None, 0.0, node))
            case L.Scale():
                shift = None if need.shift is None else need.shift / float(layer.factor)
                self._pass(parent, Need(need.scale, shift, need.reader), wish)
            case L.Pool(kind="weighted_mean") | L.Resize(kind="zeros"):
                self._pass(parent, Need(need.scale, 0.0, node), wish)
            case L.Layer(passes=True) | L.Concat():
                self._pass(parent, need, wish)
            case _:
                self._ask(parent, Need(1.0, 0.0, node))

    def _pass(self, parent: Node, need: Need, wish: float | None) -> None:
        self._ask(parent, need)
        if wish is not None:
            self.wish.setdefault(parent, wish)

    def _ask(self, node: Node, need: Need) -> None:
        old = self.of(node)
        for one, two in ((old.scale, need.scale), (old.shift, need.shift)):
            if one is not None and two is not None and not same(one, two):
                raise KcalcError(
                    f"node {node!r} is read by {_reader(old)} and by {_reader(need)}, which "
                    "require it to be scaled or shifted differently (activations must share "
                    "their input scale and shift, and outputs allow neither); put an Affine "
                    "before each of these readers"
                )
        scale = old.scale if need.scale is None else need.scale
        shift = old.shift if need.shift is None else need.shift
        if scale is not None or shift is not None:
            self.firm[node] = Need(
                scale, shift, old.reader if old.reader is not None else need.reader
            )


def _reader(need: Need) -> str:
    return "the outside (it is an output)" if need.reader == "the output" else f"{need.reader!r}"


# -- absorbing it ----------------------------------------------------------------------------------


class Absorption:
    """A forward pass over a network that finds the relation of every node.

    A relation connects the node's feature maps in the given network and in the plain network.
    Shifts of Affine layers stay undetermined until a reader needs a value.
    """

    def __init__(self, network: Network, border: str) -> None:
        self.network, self.border = network, border
        self.needs = Needs(network)
        self.blocks: dict[Node, tuple[ChannelBlock, ...]] = {}
        self.settled: dict[Node, Form] = {}
        self.layers: dict[Node, L.Layer] = {}
        self.assumptions: list[Assumption] = []
        self.changes: list[str] = []
        self.channels = concat_channels(network)
        for node, layer, parents in network.steps():
            self.layers[node] = layer
            self.blocks[node] = self.forward(layer, node, parents)
            self._meet(node)

    # shifts

    def value(self, form: Form) -> Form:
        """Substitute the shifts that have been determined so far into a form."""
        while any(node in self.settled for node in form.terms):
            node = next(node for node in form.terms if node in self.settled)
            factor = form.terms[node]
            rest = Form(form.number, {other: v for other, v in form.terms.items() if other != node})
            form = rest.plus(self.settled[node], factor)
        return form

    def equal(self, form: Form, wanted: float, complaint: str) -> None:
        """Choose an undetermined shift such that form = wanted.

        Raises: KcalcError with the given complaint if no shift is left and ``form`` differs from
        ``wanted``.
        """
        form = self.value(form)
        if not form.terms:
            if not same(form.number, wanted):
                raise KcalcError(complaint)
            return
        node, factor = max(form.terms.items(), key=lambda item: abs(item[1]))
        others = Form(form.number, {other: v for other, v in form.terms.items() if other != node})
        self.settled[node] = Form(wanted / factor).plus(others, -1 / factor)

    def _meet(self, node: Node) -> None:
        need = self.needs.of(node)
        for block in self.blocks[node]:
            if need.scale is not None and not same(block.scale, need.scale):
                raise KcalcError(self._cannot(node, need, "scale"))
            if need.shift is not None:
                self.equal(block.shift, need.shift, self._cannot(node, need, "shift"))

    def _cannot(self, node: Node, need: Need, what: str) -> str:
        if isinstance(self.network.layer(node), L.Nonlinear):
            return (
                f"the output {what} of the activation {node!r} cannot be absorbed: "
                f"{_reader(need)} reads it without an Affine between them"
            )
        return (
            f"the {what} that {_reader(need)} requires of node {node!r} "
            f"({type(self.network.layer(node)).__name__}) cannot be absorbed, because no Affine "
            "with a bias comes before it; put an Affine before it"
        )

    # layers

    @singledispatchmethod
    def forward(
        self, layer: L.Layer, node: Node, parents: tuple[Node, ...]
    ) -> tuple[ChannelBlock, ...]:
        """Return the relation of a node, given the relations of its parents.

        This rule covers inputs, layers that pass their input through, norms, and layers whose input
        and output must be plain feature maps.
        """
        if not layer.passes:
            if _divides_channels(layer) and self._single(node, parents[0]).scale < 0:
                raise KcalcError(
                    f"node {node!r} ({type(layer).__name__}) does not commute with a negative "
                    "scale; put an Affine before it"
                )
            return (ChannelBlock(1.0, 1.0, Form(0.0)),)
        blocks = self.blocks[parents[0]]
        if isinstance(layer, L.Flatten) and len(blocks) > 1 and not self._uniform(blocks):
            raise KcalcError(
                f"node {node!r} (Flatten) mixes concatenated blocks with different scales or "
                "shifts; put an Affine before it"
            )
        if (
            isinstance(layer, L.Pool)
            and layer.kind == "max"
            and any(block.scale < 0 for block in blocks)
        ):
            raise KcalcError(
                f"node {node!r} (max pooling) does not commute with a negative scale; put an "
                "Affine between it and the activation"
            )
        if isinstance(layer, L.Dropout) and any(
            self.value(block.shift) != Form(0.0) for block in blocks
        ):
            self.assumptions.append(
                Assumption(
                    node,
                    "dropout is treated as in evaluation mode; in training it does not commute "
                    "with shifts",
                    "convention",
                )
            )
        return blocks

    @forward.register
    def _(
        self, layer: L.Nonlinear, node: Node, parents: tuple[Node, ...]
    ) -> tuple[ChannelBlock, ...]:
        alpha, beta, gamma, delta = _constants(layer)
        if (alpha, beta, gamma, delta) != (1.0, 0.0, 1.0, 0.0):
            self.layers[node] = L.Nonlinear(layer.activation.base)
            self.changes.append(f"{node}: {layer.activation.name} -> {layer.activation.base.name}")
        return (ChannelBlock(1.0, gamma, Form(gamma * delta)),)

    @forward.register
    def _(self, layer: L.Affine, node: Node, parents: tuple[Node, ...]) -> tuple[ChannelBlock, ...]:
        need = self.needs.of(node)
        scale = need.scale if need.scale is not None else self.needs.wish.get(node, 1.0)
        if not layer.bias:
            self._plain_input(node, parents[0], "has no bias to absorb the shift; set bias=True")
            return (ChannelBlock(1.0, scale, Form(0.0)),)
        if _zero_padded(layer):
            reason = (
                "uses zero padding, which does not commute with shifts; use padding 'circular' or "
                "'valid', or border='interior'"
            )
            if self.border == "refuse":
                self._plain_input(node, parents[0], reason)
            elif any(self.value(block.shift) != Form(0.0) for block in self.blocks[parents[0]]):
                self.assumptions.append(
                    Assumption(
                        node,
                        "the two networks agree only away from the zero padding at the border",
                        "heuristic",
                    )
                )
        return (
            ChannelBlock(
                1.0, scale, Form(0.0, {node: 1.0}) if need.shift is None else Form(need.shift)
            ),
        )

    def _plain_input(self, node: Node, parent: Node, reason: str) -> None:
        for block in self.blocks[parent]:
            self.equal(
                block.shift,
                0.0,
                f"node {node!r} reads a shifted feature map ({parent!r}), but it {reason}",
            )

    @forward.register
    def _(self, layer: L.Scale, node: Node, parents: tuple[Node, ...]) -> tuple[ChannelBlock, ...]:
        return tuple(
            ChannelBlock(b.share, b.scale, Form(0.0).plus(b.shift, float(layer.factor)))
            for b in self.blocks[parents[0]]
        )

    @forward.register
    def _(self, layer: L.Concat, node: Node, parents: tuple[Node, ...]) -> tuple[ChannelBlock, ...]:
        counts = [float(count) for count in self.channels[node]]
        return tuple(
            ChannelBlock(block.share * count / sum(counts), block.scale, block.shift)
            for parent, count in zip(parents, counts, strict=True)
            for block in self.blocks[parent]
        )

    @forward.register
    def _(self, layer: L.Sum, node: Node, parents: tuple[Node, ...]) -> tuple[ChannelBlock, ...]:
        weights = sum_weights(layer, len(parents))
        blocks = [self._single(node, parent) for parent in parents]
        need = self.needs.of(node)
        wish = self.needs.wish.get(node, blocks[0].scale)
        scale = wish if need.scale is None else need.scale
        shift = Form(0.0)
        for weight, block in zip(weights, blocks, strict=True):
            shift = shift.plus(self.value(block.shift), float(weight))
        if not all(same(block.scale, scale) for block in blocks):
            changed = tuple(
                float(w) * block.scale / scale for w, block in zip(weights, blocks, strict=True)
            )
            self.layers[node] = replace(layer, weights=changed)
            self.changes.append(f"{node}: weights {_listed(weights)} -> {_listed(changed)}")
        return (ChannelBlock(1.0, scale, shift),)

    def _single(self, node: Node, parent: Node) -> ChannelBlock:
        blocks = self.blocks[parent]
        if not self._uniform(blocks):
            raise KcalcError(
                f"node {node!r} ({type(self.network.layer(node)).__name__}) reads "
                f"{parent!r}, which concatenates blocks with different scales or shifts; put "
                "an Affine between them"
            )
        return blocks[0]

    def _uniform(self, blocks: Iterable[ChannelBlock]) -> bool:
        first, *rest = blocks
        for block in rest:
            gap = self.value(block.shift.plus(first.shift, -1.0))
            if not same(block.scale, first.scale) or gap.terms or not same(1.0 + gap.number, 1.0):
                return False
        return True

    def relation(self, block: ChannelBlock) -> Relation:
        """Evaluate a block; undetermined shifts become 0."""
        return Relation(block.share, block.scale, self.value(block.shift).number)


def _divides_channels(layer: L.Layer) -> bool:
    return isinstance(layer, L.Normalisation) and layer.over == "channels"


def _zero_padded(layer: L.Affine) -> bool:
    """Whether a convolution reads zeros beyond the border."""
    kernel = layer.kernel if isinstance(layer.kernel, tuple) else (layer.kernel,)
    if isinstance(layer.padding, str):
        return layer.padding in ("same", "causal") and max(kernel) > 1
    return max(layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)) > 0


def _listed(weights: Iterable[Any]) -> str:
    return "(" + ", ".join(f"{float(w):.6g}" for w in weights) + ")"
