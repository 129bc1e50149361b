"""Measurements for networks over tokens.

The quantities include cosines within a sequence, and gradients in the mean and difference modes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import Any

from ..backend import Model
from ..backend.network_plan import ArrayPlan
from .probes import Probes, mean_and_variance

Node = Hashable
Array = Any


def token_statistics(h: Array, uniform: bool) -> Array:
    """Compute the mean and variance of q, c and the token cosine over pairs.

    ``h`` has shape (cases, pairs, 2, [rows, columns,] channels) and the result (2, quantities,
    cases). q and c are means over tokens. The token cosine is the mean over all pairs of different
    tokens, ``(|sum_t u_t|^2 - T) / (T (T - 1))`` with unit vectors u, and 1 for a single token.
    Quantities are (q, c, cosine), or (q1, q2, c, cosine1, cosine2) for unequal q.
    """
    import jax.numpy as jnp

    wide = h.astype(jnp.promote_types(h.dtype, jnp.float32))
    wide = wide.reshape(*h.shape[:3], -1, h.shape[-1])
    q = (wide * wide).mean(-1)
    unit = wide / jnp.sqrt((wide * wide).sum(-1, keepdims=True))
    across = (unit[:, :, 0] * unit[:, :, 1]).sum(-1)
    count = wide.shape[3]
    total = (unit.sum(3) ** 2).sum(-1)
    own = (total - count) / (count * (count - 1)) if count > 1 else jnp.ones_like(total)
    if uniform:
        return mean_and_variance([q, across, own])
    return mean_and_variance([q[:, :, 0], q[:, :, 1], across, own[:, :, 0], own[:, :, 1]])


def token_gradients(
    model: Model,
    plan: ArrayPlan,
    params: Any,
    inputs: Mapping[Node, Array],
    nodes: Sequence[Node],
    key: Array,
) -> Array:
    """Measure gradients and their two modes, shape (nodes, 3).

    The columns are ``nodes``, ``mean`` and ``difference`` of
    :class:`kcalc.calculi.gradients.Gradients`.

    ``inputs`` have shape (sequences, rows, columns, channels). Let e be independent signs for the N
    entries of the output over its T' tokens. Let g_t be the gradients of ``sum e out / sqrt(N)`` at
    the T tokens of a node. The result is the mean over signs and sequences of ``sum_t |g_t|^2``,
    ``|sum_t g_t|^2`` and ``(T sum_t |g_t|^2 - |sum_t g_t|^2) / (T - 1)``. The last is nan if there
    is one token.
    """
    import jax

    probes = Probes(model, plan, located=True)
    axes, places = plan.nodes[model.network.outputs[0]].shape.axes, probes.shapes

    def one(sequence: tuple[list[Array], Array]) -> list[Array]:
        arrays, own = sequence
        signs = jax.random.rademacher(own, axes, model._dtype) / prod(axes) ** 0.5
        given = dict(zip(inputs, arrays, strict=True))
        slopes = probes.gradients(params, given, lambda out: (signs * out).sum())
        return [_modes(g, s.locations is not None) for g, s in zip(slopes, places, strict=True)]

    count = len(next(iter(inputs.values())))
    keys = jax.random.split(jax.random.fold_in(key, 1), count)
    values = jax.lax.map(one, (list(inputs.values()), keys))
    return probes.gather([v.mean(0) for v in values], nodes)


def _modes(slopes: Array, located: bool) -> Array:
    """Reduce gradients ([nodes,] [rows, columns,] channels) to the three modes on the last axis."""
    import jax.numpy as jnp

    wide = slopes.astype(jnp.promote_types(slopes.dtype, jnp.float32))
    ends = slopes.shape[: slopes.ndim - (3 if located else 1)]
    wide = wide.reshape(*ends, -1, slopes.shape[-1])
    count, each, whole = wide.shape[-2], (wide**2).sum((-1, -2)), (wide.sum(-2) ** 2).sum(-1)
    apart = (count * each - whole) / (count - 1) if count > 1 else jnp.full_like(each, jnp.nan)
    return jnp.stack([each, whole, apart], axis=-1)
