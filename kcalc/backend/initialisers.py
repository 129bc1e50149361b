"""Distributions of initial weights.

An initialiser defines the variance of an entry (``variance``, for sigma_w = 1) and a fixed factor
that multiplies the weights (``multiplier``). It turns standard normals into *unit* weights, whose
nonzero entries have mean square 1. A parameterization decides whether the size of the weights goes
into the draw or into a factor.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..fields.arguments import positive_number
from ..foundation.errors import KcalcError, glimpse, unknown

Array = Any
Node = Hashable
KEY_WORDS = (2, 4)  # lengths of the keys that jax.random.PRNGKey makes


@dataclass(frozen=True)
class Fan:
    """The dimensions of a weight array.

    ``window`` is the kernel size, ``()`` for a dense layer. ``inputs`` and ``outputs`` are the
    numbers of channels per group.
    """

    window: tuple[int, ...]
    inputs: int
    outputs: int
    groups: int = 1

    @property
    def taps(self) -> int:
        """Return the number of kernel taps."""
        return math.prod(self.window)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the weight: window, input channels per group, all output channels."""
        return (*self.window, self.inputs, self.outputs * self.groups)


@dataclass(frozen=True)
class Initialiser:
    """Independent entries with variance ``sigma_w^2 / fan_in``, where fan_in counts every tap.

    Base class of the other initialisers.
    """

    name: str = "gaussian"
    delta: bool = False

    def variance(self, fan: Fan) -> float:
        """Return the mean square of a nonzero entry, for sigma_w = 1 and without the multiplier."""
        return 1 / (fan.inputs * (1 if self.delta else fan.taps))

    def multiplier(self, fan: Fan) -> float:
        """Return the fixed factor that multiplies the weights."""
        return 1.0

    def check(self, fan: Fan, node: Node) -> None:
        """Raise KcalcError if the initialiser does not fit the layer."""
        if self.delta and any(extent % 2 == 0 for extent in fan.window):
            raise KcalcError(
                f"node {node!r}: a {' x '.join(map(str, fan.window))} kernel has no centre tap, "
                "which Delta initialisation needs; use odd kernel sizes or weights='orthogonal' "
                "(which violates the assumptions of kernel maps)"
            )

    def noise_shape(self, fan: Fan) -> tuple[int, ...]:
        """Return the shape (groups, fan_in, fan_out) of the normals for :meth:`unit`."""
        return fan.groups, (1 if self.delta else fan.taps) * fan.inputs, fan.outputs

    def unit(self, noise: Array, fan: Fan) -> Array:
        """Return unit weights of shape ``fan.shape``.

        ``noise`` contains standard normals of shape ``noise_shape(fan)``.
        """
        import jax
        import jax.numpy as jnp

        blocks = self.matrix(noise[0])[None] if fan.groups == 1 else jax.vmap(self.matrix)(noise)
        window = () if self.delta else fan.window
        entries = jnp.moveaxis(blocks, 0, 1).reshape(*window, fan.inputs, -1)
        if not self.delta or not fan.window:
            return entries
        centre = tuple(extent // 2 for extent in fan.window)
        return jnp.zeros(fan.shape, noise.dtype).at[centre].set(entries)

    def matrix(self, noise: Array) -> Array:
        """Return unit weights for one group, (fan_in, fan_out), from standard normals."""
        return noise


@dataclass(frozen=True)
class Orthogonal(Initialiser):
    """Scale-corrected uniform orthogonal weights [DKS sec. 4.1].

    The m x k matrix from k to m channels is a Haar-distributed matrix with orthonormal rows
    (m <= k) or columns (m > k), multiplied by max(sqrt(m/k), 1). The mean square of an entry is
    1/k. For m >= k, |W z|^2/m = |z|^2/k exactly.
    """

    name: str = "orthogonal"

    def matrix(self, noise: Array) -> Array:
        import jax.numpy as jnp

        tall = noise.shape[0] >= noise.shape[1]
        q, r = jnp.linalg.qr(noise if tall else noise.T)
        # q is Haar-distributed only if r has a positive diagonal
        q = q * jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(q.dtype)
        return math.sqrt(max(noise.shape)) * (q if tall else q.T)  # max(sqrt(m/k), 1) sqrt(k)


@dataclass(frozen=True)
class Uniform(Initialiser):
    """Independent uniform entries with variance ``sigma_w^2 / fan_in``."""

    name: str = "uniform"

    def matrix(self, noise: Array) -> Array:
        import jax

        # erf of a normal is uniform on [-1, 1]
        return math.sqrt(3) * jax.scipy.special.erf(noise / math.sqrt(2))


@dataclass(frozen=True)
class Glorot(Uniform):
    """Independent uniform entries with variance ``2 sigma_w^2 / (fan_in + fan_out)``.

    Kernel maps describe this distribution only if the fan-in equals the fan-out.
    """

    name: str = "glorot"

    def variance(self, fan: Fan) -> float:
        return 2 / (fan.taps * (fan.inputs + fan.outputs))


@dataclass(frozen=True)
class Geometric(Initialiser):
    """Gaussian entries with variance ``sigma_w^2 / (k_typ k sqrt(n m))`` [scaling calculus, A.3].

    The weights are multiplied by ``sqrt(k_typ / k)``.

    n and m are the numbers of input and output channels, k is the side of the kernel, and
    ``typical`` = k_typ is the side of the kernel in most layers of the network. With this
    distribution, all weights have the same scaling if the activation scaling is constant. relu
    needs sigma_w^2 = 2.
    """

    name: str = "geometric"
    typical: float = 1.0

    def __post_init__(self) -> None:
        try:
            positive_number(self.typical, "typical")
        except KcalcError:
            raise KcalcError(
                "Geometric: typical must be the side length of a kernel, a number > 0, got "
                f"{glimpse(self.typical)}"
            ) from None

    def _side(self, fan: Fan) -> float:
        return math.sqrt(fan.taps)

    def variance(self, fan: Fan) -> float:
        return 1 / (self.typical * self._side(fan) * math.sqrt(fan.inputs * fan.outputs))

    def multiplier(self, fan: Fan) -> float:
        return math.sqrt(self.typical / self._side(fan))


@dataclass(frozen=True)
class Zeros(Initialiser):
    """Zero weights, for example for the last layer of a residual branch."""

    name: str = "zeros"

    def noise_shape(self, fan: Fan) -> tuple[int, ...]:
        return 1, 0, 0

    def unit(self, noise: Array, fan: Fan) -> Array:
        import jax.numpy as jnp

        return jnp.zeros(fan.shape, noise.dtype)


@dataclass(frozen=True)
class Mirrored(Initialiser):
    """Weights ``(W, -W)`` for the two halves of the input channels [DKS sec. 26.5].

    The two halves contain phi(x) and phi(-x). ``half`` is the distribution of W.
    """

    name: str = "looks_linear"
    half: Initialiser = Orthogonal("delta_orthogonal", delta=True)

    def variance(self, fan: Fan) -> float:
        return self.half.variance(fan)

    def check(self, fan: Fan, node: Node) -> None:
        self.half.check(fan, node)
        if fan.inputs % 2 or fan.groups != 1:
            raise KcalcError(
                f"node {node!r}: mirrored weights need an even number of input channels per "
                "group, because the channels form pairs (phi(x), phi(-x)), but there are "
                f"{fan.inputs} per group"
            )

    def noise_shape(self, fan: Fan) -> tuple[int, ...]:
        return self.half.noise_shape(_halved(fan))

    def unit(self, noise: Array, fan: Fan) -> Array:
        import jax.numpy as jnp

        weight = self.half.unit(noise, _halved(fan))
        return jnp.concatenate([weight, -weight], axis=-2)


def _halved(fan: Fan) -> Fan:
    return Fan(fan.window, fan.inputs // 2, fan.outputs)


LAWS: dict[str, Initialiser] = {
    law.name: law
    for law in (
        Orthogonal(),
        Initialiser(),
        Orthogonal("delta_orthogonal", delta=True),
        Initialiser("delta_gaussian", delta=True),
        Uniform(),
        Uniform("delta_uniform", delta=True),
        Glorot(),
        Geometric(),
        Zeros(),
        Mirrored(),
    )
}


def initialiser(weights: Any) -> Initialiser:
    """Return the initialiser with the given name; an initialiser is returned unchanged.

    Raises KcalcError for unknown names.
    """
    if isinstance(weights, Initialiser):
        return weights
    if not isinstance(weights, str) or weights not in LAWS:
        raise unknown("distribution of initial weights", weights, LAWS)
    return LAWS[weights]


def describes_theory(law: Initialiser, fan: Fan) -> bool:
    """Whether kernel maps describe a layer with this initialiser.

    The weights must be Gaussian, orthogonal or uniform, with a single nonzero tap.
    """
    kind = type(law) in (Initialiser, Orthogonal, Uniform)
    return kind and (law.delta or fan.taps == 1)


def random_bits(key: Any) -> Array:
    """Return a JAX random key, given a key or an integer.

    Raises KcalcError for anything else, including an array of several keys.
    """
    import jax
    import jax.numpy as jnp

    number = isinstance(key, int | np.integer) and not isinstance(key, bool)
    if number:
        if not -(2**63) <= int(key) < 2**63:
            raise KcalcError(
                f"the key must fit into 64 bits, got an integer with {int(key).bit_length()} bits; "
                f"use a smaller integer"
            )
        return jax.random.key(int(key))
    shape, dtype = getattr(key, "shape", None), getattr(key, "dtype", None)
    if isinstance(key, bool) or shape is None or dtype is None or isinstance(key, np.generic):
        raise KcalcError(f"the key must be jax.random.key(seed) or an integer, got {glimpse(key)}")
    typed = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not typed and jnp.issubdtype(dtype, np.integer) and shape == ():
        return jax.random.key(key)
    if shape == () if typed else dtype == np.uint32 and shape in ((n,) for n in KEY_WORDS):
        return key
    hint = "; use jax.vmap to draw with several keys" if typed or dtype == np.uint32 else ""
    raise KcalcError(
        "the key must be a single jax.random.key(seed) or an integer, got an array "
        f"{dtype}{list(shape)}{hint}"
    )
