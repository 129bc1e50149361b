"""A model as a list of operations in a small vocabulary, the same for every framework.

The output of every reader.

A front end lists the operations in the order in which they run and what each reads. ``layout``,
``fusion`` and ``recognise`` decide, once for all frameworks, what the operations mean together:
which make up one activation, which is a shortcut. A front end evaluates operations that depend on
no input (standardised weights, folded constants) and passes on the array.

Shapes are the framework's, with the examples on axis 0; negative axes are not used. Weight arrays
have the layout (outputs, inputs / groups, kernel...) in every framework.
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
CAST = "a cast to whole numbers"  # of an array of real numbers that may be ids


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
class Record:
    """Subclasses are frozen dataclasses, compared by identity."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, kw_only=True)(cls)


class Op(Record):
    """One operation.

    ``name`` is its label in the network; ``source`` describes its place in the user's model.
    ``whole``: the operation that it is a part of, making some of its channels; "" if none.
    """

    name: str
    shape: tuple[int, ...]
    reads: tuple[str, ...] = ()
    source: str = ""
    whole: str = ""

    def become(self, kind: Callable[..., Kind], /, **fields: Any) -> Kind:
        """Return another operation in its place; name, shape, inputs and source stay by default."""
        own = {"name": self.name, "shape": self.shape, "reads": self.reads, "source": self.source}
        return kind(**(own | fields))

    def moved(self, shape: tuple[int, ...], read: str) -> Op:
        """Return a replacement with an array of a given shape, reshaped if the shapes differ."""
        return self.become(Pass if shape == self.shape else Reshape, reads=(read,))


class Entry(Op):
    """An input of the model.

    ``part``: it is a part of an input, or computed from one; ``text``: how it differs from the
    model's.
    """

    part: bool = False
    text: str = ""


class Held(Op):
    """An array that depends on no input.

    It is a parameter (with its name in the model), a buffer or a constant (``parameter`` None).
    ``trained``: as in :class:`Linear`.
    """

    value: Array
    parameter: str | None = None
    trained: bool | str = True


class Linear(Op):
    """A dense layer (``kernel`` empty) or a convolution.

    It maps the channels at ``axis`` of its input to new ones at ``out_axis``.

    ``padding``: (low, high) per location axis, of zeros or in another ``mode``, one of PADDINGS.
    ``spread``: the stride of a transposed convolution, whose input is read with stride - 1 zeros
    between the locations, by the weights in the order of a convolution. ``turned``: the model
    stores them as a transposed convolution does. ``parameter``: a key, equal for layers that share
    weights; ``rows``: the outputs of that parameter's layer which these are, if not all. ``aside``:
    operations without influence on any output in the trace that also read it, such as those that
    write into other arrays. ``trained``: whether the weights are trained, "indirectly" if they are
    not a linear function of trained parameters; ``bias_trained``: the same for biases.
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
        """Return the size of the window, () for a dense layer."""
        return tuple(self.weight.shape[2:])

    @property
    def fan_in(self) -> int:
        """Return the number of weights into one output, including those that read zeros."""
        return int(np.prod(self.weight.shape[1:]))

    @cached_property
    def statistics(self) -> WeightStatistics:
        """Return sums over the weights."""
        return weight_statistics(self.weight)


class Pointwise(Op):
    """An elementwise function of its inputs, with broadcasting.

    ``function`` takes one SymPy expression per array read.

    A comparison returns a SymPy relation, which only other pointwise functions read. ``label`` is
    its usual name: "relu", "add". ``text``: how the function differs from the model's, "" if it
    does not.
    """

    function: Callable[..., Any]
    label: str
    text: str = ""


class Normalise(Op):
    """(x - mean) / sqrt(variance + epsilon) over ``axes`` (or groups of channels), by ``kind``.

    The result is multiplied by ``gain``, then ``bias`` is added.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("batch", "layer", "rms", "group")
    kind: str
    axes: tuple[int, ...]
    groups: int = 1
    epsilon: float = 0.0
    gain: Array | None = None
    bias: Array | None = None
    running: tuple[Array, Array] | None = (
        None  # mean and variance that a trained BatchNorm would use
    )


class Pooling(Op):
    """The maximum or mean over windows along ``axes``; ``window`` None: over whole axes.

    ``padding``: (low, high) per axis. ``told``: the operation of the model that it is a part of, if
    different: "sum", "minimum". ``counts_zeros``: whether a mean at the edge includes the zeros
    around the image.
    """

    kind: str
    axes: tuple[int, ...]
    window: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    told: str = ""
    counts_zeros: bool = False


class Join(Op):
    """Concatenation along ``axis``."""

    axis: int


class Reshape(Op):
    """The same numbers in another shape, row-major: reshape, flatten, squeeze, unsqueeze."""


class Transpose(Op):
    """Axes in another ``order``: output axis i is input axis order[i]."""

    order: tuple[int, ...]


class Reorder(Op):
    """Entries along ``axis`` in another ``order``: output i is input order[i]."""

    axis: int
    order: tuple[int, ...]


class Drop(Op):
    """Dropout of a fraction ``rate``; ``always``: also in evaluation mode."""

    rate: float
    always: bool = False


class Repeat(Op):
    """Change the number of locations: copies, another ``kind`` of Resize, or adaptive pooling.

    The kinds of adaptive pooling are "adaptive mean" and "adaptive max".
    """

    kind: str = "nearest"


class Shuffle(Op):
    """Channels as locations, ``factor`` per location axis; ``back``: the reverse."""

    factor: tuple[int, ...]
    back: bool = False


class Pass(Op):
    """Returns its input: casts, copies, no-ops."""


class Stopped(Op):
    """Returns its input and passes no gradient back: detach, stop_gradient, no_grad.

    ``unknown``: the name of something with a custom, unknown gradient; "" if there is none.
    """

    unknown: str = ""


class NotRead(Op):
    """An operation without a rule.

    ``what``: its name ("softmax", "data-dependent control flow"); ``reason``: why it is not read.
    ``compute``: the model's operation on arrays of numbers, in the order of ``reads``, None if it
    cannot be run separately; ``is_complex``: whether its results are complex.
    """

    what: str
    reason: str
    compute: Compute | None = None
    is_complex: bool = False


class Mixed(Op):
    """``sum_s matrix[t][s] x_s`` along ``axis``, the same numbers for every input.

    ``text`` says where the matrix comes from.

    ``owner``: the operation whose weights they are (None for attention that ignores its input).
    """

    matrix: Array
    axis: int
    text: str = ""
    level: str = "exact"
    owner: Linear | None = None


class Lookup(Op):
    """Rows of a table by ids: an embedding.

    ``weight``: (ids, channels); ``parameter``: a key, equal for layers that share weights. ``bag``:
    the number of rows that are added, each multiplied by ``factor``. ``trained``: as in
    :class:`Linear`.
    """

    weight: Array
    parameter: str
    trained: bool | str = True
    bag: int = 1
    factor: float = 1.0

    @cached_property
    def statistics(self) -> WeightStatistics:
        """Return sums over the table."""
        return weight_statistics(self.weight)


class Attention(Op):
    """Attention over tokens in heads.

    Reads queries, keys and values, each with all channels, and joins its heads along ``axis``.

    ``scale``: the factor of the scores; for other fields see
    :class:`kcalc.network.layers.Attend`. ``tokens``: the number of keys of the example;
    ``masked_at``: the number of keys up to which the mask is known, None if masks of any length
    are; ``texts``: how it differs from the model's.
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
    """The mixture of the ``k`` experts with the largest logits.

    Reads the logits of all experts, and the output of one. Other fields as in
    :class:`kcalc.layers.Route`; ``texts``: notes on it.
    """

    k: int
    score: str
    normalise: bool
    scale: float
    texts: tuple[str, ...] = ()


class Part(NotRead):
    """The entries of its input along ``axis`` at ``places``, a range if they are equally spaced.

    Readable if it is a part of a layer's outputs, or some of the tokens of a transformer.
    """

    axis: int
    places: Sequence[int]


class Contract(NotRead):
    """The contraction ``terms`` (as in einsum, "bts,bsc->btc") of two arrays."""

    terms: str


class Softmax(NotRead):
    """exp(x) / sum exp(x) along ``axis``."""

    axis: int


class Masked(NotRead):
    """Its input with the entries selected by ``mask`` set to ``value``."""

    mask: Array
    value: float


class Attend(NotRead):
    """softmax(scale q k^T + mask) v of arrays (..., tokens, channels).

    Reads q, k, v and, if there is one, the mask to add.
    """

    scale: float
    causal: bool = False
    rate: float = 0.0


class Copies(NotRead):
    """``count`` copies of its input along ``axis``: of each entry (``each``), or of the whole.

    For keys that several heads share.
    """

    axis: int
    count: int
    each: bool = False


class Prefixed(NotRead):
    """The input with a constant array, such as class tokens, before or after it along ``axis``.

    ``value``: the array, which depends on no input; ``behind``: whether it comes after the input;
    ``trained``: as in :class:`Linear`.
    """

    axis: int
    value: Array
    parameter: str | None = None
    behind: bool = False
    trained: bool | str = True


class Moment(NotRead):
    """The "var", "std" or "norm" over ``axes``.

    The first two divide by the number of entries less ``correction``.
    """

    kind: str
    axes: tuple[int, ...]
    correction: float = 0.0


def computed(op: Op) -> bool:
    """Whether an operation without a rule can be run on numbers."""
    return type(op) is NotRead and op.compute is not None


def spoken(op: Op) -> str:
    """Name an operation for messages."""
    return getattr(op, "what", "") or getattr(op, "label", "") or type(op).__name__.lower()


@dataclass(frozen=True, eq=False)
class Trace:
    """A traced model.

    ``channel_axis``: the axis of channels in images unless an operation determines it: 1 or -1.

    ``remarks``: of the front end, on the whole model. ``path_only``: only operations that ran for
    the example inputs are listed, and other inputs may run different ones. ``model``: the
    framework's object for transformations, never used here.
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
            raise KcalcError(f"{self.framework}: two operations are named {doubled[0]!r}")
        seen: set[str] = set()
        for op in self.ops:
            missing = [name for name in op.reads if name not in seen]
            if missing:
                raise KcalcError(
                    f"{self.framework}: {op.name!r} reads {missing[0]!r}, which does not come "
                    f"before it"
                )
            seen.add(op.name)
        if not self.outputs or not set(self.outputs) <= seen:
            raise KcalcError(f"{self.framework}: the model has no output that was traced")
        if not any(isinstance(op, Entry) for op in self.ops):
            raise KcalcError(
                f"{self.framework}: the model reads no input, so there is nothing to analyse"
            )


class Names:
    """Distinct labels: ``fc``, ``fc_2``, ..."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def __call__(self, wish: str) -> str:
        """Return the name if it is free, else the name and a number."""
        name, count = wish, self._last.get(wish, 1)
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._taken.add(name)
        self._last[wish] = count
        return name


def needed(ops: Mapping[str, Op], outputs: Iterable[str]) -> set[str]:
    """Return the operations that the outputs depend on."""
    found: set[str] = set()
    queue = list(outputs)
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += ops[name].reads
    return found
