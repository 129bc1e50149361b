"""Write Flax modules: JAX functions, initialisers for ``kernel_init``, and layers that use them.

The initialiser factories work with NNX and Linen.
"""

from __future__ import annotations

from dataclasses import replace

from .content import Content
from .jax_writer import DELTA, FRAMEWORK, GAUSSIAN, IMPORTS
from .python_module import module_text

FACTORY = '''

def NAME_init(groups: int = 1, sigma_w: float = 1.0) -> nnx.Initializer:
    """Return :func:`NAME` as a ``kernel_init`` for NNX or Linen; ``groups``: the feature_group_count."""
    return functools.partial(NAME, groups=groups, sigma_w=sigma_w)
'''
LAYERS = '''

def linear(
    inputs: int, outputs: int, *, sigma_w: float = 1.0, sigma_b: float = 0.0, rngs: nnx.Rngs, **options
) -> nnx.Linear:
    """Return an ``nnx.Linear`` with the initial weights of this shaping."""
    bias = nnx.initializers.normal(sigma_b) if sigma_b else nnx.initializers.zeros_init()
    options |= {"kernel_init": LAW_init(sigma_w=sigma_w), "bias_init": bias}
    return nnx.Linear(inputs, outputs, rngs=rngs, **options)


def conv(
    inputs: int,
    outputs: int,
    kernel_size: int | tuple[int, ...],
    *,
    groups: int = 1,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    rngs: nnx.Rngs,
    **options,
) -> nnx.Conv:
    """Return an ``nnx.Conv`` with the initial weights of this shaping."""
    bias = nnx.initializers.normal(sigma_b) if sigma_b else nnx.initializers.zeros_init()
    options |= {"kernel_init": LAW_init(groups, sigma_w), "bias_init": bias, "feature_group_count": groups}
    return nnx.Conv(inputs, outputs, kernel_size, rngs=rngs, **options)
'''


def _law(source: str, law: str, *others: str) -> str:
    factories = "".join(FACTORY.replace("NAME", name) for name in (law, *others))
    return source + factories + LAYERS.replace("LAW", law)


FLAX = replace(
    FRAMEWORK,
    title="Flax",
    imports={"functools": "import functools"} | IMPORTS | {"nnx": "from flax import nnx"},
    delta=_law(DELTA, "delta_orthogonal", "delta_gaussian"),
    gaussian=_law(GAUSSIAN, "gaussian"),
)


def write_flax(content: Content) -> str:
    """Return the text of the Flax module."""
    return module_text(content, FLAX)
