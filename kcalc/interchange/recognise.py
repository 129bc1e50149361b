"""Turn traced operations of any framework into a network, with one rule per kind of operation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

import numpy as np
import sympy as sp

from ..activations import X
from ..foundation.errors import KcalcError
from ..network import layers as L
from ..network.masks import as_fields
from ..network.network import Network
from ..network.notes import DISTANCES, TIED, masked_at
from ..network.primitives import several
from .activation_names import with_short_names
from .axis_conflicts import channel_position_mixups, mixed_orders, moved_windows
from .builder import CORRELATED, Form
from .fusion import Constant, Still, Unary, Unusable, as_number, exact_number, simplified
from .geometry import affine_fit, extent, spread_fit
from .independence import dependence, unlike_gaussian
from .internal_errors import ModelError, internal_error
from .layout import adds_channels, opened, reshaped_axis
from .model_reading import Note, Reading
from .model_reading import named as listed
from .ownership import has_mean, is_standardised
from .pointwise import ElementwiseRules
from .pooling import operation, pool_layer
from .reading_notes import about_epsilons, biased, notes_at_nodes, sizes
from .rewriting import rewritten
from .step_merging import assemble
from .tokens import mixed, mixing_layer
from .trace import (  # fmt: skip
    Attention,
    Drop,
    Entry,
    Held,
    Join,
    Linear,
    Lookup,
    Mixed,
    Normalise,
    NotRead,
    Op,
    Part,
    Pass,
    Pointwise,
    Pooling,
    Prefixed,
    Reorder,
    Repeat,
    Reshape,
    Routed,
    Shuffle,
    Stopped,
    Trace,
    Transpose,
    spoken,
)


def recognise(trace: Trace, sigmas: bool = True) -> Reading:
    """Return the network that a trace describes.

    ``sigmas``: whether to set sigma_w = sqrt(fan_in mean W^2) and sigma_b = sqrt(mean b^2), the
    standard deviations about 0 that the kernel calculus uses. If False, sigma_w is 1 and sigma_b is
    0 everywhere.

    Raises: KcalcError if the model has no operations.
    """
    trace, _ = rewritten(trace)
    reader = Recogniser(trace, sigmas)
    unlike = dict.fromkeys(mixed_orders(trace.ops, reader.axes), UNLIKE) | dict.fromkeys(
        channel_position_mixups(trace.ops, reader.axes, reader.guessed), CROSSED
    )
    for op in trace.ops:
        reason = unlike.get(op.name)
        reader.forms[op.name] = (
            reader.outcome(op)
            if reason is None
            else reader.opaque(op, "arrays in two orders", reason)
        )
    ends = [reader.label(name, final=True) for name in trace.outputs]
    elsewhere = moved_windows(trace.ops, reader.axes, dict(zip(trace.outputs, ends, strict=True)))
    for name in (name for name in reader.layers if name in elsewhere):
        reader.note(name, "locations", elsewhere[name])
    return reader.finish(ends)


ACTUAL = (
    "it acts along the locations. Kernel maps treat its weights as Gaussian with the same mean "
    "square, which is a heuristic; spatial='exact' uses the actual weights"
)
UNLIKE = (
    "it combines a feature map with a transposed copy of itself, so that values at different "
    "locations depend on each other"
)
CROSSED = (
    "it combines feature maps with channels and locations on different axes; transpose one of them"
)
SPLIT = "which contain only some of the channels (a head, a group); kcalc reads nn.GroupNorm"
MAXOUT = (
    "a reshape moved these channels to a separate axis (maxout), but channels cannot be read as "
    "locations; use torch.maximum(a(x), b(x)) of two layers, which kcalc reads exactly"
)
COMPLEX = "its numbers are complex, but the kernel calculus needs real feature maps"
ONE = "a single number for every example (a time, a class) is not a feature map with many channels"
MEAN = "its weights do not have mean 0; they are read as independent weights with mean 0"
ZERO = "its weights are all 0; they are read as if they were drawn with sigma_w = 1"
PAIRED = (
    "it permutes channels and then adds them to others or multiplies them elementwise, but kernel "
    "maps do not distinguish channels"
)
LASTING = "it stays active in evaluation mode, which changes q and c; kernel maps ignore dropout"
POOLED = {
    "mean": (
        "kernel maps treat mean pooling as the identity, which is a heuristic; spatial='exact' "
        "computes the pooling"
    ),
    "max": (
        "kernel maps treat max pooling as the identity, which is a heuristic; spatial='exact' "
        "rejects max pooling"
    ),
}
ADAPTED = (
    "its pooling windows have unequal sizes; it is read as linear resizing to the same number of "
    "locations. Kernel maps treat resizing as the identity, as they do for pooling"
)
INTERPOLATED = (
    "kernel maps treat linear interpolation as the identity, which is a heuristic; "
    "spatial='exact' computes the interpolation"
)
UNEVEN = (
    "its stride does not divide its kernel, so the number of weights differs between locations; "
    "kernel maps use the mean, while spatial='exact' uses the number at each location"
)
COPY = (
    "; if the layers are copies, like those in nn.TransformerEncoder, draw their weights again, or "
    "read the model with sigmas=False"
)
BEYOND = "no tap reads the image at every location, so some locations contain only biases"
PARTLY = "it turns some locations into channels; the network leaves out the other locations"
BIASES = (
    "biases are treated as Gaussian with mean 0 and the root mean square that was read; for "
    "uniform biases, results after activations differ a little"
)


NO_EFFECT = (
    "not in the network, because they do not affect the output: {}; the value of {!r} is constant "
    "(for example, a product with 0)"
)


BAG = (
    "it adds the vectors of {} ids, which are assumed to be distinct; the cosine of two inputs is "
    "the fraction of ids that they have in common"
)
SMALLEST = 1e-100  # standard deviation for class tokens that are 0
ZEROS = (
    "its class tokens are zeros and are read as vectors of mean square 1e-200. This is correct if "
    "positions are added to them. But if a norm reads such a vector, its output is 0 in the model "
    "and has mean square 1 here"
)
CLASS = (
    "its class token is the same vector for all inputs (root mean square {:.3g}). It is read like "
    "any other token, even if an output takes only this token. Gradients of such an output with "
    "respect to the patches are then too large. Use the network with {} tokens"
)


def together(weights: bool | str, op: Linear) -> bool | str:
    """Return which parameters of a layer are trained, as a value for the Affine field ``trained``.

    ``weights``: whether its weights are trained.
    """
    biases = weights if op.bias is None else op.bias_trained
    if "indirectly" in (weights, biases):
        return "indirectly"
    return weights if weights == biases else "weights" if weights else "biases"


class Recogniser(ElementwiseRules):
    """Turns operations into nodes, with one rule per kind of operation."""

    def _before(self, op: Op) -> tuple[tuple[int, ...], int | None]:
        """Return the shape and the channel axis of an operation's first input."""
        return self.by_name[op.reads[0]].shape, self.axes[op.reads[0]]

    def _readers(self, name: str) -> list[Op]:
        return [op for op in self.trace.ops if name in op.reads]

    def outcome(self, op: Op) -> Form:
        """Return how an operation is read.

        If the rule raises an error, the operation becomes an Opaque node with the error as the
        reason.
        """
        layers, notes = dict(self.layers), list(self.notes)
        try:
            form = self.rule(op)
            self._remember_branches(op, form)
            return form
        except ModelError:
            raise
        except KcalcError as error:  # the layer's constructor rejects these values
            reason = str(error)
        except Exception as error:
            reason = internal_error(error, f"the rule for {spoken(op)} at {op.name!r}")
        self.layers, self.notes = layers, notes
        return self.opaque(op, spoken(op), reason)

    def _remember_branches(self, op: Op, form: Form) -> None:
        """Keep the branches of an operation that is a number because a trained gain is 0."""
        branches = [branch for name in op.reads for branch in self.off.get(name, ())]
        if branches and isinstance(form, Unary) and form.source is None:
            known = self.off.get(op.name, ())
            self.off[op.name] = tuple(dict.fromkeys((*known, *branches)))

    # -- the rules ---------------------------------------------------------------------------------

    @singledispatchmethod
    def rule(self, op: Op) -> Form:
        """Return how an operation is read."""
        raise NotImplementedError(
            f"{self.trace.framework}: there is no rule for {type(op).__name__}"
        )

    @rule.register
    def _(self, op: Entry) -> Form:
        if op.text:
            self.note(op.name, "approximate", op.text)
        reader = next(iter(self._readers(op.name)), None)
        axis, shape = self.axes[op.name], op.shape
        if (
            reader is not None
            and self.readers[op.name] == 1
            and adds_channels(reader, op, self.axes[reader.name])
        ):
            axis, shape = self.axes[reader.name], reader.shape
        if axis is None:
            return self.node(op, L.Input(), [])
        locations = tuple(k for i, k in enumerate(shape) if i not in (0, axis))
        return self.node(op, L.Input(features=shape[axis], image_shape=locations or None), [])

    @rule.register
    def _(self, op: Held) -> Form:
        return Unusable(COMPLEX) if np.iscomplexobj(op.value) else Constant(op)

    @rule.register
    def _(self, op: Linear) -> Form:
        before, axis = self._before(op)
        if np.iscomplexobj(op.weight) or (op.bias is not None and np.iscomplexobj(op.bias)):
            return self.opaque(op, "complex weights", COMPLEX)
        if axis is not None and axis != op.axis:
            return self._along_locations(op, axis, before)
        first = self.owners.sharing(op)
        twin = self.owners.twin(op) if first is None and self.sigmas else None
        if (
            first is not None
            and self._ends(op.name)
            and isinstance(self.by_name.get(first), Lookup)
        ):
            self.note(
                op.name, "approximate", f"{TIED} {first!r}, but they are read as separate weights"
            )
        elif first is not None or twin is not None:
            reason = (
                f"it shares its weights with {first or twin!r}, but kcalc needs independent "
                f"weights in every layer{COPY if twin else ''}"
            )
            return self.opaque(op, "shared weights", reason)
        parent = self.label(op.reads[0])
        sizes = [k for i, k in enumerate(before) if i not in (0, op.axis)][
            -len(op.kernel) or len(before) :
        ]
        if op.spread:
            fit, place = spread_fit(op, sizes)
            zeros = L.Resize(extent(op.spread), "zeros", place)
            parent = self.node(replace(op, name=f"{op.name}.spread"), zeros, [parent]).home
            if any(k % s for k, s in zip(op.kernel, op.spread, strict=True)):
                self.note(op.name, "pooling", UNEVEN)
        else:
            fit = affine_fit(op, sizes)
        if fit.text:
            self.note(op.name, "locations", fit.text)
        if not fit.centred:
            self.note(op.name, "approximate", BEYOND)
        self._note_weights(op, parent)
        has_bias = op.bias is not None
        standardised = op.standardised or (self.sigmas and is_standardised(op))
        layer = L.Affine(
            features=int(op.weight.shape[0]),
            kernel=extent(op.kernel),
            stride=1 if op.spread else extent(op.stride),
            dilation=extent(op.dilation),
            padding=fit.padding,
            groups=op.groups,
            bias=has_bias,
            sigma_w=self._sigma_w(op),
            sigma_b=self.sigma_b(op.name, op.bias) if op.bias is not None else 0,
            standardised=standardised,
            trained=together(bool(op.trained) if standardised else op.trained, op),
        )
        return self.node(op, layer, [parent])

    def _ends(self, name: str) -> bool:
        """Whether only elementwise functions follow an operation."""
        readers = self._readers(name)
        return (name in self.trace.outputs or bool(readers)) and all(
            isinstance(op, Pointwise) and set(op.reads) == {name} and self._ends(op.name)
            for op in readers
        )

    def _note_weights(self, op: Linear, parent: str) -> None:
        """Add a note for weights that are clearly not independent draws with mean 0."""
        if not self.sigmas or not op.weight.size:
            return
        if has_mean(op):
            self.note(op.name, "approximate", MEAN, of_weights=True)
        elif told := dependence(op, isinstance(self.layers[parent][0], L.Input)):
            self.note(op.name, "approximate", told, of_weights=True)
        elif (told := unlike_gaussian(op)) and not (op.bias is not None and biased(op.bias)):
            self.of_biases.append(Note(op.name, "approximate", told, op.source, True))
        if kin := self.weights_like(op.name, op.weight):
            self.note(op.name, "approximate", CORRELATED.format("weights", kin), of_weights=True)

    def _along_locations(self, op: Linear, axis: int, before: tuple[int, ...]) -> Form:
        if op.kernel or op.groups != 1 or op.axis == 0 or op.reads[0] in self.guessed:
            return self.opaque(
                op,
                "location mixing",
                f"its weights act along axis {op.axis} of {before}, but the channels are on axis "
                f"{axis}",
            )
        first = self.owners.along_locations(op)
        if first is not None:
            return self.opaque(
                op,
                "shared weights",
                f"it shares its weights with {first!r}, which is read as having Gaussian weights",
            )
        form = self.mixing(mixed(op, ACTUAL))
        if (
            op.bias is None
            or not isinstance(form, Unary)
            or not isinstance(self.layers[op.name][0], L.TokenMix)
        ):
            return form
        return self.without_token_bias(form, op.name, op.bias)

    @rule.register
    def _(self, op: Lookup) -> Form:
        vocabulary, features = map(int, op.weight.shape)
        if first := self.owners.looked_up(op):
            return self.opaque(
                op,
                "shared weights",
                f"it shares its table with {first!r}, but kcalc needs independent weights in every "
                "layer",
            )
        sigma = self._scale(op, math.sqrt(op.statistics.mean_square))
        if op.bag > 1:
            sigma *= op.factor * math.sqrt(op.bag)
            self.note(op.name, "approximate", BAG.format(op.bag))
        return self.node(op, L.Embedding(features, vocabulary, sigma, op.trained))

    @rule.register
    def _(self, op: Attention) -> Form:
        query = self.by_name[op.reads[0]]
        axis = self.axes[query.name]
        if axis is not None and query.shape[axis] != op.heads * op.key_width:
            return self.opaque(
                op, "attention", f"the channels of its queries are on axis {axis} of {query.shape}"
            )
        for text in op.texts:
            self.note(op.name, "approximate", text)
        width = op.key_width
        named = {"sqrt": width**-0.5, "linear": 1 / width}
        own = as_number(exact_number(op.scale, np.float32))
        scale = next(
            (name for name, value in named.items() if math.isclose(op.scale, value, rel_tol=1e-4)),
            own,
        )
        shared = None if op.key_heads == op.heads else op.key_heads
        relative = op.relative
        if relative is not None and not self.sigmas:
            relative = (1.0, *relative[1:])
        layer = L.Attend(
            op.heads,
            width,
            scale=scale,
            key_heads=shared,
            rotary=op.rotary,
            alibi=op.alibi,
            relative=relative,
            dropout=as_number(simplified(sp.Float(op.rate))),
            **as_fields(op.masks),
        )
        if op.relative is not None and op.tokens <= op.relative[2]:
            self.notes.append(masked_at(op.name, op.tokens, DISTANCES))
        if op.masked_at is not None:
            self.notes.append(masked_at(op.name, op.masked_at))
        return self.node(op, layer)

    @rule.register
    def _(self, op: Routed) -> Form:
        for text in op.texts:
            self.note(op.name, "exact", text)
        scale = as_number(exact_number(op.scale, np.float32))
        return self.node(op, L.Route(op.k, op.score, op.normalise, scale))

    @rule.register
    def _(self, op: Part) -> Form:
        """Read a selection of tokens of a transformer, such as the class token."""
        before, axis = self._before(op)
        if not self.of_tokens or axis in (None, op.axis) or op.axis == 0:
            return self.opaque(op, op.what, op.reason)
        chosen = np.eye(before[op.axis])[list(op.places)]
        return self.mixing(op.become(Mixed, matrix=chosen, axis=op.axis))

    @rule.register
    def _(self, op: Prefixed) -> Form:
        """Read class tokens that are put before the tokens of a transformer."""
        if not self.of_tokens or self.axes[op.reads[0]] in (None, op.axis) or op.axis == 0:
            return self.opaque(op, op.what, op.reason)
        value, node = np.asarray(op.value, np.float64), self.label(op.reads[0])
        size = float(np.sqrt(np.square(value).mean()))
        channels, count = self.axes[op.reads[0]], op.shape[op.axis]
        more = count - self.by_name[op.reads[0]].shape[op.axis]
        front = len(op.shape) == 3 and not op.behind
        if front and channels is not None:
            if self.sigmas and not size:
                self.note(op.name, "approximate", ZEROS)
                return self.node(op, L.ClassToken(SMALLEST, more, op.trained), [node])
            value = np.broadcast_to(value, [*(1,) * (3 - value.ndim), *value.shape])
            rows = np.moveaxis(value, channels, -1)[0].reshape(more, -1)
            sigma = self.spread(rows) if self.sigmas else 1
            return self.node(op, L.ClassToken(sigma, more, op.trained), [node])
        self.note(node, "approximate", CLASS.format(size, count))
        self.shapes[node] = op.shape
        return Unary(node, X, node)

    @rule.register
    def _(self, op: Mixed) -> Form:
        return self.mixing(op)

    def mixing(self, op: Mixed) -> Form:
        """Read an operation that mixes locations with fixed weights."""
        layer, reason = mixing_layer(op, *self._before(op))
        if layer is None:
            return self.opaque(op, "location mixing", reason)
        if op.text:
            self.note(op.name, "pooling" if layer.random else op.level, op.text)
        self.tokens[op.name] = op.axis
        return self.node(op, layer)

    def _sigma_w(self, op: Linear) -> float:
        fan_in = op.fan_in / math.prod(op.spread)
        return self._scale(op, math.sqrt(op.statistics.mean_square) * math.sqrt(fan_in))

    def _scale(self, op: Op, scale: float) -> float:
        """Return the standard deviation of weights, or 1 if it is 0 or sigmas are not read."""
        if not self.sigmas:
            return 1
        if self.finite(scale) > 0:
            return scale
        self.note(op.name, "approximate", ZERO, of_weights=True)
        return 1

    @rule.register
    def _(self, op: Pointwise) -> Form:
        return self.pointwise(op)

    @rule.register
    def _(self, op: Normalise) -> Form:
        parent, rank = self.label(op.reads[0]), len(op.shape)
        axis = self.axes[op.reads[0]]
        layer: L.Layer
        if op.kind == "batch":
            layer = L.BatchNorm()
        elif op.kind == "group":
            layer = L.GroupNorm(op.groups)
        elif op.axes == (axis,):
            layer = L.LayerNorm() if op.kind == "layer" else L.RMSNorm()
        elif set(op.axes) == set(range(1, rank)) and op.kind == "layer":
            layer = L.GroupNorm(1)
        else:
            return self.opaque(
                op,
                f"{op.kind} normalisation",
                f"it averages over axes {op.axes} of {op.shape}, "
                + (SPLIT if axis is None else f"but the channels are on axis {axis}"),
            )
        if op.kind != "batch":
            self.epsilons[op.name] = float(op.epsilon)
        elif (
            self.sigmas
            and op.running is not None
            and not all(np.allclose(a, b) for a, b in zip(op.running, (0, 1), strict=True))
        ):
            self.note(
                op.name,
                "approximate",
                "in evaluation mode it uses its running mean and variance, but it is read "
                "as in training mode",
                of_weights=True,
            )
        self.node(op, layer, [parent])
        gain, bias = (self._same_for_all(op, leaf) for leaf in ("gain", "bias"))
        home = op.name if (gain, bias) == (1, 0) else f"{op.name}.gain"
        return Unary(op.name, gain * X + bias, home)

    def _same_for_all(self, op: Normalise, leaf: str) -> Any:
        """Return the gain (or bias) that all channels of a normalisation share.

        If it differs by channel, or all gains are 0, a note is added and the result is 1 (or 0).
        """
        array, neutral = getattr(op, leaf), sp.Integer(leaf == "gain")
        if array is None or not self.sigmas or np.size(array) == 0:
            return neutral
        first = np.asarray(array).reshape(-1)[0]
        if not np.allclose(array, first, rtol=1e-6, atol=1e-7 * (leaf == "bias")):
            several = "gains" if leaf == "gain" else "biases"
            self.note(
                op.name,
                "approximate",
                f"its {several} differ between channels and are left out",
                of_weights=True,
            )
            return neutral
        if leaf == "gain" and first == 0:
            text = "its gains are all 0; they are read as 1"
            self.note(op.name, "approximate", text, of_weights=True)
            return neutral
        same = abs(first - float(neutral)) <= 1e-7
        return neutral if same else exact_number(first, np.asarray(array).dtype)

    @rule.register
    def _(self, op: Pooling) -> Form:
        if self._opened(self.label(op.reads[0])):
            return self.opaque(op, f"{operation(op)} over channels", MAXOUT)
        layer, level, text = pool_layer(op, *self._before(op))
        if layer is None:
            return self.opaque(op, f"{operation(op)} over axes {op.axes}", text)
        if level:
            self.note(op.name, level, text)
        if isinstance(layer, L.Pool) and several(layer.window):
            self.note(op.name, "pooling", POOLED[layer.kind])
        return self.node(op, layer)

    def _opened(self, node: str) -> bool:
        """Whether a reshape that no weights follow turned channels into locations."""
        layer, parents = self.layers[node]
        if isinstance(layer, L.Nonlinear | L.Scale | L.Dropout):
            return self._opened(parents[0])
        return isinstance(layer, L.PixelShuffle) and isinstance(self.by_name.get(node), Reshape)

    @rule.register
    def _(self, op: Join) -> Form:
        axes = {self.axes[name] for name in op.reads}
        if axes != {op.axis} or any(not isinstance(self.forms[name], Unary) for name in op.reads):
            return self.opaque(
                op,
                "concatenation",
                f"it concatenates along axis {op.axis}, but the channels are on axis "
                f"{self.axes[op.reads[0]]}",
            )
        if len(op.reads) == 1:
            return self.forms[op.reads[0]]
        self.joined[op.name] = tuple(self.by_name[name].shape[op.axis] for name in op.reads)
        return self.node(op, L.Concat())

    @rule.register
    def _(self, op: Reshape) -> Form:
        form, before = self.forms[op.reads[0]], self.by_name[op.reads[0]]
        axis = self.axes[op.reads[0]]
        if isinstance(form, Constant):
            return self._moved(op)
        kept = before.shape == op.shape or op.name in self.ids
        if kept or isinstance(form, Unusable) or adds_channels(op, before, self.axes[op.name]):
            return form
        if before.shape == (self.examples,):
            return self.opaque(op, "one number per example", ONE)
        whole = bool(before.shape) and before.shape[0] % self.examples == 0
        if whole and (not op.shape or op.shape[0] % self.examples):
            reason = "the examples move to another axis"
            return self.opaque(op, "reshape", f"from {before.shape} to {op.shape}, {reason}")
        if self.axes[op.name] == 1 and opened(before.shape, op.shape, axis):
            return self.node(op, L.PixelShuffle(op.shape[2:]))
        if op.shape == (self.examples,) and self._at_the_end(op.name):
            return form  # a single channel without a channel axis
        there = None if axis is None else reshaped_axis(before.shape, op.shape, axis)
        if there is None:
            return self.opaque(
                op,
                "reshape",
                f"from {before.shape} to {op.shape}, channels are split or mixed (attention heads, "
                f"groups)",
            )
        if there[0] == "kept":
            return form
        if any(k > 1 for i, k in enumerate(op.shape) if i not in (0, there[1])):
            self.note(op.name, "locations", PARTLY)
        return self.node(op, L.Flatten())

    def _moved(self, op: Op) -> Form:
        held = self.forms[op.reads[0]]
        assert isinstance(held, Constant)
        value = held.held.value
        value = value.transpose(op.order) if isinstance(op, Transpose) else value.reshape(op.shape)
        return Constant(replace(held.held, name=op.name, shape=op.shape, value=value))

    @rule.register
    def _(self, op: Transpose) -> Form:
        if isinstance(self.forms[op.reads[0]], Constant):
            return self._moved(op)
        if op.order[0] != 0:
            return self.opaque(op, "transpose", "it moves the axis of examples")
        return self.forms[op.reads[0]]

    @rule.register
    def _(self, op: Reorder) -> Form:
        """Read a permutation of channels, which the network leaves out.

        The order of channels does not matter if random weights follow.
        """
        if self.axes[op.name] != op.axis:
            return self.opaque(op, "another order", "it permutes locations")
        if self._pairs_channels(op.name):
            return self.opaque(op, "another order", PAIRED)
        return self.forms[op.reads[0]]

    def _pairs_channels(self, name: str) -> bool:
        """Whether an elementwise operation combines channels before weights mix them."""
        for op in self._readers(name):
            if isinstance(op, Linear) and (not op.kernel or op.weight.shape[1] > 1):
                continue
            several = [read for read in op.reads if not isinstance(self.by_name[read], Held)]
            if (len(several) > 1 and not isinstance(op, Join)) or self._pairs_channels(op.name):
                return True
        return False

    @rule.register
    def _(self, op: Drop) -> Form:
        form = self.forms[op.reads[0]]
        if op.rate == 0 or (isinstance(form, Unary) and form.source is None and form.expr == 0):
            return form
        if op.always:
            self.note(op.name, "approximate", LASTING)
        return self.node(op, L.Dropout(as_number(simplified(sp.Float(op.rate)))))

    @rule.register
    def _(self, op: Repeat) -> Form:
        if self._meets_all_locations(op):
            return self.forms[op.reads[0]]
        axis, before = self.axes[op.name], self.by_name[op.reads[0]].shape
        if axis is not None and before[axis] != op.shape[axis]:
            reason = f"a feature map of {before[axis]} channels is broadcast over {op.shape[axis]}"
            return self.opaque(op, "repeated channels", reason)
        sizes = [(n, m) for i, (n, m) in enumerate(zip(before, op.shape, strict=True)) if i != axis]
        factors = [m // n if m % n == 0 else m / n for n, m in sizes[1:]]
        if axis is None or not factors or op.shape[0] != before[0]:
            return self.opaque(
                op, "resizing", f"from {before} to {op.shape}, but the channel axis is unknown"
            )
        pools = op.kind.startswith("adaptive")
        if pools:
            self.note(op.name, "locations", ADAPTED)
        elif op.kind != "nearest":
            self.note(op.name, "pooling", INTERPOLATED)
        factor = factors[0] if len(set(factors)) == 1 else tuple(factors)
        layer = L.Resize(factor, "linear" if pools else op.kind)
        return self.node(op, layer)

    @rule.register
    def _(self, op: Shuffle) -> Form:
        before, axis = self._before(op)
        if axis != 1 or len(before) != 2 + len(op.factor):
            reason = f"of an array {before} with channels on axis {axis}"
            return self.opaque(op, "pixel shuffle", reason)
        return self.node(op, L.PixelShuffle(op.factor, op.back))

    def _meets_all_locations(self, op: Repeat) -> bool:
        """Whether an operation repeats a single location to combine it with all locations.

        Every operation that reads the result must be elementwise and also read a feature map with
        all locations.
        """
        before, axis = self._before(op)
        single = axis is not None and math.prod(before) == before[0] * before[axis]
        if not single or op.name in self.trace.outputs:
            return False
        return all(
            isinstance(one, Pointwise)
            and any(not isinstance(self.by_name[name], Held | Repeat) for name in one.reads)
            for one in self._readers(op.name)
        )

    @rule.register
    def _(self, op: Pass) -> Form:
        return self.forms[op.reads[0]]

    @rule.register
    def _(self, op: Stopped) -> Form:
        """Read a gradient stop, as part of an elementwise function if possible."""
        form = self.forms[op.reads[0]]
        if not isinstance(form, Unary) or form.source is None:
            return form
        if op.unknown:
            return self.node(op, L.StopGradient(op.unknown))
        if not isinstance(form.expr, sp.Expr) or isinstance(form.expr, Still):
            return form  # a comparison, which has no gradient, or a stopped value
        made = Unary(form.source, Still(form.expr), op.name)
        self.stopped[made.source, made.expr] = op.reads[0]
        return made

    @rule.register
    def _(self, op: NotRead) -> Form:
        if op.what in ("softmax", "log_softmax") and self._at_the_end(op.name) and op.reads:
            form = self.forms[op.reads[0]]
            if isinstance(form, Unary) and form.source is not None:
                place = self.label(op.reads[0])
                self.note(
                    place,
                    "approximate",
                    f"the {op.what} at the output is left out, so the network returns its input",
                )
                return Unary(place, X, place)
        return self.opaque(op, op.what, op.reason)

    def _at_the_end(self, name: str) -> bool:
        """Whether an array is only used as an output, possibly after a reshape."""
        readers = self._readers(name)
        return not readers or (
            name not in self.trace.outputs
            and all(
                isinstance(op, Reshape | Pass | Stopped | Transpose) and self._at_the_end(op.name)
                for op in readers
            )
        )

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, ends: list[str]) -> Reading:
        """Return the reading: the simplified network, and all notes."""
        steps = [(name, layer, parents) for name, (layer, parents) in self.layers.items()]
        steps, apart, gone = assemble(steps, ends)
        if all(isinstance(layer, L.Input) for _, layer, _ in steps):
            raise KcalcError(
                f"{self.trace.framework}: the model returns its input and has no layers, so there "
                "is nothing to analyse"
            )
        network, named = with_short_names(
            self._with_channels(
                Network.from_steps(steps, list(dict.fromkeys(gone.get(end, end) for end in ends)))
            )
        )
        whole = len(apart) == len(steps)
        inside = {name for name, _, _ in apart}
        last = [end if end in inside else gone[end] for end in ends]
        unmerged = network if whole else Network.from_steps(apart, list(dict.fromkeys(last)))
        if not whole:
            unmerged, _ = with_short_names(self._with_channels(unmerged))
        remarks = (*self.trace.remarks, *named)
        if any(isinstance(layer, L.Affine) and layer.sigma_b for _, layer, _ in steps):
            remarks = (*remarks, BIASES)
        remarks = (*remarks, *self._without_effect())
        if self.trace.path_only:
            text = "only the path that the example inputs take was read"
            self.notes += [Note(node, "approximate", text) for node in network.inputs]
        ends_in_biases = {
            node
            for node in network.outputs
            if not any(node in parents for _, _, parents in network.steps())
        }
        told = [*self.notes, *(note for note in self.of_biases if note.node not in ends_in_biases)]
        moved = [replace(note, node=gone.get(str(note.node), note.node)) for note in told]
        notes = (
            *notes_at_nodes(moved, self.trace.ops, network),
            *about_epsilons(network, self.epsilons),
        )
        sources = {
            node: self.by_name[str(node)].source for node in network if str(node) in self.by_name
        }
        told = (*notes, *sizes(network))
        return Reading(
            self.trace.framework,
            network.with_notes(told),
            notes,
            sources,
            remarks,
            self.trace,
            unmerged.with_notes(note for note in told if note.node in unmerged),
            self._places(gone),
            dict(self._gains()),
            {node: tuple(ops) for node, ops in self.read_at.items()},
        )

    def _without_effect(self) -> Iterator[str]:
        """Yield remarks on layers whose values the model multiplies by a fixed 0, or the like."""
        ends = {
            op.name
            for op in self.trace.ops
            if isinstance(op, Pointwise)
            and self._is_number(op.name)
            and not all(map(self._is_number, op.reads))
        } - {*self.off}
        if not ends:
            return
        used = self._behind(self.trace.outputs, ends)
        for end in sorted(ends & used):
            behind = self._behind((end,), set()) - used
            lost = [op.name for op in self.trace.ops if op.name in behind and type(op) is Linear]
            if lost:
                yield NO_EFFECT.format(listed(lost), end)

    def _is_number(self, name: str) -> bool:
        form = self.forms.get(name)
        return isinstance(form, Constant) or (isinstance(form, Unary) and form.source is None)

    def _behind(self, names: Iterable[str], ends: Collection[str]) -> set[str]:
        """Return the operations that some operations depend on, going back as far as ``ends``."""
        found, waiting = set(names), list(names)
        while waiting:
            name = waiting.pop()
            new = set() if name in ends else {*self.by_name[name].reads} - found
            found |= new
            waiting += new
        return found

    def _gains(self) -> Iterator[tuple[str, tuple[float, float]]]:
        """Yield (norm, (gain, bias)) for norms with a single gain and bias other than 1 and 0."""
        for name, form in self.forms.items():
            if not isinstance(form, Unary) or not isinstance(self.by_name[name], Normalise):
                continue
            if form.source == name and form.expr != X:
                yield name, (float(form.expr.coeff(X, 1)), float(form.expr.coeff(X, 0)))

    def _places(self, gone: Mapping[str, str]) -> dict[str, str]:
        """Return {operation: node whose feature map it returns, possibly in another layout}."""
        out = {}
        for name, form in self.forms.items():
            if not isinstance(form, Unary) or form.source is None:
                continue
            node = form.source if form.expr == X else self.made.get((form.source, form.expr))
            layer, parents = self.layers.get(str(node), (None, ("",)))
            if isinstance(layer, L.Scale) and parents[0] == gone.get(str(node)):
                node = parents[0]  # the factor was merged into the sum before it
            if node is not None and (node not in gone or isinstance(layer, L.Opaque)):
                out[name] = node
        return out

    def _with_channels(self, network: Network) -> Network:
        """Add channel counts to every Concat that has an input with an unknown number of channels.

        Such inputs are flattened images and layers that were not read.
        """
        features = network.features
        unknown = {
            n
            for n in network.nodes_of(L.Concat)
            if None in [features[p] for p in network.parents(n)]
        }
        return network.map_layers(
            lambda n, layer: L.Concat(self.joined[str(n)]) if n in unknown else layer
        )
