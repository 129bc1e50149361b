"""Write JAX modules: functions of arrays, and initialisers ``init(key, shape, dtype)``.

Channels are on the last axis, and kernels have shape (*window, in / groups, out).
"""

from __future__ import annotations

from .content import Content
from .numpy_writer import CHECK
from .numpy_writer import LOCATIONS as NUMPY_LOCATIONS
from .numpy_writer import STANDARDISE as NUMPY_STANDARDISE
from .python_module import Framework, module_text
from .python_text import Dialect

DIALECT = Dialect.of_module(
    "jnp", "jnp.where({}, {}, {})", "jnp.minimum({}, {})",
    erf="jax.scipy.special.erf({})", erfc="jax.scipy.special.erfc({})", relu="jax.nn.relu({})",
    logistic="jax.nn.sigmoid({})", softplus="jnp.logaddexp({}, 0.0)",
)  # fmt: skip

LAYOUT = '''
def _placed(entries: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return a kernel (*window, in / groups, out) whose centre tap is ``entries``; all other taps are 0.

    In windows of even size, it is the tap after the centre.
    """
    return jnp.zeros(shape, entries.dtype).at[tuple(extent // 2 for extent in shape[:-2])].set(entries)
'''
DELTA = '''
def delta_orthogonal(
    key: jax.Array, shape: tuple[int, ...], dtype=float, groups: int = 1, sigma_w: float = 1.0
) -> jax.Array:
    """Draw initial weights of shape (in, out), or (*window, in / groups, out) for a convolution; biases start at 0.

    Only the centre tap of a convolution is nonzero. In every group of k inputs and m outputs, it is a uniformly
    random matrix with orthonormal rows (m <= k) or columns, multiplied by sigma_w max(sqrt(m / k), 1). Its entries
    have variance sigma_w^2 / k. Not for transposed convolutions. Equinox stores weights as (out, in / groups,
    *window); convert them with ``jnp.moveaxis(weight, (-1, -2), (0, 1))``.
    """
    inputs, outputs = shape[-2], _outputs(shape, groups)
    wide = jnp.promote_types(jnp.zeros((), dtype).dtype, jnp.float32)
    q, r = jnp.linalg.qr(jax.random.normal(key, (groups, max(inputs, outputs), min(inputs, outputs)), wide))
    q = q * jnp.where(jnp.diagonal(r, axis1=1, axis2=2) < 0, -1, 1).astype(wide)[:, None, :]
    q = sigma_w * math.sqrt(max(inputs, outputs) / inputs) * (q if inputs >= outputs else q.transpose(0, 2, 1))
    return _placed(jnp.moveaxis(q, 0, 1).reshape(inputs, -1), shape).astype(dtype)


def delta_gaussian(
    key: jax.Array, shape: tuple[int, ...], dtype=float, groups: int = 1, sigma_w: float = 1.0
) -> jax.Array:
    """Draw weights as :func:`delta_orthogonal`, but with independent Gaussian entries of variance sigma_w^2 / k."""
    _outputs(shape, groups)
    entries = jax.random.normal(key, shape[-2:], dtype)
    return _placed(sigma_w / math.sqrt(shape[-2]) * entries, shape)
'''
GAUSSIAN = '''
def gaussian(
    key: jax.Array, shape: tuple[int, ...], dtype=float, groups: int = 1, sigma_w: float = 1.0
) -> jax.Array:
    """Draw Gaussian weights of shape (in, out) or (*window, in / groups, out) for all taps; biases start at 0.

    Their variance is sigma_w^2 / fan-in, where the fan-in includes the taps. SIGMAS has sigma_w for each layer.
    """
    _outputs(shape, groups)
    return sigma_w / math.sqrt(math.prod(shape[:-1])) * jax.random.normal(key, shape, dtype)
'''


def to_jax(source: str) -> str:
    """Translate NumPy code to JAX."""
    return source.replace("np.ndarray", "jax.Array").replace("np.", "jnp.")


HELPERS = (("_outputs", CHECK), ("_placed", LAYOUT))
IMPORTS = {"math": "import math", "jax": "import jax", "jnp": "import jax.numpy as jnp"}
FRAMEWORK = Framework(
    "JAX",
    IMPORTS,
    "jax.Array",
    DIALECT,
    to_jax(NUMPY_LOCATIONS),
    DELTA,
    GAUSSIAN,
    to_jax(NUMPY_STANDARDISE),
    helpers=HELPERS,
)


def write_jax(content: Content) -> str:
    """Return the text of the JAX module."""
    return module_text(content, FRAMEWORK)
