"""The quantities that are measured over tokens.

Cosines within a sequence, and gradients in the mean and difference modes.
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
    """Mean and variance over pairs of q, c and the cosine of tokens, (2, quantities, cases).

    ``h``: (cases, pairs, 2, [rows, columns,] channels). q and c are means over tokens, the cosine
    of tokens over all pairs of different ones, ``(|sum_t u_t|^2 - T) / (T (T - 1))`` of unit
    vectors u; 1 for one token. Quantities are (q, c, cosine), or (q1, q2, c, cosine1, cosine2) for
    unequal q.
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
    """Both modes of gradients, (nodes, 3).

    They are ``nodes``, ``mean`` and ``difference`` of :class:`kcalc.calculi.gradients.Gradients`.
    ``inputs``: (sequences, rows, columns, channels) each. With independent signs e over the N
    numbers of the output's T' tokens, and g_t the gradients of ``sum e out`` at the T tokens of a
    node, over the root of N: ``sum_t |g_t|^2``, ``|sum_t g_t|^2`` and
    ``(T sum_t |g_t|^2 - |sum_t g_t|^2) / (T - 1)``, which is nan for one token. They are means over
    the signs and over sequences.
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
    """The three numbers of gradients ([nodes,] [rows, columns,] channels), on the last axis."""
    import jax.numpy as jnp

    wide = slopes.astype(jnp.promote_types(slopes.dtype, jnp.float32))
    ends = slopes.shape[: slopes.ndim - (3 if located else 1)]
    wide = wide.reshape(*ends, -1, slopes.shape[-1])
    count, each, whole = wide.shape[-2], (wide**2).sum((-1, -2)), (wide.sum(-2) ** 2).sum(-1)
    apart = (count * each - whole) / (count - 1) if count > 1 else jnp.full_like(each, jnp.nan)
    return jnp.stack([each, whole, apart], axis=-1)
