"""The loss and the count of correct answers.

Cross-entropy with smoothed labels, and predictions that are right.
"""

from __future__ import annotations

from typing import Any

Array = Any


def cross_entropy(logits: Array, labels: Array, smoothing: float = 0.0) -> Array:
    """``-sum_k p_k log softmax(z)_k`` per example.

    p is 1 - smoothing at the label plus smoothing / classes everywhere.

    ``logits`` (examples, classes), ``labels`` (examples,).  In single precision at least.
    """
    import jax
    import jax.numpy as jnp

    wide = logits.astype(jnp.float32) if jnp.finfo(logits.dtype).bits < 32 else logits
    log_p = jax.nn.log_softmax(wide)
    own = jnp.take_along_axis(log_p, labels[:, None], axis=-1)[:, 0]
    return -((1 - smoothing) * own + smoothing * log_p.mean(axis=-1))


def correct(logits: Array, labels: Array) -> Array:
    """Whether the largest logit is at the label, per example; not where a logit is nan."""
    import jax.numpy as jnp

    return (jnp.argmax(logits, axis=-1) == labels) & jnp.isfinite(logits).all(axis=-1)
