"""Stops of gradients and derivatives of their own in JAX functions and models made with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

import kcalc as kc

L = kc.layers
WIDTH = 128
stop = jax.lax.stop_gradient
R = jax.nn.relu


@jax.custom_vjp
def sign(x: Any) -> Any:
    return jnp.sign(x)


sign.defvjp(lambda x: (jnp.sign(x), None), lambda _, g: (g,))


@jax.custom_jvp
def clipped(x: Any) -> Any:
    return jnp.sign(x)


clipped.defjvp(lambda p, t: (jnp.sign(p[0]), t[0] * (jnp.abs(p[0]) <= 1)))


@jax.custom_jvp
def by_hand(x: Any) -> Any:
    return jnp.tanh(x)


by_hand.defjvp(lambda p, t: (jnp.tanh(p[0]), t[0] * (1 - jnp.tanh(p[0]) ** 2)))


@jax.custom_vjp
def smoothed(x: Any) -> Any:
    return jnp.tanh(x)


smoothed.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g / (1 + x**2),))


@jax.jit
def straight(h: Any) -> Any:
    return h + stop(jnp.tanh(h) - h)


def beside(p: Any, x: Any) -> Any:
    h = R(x @ p["a"])
    return (R(h @ p["b"]) + stop(jnp.tanh(h @ p["d"]))) @ p["o"]


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "in the trunk": lambda p, x: R(stop(R(x @ p["a"])) @ p["b"]) @ p["o"],
    "beside": beside,
    "weights": lambda p, x: R(x @ stop(p["a"])) @ p["o"],
    "scaled weights": lambda p, x: R(x @ (p["a"] * 2 / 3**0.5)) @ p["o"],
    "straight through": lambda p, x: sign(x @ p["a"]) @ p["o"],
    "straight through in a call": lambda p, x: straight(x @ p["a"]) @ p["o"],
    "clipped sign": lambda p, x: clipped(x @ p["a"]) @ p["o"],
    "clipped sign in a call": lambda p, x: jax.jit(lambda h: 2 * clipped(h))(x @ p["a"]) @ p["o"],
    "own derivative": lambda p, x: by_hand(x @ p["a"]) @ p["o"],
}


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


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_jax(name: str) -> None:
    run, x, draws = CASES[name], unit(), 24
    network = kc.read(run, drawn(0), x).network
    scale = 2 / 3**0.5 if name == "scaled weights" else 1
    sigmas = {"a": 1.4 * scale}
    network = network.map_layers(
        lambda n, layer: (
            L.Affine(
                layer.features,
                bias=False,
                sigma_w=sigmas.get(n, 1.4),
                trained=layer.trained,
            )
            if isinstance(layer, L.Affine)
            else layer
        )
    )
    found = kc.gradients(network).weights
    grad = jax.jit(jax.grad(lambda p: run(p, x)[0, 0]))
    got = [grad(drawn(seed)) for seed in range(draws)]
    for node, value in found.items():
        each = np.array([float((g[node] ** 2).sum()) * 1.96 / g[node].shape[0] for g in got])
        if not each.any():
            assert value == 0
        else:
            assert abs(value - each.mean()) < 5 * each.std(ddof=1) / draws**0.5 + 0.05 * value


def test_derivatives_that_are_not_known() -> None:
    network = kc.read(lambda p, x: smoothed(x @ p["a"]) @ p["o"], drawn(0), unit()).network
    assert 0 < kc.c_map(network)(0.3) < 1
    for ask in (kc.ntk, kc.gradients):
        with refused("smoothed"):
            ask(network)
