"""JAX models with operations that were not read: regions are shaped, the rest is evaluated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kcalc as kc

jax = pytest.importorskip("jax")
pytest.importorskip("equinox")

import equinox as eqx  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from kcalc.interchange.apply import apply_to  # noqa: E402

R = np.random.default_rng(0)


def array(*shape: int) -> Any:
    return jnp.asarray(R.standard_normal(shape), jnp.float32)


def scanned(h: Any) -> Any:
    """A recurrence over the channels."""

    def turn(carry: Any, column: Any) -> tuple[Any, Any]:
        new = jnp.tanh(0.5 * carry + column)
        return new, new

    return jax.lax.scan(turn, jnp.zeros(h.shape[0], h.dtype), h.T)[1].T


@jax.custom_vjp
def straight(h: Any) -> Any:
    """Sorts; its own gradient goes straight through."""
    return jnp.sort(h, -1)


straight.defvjp(lambda h: (straight(h), None), lambda _, g: (g,))

BETWEEN: dict[str, Any] = {
    "sorting": lambda h: jnp.sort(h, -1),
    "a scan": scanned,
    "a custom gradient": straight,
    "fourier": lambda h: jnp.fft.fft(h, norm="ortho").real,
    "reshapes": lambda h: jnp.sort(h.reshape(h.shape[0], 2, -1), 1).reshape(h.shape),
    "linear algebra": lambda h: h @ jnp.linalg.inv(jnp.eye(h.shape[1]) + 0.1 * h.T @ h),
}


def model(name: str) -> tuple[Any, Any]:
    def function(params: Any, x: Any) -> Any:
        h = jnp.tanh(x @ params["a"] + params["c"]) @ params["b"]
        h = BETWEEN[name](h)
        return {"y": jax.nn.relu(h @ params["d"]) @ params["e"], "h": h}

    sizes = {"a": (6, 16), "b": (16, 16), "d": (16, 16), "e": (16, 3), "c": (16,)}
    return function, {key: 0.3 * array(*shape) for key, shape in sizes.items()}


@pytest.mark.parametrize("name", BETWEEN)
def test_regions_are_exchanged_and_the_rest_is_evaluated_as_it_was(name: str) -> None:
    function, params = model(name)
    s = kc.shape(kc.read(function, params, array(4, 6)), "tanh")
    assert isinstance(s, kc.RegionalShaping) and len(s.regions) == 2
    same, kept = apply_to(
        function, _regions_as_they_are(function, params, s), params, array(4, 6), weights="keep"
    )
    new, drawn = s.apply_to(function, params, array(4, 6))
    for count in (4, 5):
        x = array(count, 6)
        expected, found = function(params, x), jax.jit(same)(kept, x)
        for key in expected:
            assert np.asarray(found[key]) == pytest.approx(np.asarray(expected[key]), abs=1e-6)
        assert all(np.isfinite(value).all() for value in new(drawn, x).values())

    def loss(run: Any, p: Any) -> Any:
        return jnp.sum(run(p, x)["y"] ** 2)

    one, two = (jax.grad(lambda p, run=run: loss(run, p))(params) for run in (function, same))
    for key in params:
        assert np.asarray(two[key]) == pytest.approx(np.asarray(one[key]), abs=1e-4)


def _regions_as_they_are(function: Any, params: Any, s: Any) -> Any:
    reading = kc.read(function, params, array(4, 6))
    return SimpleNamespace(networks=reading.cut([*s.left_alone]), left_alone=s.left_alone)


def test_an_equinox_module_keeps_what_was_not_read() -> None:
    class Model(eqx.Module):
        layers: list[Any]
        norm: Any

        def __call__(self, x: Any) -> Any:
            h = jnp.sort(self.layers[1](jnp.tanh(self.layers[0](x))))
            return self.layers[2](jnp.tanh(jnp.sort(self.norm(h))))

    keys = jax.random.split(jax.random.key(0), 3)
    module = Model([eqx.nn.Linear(6, 6, key=key) for key in keys], eqx.nn.LayerNorm(6))
    x = array(5, 6)
    s: Any = kc.shape(kc.read(module, x[0]), "tanh")
    assert "norm" in {str(node) for node in s.left_alone}
    new = s.apply_to(module, x[0])
    assert jax.vmap(new)(x).shape == (5, 6)
    assert isinstance(new, Model)
    assert not np.allclose(new.layers[0].weight, module.layers[0].weight)
    a, b, c = new.layers
    h = jax.vmap(lambda row: jnp.sort(b(_phi(s, 0)(a(row)))))(x)
    rest = jax.vmap(lambda row: jnp.sort(module.norm(row)))(h)
    y = jax.vmap(lambda row: c(_phi(s, 1)(row)))(rest)
    assert np.asarray(jax.vmap(new)(x)) == pytest.approx(np.asarray(y), abs=1e-5)


def _phi(s: Any, region: int) -> Any:
    from kcalc.activations.jax_function import jax_function

    shaping = list(s.regions.values())[region]
    return jax_function(next(iter(shaping.constants.by_node.values())).transformed)


def test_rows_of_all_tokens_before_and_behind_what_was_not_read() -> None:
    def rows(h: Any, w: Any) -> Any:
        return (h.reshape(-1, h.shape[-1]) @ w).reshape(h.shape)

    def function(params: Any, x: Any) -> Any:
        h = jnp.tanh(x @ params["a"])
        h = h + rows(jnp.sort(rows(h, params["b"]), axis=1), params["c"])
        return jnp.tanh(rows(h, params["d"]))

    params, x = {key: 0.3 * array(8, 8) for key in "abcd"}, array(2, 5, 8)
    reading = kc.read(function, params, x)
    left = dict.fromkeys(reading.network.nodes_of(kc.layers.Opaque), "it sorts")
    regions = SimpleNamespace(networks=reading.cut([*left]), left_alone=left)
    same, kept = apply_to(function, regions, params, x, weights="keep")
    assert np.asarray(same(kept, x)) == pytest.approx(np.asarray(function(params, x)), abs=1e-6)
