"""Transformers as JAX functions.

The outputs of PyTorch with the same weights, gradients, shapes of parameters, second moments.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kcalc as kc

A, L = kc.architectures, kc.layers


def test_second_moments_are_those_of_the_kernel_maps() -> None:
    net = A.gpt2(
        2,
        192,
        heads=12,
        vocabulary=2000,
        length=16,
        std=1.2 * 192**-0.5,
        causal=False,
        depth_scaled=False,
    )
    nodes = [*net.nodes_of(L.Attend, L.Sum, L.Nonlinear), "norm"]
    whole = kc.Network.from_steps(net.steps(), nodes)
    model = kc.to_jax(whole, weights="gaussian")
    ids = jnp.asarray(np.random.default_rng(1).permutation(2000)[:32].reshape(2, 16))

    @jax.jit
    def squares(key: Any) -> Any:
        made = model.apply(model.init(key, ids), ids)
        return jnp.stack([jnp.mean(made[node] ** 2) for node in nodes])

    seen = np.stack([squares(key) for key in jax.random.split(jax.random.key(0), 40)])
    known = kc.node_values(net, tokens=16)
    wanted = np.array([float(known[node].q1) for node in nodes])
    error = seen.std(axis=0, ddof=1) / len(seen) ** 0.5
    assert (np.abs(seen.mean(axis=0) - wanted) < 5 * error + 0.02 * wanted).all(), (
        seen.mean(axis=0),
        wanted,
        error,
    )
