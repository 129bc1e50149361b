"""Stops of gradients and derivatives of their own in JAX functions and models made with it."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from refusals import refused

import kcalc as kc


def own(function: Any, derivative: Any) -> Any:
    """A function whose inputs have gradients of their own: of gradients of outputs, and inputs."""
    made = jax.custom_vjp(function)
    made.defvjp(lambda *x: (function(*x), x), lambda x, g: derivative(g, *x))
    return made


clipped_sign = own(lambda x: jnp.sign(x), lambda g, x: (g * (abs(x) <= 1),))
narrow = own(lambda x: jnp.sign(x), lambda g, x: (g * (abs(x) <= 0.3),))
both = own(lambda x: (jnp.tanh(x), jnp.sin(x)), lambda g, x: (g[0],))
times = own(lambda x, y: x * y, lambda g, x, y: (g, g))
shifted = own(lambda x: jnp.tanh(x), lambda g, x: (jnp.roll(g, 1, -1),))
mixed = own(lambda x: x @ jnp.tri(16), lambda g, x: (g,))
half = own(lambda x: jnp.tanh(x)[..., :16], lambda g, x: (jnp.concatenate([g, g], -1),))


def stopped(function: Any, maker: str, rule: Any) -> Any:
    """The function, whose derivative is 0."""
    custom = jax.custom_jvp(function)
    getattr(custom, maker)(rule)
    return custom


def drawn(**shapes: tuple[int, int]) -> Any:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {n: jax.random.normal(k, s) for k, (n, s) in zip(keys, shapes.items(), strict=True)}


@pytest.mark.parametrize(
    "function", [clipped_sign, jax.jit(lambda h: clipped_sign(h))], ids=["itself", "in a function"]
)
def test_a_derivative_of_its_own(function: Any) -> None:
    """sign with the slope 1 for |x| < 1: E slope^2 = erf(1 / sqrt(2 q)), E sign^2 = 1."""
    params = drawn(a=(32, 128), o=(128, 4))
    network = kc.read(lambda p, x: function(x @ p["a"] / 32**0.5) @ p["o"], params, (2, 32)).network
    found = kc.gradients(network).weights
    q = network.layer("a").sigma_w ** 2 / 32
    assert found["a"] / found["o"] == pytest.approx(q * math.erf((2 * q) ** -0.5), rel=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda h: both(h)[0],
        jax.jit(lambda h: both(h)[0]),
        jax.jit(lambda h: times(h, 2 * h)),
        lambda h: times(h, jnp.float32(2)),
        shifted,
        narrow,
        mixed,
        lambda h: half(jnp.concatenate([h, jnp.sin(h)], -1)),
        stopped(jnp.tanh, "defjvps", lambda t, out, x: 0 * t),
        stopped(jnp.tanh, "defjvp", jax.jit(lambda x, t: (jnp.tanh(*x), 0 * t[0]))),
        stopped(lambda x: jnp.tanh(x), "defjvps", lambda t, out, x: 0 * t),
    ],
)
def test_other_derivatives_are_not_known(function: Any) -> None:
    params = drawn(a=(32, 16), o=(16, 4))
    network = kc.read(lambda p, x: function(x @ p["a"]) @ p["o"], params, (2, 32)).network
    with refused("own_gradient"):
        kc.gradients(network)


def test_a_derivative_of_its_own_of_weights() -> None:
    params = drawn(a=(32, 16), o=(16, 4))
    network = kc.read(lambda p, x: x @ clipped_sign(p["a"]) @ p["o"], params, (2, 32)).network
    assert network.layer("a").trained == "indirectly"


def test_stops_of_stops_and_doubled_gradients() -> None:
    """tanh that is stopped twice passes no gradient, and h + stop(h) - stop(h) is h."""
    stop, params = jax.lax.stop_gradient, drawn(a=(32, 16), o=(16, 4))

    def weights(function: Any) -> Any:
        network = kc.read(lambda p, x: function(x @ p["a"]) @ p["o"], params, (2, 32)).network
        return kc.gradients(network).weights

    found, plain = weights(lambda h: stop(stop(jnp.tanh(h)))), weights(jnp.tanh)
    assert found == {"a": 0, "o": pytest.approx(plain["o"], rel=1e-9)}
    assert weights(lambda h: 2 * h + stop(h) - stop(h)) == pytest.approx(weights(lambda h: 2 * h))


def test_a_stop_inside_a_normalisation() -> None:
    def function(p: Any, x: Any) -> Any:
        h = x @ p["a"]
        m = h.mean(-1, keepdims=True)
        v = jax.lax.stop_gradient(((h - m) ** 2).mean(-1, keepdims=True))
        return (h - m) / jnp.sqrt(v + 1e-5) @ p["o"]

    network = kc.read(function, drawn(a=(32, 16), o=(16, 4)), (2, 32)).network
    assert network.nodes_of(kc.layers.LayerNorm)
    with refused("with a gradient stop inside it"):
        kc.gradients(network)
