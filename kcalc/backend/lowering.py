"""Turn a network and the shapes of its inputs into an array operation for every node.

Each operation has extents, numerical parameters and the shapes of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import singledispatchmethod
from typing import Any

from ..calculi.array_operations import elementwise_form, reach, window_outputs
from ..calculi.arrays import Lowered, Shape, pairs
from ..foundation.errors import KcalcError
from ..network import layers as L
from ..network.compose import no_rule
from ..network.network import Network, sum_weights
from ..network.primitives import Norm, Reads
from .initialisers import Fan, Initialiser
from .parameterization import ABC, Parameterization

Node = Hashable


def roles(network: Network) -> dict[Node, str]:
    """Return the role of every Affine in the network: "input", "output", "single" or "hidden".

    An input layer has no weights before it, an output layer has none after it, a single layer has
    neither, and a hidden layer has both.
    """
    before: set[Node] = set()  # nodes that read weights
    after: set[Node] = set()  # nodes that weights read
    affine = dict.fromkeys(network.nodes_of(L.Affine))
    weighted = set(network.nodes_of(L.Affine, L.Embedding))
    steps = list(network.steps())
    for node, _, parents in steps:
        if any(parent in before or parent in weighted for parent in parents):
            before.add(node)
    for node, _, parents in reversed(steps):
        if node in after or node in affine:
            after.update(parents)
    names = {
        (True, True): "hidden",
        (False, True): "input",
        (True, False): "output",
        (False, False): "single",
    }
    return {node: names[node in before, node in after] for node in affine}


@dataclass
class Lowering:
    """The calculus that propagates shapes; the state at a node is a :class:`Shape`.

    ``nodes`` collects the array operation of each node.
    """

    network: Network
    features: Mapping[Node, int]
    laws: Mapping[Node, Initialiser]
    parameterization: Parameterization
    trainable_norms: bool = False
    nodes: dict[Node, Lowered] = field(default_factory=dict)
    fans: dict[Node, Fan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = {node: i for i, node in enumerate(self.network)}
        self.roles = roles(self.network)

    def found(self, node: Node, below: Sequence[Shape], shape: Shape, **rest: Any) -> Shape:
        """Record the operation of a node, and return the shape of its output."""
        self.nodes[node] = Lowered(self.places[node], tuple(below), shape, **rest)
        return shape

    def weighted(
        self,
        node: Node,
        below: Sequence[Shape],
        shape: Shape,
        sigma: Any,
        weight: tuple[int, ...],
        form: Any = (),
    ) -> Shape:
        """Record a node with a weight that has no fan-in, and return the shape of its output."""
        size = self.parameterization.vector(float(sigma))
        numbers, tensors = (size.std, size.factor), {"weight": weight}
        return self.found(node, below, shape, numbers=numbers, tensors=tensors, form=form)

    @staticmethod
    def shared(node: Node, parts: int, what: str, channels: int, of: str = "channels") -> int:
        """Return the number of channels per part.

        Raises KcalcError if ``channels`` is not divisible by ``parts``.
        """
        if channels % parts:
            raise KcalcError(
                f"node {node!r}: its {channels} {of} cannot be split into {parts} equal {what}"
            )
        return channels // parts

    # -- rules -------------------------------------------------------------------------------------

    @singledispatchmethod
    def rule(self, layer: L.Layer, node: Node, inputs: Sequence[Shape]) -> Shape:
        """Return the shape of a layer's output.

        Raises NoRule or KcalcError, naming the node.
        """
        raise no_rule("arrays", layer, node)

    @rule.register
    def _(self, layer: L.Affine, node: Node, inputs: Sequence[Shape]) -> Shape:
        (below,) = inputs
        outputs = layer.features or self.features.get(node)
        if outputs is None:
            raise KcalcError(
                f"the width of node {node!r} is unknown; pass features={{{node!r}: ..., None: "
                "others} or one number for all"
            )
        read = self.shared(node, layer.groups, "groups", below.channels, "input channels")
        emitted = self.shared(node, layer.groups, "groups", outputs, "output channels")
        shape = Shape(outputs, self._located(layer, node, below))
        window = pairs(layer.kernel) if below.locations is not None else ()
        fan = Fan(window, read, emitted, layer.groups)
        law = self.laws[node]
        law.check(fan, node)
        self.fans[node] = fan
        sigma, sigma_b = float(layer.sigma_w), float(layer.sigma_b)
        std, multiplier = sigma * math.sqrt(law.variance(fan)), law.multiplier(fan)
        weight = self.parameterization.weight(self.roles[node], fan, std, multiplier)
        bias = self.parameterization.vector(sigma_b)
        tensors: dict[str, tuple[int, ...]] = {"weight": fan.shape}
        if layer.bias and self.parameterization.keeps_bias(sigma_b):
            tensors["bias"] = (outputs,)
        length = multiplier * std * math.sqrt(fan.inputs * (1 if law.delta else fan.taps))
        numbers = (weight.std, weight.factor, bias.std, bias.factor, length)
        form = (
            layer.kernel,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
            layer.standardised,
            layer.trained,
            law,
            fan,
        )
        return self.found(node, inputs, shape, numbers=numbers, tensors=tensors, form=form)

    def _located(self, layer: L.Affine, node: Node, below: Shape) -> tuple[int, int] | None:
        """Return the height and width of the output, or None if it has no locations."""
        for name in ("kernel", "stride", "padding", "dilation"):
            value = getattr(layer, name)
            if isinstance(value, tuple) and len(value) != 2:
                raise KcalcError(
                    f"node {node!r} is a two-dimensional convolution, but {name}={value}; pass "
                    "two numbers"
                )
        if below.locations is None:
            if any(extent != 1 for extent in (*pairs(layer.kernel), *pairs(layer.stride))):
                raise KcalcError(
                    f"node {node!r} is a convolution (kernel {layer.kernel}, stride "
                    f"{layer.stride}), but its input is not an image; pass image_shape=(height, "
                    "width)"
                )
            return None
        return self._fits(
            node,
            below.locations,
            window_outputs(
                below.locations,
                reach(pairs(layer.kernel), pairs(layer.dilation)),
                pairs(layer.stride),
                layer.padding,
            ),
        )

    @staticmethod
    def _fits(node: Node, below: tuple[int, int], outputs: tuple[int, int]) -> tuple[int, int]:
        if min(outputs) < 1:
            raise KcalcError(
                f"the window of node {node!r} does not fit into {below[0]} x {below[1]} "
                "locations; use larger images or padding"
            )
        return outputs

    @rule.register
    def _(self, layer: L.Nonlinear, node: Node, inputs: Sequence[Shape]) -> Shape:
        form, numbers = elementwise_form(layer.activation)
        return self.found(node, inputs, inputs[0], numbers=numbers, form=form)

    @rule.register
    def _(
        self, layer: L.SurrogateGradient | L.StopGradient, node: Node, inputs: Sequence[Shape]
    ) -> Shape:
        return self.found(node, inputs, inputs[0], form=layer)

    @rule.register
    def _(self, layer: L.Sum, node: Node, inputs: Sequence[Shape]) -> Shape:
        numbers = tuple(float(w) for w in sum_weights(layer, len(inputs)))
        return self.found(node, inputs, self._same(node, "Sum", inputs), numbers=numbers)

    @rule.register
    def _(self, layer: L.Product, node: Node, inputs: Sequence[Shape]) -> Shape:
        """Record a product. Factors without locations, such as global gates, are broadcast."""
        located = [shape for shape in inputs if shape.locations is not None] or list(inputs)
        alike = [
            Shape(shape.channels, located[0].locations) if shape.locations is None else shape
            for shape in inputs
        ]
        return self.found(node, inputs, self._same(node, "Product", alike))

    @rule.register
    def _(self, layer: L.TokenMix, node: Node, inputs: Sequence[Shape]) -> Shape:
        below, rows, columns = inputs[0], len(layer.matrix), len(layer.matrix[0])
        if below.locations is None or math.prod(below.locations) != columns:
            raise KcalcError(
                f"node {node!r} mixes {columns} tokens, but its input has "
                f"{'none' if below.locations is None else below}; pass image_shape=({columns}, 1)"
            )
        if rows != columns and 1 not in below.locations:
            raise KcalcError(
                f"node {node!r} maps {columns} tokens to {rows}, but its matrix must be square "
                "if the input is an image"
            )
        if rows == columns:
            return self.found(node, inputs, below, form=layer)
        locations = (rows, 1) if below.locations[1] == 1 else (1, rows)
        return self.found(node, inputs, Shape(below.channels, locations), form=layer)

    @rule.register
    def _(self, layer: L.Embedding, node: Node, inputs: Sequence[Shape]) -> Shape:
        """Record an embedding of token ids (one channel) or one-hot vectors (a channel per id)."""
        (below,) = inputs
        outputs = layer.features or self.features.get(node)
        rows = layer.vocabulary or (below.channels if below.channels > 1 else None)
        if outputs is None or rows is None:
            what = "width" if outputs is None else "vocabulary"
            raise KcalcError(
                f"node {node!r}: the {what} of the Embedding is unknown; pass it as "
                "L.Embedding(features, vocabulary)"
            )
        if below.channels not in (1, rows):
            raise KcalcError(
                f"node {node!r} embeds {rows} ids, but its input has {below.channels} channels; "
                f"pass ids, or one-hot vectors of length {rows}"
            )
        shape = Shape(outputs, below.locations)
        return self.weighted(node, inputs, shape, layer.sigma, (rows, outputs), layer.trained)

    @rule.register
    def _(self, layer: L.Positions, node: Node, inputs: Sequence[Shape]) -> Shape:
        (below,) = inputs
        count = math.prod(self._tokens(node, below))
        if layer.kind == "sinusoidal":
            return self.found(node, inputs, below, numbers=(0.0, 1.0), form=layer)
        if layer.kind == "learned" and layer.length is not None and count > layer.length:
            raise KcalcError(
                f"node {node!r} has {layer.length} positions, but its input has {count} tokens; "
                "pass fewer tokens or use a larger length"
            )
        weight = (1 if layer.kind == "constant" else count, below.channels)
        form = (layer.kind, layer.trained)
        return self.weighted(node, inputs, below, layer.sigma, weight, form)

    @rule.register
    def _(self, layer: L.ClassToken, node: Node, inputs: Sequence[Shape]) -> Shape:
        (below,) = inputs
        count = math.prod(self._tokens(node, below))
        shape = Shape(below.channels, (layer.count + count, 1))
        weight = (layer.count, below.channels)
        return self.weighted(node, inputs, shape, layer.sigma, weight, layer.trained)

    @rule.register
    def _(self, layer: L.Attend, node: Node, inputs: Sequence[Shape]) -> Shape:
        queries, keys, values = inputs
        if layer.heads is None:
            raise KcalcError(
                f"the number of heads of node {node!r} is unknown; pass it as L.Attend(heads=...)"
            )
        rows, columns, read = (math.prod(self._tokens(node, shape)) for shape in inputs)
        if columns != read or (rows != columns and layer.identity != 0):
            raise KcalcError(
                f"node {node!r} has {rows} queries, {columns} keys and {read} values; use as "
                "many keys as values"
            )
        shared = layer.key_heads or layer.heads
        width, key_width, value_width = (
            self.shared(node, count, "heads", shape.channels, f"channels of {what}")
            for shape, count, what in (
                (queries, layer.heads, "queries"),
                (keys, shared, "keys"),
                (values, shared, "values"),
            )
        )
        if key_width != width or layer.key_width not in (None, width):
            raise KcalcError(
                f"node {node!r}: a head has {width} query channels and {key_width} key channels, "
                f"and key_width is {layer.key_width}; use the same number for all three"
            )
        if layer.rotary is not None and width % 2:
            raise KcalcError(
                f"node {node!r} rotates pairs of channels (rotary), but a head has {width} "
                f"channels; use an even number"
            )
        shape = Shape(value_width * layer.heads, queries.locations)
        if layer.relative is None:
            return self.found(node, inputs, shape, form=layer)
        sigma, buckets = layer.relative[:2]
        return self.weighted(node, inputs, shape, sigma, (layer.heads, buckets), layer)

    def _tokens(self, node: Node, shape: Shape) -> tuple[int, int]:
        """Return the (rows, columns) of the tokens.

        Raises KcalcError if there are no tokens.
        """
        if shape.locations is None:
            raise KcalcError(
                f"node {node!r} reads tokens, but its input has no tokens; pass token ids, or "
                "image_shape=(tokens, 1)"
            )
        return shape.locations

    def _listed(self, node: Node, shapes: Sequence[Shape]) -> str:
        return ", ".join(
            f"{parent!r}: {shape}"
            for parent, shape in zip(self.network.parents(node), shapes, strict=True)
        )

    def _same(self, node: Node, kind: str, shapes: Sequence[Shape]) -> Shape:
        if len(set(shapes)) > 1:
            raise KcalcError(
                f"node {node!r} ({kind}) reads feature maps of different shapes "
                f"({self._listed(node, shapes)}); set the same features= for them, or put an "
                "Affine with the same stride and width on the shortcut"
            )
        return shapes[0]

    @rule.register
    def _(self, layer: L.Concat, node: Node, inputs: Sequence[Shape]) -> Shape:
        if len({shape.locations for shape in inputs}) > 1:
            raise KcalcError(
                f"node {node!r} (Concat) reads feature maps with different locations "
                f"({self._listed(node, inputs)})"
            )
        counts = [shape.channels for shape in inputs]
        given = layer.channels
        if given is not None and any(
            int(g) * counts[0] != int(given[0]) * k for g, k in zip(given, counts, strict=True)
        ):
            raise KcalcError(
                f"node {node!r} (Concat) declares that its inputs have channels in the ratio "
                f"{':'.join(map(str, given))}, but their shapes are "
                f"({self._listed(node, inputs)}); set features= of its input nodes in that ratio"
            )
        return self.found(node, inputs, Shape(sum(counts), inputs[0].locations))

    @rule.register
    def _(self, layer: L.Normalisation, node: Node, inputs: Sequence[Shape]) -> Shape:
        size = (inputs[0].channels,)
        op = layer.lowered(Reads(node, (), size))
        if not isinstance(op, Norm):
            raise no_rule("arrays", layer, node)  # its operation is not a single normalisation
        self.shared(node, op.groups, "groups", size[0])
        tensors = (
            dict.fromkeys(("scale", "offset") if op.centred else ("scale",), size)
            if self.trainable_norms
            else {}
        )
        state = {"mean": size, "variance": size} if op.over == "batch" else {}
        form = (op.over, op.centred, op.groups)
        return self.found(node, inputs, inputs[0], tensors=tensors, state=state, form=form)

    @rule.register
    def _(self, layer: L.Pool, node: Node, inputs: Sequence[Shape]) -> Shape:
        locations = inputs[0].locations
        if locations is None:
            raise KcalcError(
                f"node {node!r} pools over locations, but its input has no locations; pass "
                "image_shape=(height, width)"
            )
        form = (layer.kind, layer.window, layer.stride, layer.padding)
        if layer.window is None:
            window, shape = locations, Shape(inputs[0].channels)
        else:
            window = pairs(layer.window)
            stride = window if layer.stride is None else pairs(layer.stride)
            shape = Shape(
                inputs[0].channels,
                self._fits(
                    node, locations, window_outputs(locations, window, stride, layer.padding)
                ),
            )
        if layer.kind != "weighted_mean":
            return self.found(node, inputs, shape, form=form)
        return self.weighted(node, inputs, shape, math.prod(window) ** -0.5, window, form)

    @rule.register
    def _(self, layer: L.Resize | L.PixelShuffle, node: Node, inputs: Sequence[Shape]) -> Shape:
        below = inputs[0].locations
        given = (layer.factor, layer.place) if isinstance(layer, L.Resize) else (layer.factors,)
        if below is None or any(isinstance(v, tuple) and len(v) != 2 for v in given):
            raise KcalcError(
                f"node {node!r} resizes two-dimensional images, but the locations of its input are "
                f"{below}; pass image_shape=(height, width), and either one factor or one factor "
                "per axis"
            )
        factors = given[0] if isinstance(given[0], tuple) else (given[0],) * 2
        channels = inputs[0].channels
        if isinstance(layer, L.Resize):
            sizes = [math.floor(n * f + 1e-9) for n, f in zip(below, factors, strict=True)]
        elif layer.back:
            sizes = [
                self.shared(node, f, "parts", n, "rows or columns")
                for n, f in zip(below, factors, strict=True)
            ]
            channels *= math.prod(factors)
        else:
            sizes = [n * f for n, f in zip(below, factors, strict=True)]
            channels = self.shared(node, math.prod(factors), "places", channels)
        shape = Shape(channels, self._fits(node, below, (sizes[0], sizes[1])))
        return self.found(node, inputs, shape, form=(type(layer).__name__, *given))

    @rule.register
    def _(
        self, layer: L.Scale | L.Dropout | L.Identity, node: Node, inputs: Sequence[Shape]
    ) -> Shape:
        """Record an elementwise layer; its fields become its numerical parameters."""
        return self.found(node, inputs, inputs[0], numbers=tuple(map(float, astuple(layer))))

    @rule.register
    def _(self, layer: L.Flatten, node: Node, inputs: Sequence[Shape]) -> Shape:
        return self.found(node, inputs, Shape(math.prod(inputs[0].axes)))


def has_rule(layer: L.Layer) -> bool:
    """Whether this kind of layer can be run on arrays."""
    known: Any = Lowering.__dict__["rule"].dispatcher
    return known.dispatch(type(layer)) is not known.dispatch(object)


def width_grows_with(parameterization: Parameterization, role: str) -> float | None:
    """Return the power of the width by which a layer scales coordinates at initialisation.

    ``role`` is the role of the layer in the network. Returns None if the power is unknown.
    """
    if isinstance(parameterization, ABC):
        return parameterization.growth(role)
    return 0.0
