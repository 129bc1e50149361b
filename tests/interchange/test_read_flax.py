"""Flax NNX and Linen modules read as networks."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from kcalc.interchange.read import read


def kinds(reading):
    return [type(layer).__name__ for _, layer, _ in reading.network.steps()]


# -- NNX -------------------------------------------------------------------------------------------


# -- Linen -----------------------------------------------------------------------------------------


def test_linen_scan_over_layers():
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return nn.relu(nn.Dense(5)(nn.LayerNorm()(x))), None

    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x):
            scanned = nn.scan(
                Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            return scanned()(x, None)[0]

    model, x = Deep(), jnp.ones((2, 5))
    r = read((model, model.init(jax.random.key(0), x)), x, sigmas=False)
    assert kinds(r) == ["Input", *["LayerNorm", "Affine", "Nonlinear"] * 3], str(r)
    assert r.fidelity.level == "exact"
