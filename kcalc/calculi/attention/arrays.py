"""Attention on arrays."""

from __future__ import annotations

from typing import Any

from ...network.score_biases import alibi_slopes
from .weights import distance_buckets, mean_over_visible, visible, weights_of

Array = Any


def attend(
    layer: Any, queries: Array, keys: Array, values: Array, biases: Array | None = None
) -> Array:
    """Apply attention to queries, keys and values.

    Queries have shape (..., tokens, heads, channels); keys and values have shape (..., tokens, key
    heads, channels). ``layer`` is an :class:`Attend`, and ``biases`` (heads, buckets) are added to
    its scores.
    """
    import jax.numpy as jnp

    width, several = queries.shape[-1], queries.shape[-2] // keys.shape[-2]
    if layer.rotary is not None:
        queries, keys = (rotated(x, float(layer.rotary)) for x in (queries, keys))
    keys, values = (jnp.repeat(x, several, axis=-2) for x in (keys, values))
    scale = (
        {"sqrt": width**-0.5, "linear": 1 / width}[layer.scale]
        if isinstance(layer.scale, str)
        else float(layer.scale)
    )
    scores = jnp.einsum("...ihc,...jhc->...hij", queries, keys) * scale
    rows, columns = scores.shape[-2:]
    if biases is not None:
        scores = scores + biases[:, distance_buckets(layer, rows, columns)].astype(scores.dtype)
    if layer.alibi:
        slopes = alibi_slopes(queries.shape[-2])
        apart = jnp.abs(jnp.arange(rows)[:, None] - jnp.arange(columns))
        scores = scores - (slopes[:, None, None] * apart).astype(scores.dtype)
    sees = visible(layer, rows, columns)
    scores = scores if sees.all() else jnp.where(sees, scores, -jnp.inf)
    weights = weights_of(layer, scores, jnp)
    if layer.centre != 0:
        centre = float(layer.centre) * mean_over_visible(layer, rows, columns)
        weights = weights - jnp.asarray(centre, weights.dtype)
    mixed = jnp.einsum("...hij,...jhc->...ihc", weights, values)
    return mixed if layer.identity == 0 else mixed + float(layer.identity) * values


def rotated(x: Array, base: float) -> Array:
    """Rotate channels by the rotary angle ``position base^(-2 f / channels)``.

    ``x``: (..., tokens, heads, channels). The first half of the channels is paired with the second
    half.
    """
    import jax.numpy as jnp

    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[-3])[:, None, None] * base ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
