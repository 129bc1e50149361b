"""Write NumPy modules: functions of arrays, and initialisers that take a Generator.

Channels are on the last axis, and kernels have shape (*window, in / groups, out).
"""

from __future__ import annotations

from .content import Content
from .python_module import Framework, module_text
from .python_text import Dialect

DIALECT = Dialect.of_module(
    "np",
    "np.where({}, {}, {})",
    "np.minimum({}, {})",
    erf="_erf({})",
    relu="np.maximum({}, 0.0)",
    logistic="_sigmoid({})",
    softplus="np.logaddexp({}, 0.0)",
)

ERF = '''
def _erf(x: np.ndarray) -> np.ndarray:
    """Compute the error function; scipy.special.erf is faster if SciPy is available."""
    x = np.asarray(x)
    return np.array([math.erf(t) for t in x.ravel().tolist()], dtype=x.dtype).reshape(x.shape)
'''
SIGMOID = '''
def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Compute 1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))
'''
CENTRE = '''
def _centre(weight: np.ndarray) -> np.ndarray:
    """Return a view of the centre tap of a weight (*window, in / groups, out); for dense layers, the whole weight.

    In windows of even size, it is the tap after the centre.
    """
    return weight[tuple(extent // 2 for extent in weight.shape[:-2])]
'''
CHECK = '''
def _outputs(shape: tuple[int, ...], groups: int) -> int:
    """Return the number of output channels per group."""
    if groups < 1 or shape[-1] % groups:
        raise ValueError(f"{shape[-1]} output channels cannot be divided into {groups} groups")
    return shape[-1] // groups
'''
DELTA = '''
def delta_orthogonal(
    rng: np.random.Generator, shape: tuple[int, ...], groups: int = 1, sigma_w: float = 1.0, dtype=np.float64
) -> np.ndarray:
    """Draw initial weights of shape (in, out), or (*window, in / groups, out) for a convolution; biases start at 0.

    Only the centre tap of a convolution is nonzero. In every group of k inputs and m outputs, it is a uniformly
    random matrix with orthonormal rows (m <= k) or columns, multiplied by sigma_w max(sqrt(m / k), 1). Its entries
    have variance sigma_w^2 / k. Not for transposed convolutions.
    """
    inputs, outputs = shape[-2], _outputs(shape, groups)
    weight = np.zeros(shape, dtype)
    centre = _centre(weight)
    for group in range(groups):
        q, r = np.linalg.qr(rng.standard_normal((max(inputs, outputs), min(inputs, outputs))))
        q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
        q = sigma_w * math.sqrt(max(inputs, outputs) / inputs) * (q if inputs >= outputs else q.T)
        centre[:, group * outputs : (group + 1) * outputs] = q
    return weight


def delta_gaussian(
    rng: np.random.Generator, shape: tuple[int, ...], groups: int = 1, sigma_w: float = 1.0, dtype=np.float64
) -> np.ndarray:
    """Draw weights as :func:`delta_orthogonal`, but with independent Gaussian entries of variance sigma_w^2 / k."""
    _outputs(shape, groups)
    weight = np.zeros(shape, dtype)
    centre = _centre(weight)
    centre[...] = sigma_w / math.sqrt(shape[-2]) * rng.standard_normal(centre.shape)
    return weight
'''
GAUSSIAN = '''
def gaussian(
    rng: np.random.Generator, shape: tuple[int, ...], groups: int = 1, sigma_w: float = 1.0, dtype=np.float64
) -> np.ndarray:
    """Draw Gaussian weights of shape (in, out) or (*window, in / groups, out) for all taps; biases start at 0.

    Their variance is sigma_w^2 / fan-in, where the fan-in includes the taps. SIGMAS has sigma_w for each layer.
    """
    _outputs(shape, groups)
    return (sigma_w / math.sqrt(math.prod(shape[:-1])) * rng.standard_normal(shape)).astype(dtype)
'''
STANDARDISE = '''
def standardise(weight: np.ndarray, sigma_w: float = 1.0) -> np.ndarray:
    """Return a weight with mean 0 and norm sigma_w over the fan-in; call this at every step.

    The shape is (*window, in / groups, out).
    """
    axes = tuple(range(weight.ndim - 1))
    centred = weight - weight.mean(axis=axes, keepdims=True)
    return sigma_w * centred / np.sqrt((centred * centred).sum(axis=axes, keepdims=True))
'''
LOCATIONS = '''
def normalise_locations(x: np.ndarray, extra: str = "mean_norm", value: float = 1.0) -> np.ndarray:
    """Normalise inputs (batch, *locations, channels) so that every location has mean square 1.

    A new last channel keeps information about the norm: ``extra`` "mean_norm" adds the root mean square of the
    example, "constant" adds ``value``, and "none" adds no channel. Locations where all channels are 0 become nan.
    """
    if extra not in ("mean_norm", "constant", "none"):
        raise ValueError(f'extra must be "mean_norm", "constant" or "none", got {extra!r}')
    channels, locations = x.shape[-1], tuple(range(1, x.ndim - 1))
    unit = np.abs(x).max(axis=(*locations, -1) if extra == "mean_norm" else -1, keepdims=True)
    if extra == "constant":
        unit = np.maximum(unit, value)
    x = x / unit
    squares = (x * x).sum(axis=-1, keepdims=True)
    if extra == "none":
        return x * (math.sqrt(channels) / np.sqrt(squares))
    if extra == "constant":
        added = value / unit
    else:
        added = np.broadcast_to(np.sqrt(squares.mean(axis=locations, keepdims=True) / channels), squares.shape)
    return np.concatenate([x, added], axis=-1) * (math.sqrt(channels + 1) / np.sqrt(squares + added * added))
'''

FRAMEWORK = Framework(
    "NumPy",
    {"math": "import math", "np": "import numpy as np"},
    "np.ndarray",
    DIALECT,
    LOCATIONS,
    DELTA,
    GAUSSIAN,
    STANDARDISE,
    helpers=(("_erf", ERF), ("_sigmoid", SIGMOID), ("_outputs", CHECK), ("_centre", CENTRE)),
)


def write_numpy(content: Content) -> str:
    """Return the text of the NumPy module."""
    return module_text(content, FRAMEWORK)
