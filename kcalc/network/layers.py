"""The layers of a network: frozen dataclasses, one per kind.

A layer states the function of a node, never how a calculus reads it. Numbers may be Python or SymPy
numbers, or SymPy expressions with free symbols. Symbolic methods carry such symbols; numeric ones
ask for values (``net.subs``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import sympy as sp

from ..activations import Activation, activation
from ..fields.arguments import as_number, one_number
from ..foundation.errors import GraphError, KcalcError, glimpse
from ..foundation.guests import LAYERS
from ..foundation.plain_arguments import LARGEST, choice, extents, items, truth, utf8, whole
from . import masks as M
from . import primitives as P
from .primitives import Count, Primitive, Program, Reads

if TYPE_CHECKING:
    from ..experts.layers import MoE as MoE
    from ..experts.layers import Route as Route

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
SMALL = 1e-150  # numbers whose squares are safely distinct from 0
SHOWN = 16  # how many numbers of a matrix are printed


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

    Parameters
    ----------
    arity
        The minimum and maximum number of inputs.
    per_input
        {field with one number per input: a description}.
    passes
        Whether kernel maps treat the layer as the identity, as they do for pooling.
    family
        The group of layers that share a colour in drawings: "input", "affine", "activation",
        "join", "normalisation", "pooling", "attention" or "other".

    """

    arity: ClassVar[tuple[float, float]] = (1, 1)
    per_input: ClassVar[Mapping[str, str]] = {}
    passes: ClassVar[bool] = False
    family: ClassVar[str] = "other"

    def __repr__(self) -> str:
        """The fields. Those with ``repr=False`` appear only if they differ from their defaults."""
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
        """The primitives of the layer (:mod:`kcalc.network.primitives`).

        One primitive, a program of several, or None if the layer passes its input on.
        """
        return P.Unknown(origin=self)

    def emits(self, reads: Reads) -> Count | None:
        """The number of output channels, None if unknown.

        Raises: GraphError if the channels of the inputs contradict each other.
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
        """A pair: the layer without the order of its inputs, and a mark for each input.

        There are ``count`` marks, one per input. Networks are compared by these values.
        """
        return self, range(count)


@dataclass(frozen=True)
class Input(Layer):
    """A network input.

    Parameters
    ----------
    features
        The number of channels; None if unknown.
    image_shape
        (height, width) of images, whose pixels are the locations.

    """

    features: int | Any = None  # an integer or a symbol
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
    """How weights are trained, as one of the known values."""
    given: Any = getattr(layer, "trained")  # noqa: B009  # a field of the layers that have weights
    if isinstance(given, np.bool_):
        object.__setattr__(layer, "trained", bool(given))
    elif not isinstance(given, bool) and (not isinstance(given, str) or given not in choices):
        shown = ", ".join(map(repr, choices))
        raise _fail(layer, f"trained must be one of {shown}, got {glimpse(given)}")


PADDINGS = ("same", "valid", "circular", "reflect", "replicate", "causal")


@dataclass(frozen=True)
class Affine(Layer):
    """A linear map with weights and a bias: dense, or a convolution if ``kernel`` > 1.

    At initialisation ``Var W = sigma_w^2 / fan_in`` and ``Var b = sigma_b^2``.

    Parameters
    ----------
    features
        The number of output channels; None if unknown.
    kernel, stride
        One number, or one per axis of the image.
    padding
        "same" gives ``ceil(size / stride)`` outputs, with the smaller half of the padding at the
        start (as in JAX, Flax and Keras). "circular", "reflect" and "replicate" give the same
        number of outputs but extend the image in these ways instead of with zeros. "causal" puts
        all padding at the start. "valid" reads only inside the image. Numbers mean the same as in
        PyTorch.
    groups
        The number of channel groups, which do not mix.
    bias
        Whether the layer has a bias.
    sigma_w, sigma_b
        Numbers or SymPy expressions.
    standardised
        Whether weights are standardised. The weights into each output then have mean 0 over the
        fan-in (and the same variance), so the channel mean of the input drops out.
    dilation
        The step between taps, one number or one per axis.
    trained
        True trains weights and biases; False trains neither, as in a frozen layer. "weights" or
        "biases" trains only these. "indirectly" means that both are functions of other trained
        parameters, as in spectral or weight normalisation.

    """

    features: int | Any = None  # an integer or a symbol
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
                    f"padding must be one of {', '.join(map(repr, PADDINGS))}, or numbers, got "
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
                    "padding must not be empty: give one number, or one per axis of the kernel",
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

    Parameters
    ----------
    activation
        A registered name, an ``Activation`` or a SymPy expression in one symbol.

    """

    activation: Activation
    family: ClassVar[str] = "activation"

    if TYPE_CHECKING:  # the constructor accepts more types than it stores

        def __init__(self, activation: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", activation(self.activation))

    def lowered(self, reads: Reads) -> Primitive:
        return P.Post(activation=self.activation, origin=self)


@dataclass(frozen=True)
class SurrogateGradient(Layer):
    """An elementwise activation with a different derivative in backpropagation.

    Gradients are multiplied by ``slope`` instead of the derivative of ``activation``; a
    straight-through estimator has slope 1. Kernel maps use the activation; gradients and tangent
    kernels use the slope. [Bengio et al. 2013]

    Parameters
    ----------
    activation
        The activation, as for :class:`Nonlinear`.
    slope
        A function of the layer's input, with the same values as ``activation``.

    """

    activation: Activation
    slope: Activation
    family: ClassVar[str] = "activation"

    if TYPE_CHECKING:  # the constructor accepts more types than it stores

        def __init__(self, activation: Any, slope: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", activation(self.activation))
        object.__setattr__(self, "slope", activation(self.slope))

    def lowered(self, reads: Reads) -> Primitive:
        return P.Surrogate(activation=self.activation, slope=self.slope, origin=self)


@dataclass(frozen=True)
class Sum(Layer):
    """``sum_i w_i x_i`` over the inputs in slot order.

    kcalc never renormalises the weights.

    Parameters
    ----------
    weights
        The weights w_i; None means ones.

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

    Parameters
    ----------
    channels
        The number of channels of each input, for networks with unknown features.

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
                self, "channels must not be empty; leave channels=None if features are known"
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
            "unknown, but others are known; give channels="
        )
        return P.Join(counts=None, problem=problem, origin=self)

    def emits(self, reads: Reads) -> Count | None:
        counts = reads.channels if self.channels is None else self.channels
        for parent, width, given in zip(reads.parents, reads.channels, counts, strict=True):
            if width is not None and isinstance(given, int) and width != given:
                raise GraphError(
                    f"node {reads.node!r} (Concat) declares {given} channels for {parent!r}, which "
                    f"has {width}"
                )
        return sum(counts) if all(isinstance(k, int) for k in counts) else None


@dataclass(frozen=True)
class Scale(Layer):
    """Multiplication by a fixed nonzero number.

    Parameters
    ----------
    factor
        The number, not 0.

    """

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

    With an Affine on each input this is a gated linear unit: GLU with ``"sigmoid"``, SwiGLU with
    ``"swish"``, GEGLU with ``"gelu"`` [Dauphin et al. 2017; Shazeer 2020].

    Parameters
    ----------
    activation
        The activation of the gate.

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
    """Base of normalisations, which can be removed from networks.

    ``centred`` and ``over`` are as in :class:`kcalc.network.primitives.Norm`, and so is the field
    ``groups`` if there is one. A more complex normalisation returns a program from ``lowered``.
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

    The gain is 1, the bias 0, epsilon 0.

    Parameters
    ----------
    groups
        The number of channel groups, normalised separately.

    """

    groups: int = field(default=1, repr=False)

    def __post_init__(self) -> None:
        _count(self, "groups")


@dataclass(frozen=True, repr=False)
class RMSNorm(Normalisation):
    """Per location: divide by the root mean square over channels (gain 1, epsilon 0).

    Parameters
    ----------
    groups
        The number of channel groups, normalised separately, such as the heads of attention.

    """

    groups: int = field(default=1, repr=False)
    centred: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _count(self, "groups")


@dataclass(frozen=True)
class L2Norm(Normalisation):
    """Per location: divide by the Euclidean norm over channels, ``scale x / |x|`` (epsilon 0).

    Parameters
    ----------
    groups
        The number of channel groups, normalised separately, such as the heads of an attention with
        normalised queries and keys.
    scale
        The gain at initialisation. The mean square of the output is ``scale^2`` divided by the
        channels per group, so the channels of the input must be known.

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
                f"node {reads.node!r} (L2Norm): its output depends on the number of channels of "
                f"{reads.parents[0]!r}, which is unknown; give features= there"
            )
        size = self.scale * sp.sqrt(sp.sympify(self.groups) / count)
        return [(self.norm(reads), (0,)), (P.Mix(weights=(size,), origin=self), (1,))]


@dataclass(frozen=True)
class BatchNorm(Normalisation):
    """Batch normalisation, which couples the examples of a batch.

    Kernel maps cannot represent this coupling.

    Parameters
    ----------
    batch_c
        The c value in [0, 1) between different examples of a large batch at this node. Kernel maps
        use it to approximate the layer; ``kc.large_batch(network)`` fills it in.

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

    Parameters
    ----------
    groups
        The number of groups of channels; 1 is layer normalisation over everything except the
        examples.

    """

    groups: int = 1
    over: ClassVar[str] = "positions"

    def __post_init__(self) -> None:
        _count(self, "groups")


@dataclass(frozen=True)
class TokenMix(Layer):
    """A linear map over locations, ``y_t = sum_s matrix[t][s] x_s``.

    Locations are tokens, counted row by row in an image. The matrix is the same for every channel
    and input.

    This is fixed token mixing: attention with zero query or key weights, or the token weights of an
    MLP-Mixer.

    Parameters
    ----------
    matrix
        An array (T, S) of numbers. If it is not square, the output image has one axis of T
        locations.
    random
        Whether the numbers are a draw of Gaussian weights. Maps without locations then use new
        weights of the same mean square (exact for many uncorrelated tokens).

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
                f"row {int(np.argmin(np.abs(array).sum(axis=1)))} of the matrix is 0, so its "
                "token is 0 whatever the input",
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

        Every token must read exactly one token, always multiplied by this number or its negative.
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
    """A vector for every token id, with independent entries of variance ``sigma^2``.

    The layer reads ids; different ids have independent vectors. Kernel maps treat it as an Affine
    without bias that reads one-hot vectors.

    Parameters
    ----------
    features
        The number of channels; None if unknown.
    vocabulary
        The number of ids; None if unknown.
    sigma
        The standard deviation of the entries.
    trained
        False for a frozen table; "indirectly" as in :class:`Affine`.

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
    """Adds a vector for its position to every token, the same for all inputs.

    Parameters
    ----------
    kind
        "learned", vectors of independent entries of variance ``sigma^2``. "sinusoidal", the fixed
        vectors of sines and cosines of [Vaswani et al. 2017], times ``sqrt(2) sigma``, which gives
        them the mean square ``sigma^2``. "constant", one learned vector for all positions, such as
        the embedding of a single token type.
    sigma
        The root mean square of the vectors.
    length
        The number of positions; None if unknown.
    trained
        False if learned vectors are frozen; "indirectly" as in :class:`Affine`.

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
    """Puts learned tokens, the same for all inputs, before the tokens of its input.

    Parameters
    ----------
    sigma
        The standard deviation of their independent entries.
    count
        The number of learned tokens, such as 2 in DeiT (a class token and a distillation token).
    trained
        As in :class:`Embedding`.

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


BY_PLACE = {
    *M.MASKS,
    "rotary",
    "alibi",
    "relative",
}  # fields that distinguish tokens


@dataclass(frozen=True, repr=False)
class Attend(Layer):
    """Attention over T tokens.

    ``out_i = sum_j (identity I + A - centre / T)_ij v_j`` with ``A_i = softmax_j(s_ij)``, ``s_ij =
    scale q_i . k_j``; with a mask, ``centre`` subtracts the mean over the tokens that i sees. The
    inputs are queries, keys and values, in this order. The maps that produce them, and the one that
    reads the heads, are separate Affine layers.

    Masks combine: a token sees another only if every mask allows it.

    Parameters
    ----------
    heads
        The number of heads; None if unknown.
    key_width
        The channels of the queries and keys of a head; None if unknown.
    causal
        Whether token i sees only the tokens up to i.
    scale
        "sqrt" is ``1 / sqrt(key_width)``, "linear" ``1 / key_width``, or a number, which needs
        ``key_width``.
    normaliser
        "softmax"; or a function of each score separately: "sigmoid", ``A = 1 / (1 + T exp(-s))``,
        "relu", ``A = max(0, s) / T``, "identity", ``A = s``.
    identity, centre
        Numbers, 0 unless the normaliser is softmax.
    sink
        Whether softmax gets one extra score, 0, and drops its weight.
    key_heads
        The number of heads of keys and values, if several heads of queries share one; None for one
        each.
    rotary
        The base of rotary position embeddings of queries and keys, such as 10000; None for none.
    alibi
        Whether to add the linear biases of ALiBi to the scores, with the slopes of its released
        code for this number of heads (Press et al. 2022).
    dropout
        The rate of dropout of attention weights, the identity in evaluation.
    wide
        True treats scores as Gaussian, their limit at large ``key_width``. False uses the scores at
        the given ``key_width``. If attention is not sampled, this takes some hundred times longer,
        and derivatives are sampled. None uses Gaussian scores in formulas; in sampling it uses
        those of ``key_width`` if it is given. The assumptions of a result say which.
    window
        Token i sees only tokens j with ``|i - j| < window``; None for all.
    chunk
        Token i sees only its own chunk of ``chunk`` tokens, counted from the first; None for all.
    relative
        (sigma, buckets, furthest) adds learned biases to the scores, one per head and bucket of
        distances j - i, with standard deviation sigma at initialisation (Raffel et al. 2020).
        Unless ``causal``, half of the buckets are for j > i. The first half of the buckets hold one
        distance each. The others grow geometrically, and all distances from ``furthest`` on share
        the last one.
    prefix
        Token i sees the tokens up to i and the first ``prefix`` tokens, as in a prefix language
        model (with ``causal=False``); None for no such mask.

    References
    ----------
    [Vaswani et al. 2017; Ramapuram et al. 2024 (sigmoid); Wortsman et al. 2023 (relu)]

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
                "prefix is a causal mask after the first tokens, and causal=True would hide "
                "these from each other; use causal=False",
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
                        self,
                        f"{name} applies only to softmax, and the normaliser is "
                        f"{self.normaliser!r}",
                    )
            if self.scale == "linear":
                raise _fail(
                    self,
                    "scores divided by key_width vanish for wide heads, and so do the weights of "
                    f"{self.normaliser!r}; use 'sqrt'",
                )
        if self.sink and (self.identity != 0 or self.centre != 0):
            raise _fail(self, "a sink cannot be combined with identity or centre; drop one of them")
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
                "rotary embeddings rotate queries and keys of key_width channels; use wide=None",
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
                f"rotary embeddings rotate pairs of channels, and key_width = {self.key_width} is "
                "odd",
            )

    @property
    def masks(self) -> M.Masks:
        """Its masks (:mod:`kcalc.network.masks`)."""
        return M.masks_of(self)

    def alike(self) -> Attend:
        """The attention without masks, rotary embeddings and biases: tokens are exchangeable."""
        void = {item.name: item.default for item in fields(self) if item.name in BY_PLACE}
        return replace(self, **void)

    def _relative(self) -> tuple[float, int, int]:
        """The checked field ``relative``."""
        given = items(self.relative, "Attend.relative")
        if len(given) != 3:
            raise _fail(self, f"relative must be (sigma, buckets, furthest), got {glimpse(given)}")
        sigma = one_number(given[0], "sigma of Attend.relative")
        sides = 2 if M.one_sided(self.masks) else 4
        buckets = whole(given[1], "buckets of Attend.relative", sides)
        furthest = whole(given[2], "furthest distance of Attend.relative", 2)
        if not 0 < sigma < LARGEST_BIAS:
            raise _fail(
                self, f"sigma of relative must lie between 0 and {LARGEST_BIAS:g}, got {sigma}"
            )
        near = buckets // sides
        if furthest <= near:
            raise _fail(
                self,
                f"the furthest distance of relative must exceed {near}, the number of distances "
                f"with a separate bucket, got {furthest}",
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
        """The total number of channels of the values, over all heads."""
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
                    f"node {reads.node!r}: {count} heads of key_width {self.key_width} do not "
                    f"match the {width} channels of its {what}"
                )
        if heads is None or values is None:
            if heads is None and None not in (queries, keys) and queries != keys:
                raise GraphError(
                    f"node {reads.node!r}: {queries} channels of queries and {keys} of keys; give "
                    "heads= and key_heads="
                )
            return values
        return values // (shared or 1) * heads


POOLS = ("max", "mean", "weighted_mean")


@dataclass(frozen=True)
class Pool(Layer):
    """Pooling over locations.

    Parameters
    ----------
    kind
        "max", "mean" or "weighted_mean".
    window
        The size of the window; None pools over all locations.
    stride
        The step between windows; None uses the window.
    padding
        "valid", windows inside the image only, or "same", ``ceil(size / stride)`` windows, which
        ignore entries outside the image.

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
    """Resizes images to ``floor(factor n)`` positions along an axis of n.

    Parameters
    ----------
    factor
        A number > 0, or one per axis.
    kind
        "nearest" copies the nearest position. "linear" interpolates along every axis, and "corners"
        does so with the first and last positions fixed (PyTorch's ``align_corners=True``). "zeros"
        takes integer factors: it inserts zeros after every position and multiplies by the root of
        the product of the factors, which preserves the mean square over positions. An Affine after
        that is a transposed convolution of stride ``factor``.
    place
        For "zeros", how many zeros come before each position instead of after it; a number >= 0, or
        one per axis.

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
    of channel ``(k r + a) s + b``, as in PyTorch.

    Parameters
    ----------
    factor
        A positive integer for both axes, or one per axis.
    back
        Whether to do the reverse, which turns positions into channels.

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
                f"node {reads.node!r}: the {count} channels of its input are not a multiple of "
                f"{parts}, the product of its factors"
            )
        return count // parts


@dataclass(frozen=True)
class Dropout(Layer):
    """Dropout with rescaling; the identity in evaluation.

    With ``active=True``, kernel maps, gradients and tangent kernels describe the network in
    training. Every example has its own mask. With ``r = 1 - rate``, mean squares are divided by r
    and covariances of two examples are kept: q' = q / r and c' = r c. So ``C(1) < 1``, and there is
    no edge of chaos. A squared gradient of one example is divided by r; the tangent kernel of two
    examples is kept. [Schoenholz et al. 2017, sec. 5]

    Parameters
    ----------
    rate
        The dropped fraction, in [0, 1).
    active
        Whether kernel maps describe the network in training.

    Examples
    --------
    >>> import kcalc as kc
    >>> L = kc.layers
    >>> net = kc.chain(L.Input(), L.Affine(sigma_w=2**0.5), L.Nonlinear("relu"),
    ...                L.Dropout(0.1, active=True), L.Affine())
    >>> print(f"{kc.c_map(net)(1.0):.6g}")
    0.9

    """

    rate: Number
    active: bool = False
    passes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", as_number(self.rate, "Dropout.rate"))
        if not _symbolic(self.rate) and not 0 <= self.rate < 1:
            raise _fail(self, f"rate must lie in [0, 1), got {self.rate}")
        if not isinstance(self.active, bool):
            raise _fail(self, f"active must be True or False, got {self.active!r}")

    def lowered(self, reads: Reads) -> Primitive:
        return P.Mask(rate=self.rate, active=self.active, origin=self)


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
    """Passes its input on but blocks its gradient: ``detach``, ``stop_gradient``.

    Kernel maps treat it as the identity. Gradients below it are 0, and the weights there do not
    contribute to the tangent kernel.

    Parameters
    ----------
    unknown
        The name of an operation with an unknown custom gradient, such as a function with a
        handwritten backward pass; "" if there is none. Kernel maps still work, but gradients and
        tangent kernels through it raise an error.

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
    """An operation that a reader did not understand.

    Every calculus raises an error for it.

    Parameters
    ----------
    name
        The name of the operation.
    reason
        The reason why it was not read.
    features
        The number of output channels; None if unknown.

    """

    name: str
    reason: str
    features: int | Any = None  # an integer or a symbol
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
    """The layer that consists of one primitive; None if there is none."""
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
            return Dropout(op.rate, op.active)
        case P.Reshape():
            return Flatten()
    return op.as_layer()


def _symbolic(value: Any) -> bool:
    return isinstance(value, sp.Basic) and bool(value.free_symbols)


_OWN: dict[str, type[Layer]] = {
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


class _Kinds(Mapping[str, type[Layer]]):
    """The layers by name: those of this file, and those of guests, imported when asked for."""

    def __getitem__(self, name: str) -> type[Layer]:
        return _OWN[name] if name in _OWN else LAYERS[name] if name in LAYERS else _OWN[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*_OWN, *map(str, LAYERS.places)])

    def __len__(self) -> int:
        return len(_OWN) + len(LAYERS.places)


KINDS = _Kinds()
__all__ += map(str, LAYERS.places)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in LAYERS:
        return LAYERS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
