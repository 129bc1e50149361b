"""Primitives: the operations that calculi interpret.

Each layer returns its primitives from ``lowered``.

A calculus has one rule per primitive, ``rule(operation, node, inputs)``. A layer with one primitive
is lowered to it under its own node. The inner primitives of a composite layer are at an
:class:`Inner` node, which prints as the layer's node, so messages name the user's layers.
``origin`` is the layer itself. A node that returns its input unchanged, such as an Identity, is
lowered to nothing and shares the state of its input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from ..foundation.errors import GraphError

if TYPE_CHECKING:
    import sympy as sp

    from ..activations import Activation
    from .layers import Layer
    from .masks import Masks

Count: TypeAlias = "int | sp.Expr"  # number of channels, possibly symbolic

Node = Hashable


@dataclass(frozen=True, kw_only=True)
class Primitive:
    """Base class of primitives; ``origin`` is the layer that a primitive comes from."""

    origin: Any = field(compare=False, repr=False)
    varies: ClassVar[bool] = False  # whether q varies between draws at any width

    @property
    def selects(self) -> bool:
        """Whether a small change in the inputs may swap parts of the output."""
        return False

    def as_layer(self) -> Layer | None:
        """Return the layer of an optional part of kcalc with only this primitive, or None."""
        return None

    @property
    def kind(self) -> str:
        """The name of the layer, for messages."""
        return type(self.origin).__name__


@dataclass(frozen=True)
class Passing(Primitive):
    """Base class of primitives that kernel maps treat as the identity on their single input.

    Such primitives move or drop entries, so they commute with positive factors. Only calculi with
    positions or gradients may treat them differently.
    """


@dataclass(frozen=True)
class Moving(Passing):
    """Base class of primitives that change the number or order of positions."""

    @property
    def mixes(self) -> bool:
        """Whether an output position reads several input positions."""
        return False


@dataclass(frozen=True)
class Source(Primitive):
    """An input of the network."""


@dataclass(frozen=True, kw_only=True)
class Fresh(Primitive):
    """New independent weights over channels and the taps of a window.

    ``Var W = sigma_w^2 / fan_in`` and ``Var b = sigma_b^2``.

    ``reads`` is the number of input channels, None if unknown. ``one_hot`` is true if the inputs
    are one-hot vectors, as in an embedding. The other fields are the same as in
    :class:`kcalc.network.layers.Affine`.
    """

    sigma_w: Any
    sigma_b: Any
    bias: bool
    features: Any
    reads: Any
    groups: int
    standardised: bool
    kernel: int | tuple[int, ...]
    stride: int | tuple[int, ...]
    padding: Any
    dilation: int | tuple[int, ...]
    trained: bool | str = True
    one_hot: bool = False

    @property
    def trains(self) -> tuple[bool, bool]:
        """Whether the weights, and whether the biases, are trained parameters."""
        return self.trained in (True, "weights"), self.trained in (True, "biases")

    @property
    def one_tap(self) -> bool:
        """Whether the window is a single position."""
        return _ones(self.kernel)

    @property
    def steps(self) -> bool:
        """Whether the window skips positions."""
        return not _ones(self.stride)

    @property
    def dense(self) -> bool:
        """Whether the window is a single position and skips none."""
        return _ones(self.kernel) and _ones(self.stride)


@dataclass(frozen=True, kw_only=True)
class Post(Primitive):
    """An elementwise function."""

    activation: Activation


@dataclass(frozen=True, kw_only=True)
class Surrogate(Primitive):
    """An elementwise function with ``slope`` as its derivative in backpropagation."""

    activation: Activation
    slope: Activation


@dataclass(frozen=True, kw_only=True)
class Stop(Passing):
    """The identity with gradient 0, or with an unknown gradient if ``unknown`` gives a reason."""

    unknown: str = ""


@dataclass(frozen=True, kw_only=True)
class Mix(Primitive):
    """The weighted sum of the inputs, ``sum_i w_i x_i``."""

    weights: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Prod(Primitive):
    """The elementwise product of the inputs.

    ``slopes`` contains the weights of the inputs' slopes in the slope of the product; None sets
    them to 1.
    """

    slopes: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Join(Primitive):
    """The concatenation of the inputs.

    ``counts`` contains their channel counts. If the counts are unknown, ``problem`` gives the
    reason.
    """

    counts: tuple[Count, ...] | None
    problem: str = ""

    @property
    def channels(self) -> tuple[Count, ...]:
        """Return the inputs' channel counts. Raises: GraphError if only some counts are known."""
        if self.counts is None:
            raise GraphError(self.problem)
        return self.counts


@dataclass(frozen=True, kw_only=True)
class Norm(Primitive):
    """Division by the root mean square over channels, over channels and positions, or over a batch.

    ``over`` is "channels", "positions" (channels and positions) or "batch". If ``centred``, the
    mean is subtracted first. ``groups`` is the number of channel groups, each normalised
    separately. ``reads`` is the number of input channels, None if unknown. ``batch_c`` is the c
    value between the examples of a large batch, None if unknown.
    """

    centred: bool
    over: str = "channels"
    groups: int = 1
    reads: Any = None
    batch_c: Any = None


@dataclass(frozen=True, kw_only=True)
class Window(Primitive):
    """Reduce each window of positions to one value; ``window=None`` covers all positions.

    The fields are the same as in :class:`kcalc.network.layers.Pool`. ``matrix`` is the matrix of a
    :class:`Blend`, otherwise None.
    """

    window: Any = None
    stride: Any = None
    padding: str = "valid"
    matrix: tuple[tuple[float, ...], ...] | None = None

    pooling: ClassVar[str] = ""

    @property
    def mixes(self) -> bool:
        """Whether a window covers several positions."""
        return several(self.window)


@dataclass(frozen=True, kw_only=True)
class Blend(Window):
    """Weighted sums of positions.

    The sums are means over windows, or are given by a ``matrix`` (positions out, positions in) that
    is the same for every channel.

    If ``weighted``, the weights of a window are random and shared by all channels. ``permutes`` is
    the factor of a signed permutation: every position reads exactly one position, multiplied by
    this factor or its negative. ``permutes`` is None for other matrices. If ``random``, the matrix
    entries are random Gaussian weights.
    """

    weighted: bool = False
    permutes: float | None = None
    random: bool = False

    @property
    def square(self) -> float:
        """The sum of squared entries in a row, averaged over the rows of the matrix."""
        return sum(a * a for row in self.matrix or () for a in row) / len(self.matrix or (1,))

    @property
    def pooling(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The kind of pooling, as in :class:`kcalc.network.layers.Pool`."""
        return "weighted_mean" if self.weighted else "mean"


@dataclass(frozen=True)
class Max(Window):
    """The maximum over a window of positions."""

    pooling: ClassVar[str] = "max"


@dataclass(frozen=True, kw_only=True)
class Mask(Passing):
    """Dropout: a fraction ``rate`` becomes 0, and other entries are divided by ``1 - rate``.

    Dropout is the identity in evaluation. If ``active``, kernel maps describe training.
    """

    rate: Any
    active: bool = False

    @property
    def drops(self) -> bool:
        """Whether the dropout affects kernel maps: it is active, and its rate is not 0."""
        return self.active and self.rate != 0


@dataclass(frozen=True)
class Reshape(Passing):
    """Turn positions into channels."""


@dataclass(frozen=True, kw_only=True)
class Resize(Moving):
    """A change in the number of positions.

    The fields are the same as in :class:`kcalc.network.layers.Resize`; ``form`` is its ``kind``.
    """

    factor: Any
    form: str
    place: Any

    @property
    def mixes(self) -> bool:
        """Whether an output position reads several input positions."""
        return self.form in ("linear", "corners")


@dataclass(frozen=True, kw_only=True)
class Shuffle(Moving):
    """Turn channels into ``factor`` (rows, columns) positions, or the reverse if ``back``."""

    factor: tuple[int, ...]
    back: bool


@dataclass(frozen=True, kw_only=True)
class Attend(Primitive):
    """Attention over tokens; its three inputs are queries, keys and values.

    The fields are the same as in :class:`kcalc.network.layers.Attend`. A token sees another token
    only if all ``masks`` allow it.
    """

    heads: int | None
    key_width: int | None
    wide: bool | None
    masks: Masks
    scale: Any
    normaliser: str
    identity: Any
    centre: Any
    sink: bool
    rotary: float | None
    alibi: bool
    relative: tuple[float, int, int] | None

    @property
    def biased(self) -> bool:
        """Whether scores have biases that depend on the distance between tokens."""
        return self.alibi or self.relative is not None

    @property
    def sampled_width(self) -> int | None:
        """The number of query and key channels to sample; None for Gaussian scores."""
        wide = self.scale == "linear" if self.wide is None else self.wide
        return None if wide else self.key_width


@dataclass(frozen=True, kw_only=True)
class Positions(Primitive):
    """A source of position vectors, the same for all inputs, with mean square 1.

    If ``form`` is "learned", vectors of different positions are orthogonal. If ``form`` is
    "sinusoidal", their cosine is the mean of ``cos((s - t) theta_f)``. If ``form`` is "constant",
    all vectors are equal. ``length`` is the number of positions; None means unknown or unlimited.
    ``count`` is the number of positions used; None means one per token of the input.
    """

    form: str
    length: Any = None
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Prefix(Primitive):
    """The tokens of the second input, followed by the tokens of the first input."""


@dataclass(frozen=True)
class Unknown(Primitive):
    """An operation that no calculus has a rule for."""


def several(window: Any) -> bool:
    """Whether a pooling window covers several positions; None covers all of them."""
    return window is None or not _ones(window)


def _ones(size: Any) -> bool:
    return size == 1 or (isinstance(size, tuple) and set(size) == {1})


class Reads(NamedTuple):
    """The context in which a layer is converted to primitives.

    It consists of the layer's node, the nodes that it reads, and the number of channels of each
    (None if unknown).
    """

    node: Node
    parents: tuple[Node, ...]
    channels: tuple[Any, ...]


class Inner(NamedTuple):
    """The label of a primitive inside a composite layer; it prints as the layer's node."""

    node: Node
    index: int

    def __repr__(self) -> str:
        return repr(self.node)

    def __str__(self) -> str:
        return str(self.node)


def owner(node: Node) -> Node:
    """Return the node of the network that a primitive belongs to."""
    return node.node if isinstance(node, Inner) else node


class Operation(NamedTuple):
    """One step of a lowered network.

    ``primitive`` computes the state of ``node`` from the states of ``reads``. If ``primitive`` is
    None, the state is passed on unchanged.
    """

    node: Node
    primitive: Primitive | None
    reads: tuple[Node, ...]


Program = Sequence[tuple[Primitive, tuple[int, ...]]]


def lowered(
    steps: Iterable[tuple[Node, Any, tuple[Node, ...]]], features: Mapping[Node, Any]
) -> Iterator[tuple[Operation, ...]]:
    """Yield the operations of every step of a network.

    ``layer.lowered`` returns one primitive, None, or a program [(primitive, inputs)]. In a
    program, inputs 0, 1, ... are the layer's inputs in slot order, and larger numbers are the
    earlier primitives of the program.
    """
    known: dict[tuple[int, tuple[Any, ...]], Any] = {}
    for node, layer, parents in steps:
        channels = tuple(map(features.__getitem__, parents))
        key = (id(layer), channels)
        if key not in known or len(parents) > 1:  # it may store the input names
            known[key] = layer.lowered(Reads(node, parents, channels))
        found = known[key]
        if found is None or isinstance(found, Primitive):
            yield (Operation(node, found, parents),)
        else:
            yield _program(node, found, parents)


def _program(node: Node, program: Program, parents: tuple[Node, ...]) -> tuple[Operation, ...]:
    places: list[Node] = [*parents, *(Inner(node, k) for k in range(len(program) - 1)), node]
    return tuple(
        Operation(place, primitive, tuple(places[slot] for slot in slots))
        for place, (primitive, slots) in zip(places[len(parents) :], program, strict=True)
    )


def reader_counts(steps: Sequence[Operation], outputs: Iterable[Node] = ()) -> Counter[Node]:
    """Count the primitives (and ``outputs``) that read a node.

    If a node passes its input on unchanged, its readers count as readers of that input.
    """
    counts: Counter[Node] = Counter(outputs)
    for node, primitive, reads in reversed(steps):
        counts.update(reads if primitive is not None else dict.fromkeys(reads, counts[node]))
    return counts


def emitted(
    steps: Sequence[Operation],
    rule: Callable[[Primitive, Node, list[Any]], Any],
    inputs: Mapping[Node, Any],
) -> Any:
    """Apply ``rule`` to the operations of a node in turn, and return the state of the last one."""
    states = dict(inputs)
    for node, primitive, reads in steps:
        states[node] = (
            states[reads[0]]
            if primitive is None
            else rule(primitive, node, [states[p] for p in reads])
        )
    return states[steps[-1].node]
