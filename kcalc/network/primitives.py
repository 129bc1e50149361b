"""The operations that calculi interpret.

Each layer returns its primitives from ``lowered``.

A calculus has one rule per primitive, ``rule(operation, node, inputs)``. A layer with one primitive
is lowered to it under its own node; the inner primitives of a composite layer are at an
:class:`Inner` node, which prints as the layer's node, so messages name the user's layers.
``origin`` is the layer itself. A node that passes its input on, such as an Identity, is lowered to
nothing: it shares the state of its input.
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

Count: TypeAlias = "int | sp.Expr"  # channels, a number or a symbol

Node = Hashable


@dataclass(frozen=True, kw_only=True)
class Primitive:
    """Base of all primitives; ``origin`` is the layer that a primitive comes from."""

    origin: Any = field(compare=False, repr=False)
    varies: ClassVar[bool] = False  # its q value differs between draws of weights at any width

    @property
    def selects(self) -> bool:
        """Whether a small change of its inputs may exchange parts of its output."""
        return False

    def as_layer(self) -> Layer | None:
        """The layer of one primitive that a guest brings; None if there is none."""
        return None

    @property
    def kind(self) -> str:
        """The layer's name, for messages."""
        return type(self.origin).__name__


@dataclass(frozen=True)
class Passing(Primitive):
    """Base of primitives that kernel maps treat as the identity of their one input.

    They move or drop numbers, so they commute with positive factors. Only calculi of positions or
    gradients may have another rule for them.
    """


@dataclass(frozen=True)
class Moving(Passing):
    """Base of primitives that change the number or order of positions."""

    @property
    def mixes(self) -> bool:
        """Whether a position reads several."""
        return False


@dataclass(frozen=True)
class Source(Primitive):
    """An input of the network."""


@dataclass(frozen=True, kw_only=True)
class Fresh(Primitive):
    """New independent weights over channels and the taps of a window.

    ``Var W = sigma_w^2 / fan_in``, ``Var b = sigma_b^2``.

    ``reads``: the number of input channels, None if unknown; ``one_hot``: it reads one-hot vectors,
    as an embedding does; other fields are as in
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
        """Whether its weights, and its biases, are trained parameters."""
        return self.trained in (True, "weights"), self.trained in (True, "biases")

    @property
    def one_tap(self) -> bool:
        """Whether the window is one position."""
        return _ones(self.kernel)

    @property
    def steps(self) -> bool:
        """Whether it skips positions."""
        return not _ones(self.stride)

    @property
    def dense(self) -> bool:
        """Whether it reads one position and skips none."""
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
    """The identity with gradient 0; ``unknown``: why its gradient is unknown instead."""

    unknown: str = ""


@dataclass(frozen=True, kw_only=True)
class Mix(Primitive):
    """``sum_i w_i x_i`` of the inputs."""

    weights: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Prod(Primitive):
    """The elementwise product of the inputs.

    ``slopes``: the weights of the inputs' slopes in the slope of the product, None: 1 each.
    """

    slopes: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Join(Primitive):
    """The inputs side by side.

    ``counts``: their channels; if these are unknown, ``problem`` says why.
    """

    counts: tuple[Count, ...] | None
    problem: str = ""

    @property
    def channels(self) -> tuple[Count, ...]:
        """The channels of the inputs. Raises: GraphError if only some are known."""
        if self.counts is None:
            raise GraphError(self.problem)
        return self.counts


@dataclass(frozen=True, kw_only=True)
class Norm(Primitive):
    """Division by the root mean square over channels, over channels and positions, or over a batch.

    ``over``: "channels", "positions" (channels and positions) or "batch".

    ``centred``: the mean is subtracted first; ``groups``: the number of channel groups, normalised
    separately; ``reads``: the number of input channels, None if unknown; ``batch_c``: the c value
    between the examples of a large batch, None if unknown.
    """

    centred: bool
    over: str = "channels"
    groups: int = 1
    reads: Any = None
    batch_c: Any = None


@dataclass(frozen=True, kw_only=True)
class Window(Primitive):
    """One number per window of positions; ``window=None`` is all of them.

    Fields as in :class:`kcalc.network.layers.Pool`; ``matrix``: the matrix of a :class:`Blend`,
    else None.
    """

    window: Any = None
    stride: Any = None
    padding: str = "valid"
    matrix: tuple[tuple[float, ...], ...] | None = None

    pooling: ClassVar[str] = ""

    @property
    def mixes(self) -> bool:
        """Whether a window holds several positions."""
        return several(self.window)


@dataclass(frozen=True, kw_only=True)
class Blend(Window):
    """Weighted sums of positions.

    Means over windows, or a ``matrix`` (positions out, positions in), the same for every channel.

    ``weighted``: the weights of a window are random and shared by all channels. ``permutes``: the
    factor of a signed permutation, where every position reads exactly one position, multiplied by
    this number or its negative; else None. ``random``: the numbers are a draw of Gaussian weights.
    """

    weighted: bool = False
    permutes: float | None = None
    random: bool = False

    @property
    def square(self) -> float:
        """The mean over rows of a matrix of the sum of their squares."""
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
    """Dropout of a fraction ``rate``; other entries are divided by ``1 - rate``.

    It is the identity in evaluation; ``active``: kernel maps describe training.
    """

    rate: Any
    active: bool = False

    @property
    def drops(self) -> bool:
        """Whether kernel maps see it: it is active, and its rate is not 0."""
        return self.active and self.rate != 0


@dataclass(frozen=True)
class Reshape(Passing):
    """Positions become channels."""


@dataclass(frozen=True, kw_only=True)
class Resize(Moving):
    """A change of the number of positions.

    Fields as in :class:`kcalc.network.layers.Resize`, ``form`` its ``kind``.
    """

    factor: Any
    form: str
    place: Any

    @property
    def mixes(self) -> bool:
        """Whether a position reads several."""
        return self.form in ("linear", "corners")


@dataclass(frozen=True, kw_only=True)
class Shuffle(Moving):
    """Channels become positions, ``factor`` (rows, columns) each; ``back``: the reverse."""

    factor: tuple[int, ...]
    back: bool


@dataclass(frozen=True, kw_only=True)
class Attend(Primitive):
    """Attention over tokens; its three inputs are queries, keys and values.

    Fields as in :class:`kcalc.network.layers.Attend`; ``masks``: a token sees another only if all
    of them allow it.
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
        """Whether scores have biases that depend on the distance of tokens."""
        return self.alibi or self.relative is not None

    @property
    def sampled_width(self) -> int | None:
        """The number of sampled channels of queries and keys; None for Gaussian scores."""
        wide = self.scale == "linear" if self.wide is None else self.wide
        return None if wide else self.key_width


@dataclass(frozen=True, kw_only=True)
class Positions(Primitive):
    """A source of position vectors: the same for all inputs, with mean square 1.

    ``form``: "learned", vectors of different positions are orthogonal; "sinusoidal", their cosine
    is the mean of ``cos((s - t) theta_f)``; "constant", they are the same. ``length``: the number
    of positions; None: unknown or unlimited. ``count``: the number of positions used; None: one for
    every token of the input.
    """

    form: str
    length: Any = None
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Prefix(Primitive):
    """The tokens of its second input, followed by those of its first."""


@dataclass(frozen=True)
class Unknown(Primitive):
    """An operation without rules."""


def several(window: Any) -> bool:
    """Whether a pooling window covers several positions; None means all of them."""
    return window is None or not _ones(window)


def _ones(size: Any) -> bool:
    return size == 1 or (isinstance(size, tuple) and set(size) == {1})


class Reads(NamedTuple):
    """The context in which a layer is lowered.

    It consists of the layer's node, the nodes that it reads, and their channels (None if unknown).
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
    """The node of the network that a primitive belongs to."""
    return node.node if isinstance(node, Inner) else node


class Operation(NamedTuple):
    """One step of a lowered network.

    ``primitive`` computes the state of ``node`` from those of ``reads``; None passes the state on.
    """

    node: Node
    primitive: Primitive | None
    reads: tuple[Node, ...]


Program = Sequence[tuple[Primitive, tuple[int, ...]]]


def lowered(
    steps: Iterable[tuple[Node, Any, tuple[Node, ...]]], features: Mapping[Node, Any]
) -> Iterator[tuple[Operation, ...]]:
    """The operations of every step of a network.

    ``lowered`` of a layer returns one primitive, None, or a program [(primitive, inputs)]. In a
    program, 0, 1, ... are the layer's inputs in slot order, and later numbers are the primitives of
    the program.
    """
    known: dict[tuple[int, tuple[Any, ...]], Any] = {}
    for node, layer, parents in steps:
        channels = tuple(map(features.__getitem__, parents))
        key = (id(layer), channels)
        if key not in known or len(parents) > 1:  # the primitive of several inputs may name them
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
    """The number of primitives (and ``outputs``) that read a node.

    Readers of a node that passes its input on count for that node.
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
    """The state of a node, given the states of its inputs."""
    states = dict(inputs)
    for node, primitive, reads in steps:
        states[node] = (
            states[reads[0]]
            if primitive is None
            else rule(primitive, node, [states[p] for p in reads])
        )
    return states[steps[-1].node]
