"""Write Keras 3 modules for any backend: serialisable functions, initialisers and layers.

Channels are on the last axis, and kernels have shape (*window, in / groups, out).
"""

from __future__ import annotations

from .content import Content
from .python_module import Framework, module_text
from .python_text import Dialect

NARROWING = (
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "arcsin",
    "arccos",
    "arctan",
    "arcsinh",
    "arccosh",
    "arctanh",
    "logaddexp",
)
"""Functions that keras.ops computes in float32 even for float64 inputs, on most backends."""
DIALECT = Dialect.of_module(
    "ops",
    "ops.where({}, {}, {})",
    "ops.minimum({}, {})",
    erf="ops.erf({})",
    relu="ops.relu({})",
    logistic="ops.sigmoid({})",
    softplus="ops.softplus({})",
    **{
        name.replace(
            "arc", "a"
        ): f'_apply("{name}", {", ".join(["{}"] * (1 + (name == "logaddexp")))})'
        for name in NARROWING
    },
)

APPLY = '''
def _apply(name: str, *x):
    """Call a function of keras.ops, or of the backend for float64, which keras.ops would convert to float32."""
    modules = {"jax": "jax.numpy", "numpy": "numpy", "torch": "torch", "tensorflow": "tensorflow.experimental.numpy"}
    module = modules.get(keras.backend.backend())
    wide = keras.backend.standardize_dtype(x[0].dtype) == "float64"
    if module is None or not wide or isinstance(x[0], keras.KerasTensor):
        return getattr(ops, name)(*x)
    return getattr(importlib.import_module(module), name)(*x)
'''
REGISTER = '@keras.saving.register_keras_serializable(package="kcalc")'
LAW = '''
class _Law(keras.initializers.Initializer):
    """An initialiser that draws new weights in every call; equal seeds give the same sequence of weights."""

    def __init__(self, groups: int = 1, sigma_w: float = 1.0, seed: int | None = None) -> None:
        self.groups, self.sigma_w = groups, sigma_w
        self.seed = random.randrange(2**31) if seed is None else seed
        self.calls = 0

    def get_config(self) -> dict:
        return {"groups": self.groups, "sigma_w": self.sigma_w, "seed": self.seed}

    def clone(self) -> "_Law":
        return type(self)(**self.get_config())

    def normal(self, shape: tuple[int, ...], dtype: str | None):
        """Draw standard normal numbers with at least float32 precision."""
        self.calls += 1
        wide = "float64" if (dtype or keras.config.floatx()) == "float64" else "float32"
        return keras.random.normal(shape, dtype=wide, seed=(self.seed + 7919 * self.calls) % 2**31)

    def outputs(self, shape: tuple[int, ...]) -> int:
        """Return the number of output channels per group."""
        if self.groups < 1 or shape[-1] % self.groups:
            raise ValueError(f"{shape[-1]} output channels cannot be divided into {self.groups} groups")
        return shape[-1] // self.groups
'''
PLACED = '''
def _placed(entries, shape: tuple[int, ...], dtype: str | None):
    """Return a kernel (*window, in / groups, out) whose centre tap is ``entries``; all other taps are 0.

    In windows of even size, it is the tap after the centre.
    """
    window = tuple(shape[:-2])
    margins = [(extent // 2, (extent - 1) // 2) for extent in window]
    kernel = ops.reshape(entries, (*(1 for _ in window), *shape[-2:]))
    return ops.cast(ops.pad(kernel, [*margins, (0, 0), (0, 0)]), dtype or keras.config.floatx())
'''
DELTA = f'''
{REGISTER}
class DeltaOrthogonal(_Law):
    """A ``kernel_initializer`` for Dense (in, out) and Conv (*window, in / groups, out); biases start at 0.

    Only the centre tap of a convolution is nonzero. In every group of k inputs and m outputs, it is a uniformly
    random matrix with orthonormal rows (m <= k) or columns, multiplied by sigma_w max(sqrt(m / k), 1). Its entries
    have variance sigma_w^2 / k. ``groups``: the groups of the layer. Not for transposed convolutions.
    """

    def __call__(self, shape, dtype=None):
        inputs, outputs = shape[-2], self.outputs(shape)
        q, r = ops.qr(self.normal((self.groups, max(inputs, outputs), min(inputs, outputs)), dtype))
        signs = ops.where(ops.diagonal(r, axis1=1, axis2=2) < 0, -1.0, 1.0)
        q = q * ops.expand_dims(ops.cast(signs, q.dtype), 1)
        q = q if inputs >= outputs else ops.swapaxes(q, 1, 2)
        q = self.sigma_w * math.sqrt(max(inputs, outputs) / inputs) * q
        return _placed(ops.reshape(ops.moveaxis(q, 0, 1), shape[-2:]), shape, dtype)


{REGISTER}
class DeltaGaussian(_Law):
    """Like :class:`DeltaOrthogonal`, but with independent Gaussian entries of variance sigma_w^2 / k."""

    def __call__(self, shape, dtype=None):
        self.outputs(shape)
        return _placed(self.sigma_w / math.sqrt(shape[-2]) * self.normal(tuple(shape[-2:]), dtype), shape, dtype)
'''
GAUSSIAN = f'''
{REGISTER}
class Gaussian(_Law):
    """A ``kernel_initializer`` for Dense (in, out) and Conv (*window, in / groups, out), Gaussian in all taps.

    The variance is sigma_w^2 / fan-in, where the fan-in includes the taps. SIGMAS has sigma_w for each layer.
    """

    def __call__(self, shape, dtype=None):
        self.outputs(shape)
        dtype = dtype or keras.config.floatx()
        return ops.cast(self.sigma_w / math.sqrt(math.prod(shape[:-1])) * self.normal(tuple(shape), dtype), dtype)
'''
STANDARDISE = '''
def standardise(weight, sigma_w: float = 1.0):
    """Return a kernel with mean 0 and norm sigma_w over the fan-in; call this at every step.

    The shape is (*window, in / groups, out).
    """
    axes = tuple(range(len(weight.shape) - 1))
    centred = weight - ops.mean(weight, axis=axes, keepdims=True)
    return sigma_w * centred / ops.sqrt(ops.sum(centred * centred, axis=axes, keepdims=True))
'''
LOCATIONS = f'''
def normalise_locations(x: keras.KerasTensor, extra: str = "mean_norm", value: float = 1.0) -> keras.KerasTensor:
    """Normalise inputs (batch, *locations, channels) so that every location has mean square 1.

    A new last channel keeps information about the norm: ``extra`` "mean_norm" adds the root mean square of the
    example, "constant" adds ``value``, and "none" adds no channel. Locations where all channels are 0 become nan.
    """
    if extra not in ("mean_norm", "constant", "none"):
        raise ValueError(f'extra must be "mean_norm", "constant" or "none", got {{extra!r}}')
    channels, locations = x.shape[-1], tuple(range(1, len(x.shape) - 1))
    unit = ops.max(ops.abs(x), axis=(*locations, -1) if extra == "mean_norm" else -1, keepdims=True)
    if extra == "constant":
        unit = ops.maximum(unit, value)
    x = x / unit
    squares = ops.sum(x * x, axis=-1, keepdims=True)
    if extra == "none":
        return x * (math.sqrt(channels) / ops.sqrt(squares))
    if extra == "constant":
        added = value / unit
    else:
        mean = ops.mean(squares, axis=locations, keepdims=True) if locations else squares
        added = ops.sqrt(mean / channels) * ops.ones_like(squares)
    return ops.concatenate([x, added], axis=-1) * (math.sqrt(channels + 1) / ops.sqrt(squares + added * added))


{REGISTER}
class NormaliseLocations(keras.layers.Layer):
    """A layer that applies :func:`normalise_locations`."""

    def __init__(self, extra: str = "mean_norm", value: float = 1.0, **options) -> None:
        super().__init__(**options)
        self.extra, self.value = extra, value

    def call(self, x):
        return normalise_locations(x, self.extra, self.value)

    def get_config(self) -> dict:
        return {{**super().get_config(), "extra": self.extra, "value": self.value}}
'''

FRAMEWORK = Framework(
    "Keras",
    {
        "importlib": "import importlib",
        "math": "import math",
        "random": "import random",
        "keras": "import keras",
        "ops": "from keras import ops",
    },
    "keras.KerasTensor",
    DIALECT,
    LOCATIONS,
    DELTA,
    GAUSSIAN,
    STANDARDISE,
    decorate=REGISTER,
    helpers=(("_apply", APPLY), ("_Law", LAW), ("_placed", PLACED)),
)


def write_keras(content: Content) -> str:
    """Return the text of the Keras module."""
    return module_text(content, FRAMEWORK)
