"""JAX models with operations that were not read: regions are shaped, the rest is evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kcalc as kc

jax = pytest.importorskip("jax")
pytest.importorskip("equinox")

import equinox as eqx  # noqa: E402
from jax import numpy as jnp  # noqa: E402


def test_an_equinox_module_keeps_what_was_not_read() -> None:
    class Model(eqx.Module):
        layers: list[Any]
        norm: Any

        def __call__(self, x: Any) -> Any:
            h = jnp.sort(self.layers[1](jnp.tanh(self.layers[0](x))))
            return self.layers[2](jnp.tanh(jnp.sort(self.norm(h))))

    keys = jax.random.split(jax.random.key(0), 3)
    module = Model([eqx.nn.Linear(6, 6, key=key) for key in keys], eqx.nn.LayerNorm(6))
    x = jax.random.normal(jax.random.key(1), (5, 6))
    s: Any = kc.shape(kc.read(module, x[0]), "tanh")
    assert "norm" in {str(node) for node in s.left_alone}
    new = s.apply_to(module, x[0])
    assert jax.vmap(new)(x).shape == (5, 6)
    assert isinstance(new, Model)
    assert not np.allclose(new.layers[0].weight, module.layers[0].weight)
    a, b, c = new.layers
    h = jax.vmap(lambda row: jnp.sort(module.norm(jnp.sort(b(_phi(s, 0)(a(row)))))))(x)
    y = jax.vmap(lambda row: c(_phi(s, 1)(row)))(h)
    assert np.asarray(jax.vmap(new)(x)) == pytest.approx(np.asarray(y), abs=1e-5)


def _phi(s: Any, region: int) -> Any:
    from kcalc.activations.jax_function import jax_function

    shaping = list(s.regions.values())[region]
    return jax_function(next(iter(shaping.constants.by_node.values())).transformed)
