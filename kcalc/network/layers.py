"""The layers a network is made of: frozen dataclasses, one per kind.

A layer states the function of a node, never how a calculus reads it. Numbers may be Python or SymPy
numbers, or SymPy expressions with free symbols, which symbolic methods carry and numeric ones ask
to substitute (``net.subs``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import sympy as sp

from ..activations import Activation, activation
from ..fields.arguments import as_number, one_number
from ..foundation.errors import GraphError, KcalcError, glimpse
from ..foundation.plain_arguments import LARGEST, choice, extents, items, truth, utf8, whole
from . import masks as M
from . import primitives as P
from .primitives import Count, Primitive, Program, Reads

__all__ = [
    "KINDS",
    "Affine",
    "Attend",
    "BatchNorm",
    "ClassToken",
    "Concat",
    "Dropout",
    "Embedding",
    "Flatten",
    "GatedUnit",
    "GroupNorm",
    "Identity",
    "Input",
    "L2Norm",
    "Layer",
    "LayerNorm",
    "Nonlinear",
    "Opaque",
    "PixelShuffle",
    "Pool",
    "Positions",
    "Product",
    "RMSNorm",
    "Resize",
    "Scale",
    "StopGradient",
    "Sum",
    "SurrogateGradient",
    "TokenMix",
]

Number = Any
MANY = math.inf
LARGEST_BIAS = 1e100  # standard deviation of the biases of scores
SMALL = 1e-150  # numbers whose squares are told from 0 with some room
SHOWN = 16  # numbers of a matrix that are printed


def _fail(layer: object, message: str) -> KcalcError:
    return KcalcError(f"{type(layer).__name__}: {message}")


def _count(layer: object, name: str, optional: bool = False) -> None:
    value: Any = getattr(layer, name)
    if value is None and optional:
        return
    if isinstance(value, sp.Expr) and not value.is_number:
        if value.is_positive is False or value.is_integer is False:
            raise _fail(layer, f"{name} must be a positive integer, got {value}")
        return
    if isinstance(value, sp.Basic) and not isinstance(value, sp.Integer):
        raise _fail(layer, f"{name} must be a positive integer, got {str(value)[:60]}")
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except Exception:  # user objects may raise anything as they are read
        number = 0
    if not 0 < number <= LARGEST:
        raise _fail(layer, f"{name} must be a positive integer, got {glimpse(value)}")
    object.__setattr__(layer, name, number)


def _extent(layer: object, name: str, optional: bool = False) -> None:
    """A positive integer, or a tuple of them (one per spatial axis)."""
    value = getattr(layer, name)
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        object.__setattr__(layer, name, extents(value, f"{type(layer).__name__}: {name}"))
    else:
        _count(layer, name, optional)


@dataclass(frozen=True)
class Layer:
    """Base of all layers.

    ``arity``: the least and greatest number of inputs. ``per_input``: {field of one number per
    input: these numbers in words}. ``passes``: whether kernel maps take its output for its input,
    as they do for pooling. ``family``: the group of layers that one colour of drawings stands for:
    "input", "affine", "activation", "join", "normalisation", "pooling", "attention" or "other".
    """

    arity: ClassVar[tuple[float, float]] = (1, 1)
    per_input: ClassVar[Mapping[str, str]] = {}
    passes: ClassVar[bool] = False
    family: ClassVar[str] = "other"

    def __repr__(self) -> str:
        """The fields; those with ``repr=False`` only where they differ from their defaults."""
        shown = [
            f"{item.name}={getattr(self, item.name)!r}"
            for item in fields(self)
            if item.repr or getattr(self, item.name) != item.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def free_symbols(self) -> set[sp.Symbol]:
        """The SymPy symbols in the layer's numbers, and in the constants of its activation."""
        found: set[Any] = set()
        for value in vars(self).values():
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, sp.Basic | Activation):
                    found |= part.free_symbols
        return found

    def subs(self, values: dict[Any, Any]) -> Layer:
        """The layer with SymPy symbols replaced; ``values`` maps symbols to numbers."""
        return self.mapped(
            lambda value: value.subs(values) if isinstance(value, sp.Basic | Activation) else value
        )

    def mapped(self, change: Callable[[Any], Any]) -> Layer:
        """The layer with ``change`` applied to the value of every field.

        In a tuple, ``change`` is applied to each entry.
        """
        return type(self)(
            **{
                name: tuple(map(change, v)) if isinstance(v, tuple) else change(v)
                for name, v in vars(self).items()
            }
        )

    def lowered(self, reads: Reads) -> Primitive | Program | None:
        """The layer as primitives (:mod:`kcalc.network.primitives`).

        One, a program of several, or None where it passes its input on.
        """
        return P.Unknown(origin=self)

    def emits(self, reads: Reads) -> Count | None:
        """The channels of its output, None where they are not known.

        Raises: GraphError where those of the inputs contradict.
        """
        counts = {k for k in reads.channels if k is not None}
        if len(counts) > 1:
            pairs = ", ".join(
                f"{p!r}: {k}" for p, k in zip(reads.parents, reads.channels, strict=True)
            )
            raise GraphError(
                f"node {reads.node!r} ({type(self).__name__}) reads feature maps of different "
                f"widths ({pairs})"
            )
        return counts.pop() if counts else None

    def colour(self, count: int) -> tuple[object, Sequence[object]]:
        """(the layer without the order of its inputs, the marks of its inputs).

        There is one mark for each of ``count`` inputs. Networks are compared by these values.
        """
        return self, range(count)


@dataclass(frozen=True)
class Input(Layer):
    """A network input.

    ``features``: the number of channels; None: not said. ``image_shape``: (height, width) of
    images, whose pixels are the locations.
    """

    features: int | Any = None  # a whole number or a symbol
    image_shape: tuple[int, ...] | None = None
    arity: ClassVar[tuple[float, float]] = (0, 0)
    family: ClassVar[str] = "input"

    def __post_init__(self) -> None:
        _count(self, "features", optional=True)
        _extent(self, "image_shape", optional=True)

    def lowered(self, reads: Reads) -> Primitive:
        return P.Source(origin=self)

    def emits(self, reads: Reads) -> Count | None:
        return self.features


TRAINED = (True, False, "weights", "biases", "indirectly")


def _trained(layer: Layer, choices: tuple[Any, ...] = (True, False, "indirectly")) -> None:
    """One of the ways in which weights are trained."""
    given: Any = getattr(layer, "trained")  # noqa: B009  # a field of the layers that have weights
    if isinstance(given, np.bool_):
        object.__setattr__(layer, "trained", bool(given))
    elif not isinstance(given, bool) and (not isinstance(given, str) or given not in choices):
        shown = ", ".join(map(repr, choices))
        raise _fail(layer, f"trained must be one of {shown}, got {glimpse(given)}")


PADDINGS = ("same", "valid", "circular", "reflect", "replicate", "causal")


@dataclass(frozen=True)
class Affine(Layer):
    """A linear map with its own weights and bias: dense, or a convolution with ``kernel`` > 1.

    At initialisation ``Var W = sigma_w^2 / fan_in`` and ``Var b = sigma_b^2``.

    ``features``: the number of output channels; None: not said. ``kernel`` and ``stride``: one
    number, or one per axis of the image. ``padding``: "same" gives ``ceil(size / stride)`` outputs,
    the smaller half of the padding in front (as in JAX, Flax and Keras); "circular", "reflect" and
    "replicate" do too, with the image continued in these ways in place of zeros, and "causal" with
    all of the padding in front; "valid" reads inside the image alone; numbers are those of PyTorch.
    ``dilation``: the step between the taps, one number, or one per axis. ``groups``: channels
    in as many groups, which do not mix. ``bias``: whether there is one. ``sigma_w``, ``sigma_b``:
    numbers or SymPy expressions. ``standardised``: weight standardisation: the weights into each
    output have mean 0 over the fan-in (and the same variance), so that the channel mean of the
    input drops out. ``trained``: which of them are: True, both; False, neither, as in a frozen
    layer; "weights" or "biases" only; "indirectly": both are made of trained parameters that have
    gradients of their own, as those of spectral or weight normalisation.
    """

    features: int | Any = None  # a whole number or a symbol
    kernel: int | tuple[int, ...] = 1
    stride: int | tuple[int, ...] = 1
    padding: Any = "same"
    groups: int = 1
    bias: bool = True
    sigma_w: Number = 1
    sigma_b: Number = 0
    standardised: bool = False
    dilation: int | tuple[int, ...] = 1
    trained: bool | str = True
    family: ClassVar[str] = "affine"

    def __post_init__(self) -> None:
        _trained(self, TRAINED)
        _count(self, "features", optional=True)
        _extent(self, "kernel")
        _extent(self, "stride")
        _extent(self, "dilation")
        _count(self, "groups")
        for name in ("bias", "standardised"):
            object.__setattr__(self, name, truth(getattr(self, name), f"Affine: {name}"))
        if isinstance(self.padding, str):
            if self.padding not in PADDINGS:
                raise _fail(
                    self,
                    f"padding must be one of {', '.join(map(repr, PADDINGS))} or numbers, got "
                    f"{glimpse(self.padding)}",
                )
        elif isinstance(self.padding, list | tuple) or (
            isinstance(self.padding, np.ndarray) and self.padding.ndim
        ):
            object.__setattr__(
                self, "padding", tuple(whole(p, "Affine: padding") for p in self.padding)
            )
            if not self.padding and self.kernel:
                raise _fail(
                    self,
                    "padding must not be empty: give one number, or one for every axis of the "
                    "kernel",
                )
        else:
            object.__setattr__(self, "padding", whole(self.padding, "Affine: padding"))
        for name in ("sigma_w", "sigma_b"):
            object.__setattr__(self, name, as_number(getattr(self, name), f"Affine.{name}"))
        if (
            self.sigma_w == 0
            or getattr(self.sigma_w, "is_negative", None)
            or (not _symbolic(self.sigma_w) and self.sigma_w < 0)
        ):
            raise _fail(self, f"sigma_w must be > 0, got {self.sigma_w}")
        if not _symbolic(self.sigma_b) and self.sigma_b < 0:
            raise _fail(self, f"sigma_b must be >= 0, got {self.sigma_b}")
        for name, value in (("sigma_w", self.sigma_w), ("sigma_b", self.sigma_b)):
            if value != 0 and not _symbolic(value) and not SMALL < float(value) < 1 / SMALL:
                raise _fail(
                    self, f"the square of {name} is beyond double precision, got {glimpse(value)}"
                )
        if not self.bias and self.sigma_b != 0:
            raise _fail(self, f"sigma_b = {self.sigma_b} needs bias=True")

    def lowered(self, reads: Reads) -> Primitive:
        return P.Fresh(**vars(self), reads=reads.channels[0], origin=self)

    def emits(self, reads: Reads) -> Count | None:
        for count, what in ((reads.channels[0], "input"), (self.features, "output")):
            if count is not None and self.groups != 1 and count % self.groups:
                raise GraphError(
                    f"node {reads.node!r}: {self.groups} groups do not divide its {count} {what} "
                    f"channels"
                )
        return self.features


@dataclass(frozen=True)
class Nonlinear(Layer):
    """An elementwise activation.

    It is given by a registered name, an ``Activation`` or a SymPy expression in one symbol.
    """

    activation: Activation
    family: ClassVar[str] = "activation"

    if TYPE_CHECKING:  # the constructor takes more types than it keeps

        def __init__(self, activation: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", activation(self.activation))

    def lowered(self, reads: Reads) -> Primitive:
        return P.Post(activation=self.activation, origin=self)


@dataclass(frozen=True)
class SurrogateGradient(Layer):
    """An elementwise ``activation`` with the derivative of another function in backpropagation.

    Gradients are multiplied by ``slope``, a function of the layer's input, where they would be by
    the derivative of ``activation``: 1 for a straight-through estimator. Kernel maps are those of
    the activation; gradients and tangent kernels take the slope. Both are given as the activation
    of a :class:`Nonlinear` is. [Bengio et al. 2013]
    """

    activation: Activation
    slope: Activation
    family: ClassVar[str] = "activation"

    if TYPE_CHECKING:  # the constructor takes more types than it keeps

        def __init__(self, activation: Any, slope: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", activation(self.activation))
        object.__setattr__(self, "slope", activation(self.slope))

    def lowered(self, reads: Reads) -> Primitive:
        return P.Surrogate(activation=self.activation, slope=self.slope, origin=self)


@dataclass(frozen=True)
class Sum(Layer):
    """``sum_i w_i x_i`` over the inputs in slot order; ``weights=None`` means ones.

    The weights are never renormalised.
    """

    weights: tuple[Number, ...] | None = None
    arity: ClassVar[tuple[float, float]] = (1, MANY)
    per_input: ClassVar[Mapping[str, str]] = {"weights": "weights"}
    family: ClassVar[str] = "join"

    if TYPE_CHECKING:

        def __init__(self, weights: Sequence[Number] | np.ndarray | None = None) -> None: ...

    def __post_init__(self) -> None:
        if self.weights is None:
            return
        weights = tuple(
            as_number(w, f"Sum.weights[{i}]")
            for i, w in enumerate(items(self.weights, "Sum.weights"))
        )
        if not weights:
            raise _fail(self, "weights must not be empty; leave weights=None for ones")
        if all(w == 0 for w in weights):
            raise _fail(self, "all weights are 0, so the output is 0 whatever the input")
        object.__setattr__(self, "weights", weights)

    def lowered(self, reads: Reads) -> Primitive:
        return P.Mix(
            weights=self.weights if self.weights is not None else (1,) * len(reads.parents),
            origin=self,
        )

    def colour(self, count: int) -> tuple[object, Sequence[object]]:
        return Sum, [("weight", w) for w in self.weights or (1,) * count]


@dataclass(frozen=True)
class Concat(Layer):
    """Concatenation by channels.

    ``channels`` gives each input's number of channels if the features are not known.
    """

    channels: tuple[Number, ...] | None = None
    arity: ClassVar[tuple[float, float]] = (1, MANY)
    per_input: ClassVar[Mapping[str, str]] = {"channels": "channel counts"}
    family: ClassVar[str] = "join"

    if TYPE_CHECKING:

        def __init__(self, channels: Sequence[Number] | np.ndarray | None = None) -> None: ...

    def __post_init__(self) -> None:
        if self.channels is None:
            return
        given = items(self.channels, "Concat.channels")
        if not given:
            raise _fail(
                self, "channels must not be empty; leave channels=None where features are known"
            )
        symbolic = [
            isinstance(k, sp.Expr) and not k.is_number and k.is_positive is not False for k in given
        ]
        object.__setattr__(
            self,
            "channels",
            tuple(
                k if s else whole(k, "Concat: channels", 1)
                for k, s in zip(given, symbolic, strict=True)
            ),
        )

    def lowered(self, reads: Reads) -> Primitive:
        known = [count is not None for count in reads.channels]
        if self.channels is not None or all(known) or not any(known):
            counts = reads.channels if all(known) else (1,) * len(known)
            return P.Join(counts=self.channels or counts, origin=self)
        problem = (
            f"node {reads.node!r} (Concat): the width of {reads.parents[known.index(False)]!r} is "
            f"unknown while others are known; give "
            "channels="
        )
        return P.Join(counts=None, problem=problem, origin=self)

    def emits(self, reads: Reads) -> Count | None:
        counts = reads.channels if self.channels is None else self.channels
        for parent, width, given in zip(reads.parents, reads.channels, counts, strict=True):
            if width is not None and isinstance(given, int) and width != given:
                raise GraphError(
                    f"node {reads.node!r} (Concat) says {given} channels for {parent!r}, which "
                    f"emits {width}"
                )
        return sum(counts) if all(isinstance(k, int) for k in counts) else None


@dataclass(frozen=True)
class Scale(Layer):
    """Multiplication by a fixed nonzero number."""

    factor: Number

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", as_number(self.factor, "Scale.factor"))
        if self.factor == 0:
            raise _fail(self, "factor must not be 0")

    def lowered(self, reads: Reads) -> Primitive:
        return P.Mix(weights=(self.factor,), origin=self)


@dataclass(frozen=True)
class Product(Layer):
    """The elementwise product of its inputs."""

    arity: ClassVar[tuple[float, float]] = (2, MANY)
    family: ClassVar[str] = "join"

    def lowered(self, reads: Reads) -> Primitive:
        return P.Prod(origin=self)


@dataclass(frozen=True)
class GatedUnit(Layer):
    """``value * phi(gate)`` of two inputs, value and gate.

    With an Affine on each input it is a gated linear unit: GLU with ``"sigmoid"``, SwiGLU with
    ``"swish"``, GEGLU with ``"gelu"`` [Dauphin et al. 2017; Shazeer 2020].
    """

    activation: Activation
    arity: ClassVar[tuple[float, float]] = (2, 2)
    family: ClassVar[str] = "join"

    if TYPE_CHECKING:

        def __init__(self, activation: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", activation(self.activation))

    def lowered(self, reads: Reads) -> Program:
        return [
            (P.Post(activation=self.activation, origin=self), (1,)),
            (P.Prod(origin=self), (0, 2)),
        ]


@dataclass(frozen=True, repr=False)
class Normalisation(Layer):
    """Base of normalisations, which networks can be rid of.

    ``centred`` and ``over`` are as in :class:`kcalc.network.primitives.Norm`; so is a field
    ``groups``, where there is one. A normalisation that does more has a program in its ``lowered``.
    """

    centred: ClassVar[bool] = True
    over: ClassVar[str] = "channels"
    family: ClassVar[str] = "normalisation"

    def norm(self, reads: Reads) -> P.Norm:
        """The division itself."""
        given = {"over": self.over, "groups": getattr(self, "groups", 1)}
        return P.Norm(centred=self.centred, **given, reads=reads.channels[0], origin=self)

    def lowered(self, reads: Reads) -> Primitive | Program:
        return self.norm(reads)

    def emits(self, reads: Reads) -> Count | None:
        count, groups = super().emits(reads), getattr(self, "groups", 1)
        if self.over == "channels" and isinstance(count, int) and count % groups:
            raise GraphError(
                f"node {reads.node!r}: {groups} groups do not divide the {count} channels of its "
                f"input"
            )
        return count


@dataclass(frozen=True, repr=False)
class LayerNorm(Normalisation):
    """Per location: subtract the mean over channels, divide by the standard deviation.

    The gain is 1, the bias 0, epsilon 0. ``groups``: channels in as many groups, each by itself.
    """

    groups: int = field(default=1, repr=False)

    def __post_init__(self) -> None:
        _count(self, "groups")


@dataclass(frozen=True, repr=False)
class RMSNorm(Normalisation):
    """Per location: divide by the root mean square over channels (gain 1, epsilon 0).

    ``groups``: channels in as many groups, each by itself, such as the heads of an attention.
    """

    groups: int = field(default=1, repr=False)
    centred: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _count(self, "groups")


@dataclass(frozen=True)
class L2Norm(Normalisation):
    """Per location: divide by the Euclidean norm over channels, ``scale x / |x|`` (epsilon 0).

    ``groups``: channels in as many groups, each by itself, such as the heads of an attention whose
    queries and keys are normalised. ``scale``: the gain at initialisation. The mean square of the
    output is ``scale^2`` over the channels of a group, so it needs the channels of its input.
    """

    groups: int = 1
    scale: Number = 1
    centred: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _count(self, "groups")
        _positive(self, "scale")

    def lowered(self, reads: Reads) -> Program:
        (count,) = reads.channels
        if count is None:
            raise GraphError(
                f"node {reads.node!r} (L2Norm): the channels of {reads.parents[0]!r}, by which its "
                f"output is scaled, are not known; give features= there"
            )
        size = self.scale * sp.sqrt(sp.sympify(self.groups) / count)
        return [(self.norm(reads), (0,)), (P.Mix(weights=(size,), origin=self), (1,))]


@dataclass(frozen=True)
class BatchNorm(Normalisation):
    """Batch normalisation. It couples the examples of a batch, which kernel maps cannot represent.

    ``batch_c``: the c value in [0, 1) that different examples of a large batch have at this node,
    with which kernel maps approximate it; ``kc.large_batch(network)`` fills it in.
    """

    batch_c: Number | None = None
    over: ClassVar[str] = "batch"

    def __post_init__(self) -> None:
        if self.batch_c is None:
            return
        object.__setattr__(self, "batch_c", as_number(self.batch_c, "BatchNorm.batch_c"))
        if not _symbolic(self.batch_c) and not 0 <= self.batch_c < 1:
            raise _fail(self, f"batch_c must lie in [0, 1), got {self.batch_c}")

    def lowered(self, reads: Reads) -> P.Norm:
        return replace(self.norm(reads), batch_c=self.batch_c)


@dataclass(frozen=True)
class GroupNorm(Normalisation):
    """Per example: normalise over the locations and the channels of each group of channels.

    There are ``groups`` groups of channels. The gain is 1, the bias 0, epsilon 0.

    ``groups=1`` is layer normalisation over everything but the examples.
    """

    groups: int = 1
    over: ClassVar[str] = "positions"

    def __post_init__(self) -> None:
        _count(self, "groups")


@dataclass(frozen=True)
class TokenMix(Layer):
    """A linear map over locations, ``y_t = sum_s matrix[t][s] x_s``.

    The locations are tokens, row by row in an image; the numbers are the same for every channel and
    input.

    Fixed token mixing: attention with zero query or key weights, an MLP-Mixer's token weights as
    they are. ``matrix`` is an array (T, S) of numbers; behind one that is not square an image has
    one axis of T locations. ``random``: the numbers are a draw of Gaussian weights, for which maps
    without locations take new ones of the same mean square (exact for many uncorrelated tokens).
    """

    matrix: Any
    random: bool = False

    def __post_init__(self) -> None:
        try:
            array = np.asarray(self.matrix, dtype=float)
        except Exception:  # user objects may raise anything as they are read
            raise _fail(self, "matrix must be a rectangular array of numbers") from None
        if array.ndim != 2 or 0 in array.shape or not np.isfinite(array).all():
            raise _fail(
                self,
                f"matrix must be a two-dimensional array of finite numbers, got shape "
                f"{array.shape}",
            )
        if not np.abs(array).sum(axis=1).all():
            raise _fail(
                self,
                f"row {int(np.argmin(np.abs(array).sum(axis=1)))} of the matrix is 0, so that its "
                f"token is 0 whatever the input",
            )
        object.__setattr__(self, "matrix", tuple(map(tuple, array.tolist())))
        object.__setattr__(self, "random", truth(self.random, "TokenMix: random"))

    def __repr__(self) -> str:
        rows, columns = len(self.matrix), len(self.matrix[0])
        shown = self.matrix if rows * columns <= SHOWN else f"<{rows} x {columns} numbers>"
        return f"TokenMix(matrix={shown}{', random=True' if self.random else ''})"

    @property
    def array(self) -> np.ndarray:
        """The matrix, (T, S)."""
        return np.array(self.matrix)

    @property
    def permutes(self) -> float | None:
        """The common factor of a signed permutation of tokens, else None.

        Every token must read one token alone, all multiplied by this number or its negative.
        """
        array = self.array
        sizes = np.abs(array[array != 0])
        alone = (np.count_nonzero(array, axis=1) == 1).all() and (sizes == sizes[0]).all()
        return float(sizes[0]) if alone else None

    def lowered(self, reads: Reads) -> Primitive:
        given = {"matrix": self.matrix, "permutes": self.permutes, "random": self.random}
        return P.Blend(**given, origin=self)


@dataclass(frozen=True)
class Embedding(Layer):
    """A vector of its own for every token id, its entries independent with variance ``sigma^2``.

    It reads the ids; different ids have independent vectors. To kernel maps it is an Affine without
    bias that reads one-hot vectors.

    ``features``: the number of channels; None: not said. ``vocabulary``: the number of ids; None:
    not said. ``trained``: False for a frozen table; "indirectly" as in :class:`Affine`.
    """

    features: int | Any = None
    vocabulary: int | Any = None
    sigma: Number = 1
    trained: bool | str = True
    family: ClassVar[str] = "affine"

    def __post_init__(self) -> None:
        _trained(self)
        _count(self, "features", optional=True)
        _count(self, "vocabulary", optional=True)
        _positive(self, "sigma")

    def lowered(self, reads: Reads) -> Primitive:
        affine = Affine(self.features, bias=False, sigma_w=self.sigma, trained=self.trained)
        given = {item.name: getattr(affine, item.name) for item in fields(affine)}
        return P.Fresh(**given, reads=self.vocabulary, one_hot=True, origin=self)

    def emits(self, reads: Reads) -> Count | None:
        return self.features


@dataclass(frozen=True)
class Positions(Layer):
    """Adds to every token a vector that says where it stands, the same for all inputs.

    ``kind``: "learned", vectors of independent entries of variance ``sigma^2``; "sinusoidal", the
    fixed vectors of sines and cosines of [Vaswani et al. 2017], times ``sqrt(2) sigma``, so that
    their mean square is ``sigma^2``; "constant", one learned vector for all places, as embeddings
    of token types are where there is one type. ``length``: how many positions there are; None: not
    said. ``trained``: False where learned vectors are frozen; "indirectly" as in :class:`Affine`.
    """

    kind: str = "learned"
    sigma: Number = 1
    length: int | Any = None
    trained: bool | str = True
    family: ClassVar[str] = "join"

    def __post_init__(self) -> None:
        _trained(self)
        choice(self.kind, "kind of Positions", ("learned", "sinusoidal", "constant"))
        _count(self, "length", optional=True)
        _positive(self, "sigma")

    def lowered(self, reads: Reads) -> Program:
        place = P.Positions(
            form=self.kind, length=self.length if self.kind == "learned" else None, origin=self
        )
        if self.kind == "sinusoidal":
            return [(place, ()), (P.Mix(weights=(1, self.sigma), origin=self), (0, 1))]
        table = Embedding(reads.channels[0], self.length, self.sigma, self.trained).lowered(reads)
        return [
            (place, ()),
            (replace(table, origin=self), (1,)),
            (P.Mix(weights=(1, 1), origin=self), (0, 2)),
        ]


@dataclass(frozen=True)
class ClassToken(Layer):
    """Puts learned tokens, the same for all inputs, in front of the tokens of its input.

    ``sigma``: the standard deviation of their independent entries; ``count``: how many they are,
    such as 2 in DeiT, a class token and a distillation token. ``trained``: as in
    :class:`Embedding`.
    """

    sigma: Number = 1
    count: int = 1
    trained: bool | str = True
    family: ClassVar[str] = "join"

    def __post_init__(self) -> None:
        _trained(self)
        _count(self, "count")
        _positive(self, "sigma")

    def lowered(self, reads: Reads) -> Program:
        place = P.Positions(form="learned", length=None, count=self.count, origin=self)
        table = Embedding(reads.channels[0], self.count, self.sigma, self.trained).lowered(reads)
        return [
            (place, ()),
            (replace(table, origin=self), (1,)),
            (P.Prefix(origin=self), (0, 2)),
        ]


BY_PLACE = {*M.MASKS, "rotary", "alibi", "relative"}  # what tells the tokens of an Attend apart


@dataclass(frozen=True, repr=False)
class Attend(Layer):
    """Attention over T tokens.

    ``out_i = sum_j (identity I + A - centre / T)_ij v_j`` with ``A_i = softmax_j(s_ij)``,
    ``s_ij = scale q_i . k_j``; behind a mask the mean that ``centre`` takes off is that of the
    tokens that i sees. It reads queries, keys and values, in this order; the maps that make
    them, and the one that reads the heads, are Affine layers.

    ``heads``: the number of heads; None: not said. ``key_width``: the channels of a head's queries
    and keys; None: not said. ``causal``: token i sees the tokens up to i. ``window``: it sees the
    tokens j with ``|i - j| < window`` alone; ``chunk``: those of its own chunk of as many tokens,
    counted from the first; None: all. ``prefix``: token i sees the tokens up to i and the first
    ``prefix`` ones, as in a prefix language model, which has ``causal=False``; None: no such mask.
    A token sees what all of its masks let it see. ``scale``: "sqrt" is ``1 / sqrt(key_width)``,
    "linear" ``1 / key_width``, or a number, which needs ``key_width``.
    ``normaliser``: "softmax"; or a function of every score by itself, "sigmoid",
    ``A = 1 / (1 + T exp(-s))``, "relu", ``A = max(0, s) / T``, "identity", ``A = s``. ``identity``,
    ``centre``: numbers, 0 but for softmax. ``sink``: softmax has one more score, 0, whose weight is
    dropped. ``key_heads``: how many heads of keys and values there are, where several heads of
    queries share one; None: one each. ``rotary``: the base of rotary position embeddings of queries
    and keys, such as 10000; None: none. ``alibi``: scores have the linear biases of ALiBi,
    with the slopes of its released code for as many heads (Press et al. 2022).
    ``relative``: (sigma, buckets, furthest): scores have learned biases, one
    per head and bucket of distances j - i, of standard deviation sigma at initialisation. Of the
    buckets, half of them for j > i unless ``causal``, the first half hold one distance each, the
    others grow geometrically, and all distances from ``furthest`` on share the last one (Raffel et
    al. 2020).
    ``dropout``: of attention weights, the identity in evaluation. ``wide``: True: kernel maps take
    scores for Gaussian, their limit at large ``key_width``; False: as they are at ``key_width``,
    which takes some hundred times longer where attention is not sampled; its derivatives
    are sampled; None: Gaussian by formulas, and those of ``key_width``, where it is given, in
    sampling. Assumptions say which. [Vaswani et al. 2017;
    Ramapuram et al. 2024 (sigmoid); Wortsman et al. 2023 (relu)]
    """

    heads: int | None = None
    key_width: int | None = None
    causal: bool = False
    scale: Any = "sqrt"
    normaliser: str = "softmax"
    identity: Number = 0
    centre: Number = 0
    sink: bool = False
    key_heads: int | None = None
    rotary: float | None = None
    alibi: bool = False
    dropout: Number = 0
    wide: bool | None = None
    window: int | None = None
    chunk: int | None = None
    relative: tuple[float, int, int] | None = None
    prefix: int | None = field(default=None, repr=False)
    arity: ClassVar[tuple[float, float]] = (3, 3)
    family: ClassVar[str] = "attention"

    def __post_init__(self) -> None:
        for name in ("heads", "key_width", "key_heads"):
            _count(self, name, optional=True)
        for name, value in M.checked(self).items():
            object.__setattr__(self, name, value)
        if self.causal and self.prefix is not None:
            raise _fail(
                self,
                "prefix is a causal mask behind the first tokens, and causal=True would hide these "
                "from each other; use causal=False",
            )
        for name in ("sink", "alibi", "wide"):
            if name != "wide" or self.wide is not None:
                object.__setattr__(self, name, truth(getattr(self, name), f"Attend: {name}"))
        if isinstance(self.scale, str):
            choice(self.scale, "scale of an Attend", ("sqrt", "linear"))
        else:
            _positive(self, "scale")
            if self.key_width is None:
                raise _fail(
                    self,
                    f"scale = {self.scale} needs key_width, the channels of a head's queries and "
                    f"keys",
                )
        for name in ("identity", "centre", "dropout"):
            object.__setattr__(self, name, as_number(getattr(self, name), f"Attend.{name}"))
        choice(
            self.normaliser, "normaliser of an Attend", ("softmax", "sigmoid", "relu", "identity")
        )
        if self.normaliser != "softmax":
            for name in ("identity", "centre", "sink"):
                if getattr(self, name) != 0:
                    raise _fail(
                        self, f"{name} shapes softmax, and the normaliser is {self.normaliser!r}"
                    )
            if self.scale == "linear":
                raise _fail(
                    self,
                    f"scores over key_width vanish for wide heads, and with them the weights of "
                    f"{self.normaliser!r}; use 'sqrt'",
                )
        if self.sink and (self.identity != 0 or self.centre != 0):
            raise _fail(
                self, "a sink has no rule together with identity or centre; drop one of them"
            )
        if not _symbolic(self.dropout) and not 0 <= self.dropout < 1:
            raise _fail(self, f"dropout must lie in [0, 1), got {self.dropout}")
        if self.rotary is not None:
            _positive(self, "rotary")
        if self.relative is not None:
            object.__setattr__(self, "relative", self._relative())
        if self.key_heads is not None and (self.heads is None or self.heads % self.key_heads):
            raise _fail(self, f"key_heads = {self.key_heads} must divide heads = {self.heads}")
        if self.wide and self.rotary is not None:
            raise _fail(
                self,
                "rotary embeddings turn queries and keys of key_width channels; use wide=None",
            )
        if self.wide is False and (
            self.key_width is None
            or self.key_width < 4
            or self.normaliser != "softmax"
            or self.sink
        ):
            raise _fail(
                self,
                "wide=False is for softmax without a sink, and needs key_width >= 4, the channels "
                "of a head's queries and keys",
            )
        if self.rotary is not None and self.key_width is not None and self.key_width % 2:
            raise _fail(
                self,
                f"rotary embeddings turn pairs of channels, and key_width = {self.key_width} is "
                f"odd",
            )

    @property
    def masks(self) -> M.Masks:
        """Its masks (:mod:`kcalc.network.masks`)."""
        return M.masks_of(self)

    def alike(self) -> Attend:
        """The attention without masks, rotary embeddings and biases, which keeps tokens alike."""
        void = {item.name: item.default for item in fields(self) if item.name in BY_PLACE}
        return replace(self, **void)

    def _relative(self) -> tuple[float, int, int]:
        """The checked field ``relative``."""
        given = items(self.relative, "Attend.relative")
        if len(given) != 3:
            raise _fail(self, f"relative is (sigma, buckets, furthest), got {glimpse(given)}")
        sigma = one_number(given[0], "sigma of Attend.relative")
        sides = 2 if M.one_sided(self.masks) else 4
        buckets = whole(given[1], "buckets of Attend.relative", sides)
        furthest = whole(given[2], "furthest distance of Attend.relative", 2)
        if not 0 < sigma < LARGEST_BIAS:
            raise _fail(self, f"sigma of relative lies between 0 and {LARGEST_BIAS:g}, got {sigma}")
        near = buckets // sides
        if furthest <= near:
            raise _fail(
                self,
                f"the furthest distance of relative is more than {near}, the distances with a "
                f"bucket of their own, got {furthest}",
            )
        return sigma, buckets, furthest

    def lowered(self, reads: Reads) -> Primitive:
        names = (
            "heads",
            "key_width",
            "masks",
            "scale",
            "normaliser",
            "identity",
            "centre",
            "sink",
            "rotary",
            "alibi",
            "wide",
            "relative",
        )
        return P.Attend(**{name: getattr(self, name) for name in names}, origin=self)

    def emits(self, reads: Reads) -> Count | None:
        """The channels of all heads of values."""
        queries, keys, values = reads.channels
        heads, shared = self.heads, self.key_heads or self.heads
        widths = ((queries, heads, "queries"), (keys, shared, "keys"), (values, shared, "values"))
        for width, count, what in widths:
            if width is not None and count is not None and width % count:
                raise GraphError(
                    f"node {reads.node!r}: {count} heads do not divide the {width} channels of "
                    f"its {what}"
                )
        for width, count, what in widths[:2]:
            if (
                width is not None
                and count is not None
                and self.key_width is not None
                and width != count * self.key_width
            ):
                raise GraphError(
                    f"node {reads.node!r}: {count} heads of key_width {self.key_width} are not "
                    f"the {width} channels of its {what}"
                )
        if heads is None or values is None:
            if heads is None and None not in (queries, keys) and queries != keys:
                raise GraphError(
                    f"node {reads.node!r}: {queries} channels of queries and {keys} of keys; say "
                    f"heads= and key_heads="
                )
            return values
        return values // (shared or 1) * heads


POOLS = ("max", "mean", "weighted_mean")


@dataclass(frozen=True)
class Pool(Layer):
    """Pooling over locations, ``kind`` one of "max", "mean", "weighted_mean".

    ``window=None`` pools them all, ``stride=None`` is the window. ``padding``: "valid", windows
    inside the image only, or "same", ``ceil(size / stride)`` windows, of which the entries outside
    never count.
    """

    kind: str
    window: int | tuple[int, ...] | None = None
    stride: int | tuple[int, ...] | None = None
    padding: str = "valid"
    passes: ClassVar[bool] = True
    family: ClassVar[str] = "pooling"

    def __post_init__(self) -> None:
        choice(self.kind, "pooling kind", POOLS)
        choice(self.padding, "padding of a Pool", ("valid", "same"))
        _extent(self, "window", optional=True)
        _extent(self, "stride", optional=True)

    def lowered(self, reads: Reads) -> Primitive:
        given = {
            "window": self.window,
            "stride": self.stride,
            "padding": self.padding,
            "origin": self,
        }
        return (
            P.Max(**given)
            if self.kind == "max"
            else P.Blend(**given, weighted=self.kind == "weighted_mean")
        )


RESIZES = ("nearest", "linear", "corners", "zeros")


@dataclass(frozen=True)
class Resize(Layer):
    """Images with ``floor(factor n)`` positions along an axis of n.

    ``factor``: a number > 0, or one per axis. ``kind``: "nearest", every position is a copy of one;
    "linear", positions are interpolated along every axis, and "corners", in such a way that the
    first and the last stay where they are (PyTorch's ``align_corners=True``); "zeros", factors are
    whole numbers, every position is followed by zeros and multiplied by the root of the product of
    the factors, so that the mean square over positions stays. An Affine behind that is a transposed
    convolution whose stride is ``factor``. ``place``: for "zeros", how many zeros come before each
    position instead of behind it; a number >= 0, or one per axis.
    """

    factor: Any
    kind: str = "nearest"
    place: int | tuple[int, ...] = 0
    passes: ClassVar[bool] = True
    family: ClassVar[str] = "pooling"

    def __post_init__(self) -> None:
        choice(self.kind, "kind of a Resize", RESIZES)
        if self.kind == "zeros":
            _extent(self, "factor")
        many = isinstance(self.factor, list | tuple)
        factors = [as_number(f, "Resize.factor") for f in (self.factor if many else [self.factor])]
        if not factors or any(_symbolic(f) or not f > 0 for f in factors):
            raise _fail(self, f"factor must be a number > 0, or one per axis, got {self.factor}")
        object.__setattr__(self, "factor", tuple(factors) if many else factors[0])
        given = self.place if isinstance(self.place, list | tuple) else (self.place,)
        places = [whole(p, "Resize: place") for p in given]
        object.__setattr__(self, "place", places[0] if given is not self.place else tuple(places))
        if any(p >= min(factors) for p in places) and any(places):
            raise _fail(self, f"place must be less than the factor, got {self.place}")

    def lowered(self, reads: Reads) -> Primitive:
        return P.Resize(factor=self.factor, form=self.kind, place=self.place, origin=self)


@dataclass(frozen=True)
class PixelShuffle(Layer):
    """Channels become positions, or the reverse.

    An image of ``C r s`` channels becomes one of C channels with r times as many rows and s times
    as many columns for ``factor = (r, s)``: output (r i + a, s j + b) of channel k is input (i, j)
    of channel ``(k r + a) s + b``, as in PyTorch. ``factor``: a positive integer for both axes, or
    one per axis. ``back``: the reverse, which makes channels of positions.
    """

    factor: int | tuple[int, ...] = 2
    back: bool = False
    passes: ClassVar[bool] = True
    family: ClassVar[str] = "pooling"

    def __post_init__(self) -> None:
        _extent(self, "factor")
        object.__setattr__(self, "back", truth(self.back, "PixelShuffle: back"))

    @property
    def factors(self) -> tuple[int, ...]:
        """One factor per axis."""
        return self.factor if isinstance(self.factor, tuple) else (self.factor, self.factor)

    def lowered(self, reads: Reads) -> Primitive:
        return P.Shuffle(factor=self.factors, back=self.back, origin=self)

    def emits(self, reads: Reads) -> Count | None:
        (count,), parts = reads.channels, math.prod(self.factors)
        if count is None or self.back:
            return None if count is None else count * parts
        if isinstance(count, int) and count % parts:
            raise GraphError(
                f"node {reads.node!r}: the {count} channels of its input are no multiple of "
                f"{parts}, the product of its factors"
            )
        return count // parts


@dataclass(frozen=True)
class Dropout(Layer):
    """Dropout of a fraction ``rate`` in [0, 1) with rescaling; the identity in evaluation."""

    rate: Number
    passes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", as_number(self.rate, "Dropout.rate"))
        if not _symbolic(self.rate) and not 0 <= self.rate < 1:
            raise _fail(self, f"rate must lie in [0, 1), got {self.rate}")

    def lowered(self, reads: Reads) -> Primitive:
        return P.Mask(rate=self.rate, origin=self)


@dataclass(frozen=True)
class Flatten(Layer):
    """Locations become channels."""

    passes: ClassVar[bool] = True

    def lowered(self, reads: Reads) -> Primitive:
        return P.Reshape(origin=self)

    def emits(self, reads: Reads) -> None:
        return None


@dataclass(frozen=True)
class Identity(Layer):
    """Passes its input on."""

    passes: ClassVar[bool] = True

    def lowered(self, reads: Reads) -> None:
        return None


@dataclass(frozen=True)
class StopGradient(Layer):
    """Passes its input on, and no gradient back: ``detach``, ``stop_gradient``.

    Kernel maps take it as the identity; behind it, towards the input, gradients are 0, and the
    tangent kernel has no part of the weights there.

    ``unknown``: what has a gradient of its own that is not known, such as a function with a
    handwritten backward pass; "": nothing. Kernel maps answer, gradients and tangent kernels that
    would pass it raise an error.
    """

    unknown: str = ""
    passes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.unknown, str):
            raise _fail(self, "unknown must be text")
        utf8(self.unknown, "StopGradient: unknown")

    def lowered(self, reads: Reads) -> Primitive:
        return P.Stop(unknown=self.unknown, origin=self)


@dataclass(frozen=True)
class Opaque(Layer):
    """Something a reader did not understand: its ``name`` and the ``reason``.

    Every calculus refuses it.

    ``features``: the number of channels that it emits (None: not said).
    """

    name: str
    reason: str
    features: int | Any = None  # a whole number or a symbol
    arity: ClassVar[tuple[float, float]] = (1, MANY)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.reason, str):
            raise _fail(self, "name and reason must be text")
        utf8(self.name, "Opaque: name")
        utf8(self.reason, "Opaque: reason")
        _count(self, "features", optional=True)

    def emits(self, reads: Reads) -> Count | None:
        return self.features


def _positive(layer: Layer, name: str) -> None:
    """A number > 0, or an expression that may be one."""
    value = as_number(getattr(layer, name), f"{type(layer).__name__}.{name}")
    object.__setattr__(layer, name, value)
    if not _symbolic(value) and not value > 0:
        raise _fail(layer, f"{name} must be > 0, got {value}")


def layer_of(op: Primitive) -> Layer | None:
    """The layer that is made of one primitive; None where there is none."""
    match op:
        case P.Fresh():
            return Affine(**{item.name: getattr(op, item.name) for item in fields(Affine)})
        case P.Post():
            return Nonlinear(op.activation)
        case P.Surrogate():
            return SurrogateGradient(op.activation, op.slope)
        case P.Stop():
            return StopGradient(op.unknown)
        case P.Mix():
            return Sum(op.weights) if len(op.weights) > 1 else Scale(*op.weights)
        case P.Join():
            return Concat(op.channels)
        case P.Prod():
            return Product()
        case P.Norm(over="channels"):
            return LayerNorm(op.groups) if op.centred else RMSNorm(op.groups)
        case P.Norm(over="positions", centred=True):
            return GroupNorm(op.groups)
        case P.Norm(over="batch", centred=True, groups=1):
            return BatchNorm(op.batch_c)
        case P.Blend(matrix=matrix) if matrix is not None:
            return TokenMix(matrix, op.random)
        case P.Window():
            return Pool(op.pooling, op.window, op.stride, op.padding)
        case P.Mask():
            return Dropout(op.rate)
        case P.Reshape():
            return Flatten()
    return None


def _symbolic(value: Any) -> bool:
    return isinstance(value, sp.Basic) and bool(value.free_symbols)


KINDS: dict[str, type[Layer]] = {
    kind.__name__: kind
    for kind in (
        Input,
        Affine,
        Nonlinear,
        Sum,
        Concat,
        Scale,
        Product,
        GatedUnit,
        LayerNorm,
        RMSNorm,
        L2Norm,
        BatchNorm,
        GroupNorm,
        TokenMix,
        Pool,
        Resize,
        PixelShuffle,
        Dropout,
        Flatten,
        Identity,
        StopGradient,
        SurrogateGradient,
        Opaque,
        Embedding,
        Positions,
        ClassToken,
        Attend,
    )
}


def __dir__() -> list[str]:
    return __all__
