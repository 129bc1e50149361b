"""Stops of gradients and derivatives of their own in JAX functions and models made with it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from refusals import refused

import kcalc as kc

WIDTH = 128


@jax.custom_vjp
def smoothed(x: Any) -> Any:
    return jnp.tanh(x)


smoothed.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g / (1 + x**2),))


def drawn(seed: int) -> dict[str, Any]:
    shapes = {"a": (32, WIDTH), "b": (WIDTH, WIDTH), "d": (WIDTH, WIDTH), "o": (WIDTH, 4)}
    keys = jax.random.split(jax.random.key(seed), 4)
    return {
        name: 1.4 * jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def unit() -> Any:
    x = jax.random.normal(jax.random.key(77), (2, 32))
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True))


def test_derivatives_that_are_not_known() -> None:
    network = kc.read(lambda p, x: smoothed(x @ p["a"]) @ p["o"], drawn(0), unit()).network
    assert 0 < kc.c_map(network)(0.3) < 1
    for ask in (kc.ntk, kc.gradients):
        with refused("smoothed"):
            ask(network)
