"""Run a network on JAX arrays: the fold of the kernel maps, with feature maps as states.

A feature map has shape ``(..., channels)``, or ``(..., height, width, channels)`` if it has
locations. The leading axes are batch axes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Any

from ..foundation.errors import KcalcError
from ..foundation.guests import RULES
from ..network import layers as L
from ..network.compose import fold, no_rule, unknown_gradient
from ..network.network import Network
from .array_operations import (
    activate,
    convolve,
    divided,
    elementwise_form,
    grouped_product,
    pixel_shuffle,
    pool,
    resize,
    sinusoids,
)

Array = Any
Node = Hashable
Tree = Mapping[Node, Mapping[str, Array]]
Locations = tuple[int, int]

BATCH_EPSILON = 1e-5  # added to the variance by BatchNorm; kernel maps ignore it
MOMENTUM = 0.9  # momentum of BatchNorm's running statistics


@dataclass(frozen=True)
class Shape:
    """The channel count of a feature map, and its (height, width), None if it has no locations."""

    channels: int
    locations: Locations | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes after the batch axes."""
        return (*(self.locations or ()), self.channels)

    def __str__(self) -> str:
        return " x ".join(map(str, self.axes))


@dataclass(frozen=True)
class Lowered:
    """Data that the rule of a node needs in addition to its layer.

    ``index``: the node's position in the network, used for its random keys. ``below``, ``shape``:
    shapes of the node's inputs and output. ``numbers``: the node's constants, which may differ
    between repeated blocks. ``tensors``, ``state``: {name: shape} of trained parameters and of
    running statistics. ``form``: equal for two nodes if they compute the same function up to
    constants and weights.
    """

    index: int
    below: tuple[Shape, ...]
    shape: Shape
    numbers: tuple[float, ...] = ()
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    state: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    form: Hashable = ()


@dataclass(frozen=True)
class Repeated(L.Layer):
    """Consecutive isomorphic pieces, run as one ``lax.scan``.

    ``body`` is the first piece, preceded by an Input. ``pieces[i][j]`` is the node of the i-th
    piece that corresponds to ``pieces[0][j]``; the last node of a piece is its output.
    """

    body: Network
    entry: Node
    pieces: tuple[tuple[Node, ...], ...]

    @property
    def count(self) -> int:
        """The number of pieces."""
        return len(self.pieces)


@dataclass
class Arrays:
    """The array calculus: the rules for one evaluation of a network.

    ``nodes``: {node: :class:`Lowered`}; ``params`` and ``state``: {node: {name: array}}; the arrays
    of repeated pieces are stacked under the node of the first piece. ``train``: use batch
    statistics, and dropout, which needs a random ``key``; ``active``: even if ``train`` is False,
    apply the dropout layers that are marked as active. ``remat``: recompute repeated pieces in the
    backward pass. ``keep``: collect every feature map. Inside a scan, ``numbers`` and ``indices``
    replace the corresponding values in ``nodes``. A run fills ``new_state`` and ``kept``.
    """

    nodes: Mapping[Node, Lowered]
    params: Tree
    state: Tree = field(default_factory=dict)
    train: bool = False
    active: bool = False
    key: Array | None = None
    remat: bool = False
    keep: bool = False
    numbers: Mapping[Node, tuple[Any, ...]] = field(default_factory=dict)
    indices: Mapping[Node, Any] = field(default_factory=dict)
    new_state: dict[Node, dict[str, Array]] = field(default_factory=dict)
    kept: dict[Node, Array] = field(default_factory=dict)

    def number(self, node: Node) -> tuple[Any, ...]:
        """Return the constants of a node.

        The constants are floats. Inside a scan over pieces with different constants, they are
        traced scalars.
        """
        return self.numbers[node] if node in self.numbers else self.nodes[node].numbers

    def own(
        self, layer: L.Affine | L.Embedding | L.Positions | L.ClassToken, node: Node
    ) -> dict[str, Array]:
        """The parameters of a node; gradients do not reach untrained parameters."""
        from jax.lax import stop_gradient

        fixed = {False: ("weight", "bias"), "weights": ("bias",), "biases": ("weight",)}
        still = fixed.get(layer.trained, ())
        given = self.params[node]
        return {name: stop_gradient(a) if name in still else a for name, a in given.items()}

    # -- rules -------------------------------------------------------------------------------------

    @singledispatchmethod
    def rule(self, layer: L.Layer, node: Node, inputs: Sequence[Array]) -> Array:
        """Return the feature map that a layer emits.

        Raises: NoRule, or KcalcError naming the node.
        """
        raise no_rule("arrays", layer, node)

    @rule.register
    def _(self, layer: L.Affine, node: Node, inputs: Sequence[Array]) -> Array:
        """Return ``x W + b``; a convolution applies it to the window of every location."""
        params, lowered = self.own(layer, node), self.nodes[node]
        _, scale, _, bias_scale, length = self.number(node)
        weight = params["weight"]
        weight = standardised(weight, length) if layer.standardised else _scaled(weight, scale)
        if lowered.shape.locations is not None:
            stride, dilation = pairs(layer.stride), pairs(layer.dilation)
            out = convolve(inputs[0], weight, stride, layer.padding, layer.groups, dilation)
        else:
            out = (
                inputs[0] @ weight
                if layer.groups == 1
                else grouped_product(inputs[0], weight, layer.groups)
            )
        return out + _scaled(params["bias"], bias_scale) if "bias" in params else out

    @rule.register
    def _(self, layer: L.Nonlinear, node: Node, inputs: Sequence[Array]) -> Array:
        return activate(layer.activation, inputs[0], self.number(node))

    @rule.register
    def _(self, layer: L.SurrogateGradient, node: Node, inputs: Sequence[Array]) -> Array:
        """Apply the activation in the forward pass, and the layer's slope in the backward pass."""
        from jax.lax import stop_gradient

        (x,) = inputs
        made, rate = (
            stop_gradient(activate(phi, x, elementwise_form(phi)[1]))
            for phi in (layer.activation, layer.slope)
        )
        return made + rate * (x - stop_gradient(x))

    @rule.register
    def _(self, layer: L.StopGradient, node: Node, inputs: Sequence[Array]) -> Array:
        """Pass the values on without a gradient.

        If the gradient is unknown, differentiating raises an error.
        """
        import jax

        if not layer.unknown:
            return jax.lax.stop_gradient(inputs[0])

        @jax.custom_jvp
        def passed(x: Array) -> Array:
            return x

        @passed.defjvp
        def _(values: Any, tangents: Any) -> Any:
            raise unknown_gradient(layer.unknown, node)

        return passed(inputs[0])

    @rule.register
    def _(self, layer: L.Sum | L.Scale, node: Node, inputs: Sequence[Array]) -> Array:
        """Return ``sum_i w_i x_i``."""
        terms = [_scaled(x, w) for w, x in zip(self.number(node), inputs, strict=True)]
        return sum(terms[1:], terms[0])

    @rule.register
    def _(self, layer: L.Concat, node: Node, inputs: Sequence[Array]) -> Array:
        import jax.numpy as jnp

        return jnp.concatenate(inputs, axis=-1)

    @rule.register
    def _(self, layer: L.Product, node: Node, inputs: Sequence[Array]) -> Array:
        """Multiply elementwise; a factor without locations multiplies every location."""
        axes = len(self.nodes[node].shape.locations or ())
        factors = [
            x
            if shape.locations is not None
            else x.reshape(*x.shape[:-1], *(1,) * axes, x.shape[-1])
            for x, shape in zip(inputs, self.nodes[node].below, strict=True)
        ]
        return math.prod(factors[1:], start=factors[0])

    @rule.register
    def _(self, layer: L.TokenMix, node: Node, inputs: Sequence[Array]) -> Array:
        """Return ``matrix x`` over the locations, row by row."""
        import jax.numpy as jnp

        (x,) = inputs
        rows, shape = x.reshape(*x.shape[:-3], -1, x.shape[-1]), self.nodes[node].shape
        mixed = jnp.einsum("ts,...sc->...tc", jnp.asarray(layer.array, dtype=x.dtype), rows)
        return mixed.reshape(*x.shape[:-3], *(shape.locations or ()), x.shape[-1])

    @rule.register
    def _(self, layer: L.Embedding, node: Node, inputs: Sequence[Array]) -> Array:
        """Look up the table's rows for the given ids, or multiply one-hot vectors by the table."""
        import jax.numpy as jnp

        weight = _scaled(self.own(layer, node)["weight"], self.number(node)[1])
        return (
            weight[inputs[0][..., 0]]
            if jnp.issubdtype(inputs[0].dtype, jnp.integer)
            else inputs[0] @ weight
        )

    @rule.register
    def _(self, layer: L.Positions, node: Node, inputs: Sequence[Array]) -> Array:
        import jax.numpy as jnp

        (x,), (_, scale), shape = inputs, self.number(node), self.nodes[node].shape
        if layer.kind == "sinusoidal":
            vectors: Any = jnp.asarray(
                sinusoids(x.shape[-3], x.shape[-1]) * float(layer.sigma), x.dtype
            )
        else:
            vectors = _scaled(self.own(layer, node)["weight"], scale)
        return x + vectors.reshape(-1, *(shape.locations or (1, 1))[1:], shape.channels)

    @rule.register
    def _(self, layer: L.ClassToken, node: Node, inputs: Sequence[Array]) -> Array:
        import jax.numpy as jnp

        (x,), (_, scale) = inputs, self.number(node)
        front = _scaled(self.own(layer, node)["weight"], scale)[:, None, :]
        front = jnp.broadcast_to(front, (*x.shape[:-3], *front.shape)).astype(x.dtype)
        tokens = x.reshape(*x.shape[:-3], -1, 1, x.shape[-1])
        return jnp.concatenate([front, tokens], axis=-3)

    @rule.register
    def _(self, layer: L.Attend, node: Node, inputs: Sequence[Array]) -> Array:
        """Return ``sum_j (identity I + A - centre / T)_ij v_j`` per head.

        Tokens are the locations in row-major order.
        """
        heads, shared = layer.heads or 1, layer.key_heads or layer.heads or 1
        queries, keys, values = (
            _headed(x, n) for x, n in zip(inputs, (heads, shared, shared), strict=True)
        )
        biases = None
        if layer.relative is not None:
            biases = _scaled(self.params[node]["weight"], self.number(node)[1])
        out = RULES["arrays", "Attend"](layer, queries, keys, values, biases)
        return out.reshape(*inputs[0].shape[:-1], -1)

    @rule.register
    def _(self, layer: L.Normalisation, node: Node, inputs: Sequence[Array]) -> Array:
        """Return ``(x - mean) / std`` or ``x / rms``, 0 if std is 0.

        The statistics are computed over the channels of each location, over a group of channels and
        all locations, or over a batch.
        """
        form: Any = self.nodes[node].form
        statistics, takes_mean, groups = form
        if statistics == "batch":
            return self._over_batch(inputs[0], node)
        x = _wide(inputs[0])
        axes = len(self.nodes[node].shape.locations or ()) if statistics == "positions" else 0
        split = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
        over = (*range(split.ndim - 2 - axes, split.ndim - 2), split.ndim - 1)
        centred = split - split.mean(axis=over, keepdims=True) if takes_mean else split
        out = divided(centred, (centred * centred).mean(axis=over, keepdims=True)).reshape(x.shape)
        return self._gained(out, node).astype(inputs[0].dtype)

    def _over_batch(self, given: Array, node: Node) -> Array:
        """Return ``(x - mean) / sqrt(variance + epsilon)`` with batch or running statistics.

        Training uses batch statistics, and evaluation uses running statistics.
        """
        import jax.numpy as jnp

        old, x = self.state[node], _wide(given)
        if self.train:
            axes = tuple(range(x.ndim - 1))
            if not axes:
                raise KcalcError(
                    f"node {node!r} (BatchNorm) needs a batch in training, but a single example "
                    "was passed"
                )
            mean = x.mean(axis=axes)
            variance = ((x - mean) ** 2).mean(axis=axes)
            pairs_ = (("mean", mean), ("variance", variance))
            self.new_state[node] = {
                name: MOMENTUM * old[name] + (1 - MOMENTUM) * new.astype(old[name].dtype)
                for name, new in pairs_
            }
        else:
            mean, variance = old["mean"], old["variance"]
            self.new_state[node] = dict(old)
        made = self._gained((x - mean) / jnp.sqrt(variance + BATCH_EPSILON), node)
        return made.astype(given.dtype)

    def _gained(self, x: Array, node: Node) -> Array:
        gains = self.params.get(node, {})
        x = x * gains["scale"] if "scale" in gains else x
        return x + gains["offset"] if "offset" in gains else x

    @rule.register
    def _(self, layer: L.Pool, node: Node, inputs: Sequence[Array]) -> Array:
        """The maximum, mean or randomly weighted sum over windows."""
        weight = None
        if layer.kind == "weighted_mean":
            weight = _scaled(self.params[node]["weight"], self.number(node)[1])
        window = None if layer.window is None else pairs(layer.window)
        stride = window if layer.stride is None or window is None else pairs(layer.stride)
        return pool(inputs[0], layer.kind, window, stride, layer.padding, weight)

    @rule.register
    def _(self, layer: L.Resize, node: Node, inputs: Sequence[Array]) -> Array:
        return resize(inputs[0], pairs(layer.factor), pairs(layer.place), layer.kind)

    @rule.register
    def _(self, layer: L.PixelShuffle, node: Node, inputs: Sequence[Array]) -> Array:
        return pixel_shuffle(inputs[0], layer.factors, layer.back)

    @rule.register
    def _(self, layer: L.Dropout, node: Node, inputs: Sequence[Array]) -> Array:
        """In training, zero entries with probability ``rate``; divide the rest by ``1 - rate``."""
        import jax
        import jax.numpy as jnp

        rate = self.number(node)[0]
        drops = self.train or (self.active and layer.active)
        if not drops or (isinstance(rate, float) and rate == 0):
            return inputs[0]
        if self.key is None:
            raise KcalcError(
                f"node {node!r} (Dropout) needs random numbers in training; pass "
                f"key=jax.random.key(...)"
            )
        key = jax.random.fold_in(self.key, self.indices.get(node, self.nodes[node].index))
        stay = jax.random.uniform(key, inputs[0].shape) >= rate
        return jnp.where(stay, inputs[0] / (1 - rate), 0).astype(inputs[0].dtype)

    @rule.register
    def _(self, layer: L.Flatten | L.Identity, node: Node, inputs: Sequence[Array]) -> Array:
        """Reshape (height, width, channels) to (height * width * channels), row by row."""
        if isinstance(layer, L.Identity) or self.nodes[node].below[0].locations is None:
            return inputs[0]
        return inputs[0].reshape(*inputs[0].shape[:-3], -1)

    @rule.register
    def _(self, layer: Repeated, node: Node, inputs: Sequence[Array]) -> Array:
        """Run one ``lax.scan`` over the pieces.

        Layer constants that are the same in all pieces become constants of the scan.
        """
        import jax

        first, dtype = layer.pieces[0], inputs[0].dtype
        constant, varying = self._columns(layer, dtype)
        stacks = (
            {n: self.params[n] for n in first if n in self.params},
            {n: self.state[n] for n in first if n in self.state},
            varying,
            self._stacked_indices(layer),
        )

        def body(h: Array, rows: Any) -> tuple[Array, Any]:
            params, state, numbers, indices = rows
            merged = {
                n: tuple(numbers[n].get(i, v) for i, v in enumerate(values))
                for n, values in constant.items()
            }
            inner = replace(
                self,
                params=params,
                state=state,
                numbers=merged,
                indices=indices,
                new_state={},
                kept={},
            )
            states = fold(layer.body, inner, {layer.entry: h})
            return states[first[-1]], (
                inner.new_state,
                {n: states[n] for n in first} if self.keep else {},
            )

        out, (new_state, kept) = jax.lax.scan(
            jax.checkpoint(body) if self.remat else body, inputs[0], stacks, length=layer.count
        )
        self.new_state.update(new_state)
        self.kept.update(
            {
                piece[j]: kept[n][i]
                for j, n in enumerate(first)
                if n in kept
                for i, piece in enumerate(layer.pieces)
            }
        )
        return out

    def _columns(
        self, layer: Repeated, dtype: Any
    ) -> tuple[dict[Node, tuple[Any, ...]], dict[Node, dict[int, Array]]]:
        """Return {node: constants of the first piece} and {node: {index: constants of all pieces}}.

        The second dictionary contains only the constants that differ between pieces.
        """
        import jax.numpy as jnp

        kind = dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32
        constant: dict[Node, tuple[Any, ...]] = {}
        varying: dict[Node, dict[int, Array]] = {}
        for j, node in enumerate(layer.pieces[0]):
            rows = [self.nodes[piece[j]].numbers for piece in layer.pieces]
            constant[node] = rows[0]
            columns = zip(*rows, strict=True)
            varying[node] = {
                i: jnp.asarray(column, kind)
                for i, column in enumerate(columns)
                if len(set(column)) > 1
            }
        return constant, varying

    def _stacked_indices(self, layer: Repeated) -> dict[Node, Array]:
        import jax.numpy as jnp

        dropped = [
            j
            for j, node in enumerate(layer.pieces[0])
            if isinstance(layer.body.layer(node), L.Dropout)
        ]
        return {
            layer.pieces[0][j]: jnp.asarray(
                [self.nodes[p[j]].index for p in layer.pieces], jnp.uint32
            )
            for j in dropped
        }


def _scaled(x: Array, scale: Any) -> Array:
    """Multiply an array by a number; a traced number is converted to the array's precision."""
    if isinstance(scale, int | float):
        return x if scale == 1 else x * scale
    return x * scale.astype(x.dtype)


def _headed(x: Array, heads: int) -> Array:
    """Reshape (..., height, width, channels) to (..., tokens, heads, channels of a head)."""
    return x.reshape(*x.shape[:-3], -1, heads, x.shape[-1] // heads)


def standardised(weight: Array, length: Any) -> Array:
    """Standardise the weights into each output to mean 0 and Euclidean length ``length``.

    The mean and the length are taken over the fan-in (all axes but the last).
    """
    axes = tuple(range(weight.ndim - 1))
    wide = _wide(weight)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    return (length * divided(centred, (centred * centred).sum(axis=axes, keepdims=True))).astype(
        weight.dtype
    )


def pairs(extent: Any) -> tuple[Any, Any]:
    """Return (rows, columns) of an extent that is given as one number or two."""
    return (extent[0], extent[1]) if isinstance(extent, Sequence) else (extent, extent)


def _wide(x: Array) -> Array:
    """Convert an array to at least single precision, for statistics."""
    import jax.numpy as jnp

    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
