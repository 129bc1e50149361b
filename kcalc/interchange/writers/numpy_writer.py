"""NumPy: functions of arrays, and initialisers that take a Generator.

Channels are in the last axis, kernels (*window, in / groups, out).
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
    """The error function; scipy.special.erf is faster, if it is at hand."""
    x = np.asarray(x)
    return np.array([math.erf(t) for t in x.ravel().tolist()], dtype=x.dtype).reshape(x.shape)
'''
SIGMOID = '''
def _sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))
'''
CENTRE = '''
def _centre(weight: np.ndarray) -> np.ndarray:
    """The centre tap of a convolution's weight (*window, in / groups, out) as a view; all of a dense layer's."""
    window = weight.shape[:-2]
    if any(extent % 2 == 0 for extent in window):
        raise ValueError(f"a kernel of shape {window} has no centre tap for Delta weights; use odd kernels")
    return weight[tuple(extent // 2 for extent in window)]
'''
CHECK = '''
def _outputs(shape: tuple[int, ...], groups: int) -> int:
    """The output channels of one group."""
    if groups < 1 or shape[-1] % groups:
        raise ValueError(f"{shape[-1]} output channels do not split into {groups} groups")
    return shape[-1] // groups
'''
DELTA = '''
def delta_orthogonal(
    rng: np.random.Generator, shape: tuple[int, ...], groups: int = 1, sigma_w: float = 1.0, dtype=np.float64
) -> np.ndarray:
    """Initial weights of shape (in, out), or (*window, in / groups, out) for a convolution. Biases start at zero.

    Of a convolution only the centre tap is not zero. In every group of k inputs and m outputs it is a uniformly
    random matrix with orthonormal rows (m <= k) or columns, times sigma_w max(sqrt(m / k), 1): entries have
    variance sigma_w^2 / k.
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
    """Like :func:`delta_orthogonal`, with independent Gaussian entries of variance sigma_w^2 / k."""
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
    """Initial weights of shape (in, out), or (*window, in / groups, out), Gaussian in all taps. Biases start at zero.

    Their variance is sigma_w^2 / fan-in, fan-in counting the taps; use the sigma_w of the layer in SIGMAS.
    """
    _outputs(shape, groups)
    return (sigma_w / math.sqrt(math.prod(shape[:-1])) * rng.standard_normal(shape)).astype(dtype)
'''
STANDARDISE = '''
def standardise(weight: np.ndarray, sigma_w: float = 1.0) -> np.ndarray:
    """The weight (*window, in / groups, out) with mean 0 and length sigma_w over the fan-in: used at every step."""
    axes = tuple(range(weight.ndim - 1))
    centred = weight - weight.mean(axis=axes, keepdims=True)
    return sigma_w * centred / np.sqrt((centred * centred).sum(axis=axes, keepdims=True))
'''
LOCATIONS = '''
def normalise_locations(x: np.ndarray, extra: str = "mean_norm", value: float = 1.0) -> np.ndarray:
    """Per-location normalisation of inputs (batch, *locations, channels): every location has mean square 1.

    ``extra`` says what a new last channel holds, so that lengths are not lost: "mean_norm", the root mean square
    of the example; "constant", ``value``; "none", no new channel. A vector without direction gives nan.
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
    """Write the NumPy module."""
    return module_text(content, FRAMEWORK)
