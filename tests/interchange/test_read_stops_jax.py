"""Stops of gradients and derivatives of their own in JAX functions and models made with it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from refusals import refused

import kcalc as kc


@jax.custom_vjp
def smoothed(x: Any) -> Any:
    return jnp.tanh(x)


smoothed.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g / (1 + x**2),))


def test_derivatives_that_are_not_known() -> None:
    keys, shapes = jax.random.split(jax.random.key(0), 2), {"a": (32, 128), "o": (128, 4)}
    params = {n: jax.random.normal(key, shapes[n]) for n, key in zip("ao", keys, strict=True)}
    network = kc.read(lambda p, x: smoothed(x @ p["a"]) @ p["o"], params, (2, 32)).network
    assert 0 < kc.c_map(network)(0.3) < 1
    for ask in (kc.ntk, kc.gradients):
        with refused("smoothed"):
            ask(network)
