"""The trace of a model: a list of operations in a small vocabulary that all frameworks share.

Every reader returns a trace.

A front end lists the operations in the order in which they run, and the inputs of each. It
evaluates operations that depend on no input (standardised weights, folded constants) and passes on
the resulting array. The modules ``layout``, ``fusion`` and ``recognise`` interpret the operations
for all frameworks. They decide, for example, which operations make up an activation and which is a
shortcut.

Shapes follow the framework, with the examples on axis 0, and axes are nonnegative. Weights have
the layout (outputs, inputs / groups, kernel...) for every framework.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from ..network.masks import Masks
from .weight_statistics import WeightStatistics, weight_statistics

Array = np.ndarray
Kind = TypeVar("Kind", bound="Op")
Compute = Callable[[Sequence[np.ndarray]], np.ndarray]
CAST = "a cast to integers"  # the input is a float array that may contain ids


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
class Record:
    """Base class that makes its subclasses frozen dataclasses, compared by identity."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, kw_only=True)(cls)


class Op(Record):
    """One operation.

    ``name``: its label in the network; ``source``: a description of its place in the user's model;
    ``whole``: the operation of which this one computes some channels, "" if there is none.
    """

    name: str
    shape: tuple[int, ...]
    reads: tuple[str, ...] = ()
    source: str = ""
    whole: str = ""

    def become(self, kind: Callable[..., Kind], /, **fields: Any) -> Kind:
        """Return a replacement, by default with this operation's name, shape and inputs."""
        own = {"name": self.name, "shape": self.shape, "reads": self.reads, "source": self.source}
        return kind(**(own | fields))

    def moved(self, shape: tuple[int, ...], read: str) -> Op:
        """Return a replacement that reshapes the output of ``read`` to the given shape."""
        return self.become(Pass if shape == self.shape else Reshape, reads=(read,))


class Entry(Op):
    """An input of the model.

    ``part``: whether it is part of one of the model's inputs, or computed from an input; ``text``:
    how it differs from the model's input.
    """

    part: bool = False
    text: str = ""


class Held(Op):
    """An array that depends on no input.

    ``parameter``: its name in the model if it is a parameter or buffer, None for constants.
    ``trained``: as in :class:`Linear`.
    """

    value: Array
    parameter: str | None = None
    trained: bool | str = True


class Linear(Op):
    """A dense layer (``kernel`` empty) or a convolution.

    The layer maps the channels at ``axis`` of its input to channels at ``out_axis`` of its output.

    ``padding``: (low, high) for every location axis; ``mode``: "zeros", or one of PADDINGS.
    ``spread``: the stride of a transposed convolution. It is read as a convolution of the input
    with stride - 1 zeros between locations, and the weights are in the order of this convolution.
    ``turned``: whether the model stores them as a transposed convolution does. ``parameter``: a key
    that is the same for all layers with the same weights; ``rows``: the outputs of the parameter
    that belong to this layer, if not all. ``aside``: whether operations that affect no output also
    read the layer. ``trained``: whether the weights are trained, "indirectly" if they are a
    nonlinear function of trained parameters; ``bias_trained``: the same for biases.
    """

    PADDINGS: ClassVar[tuple[str, ...]] = ("zeros", "circular", "reflect", "replicate")

    weight: Array
    parameter: str
    axis: int
    out_axis: int
    bias: Array | None = None
    bias_parameter: str | None = None
    stride: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    mode: str = "zeros"
    dilation: tuple[int, ...] = ()
    groups: int = 1
    standardised: bool = False
    rows: tuple[int, ...] | None = None
    aside: bool = False
    spread: tuple[int, ...] = ()
    turned: bool = False
    trained: bool | str = True
    bias_trained: bool | str = True

    @property
    def kernel(self) -> tuple[int, ...]:
        """Return the kernel size, () for a dense layer."""
        return tuple(self.weight.shape[2:])

    @property
    def fan_in(self) -> int:
        """Return the number of weights per output, including those that read inserted zeros."""
        return int(np.prod(self.weight.shape[1:]))

    @cached_property
    def statistics(self) -> WeightStatistics:
        """Return the statistics of the weights."""
        return weight_statistics(self.weight)


class Pointwise(Op):
    """An elementwise function of its inputs, with broadcasting.

    ``function`` takes one SymPy expression for each input.

    A comparison returns a SymPy relation, which only other Pointwise operations can read.
    ``label``: the function's usual name, such as "relu" or "add"; ``text``: how it differs from the
    model's function, "" if it does not.
    """

    function: Callable[..., Any]
    label: str
    text: str = ""


class Normalise(Op):
    """A normalisation (x - mean) / sqrt(variance + epsilon) over ``axes``.

    ``kind``: "batch", "layer", "group" (over groups of channels) or "rms" (without the mean). The
    result is multiplied by ``gain``, and ``bias`` is added.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("batch", "layer", "rms", "group")
    kind: str
    axes: tuple[int, ...]
    groups: int = 1
    epsilon: float = 0.0
    gain: Array | None = None
    bias: Array | None = None
    running: tuple[Array, Array] | None = (
        None  # mean and variance that BatchNorm uses in evaluation mode
    )


class Pooling(Op):
    """The maximum or mean over windows along ``axes``, or over whole axes if ``window`` is None.

    ``padding``: (low, high) for every axis; ``told``: the name of the model's operation, such as
    "sum" or "minimum", if it is not a mean or maximum; ``counts_zeros``: whether means at the edge
    include padding zeros.
    """

    kind: str
    axes: tuple[int, ...]
    window: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    told: str = ""
    counts_zeros: bool = False


class Join(Op):
    """A concatenation along ``axis``."""

    axis: int


class Reshape(Op):
    """A row-major reshape, including flatten, squeeze and unsqueeze."""


class Transpose(Op):
    """A permutation of axes: output axis i is input axis order[i]."""

    order: tuple[int, ...]


class Reorder(Op):
    """A permutation of entries along ``axis``: output entry i is input entry order[i]."""

    axis: int
    order: tuple[int, ...]


class Drop(Op):
    """Dropout with the given ``rate``; ``always``: whether it is active in evaluation mode too."""

    rate: float
    always: bool = False


class Repeat(Op):
    """A change in the number of locations by repetition, resizing or adaptive pooling.

    ``kind``: the kind of Resize, or "adaptive mean" or "adaptive max".
    """

    kind: str = "nearest"


class Shuffle(Op):
    """A pixel shuffle, by ``factor`` along every location axis; ``back``: its inverse."""

    factor: tuple[int, ...]
    back: bool = False


class Pass(Op):
    """An operation that returns its input, such as a cast, a copy or a no-op."""


class Stopped(Op):
    """A gradient stop, which returns its input: detach, stop_gradient, no_grad.

    ``unknown``: the name of an operation whose custom gradient is unknown; "" for a plain stop.
    """

    unknown: str = ""


class NotRead(Op):
    """An operation that kcalc has no rule for.

    ``what``: its name ("softmax", "data-dependent control flow"); ``reason``: why it is not read.
    ``compute``: the model's operation as a function of numerical arrays in the order of ``reads``,
    None if it cannot run separately; ``is_complex``: whether its result is complex.
    """

    what: str
    reason: str
    compute: Compute | None = None
    is_complex: bool = False


class Mixed(Op):
    """A mixing ``sum_s matrix[t][s] x_s`` along ``axis``, with the same matrix for every input.

    ``text``: a description of the origin of the matrix.

    ``owner``: the layer whose weights form the matrix, None for attention with fixed weights.
    """

    matrix: Array
    axis: int
    text: str = ""
    level: str = "exact"
    owner: Linear | None = None


class Lookup(Op):
    """An embedding, which looks up rows of a table by ids.

    ``weight``: the table (ids, channels); ``parameter``: a key that is the same for all layers with
    the same weights; ``bag``: the number of rows that are added, each multiplied by ``factor``;
    ``trained``: as in :class:`Linear`.
    """

    weight: Array
    parameter: str
    trained: bool | str = True
    bag: int = 1
    factor: float = 1.0

    @cached_property
    def statistics(self) -> WeightStatistics:
        """Return the statistics of the table."""
        return weight_statistics(self.weight)


class Attention(Op):
    """Multi-head attention over tokens.

    Queries, keys and values each have the channels of all heads along ``axis``.

    ``scale``: the factor of the scores; ``tokens``: the number of keys in the example;
    ``masked_at``: the number of keys up to which the mask is known, None if it is known for any
    number; ``texts``: differences from the model. For other fields see
    :class:`kcalc.network.layers.Attend`.
    """

    axis: int
    heads: int
    key_heads: int
    key_width: int
    scale: float
    masks: Masks = ()
    masked_at: int | None = None
    rotary: float | None = None
    alibi: bool = False
    relative: tuple[float, int, int] | None = None
    tokens: int = 1
    rate: float = 0.0
    texts: tuple[str, ...] = ()


class Routed(Op):
    """A mixture of the ``k`` experts with the largest logits.

    The inputs are the logits of all experts and the output of one expert. ``texts``: notes. For
    other fields, see :class:`kcalc.layers.Route`.
    """

    k: int
    score: str
    normalise: bool
    scale: float
    texts: tuple[str, ...] = ()


class Part(NotRead):
    """The entries of the input at ``places`` along ``axis``.

    ``places`` is a range if they are equally spaced. The operation can be read if it selects
    some of a layer's outputs, or some of the tokens of a transformer.
    """

    axis: int
    places: Sequence[int]


class Contract(NotRead):
    """A contraction of two arrays; ``terms``: the equation as in einsum, "bts,bsc->btc"."""

    terms: str


class Softmax(NotRead):
    """A softmax, exp(x) / sum exp(x), along ``axis``."""

    axis: int


class Masked(NotRead):
    """An operation that sets the entries selected by ``mask`` to ``value``."""

    mask: Array
    value: float


class Attend(NotRead):
    """Attention, softmax(scale q k^T + mask) v, on arrays (..., tokens, channels).

    The operation reads q, k, v and, if there is one, an additive mask.
    """

    scale: float
    causal: bool = False
    rate: float = 0.0


class Copies(NotRead):
    """``count`` copies of the input along ``axis``, for example for keys that heads share.

    ``each``: whether every entry is repeated in place, rather than the whole axis.
    """

    axis: int
    count: int
    each: bool = False


class Prefixed(NotRead):
    """A concatenation of the input with a constant array, such as class tokens, along ``axis``.

    ``value``: the constant array; ``behind``: whether the array comes after the input;
    ``trained``: as in :class:`Linear`.
    """

    axis: int
    value: Array
    parameter: str | None = None
    behind: bool = False
    trained: bool | str = True


class Moment(NotRead):
    """A moment over ``axes``, of the kind "var", "std" or "norm".

    "var" and "std" divide by the number of entries minus ``correction``.
    """

    kind: str
    axes: tuple[int, ...]
    correction: float = 0.0


def computed(op: Op) -> bool:
    """Whether an operation without a rule can be evaluated numerically."""
    return type(op) is NotRead and op.compute is not None


def spoken(op: Op) -> str:
    """Return the name of an operation for messages."""
    return getattr(op, "what", "") or getattr(op, "label", "") or type(op).__name__.lower()


@dataclass(frozen=True, eq=False)
class Trace:
    """A traced model.

    ``channel_axis``: the channel axis of images, 1 or -1, unless an operation determines it.

    ``remarks``: the front end's remarks on the model as a whole. ``path_only``: whether the trace
    lists only operations that ran for the example inputs, so that other inputs may run different
    operations. ``model``: an object that the framework needs to edit the model.
    """

    framework: str
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    channel_axis: int = 1
    remarks: tuple[str, ...] = ()
    path_only: bool = False
    model: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        doubled = [name for name, count in Counter(op.name for op in self.ops).items() if count > 1]
        if doubled:
            raise KcalcError(f"{self.framework}: two operations have the name {doubled[0]!r}")
        seen: set[str] = set()
        for op in self.ops:
            missing = [name for name in op.reads if name not in seen]
            if missing:
                raise KcalcError(
                    f"{self.framework}: {op.name!r} reads {missing[0]!r}, which is not an earlier "
                    f"operation"
                )
            seen.add(op.name)
        if not self.outputs or not set(self.outputs) <= seen:
            raise KcalcError(f"{self.framework}: no output of the model was traced")
        if not any(isinstance(op, Entry) for op in self.ops):
            raise KcalcError(
                f"{self.framework}: the model does not use its inputs, so there is nothing "
                "to analyse"
            )


class Names:
    """Makes labels distinct: ``fc``, ``fc_2``, ..."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def __call__(self, wish: str) -> str:
        """Return ``wish`` if this name is not in use, else ``wish`` with a number."""
        name, count = wish, self._last.get(wish, 1)
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._taken.add(name)
        self._last[wish] = count
        return name


def needed(ops: Mapping[str, Op], outputs: Iterable[str]) -> set[str]:
    """Return the operations that the outputs need."""
    found: set[str] = set()
    queue = list(outputs)
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += ops[name].reads
    return found
