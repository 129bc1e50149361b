"""The layers of a network: one frozen dataclass per kind of layer.

A layer defines the function of a node, and calculi define how to interpret it. Numbers may be
Python or SymPy numbers, or SymPy expressions with free symbols. Symbolic methods keep these
symbols; numerical methods require values (``net.subs``).
"""

from __future__ import annotations

import math
import operator
import sys
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
LARGEST_BIAS = 1e100  # largest standard deviation of score biases
SMALL = 1e-150  # squares of larger numbers do not underflow
SHOWN = 16  # largest number of matrix entries to print


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
    except Exception:  # user objects may raise anything when they are read
        number = 0
    if not 0 < number <= LARGEST:
        raise _fail(layer, f"{name} must be a positive integer, got {glimpse(value)}")
    object.__setattr__(layer, name, number)


def _extent(layer: object, name: str, optional: bool = False) -> None:
    """Check that a field is a positive integer, or a tuple of positive integers (one per axis)."""
    value = getattr(layer, name)
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        object.__setattr__(layer, name, extents(value, f"{type(layer).__name__}: {name}"))
    else:
        _count(layer, name, optional)


@dataclass(frozen=True)
class Layer:
    """Base class of all layers.

    Parameters
    ----------
    arity
        The minimum and maximum number of inputs.
    per_input
        {field with one value per input: description}.
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
        """Show the fields; those with ``repr=False`` only if they differ from the default."""
        shown = [
            f"{item.name}={getattr(self, item.name)!r}"
            for item in fields(self)
            if item.repr or getattr(self, item.name) != item.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def free_symbols(self) -> set[sp.Symbol]:
        """SymPy symbols in the fields of the layer and in the constants of its activation."""
        found: set[Any] = set()
        for value in vars(self).values():
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, sp.Basic | Activation):
                    found |= part.free_symbols
        return found

    def subs(self, values: dict[Any, Any]) -> Layer:
        """Replace SymPy symbols by numbers; ``values`` maps symbols to numbers."""
        return self.mapped(
            lambda value: value.subs(values) if isinstance(value, sp.Basic | Activation) else value
        )

    def mapped(self, change: Callable[[Any], Any]) -> Layer:
        """Apply ``change`` to the value of every field and return the new layer.

        For a tuple, ``change`` is applied to each entry.
        """
        return type(self)(
            **{
                name: tuple(map(change, v)) if isinstance(v, tuple) else change(v)
                for name, v in vars(self).items()
            }
        )

    def lowered(self, reads: Reads) -> Primitive | Program | None:
        """Return the primitives of the layer (:mod:`kcalc.network.primitives`).

        The result is one primitive, a program of several primitives, or None for the identity.
        """
        return P.Unknown(origin=self)

    def emits(self, reads: Reads) -> Count | None:
        """Return the number of output channels, or None if it is unknown.

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
        """Return the layer without its input order, and a mark for each of the ``count`` inputs.

        Networks are compared by these values.
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
    """Check the field ``trained`` and store it as one of the known values."""
    given: Any = getattr(layer, "trained")  # noqa: B009  # only layers with weights have this field
    if isinstance(given, np.bool_):
        object.__setattr__(layer, "trained", bool(given))
    elif not isinstance(given, bool) and (not isinstance(given, str) or given not in choices):
        shown = ", ".join(map(repr, choices))
        raise _fail(layer, f"trained must be one of {shown}, got {glimpse(given)}")


PADDINGS = ("same", "valid", "circular", "reflect", "replicate", "causal")


@dataclass(frozen=True)
class Affine(Layer):
    """A linear map with weights and a bias: dense, or a convolution if ``kernel`` is larger than 1.

    At initialisation ``Var W = sigma_w^2 / fan_in`` and ``Var b = sigma_b^2``.

    Parameters
    ----------
    features
        The number of output channels; None if unknown.
    kernel, stride
        A number, or one number per axis of the image.
    padding
        "same" gives ``ceil(size / stride)`` outputs, with the smaller half of the padding at the
        start (as in JAX, Flax and Keras). "circular", "reflect" and "replicate" give the same
        number of outputs but replace the zeros by this kind of padding. "causal" puts all padding
        at the start. "valid" uses no padding. Numbers have the same meaning as in PyTorch.
    groups
        The number of channel groups; channels of different groups do not mix.
    bias
        Whether the layer has a bias.
    sigma_w, sigma_b
        Numbers or SymPy expressions.
    standardised
        Whether the weights are standardised. The weights of each output then have mean 0 over the
        fan-in (and the same variance), so the channel mean of the input has no effect.
    dilation
        The step between taps: one number, or one number per axis.
    trained
        True trains weights and biases; False trains neither, as in a frozen layer. "weights" or
        "biases" trains only those. "indirectly" means that both are functions of other trained
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
                    "padding must not be empty; pass one number, or one per kernel axis",
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
                    self,
                    f"the square of {name} = {glimpse(value)} exceeds the range of double "
                    f"precision",
                )
        if not self.bias and self.sigma_b != 0:
            raise _fail(self, f"sigma_b = {self.sigma_b} needs bias=True")

    def lowered(self, reads: Reads) -> Primitive:
        return P.Fresh(**vars(self), reads=reads.channels[0], origin=self)

    def emits(self, reads: Reads) -> Count | None:
        for count, what in ((reads.channels[0], "input"), (self.features, "output")):
            if count is not None and self.groups != 1 and count % self.groups:
                raise GraphError(
                    f"node {reads.node!r}: its {count} {what} channels cannot be split into "
                    f"{self.groups} equal groups"
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

    if TYPE_CHECKING:  # the constructor accepts more types than the field

        def __init__(self, activation: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", activation(self.activation))

    def lowered(self, reads: Reads) -> Primitive:
        return P.Post(activation=self.activation, origin=self)


@dataclass(frozen=True)
class SurrogateGradient(Layer):
    """An elementwise activation with a different derivative in backpropagation.

    Backpropagation multiplies gradients by ``slope`` instead of the derivative of ``activation``; a
    straight-through estimator has slope 1. Kernel maps use the activation, while gradients and
    tangent kernels use the slope. [Bengio et al. 2013]

    Parameters
    ----------
    activation
        The activation, as for :class:`Nonlinear`.
    slope
        A function of the layer's input, of the same types as ``activation``.

    """

    activation: Activation
    slope: Activation
    family: ClassVar[str] = "activation"

    if TYPE_CHECKING:  # the constructor accepts more types than the fields

        def __init__(self, activation: Any, slope: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", activation(self.activation))
        object.__setattr__(self, "slope", activation(self.slope))

    def lowered(self, reads: Reads) -> Primitive:
        return P.Surrogate(activation=self.activation, slope=self.slope, origin=self)


@dataclass(frozen=True)
class Sum(Layer):
    """``sum_i w_i x_i`` over the inputs in slot order.

    The weights are never renormalised.

    Parameters
    ----------
    weights
        The weights w_i; None sets all of them to 1.

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
            raise _fail(self, "weights must not be empty; omit weights to set all of them to 1")
        if all(w == 0 for w in weights):
            raise _fail(
                self,
                "all weights are 0, so the output is always 0; use at least one nonzero weight",
            )
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
    """Concatenation along the channels.

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
            raise _fail(self, "channels must not be empty; omit channels if features are known")
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
            "unknown, but other widths are known; set channels="
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
        A nonzero number.

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

    With an Affine before each input, this is a gated linear unit: GLU with ``"sigmoid"``, SwiGLU
    with ``"swish"``, GEGLU with ``"gelu"`` [Dauphin et al. 2017; Shazeer 2020].

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
    """Base class of normalisation layers, which ``Network.without_normalization`` removes.

    The fields ``centred``, ``over`` and, if present, ``groups`` have the same meaning as in
    :class:`kcalc.network.primitives.Norm`. A more complex normalisation returns a program from
    ``lowered``.
    """

    centred: ClassVar[bool] = True
    over: ClassVar[str] = "channels"
    family: ClassVar[str] = "normalisation"

    def norm(self, reads: Reads) -> P.Norm:
        """Return the primitive that divides by the standard deviation or root mean square."""
        given = {"over": self.over, "groups": getattr(self, "groups", 1)}
        return P.Norm(centred=self.centred, **given, reads=reads.channels[0], origin=self)

    def lowered(self, reads: Reads) -> Primitive | Program:
        return self.norm(reads)

    def emits(self, reads: Reads) -> Count | None:
        count, groups = super().emits(reads), getattr(self, "groups", 1)
        if self.over == "channels" and isinstance(count, int) and count % groups:
            raise GraphError(
                f"node {reads.node!r}: the {count} channels of its input cannot be split "
                f"into {groups} equal groups"
            )
        return count


@dataclass(frozen=True, repr=False)
class LayerNorm(Normalisation):
    """Subtract the mean over channels and divide by the standard deviation, at each location.

    At initialisation the gain is 1 and the bias is 0; epsilon is 0.

    Parameters
    ----------
    groups
        The number of channel groups, each normalised separately.

    """

    groups: int = field(default=1, repr=False)

    def __post_init__(self) -> None:
        _count(self, "groups")


@dataclass(frozen=True, repr=False)
class RMSNorm(Normalisation):
    """Divide by the root mean square over channels at each location (gain 1, epsilon 0).

    Parameters
    ----------
    groups
        The number of channel groups, each normalised separately, such as attention heads.

    """

    groups: int = field(default=1, repr=False)
    centred: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _count(self, "groups")


@dataclass(frozen=True)
class L2Norm(Normalisation):
    """Divide by the Euclidean norm over channels at each location: ``scale x / |x|`` (epsilon 0).

    Parameters
    ----------
    groups
        The number of channel groups, each normalised separately, such as the heads of an attention
        with normalised queries and keys.
    scale
        The gain at initialisation. The mean square of the output is ``scale^2`` divided by the
        number of channels per group, so the number of input channels must be known.

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
                f"node {reads.node!r} (L2Norm): its output depends on the number of channels "
                f"of {reads.parents[0]!r}, which is unknown; set features= for that node"
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
        use it to approximate the layer; ``kc.large_batch(network)`` computes it.

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
    """Normalise each channel group of each example over its channels and all locations.

    At initialisation the gain is 1 and the bias is 0; epsilon is 0.

    Parameters
    ----------
    groups
        The number of channel groups. With one group, this is layer normalisation over all channels
        and locations.

    """

    groups: int = 1
    over: ClassVar[str] = "positions"

    def __post_init__(self) -> None:
        _count(self, "groups")


@dataclass(frozen=True)
class TokenMix(Layer):
    """A linear map over locations, ``y_t = sum_s matrix[t][s] x_s``.

    Locations are tokens; in an image, they are counted row by row. The matrix is the same for every
    channel and input. Such a fixed mixing describes attention with zero query or key weights, or
    the token weights of an MLP-Mixer.

    Parameters
    ----------
    matrix
        An array (T, S) of numbers. If it is not square, the output is an image with one axis of T
        locations.
    random
        Whether the entries are random Gaussian weights. Maps without locations then use new weights
        with the same mean square (exact for many uncorrelated tokens).

    """

    matrix: Any
    random: bool = False

    def __post_init__(self) -> None:
        try:
            array = np.asarray(self.matrix, dtype=float)
        except Exception:  # user objects may raise anything when they are read
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
                "token is always 0; use at least one nonzero entry",
            )
        object.__setattr__(self, "matrix", tuple(map(tuple, array.tolist())))
        object.__setattr__(self, "random", truth(self.random, "TokenMix: random"))

    def __repr__(self) -> str:
        rows, columns = len(self.matrix), len(self.matrix[0])
        shown = self.matrix if rows * columns <= SHOWN else f"<{rows} x {columns} numbers>"
        return f"TokenMix(matrix={shown}{', random=True' if self.random else ''})"

    @property
    def array(self) -> np.ndarray:
        """The matrix as an array of shape (T, S)."""
        return np.array(self.matrix)

    @property
    def permutes(self) -> float | None:
        """The common factor of a signed permutation of tokens, or None for other matrices.

        Every token must read exactly one token, multiplied by this factor or its negative.
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
    """One vector per token id, with independent entries of variance ``sigma^2``.

    The layer reads token ids; different ids have independent vectors. Kernel maps treat it as an
    Affine without bias that reads one-hot vectors.

    Parameters
    ----------
    features
        The number of channels; None if unknown.
    vocabulary
        The number of token ids; None if unknown.
    sigma
        The standard deviation of the entries.
    trained
        False for a frozen table; for "indirectly", see :class:`Affine`.

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
    """Add a position vector to every token, the same for all inputs.

    Parameters
    ----------
    kind
        "learned" vectors have independent entries of variance ``sigma^2``. "sinusoidal" vectors are
        the fixed sines and cosines of [Vaswani et al. 2017], multiplied by ``sqrt(2) sigma`` to
        have mean square ``sigma^2``. "constant" is one learned vector for all positions, such as
        the embedding of a single token type.
    sigma
        The root mean square of the vectors.
    length
        The number of positions; None if unknown.
    trained
        False if learned vectors are frozen; for "indirectly", see :class:`Affine`.

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
    """Prepend learned tokens, the same for all inputs, to the tokens of the input.

    Parameters
    ----------
    sigma
        The standard deviation of the tokens' independent entries.
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

    It computes ``out_i = sum_j (identity I + A - centre / T)_ij v_j`` with ``A_i =
    softmax_j(s_ij)`` and ``s_ij = scale q_i . k_j``. With a mask, ``centre`` subtracts the mean
    over the tokens that i sees. The inputs are queries, keys and values, in this order. Separate
    Affine layers produce them and read the heads.

    If there are several masks, a token sees another token only if all masks allow it.

    Parameters
    ----------
    heads
        The number of heads; None if unknown.
    key_width
        The number of channels per head of the queries and keys; None if unknown.
    causal
        Whether token i sees only tokens j <= i.
    scale
        "sqrt" is ``1 / sqrt(key_width)`` and "linear" is ``1 / key_width``. A number requires
        ``key_width``.
    normaliser
        "softmax", or a function that acts on each score separately: "sigmoid", ``A = 1 / (1 + T
        exp(-s))``; "relu", ``A = max(0, s) / T``; "identity", ``A = s``.
    identity, centre
        Numbers; they must be 0 unless the normaliser is softmax.
    sink
        Whether softmax includes one extra score of 0, whose weight is discarded.
    key_heads
        The number of key and value heads if several query heads share one. With None, every query
        head has its own.
    rotary
        The base of the rotary position embeddings for queries and keys, such as 10000; None for no
        rotary embeddings.
    alibi
        Whether to add the linear biases of ALiBi to the scores, with the slopes of the released
        code for this number of heads (Press et al. 2022).
    dropout
        The dropout rate of the attention weights; dropout is the identity in evaluation.
    wide
        True treats scores as Gaussian, their limit at large ``key_width``. False uses the
        distribution of the scores at the given ``key_width``; without sampling, this takes several
        hundred times longer, and derivatives are sampled. None uses Gaussian scores in formulas,
        and in sampling the scores at ``key_width`` if it is given. The assumptions of a result
        state which scores it uses.
    window
        Token i sees only tokens j with ``|i - j| < window``; None removes this mask.
    chunk
        Token i sees only its own chunk of ``chunk`` tokens, counted from the first token; None
        removes this mask.
    relative
        (sigma, buckets, furthest) adds learned biases to the scores (Raffel et al. 2020). There is
        one bias per head and bucket of distances j - i, with standard deviation sigma at
        initialisation. Unless ``causal``, half of the buckets are for j > i. Each bucket in the
        first half contains one distance, and the other buckets grow geometrically. All distances of
        at least ``furthest`` share the last bucket.
    prefix
        Token i sees tokens j <= i and the first ``prefix`` tokens, as in a prefix language model
        (with ``causal=False``). None removes this mask.

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
                "prefix is a causal mask that shows the first tokens to all tokens, but "
                "causal=True would hide these first tokens from each other; use causal=False",
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
                    f"scale = {self.scale} needs key_width, the number of channels of each head's "
                    "queries and keys",
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
                        f"{name} applies only to softmax, but the normaliser is "
                        f"{self.normaliser!r}",
                    )
            if self.scale == "linear":
                raise _fail(
                    self,
                    "scores divided by key_width vanish for wide heads, and so do the weights of "
                    f"{self.normaliser!r}; use scale='sqrt'",
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
            raise _fail(
                self, f"heads = {self.heads} must be divisible by key_heads = {self.key_heads}"
            )
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
                "wide=False requires softmax without a sink and key_width >= 4 (the number of "
                "channels of each head's queries and keys)",
            )
        if self.rotary is not None and self.key_width is not None and self.key_width % 2:
            raise _fail(
                self,
                f"rotary embeddings rotate pairs of channels, but key_width = {self.key_width} is "
                "odd",
            )

    @property
    def masks(self) -> M.Masks:
        """The masks of the layer (:mod:`kcalc.network.masks`)."""
        return M.masks_of(self)

    def alike(self) -> Attend:
        """Return the layer without masks, rotary embeddings and biases.

        Its tokens are exchangeable.
        """
        void = {item.name: item.default for item in fields(self) if item.name in BY_PLACE}
        return replace(self, **void)

    def _relative(self) -> tuple[float, int, int]:
        """Check the field ``relative``."""
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
                f"the furthest distance of relative must be greater than {near}, the number of "
                f"distances with their own bucket, got {furthest}",
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
        """Return the total number of value channels over all heads."""
        queries, keys, values = reads.channels
        heads, shared = self.heads, self.key_heads or self.heads
        widths = ((queries, heads, "queries"), (keys, shared, "keys"), (values, shared, "values"))
        for width, count, what in widths:
            if width is not None and count is not None and width % count:
                raise GraphError(
                    f"node {reads.node!r}: the {width} channels of its {what} cannot be "
                    f"split into {count} equal heads"
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
                    f"node {reads.node!r}: queries have {queries} channels, but keys have "
                    f"{keys}; pass heads= and key_heads="
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
        The step between windows; None uses the window size.
    padding
        "valid" uses only windows inside the image. "same" uses ``ceil(size / stride)`` windows and
        ignores entries outside the image.

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
    """Resize images to ``floor(factor n)`` positions along an axis of n positions.

    Parameters
    ----------
    factor
        A number > 0, or one number per axis.
    kind
        "nearest" copies the nearest position. "linear" interpolates along every axis, and "corners"
        does so with the first and last positions fixed (PyTorch's ``align_corners=True``). "zeros"
        requires integer factors: it inserts zeros after every position and multiplies by the square
        root of the product of the factors, which preserves the mean square over positions. With an
        Affine after it, this is a transposed convolution of stride ``factor``.
    place
        For "zeros", how many of the zeros come before each position instead of after it: a number
        >= 0, or one number per axis.

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
    """Turn channels into positions, or the reverse.

    For ``factor = (r, s)``, an image of ``C r s`` channels becomes an image of C channels with r
    times as many rows and s times as many columns. Output (r i + a, s j + b) of channel k is input
    (i, j) of channel ``(k r + a) s + b``, as in PyTorch.

    Parameters
    ----------
    factor
        A positive integer for both axes, or one integer per axis.
    back
        Whether to apply the reverse, which turns positions into channels.

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
        """The factors, one per axis."""
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
    and covariances between two examples do not change: q' = q / r and c' = r c. Therefore ``C(1) <
    1``, and there is no edge of chaos. The squared gradient of one example is divided by r, and the
    tangent kernel between two examples does not change. [Schoenholz et al. 2017, sec. 5]

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
    """Turn locations into channels."""

    passes: ClassVar[bool] = True

    def lowered(self, reads: Reads) -> Primitive:
        return P.Reshape(origin=self)

    def emits(self, reads: Reads) -> None:
        return None


@dataclass(frozen=True)
class Identity(Layer):
    """Return the input unchanged."""

    passes: ClassVar[bool] = True

    def lowered(self, reads: Reads) -> None:
        return None


@dataclass(frozen=True)
class StopGradient(Layer):
    """Return the input unchanged but block its gradient: ``detach``, ``stop_gradient``.

    Kernel maps treat it as the identity. Earlier gradients are 0, and earlier weights do not
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
            raise _fail(self, "unknown must be a string")
        utf8(self.unknown, "StopGradient: unknown")

    def lowered(self, reads: Reads) -> Primitive:
        return P.Stop(unknown=self.unknown, origin=self)


@dataclass(frozen=True)
class Opaque(Layer):
    """An operation that a model reader could not interpret.

    Every calculus raises an error for it.

    Parameters
    ----------
    name
        The name of the operation.
    reason
        The reason why it could not be interpreted.
    features
        The number of output channels; None if unknown.

    """

    name: str
    reason: str
    features: int | Any = None  # an integer or a symbol
    arity: ClassVar[tuple[float, float]] = (1, MANY)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.reason, str):
            raise _fail(self, "name and reason must be strings")
        utf8(self.name, "Opaque: name")
        utf8(self.reason, "Opaque: reason")
        _count(self, "features", optional=True)

    def emits(self, reads: Reads) -> Count | None:
        return self.features


def _positive(layer: Layer, name: str) -> None:
    """Check that a field is a number > 0, or an expression that can be positive."""
    value = as_number(getattr(layer, name), f"{type(layer).__name__}.{name}")
    object.__setattr__(layer, name, value)
    if not _symbolic(value) and not value > 0:
        raise _fail(layer, f"{name} must be > 0, got {value}")


def layer_of(op: Primitive) -> Layer | None:
    """Return the layer that consists of only this primitive, or None if no such layer exists."""
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
    """Layer classes by name; those of optional parts of kcalc are imported on first use."""

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
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )


def __dir__() -> list[str]:
    return __all__
