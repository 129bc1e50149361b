"""Flax NNX and Linen modules read as networks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from kcalc.interchange.read import read


def kinds(reading):
    return [type(layer).__name__ for _, layer, _ in reading.network.steps()]


LOCAL = {"num_groups": 4, "reduction_axes": (-1,)}


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (lambda: nn.GroupNorm(**LOCAL), (8,), "over all locations"),
        (lambda: nnx.GroupNorm(8, **LOCAL, rngs=nnx.Rngs(0)), (), "over all locations"),
        (lambda: nn.BatchNorm(False, axis=(1, 2)), (5, 8), "every location and channel"),
    ],
)
def test_norms_over_other_axes_than_those_of_a_layer_are_not_read(model, shape, words):
    held = {"params": ("scale", "bias"), "batch_stats": ("mean", "var")}
    variables = {kind: dict.fromkeys(names, jnp.ones(shape)) for kind, names in held.items()}
    r = read((model(), variables) if shape else model(), jnp.ones((2, 5, 8)))
    (note,) = (note for note in r.notes if note.level == "not read")
    assert words in note.text


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
