"""Flax NNX and Linen modules read as networks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from refusals import refused

import kcalc as kc
from kcalc.interchange.read import read
from kcalc.network import layers as kl


def hand(steps, outputs=None):
    return kc.Network.from_steps(
        [(n, layer, tuple(p)) for n, layer, p in steps], outputs or [steps[-1][0]]
    )


def kinds(reading):
    return [type(layer).__name__ for _, layer, _ in reading.network.steps()]


# -- NNX -------------------------------------------------------------------------------------------


RELU, NORM = kl.Nonlinear("relu"), kl.BatchNorm()


# -- Linen -----------------------------------------------------------------------------------------


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(8, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.avg_pool(nn.gelu(x), (2, 2), (2, 2))
        x = nn.GroupNorm(4)(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        x = nn.Dense(16)(x.reshape((x.shape[0], -1)))
        return nn.Dense(4)(nn.tanh(nn.LayerNorm()(x)))


LINEN = hand(
    [
        ("x", kl.Input(3, (8, 8)), ()),
        ("c", kl.Affine(8, 3), "x"),
        ("b", NORM, "c"),
        ("g", kl.Nonlinear("gelu_tanh"), "b"),
        ("p", kl.Pool("mean", 2), "g"),
        ("n", kl.GroupNorm(4), "p"),
        ("d", kl.Dropout(0.5), "n"),
        ("f", kl.Flatten(), "d"),
        ("e", kl.Affine(16), "f"),
        ("l", kl.LayerNorm(), "e"),
        ("t", kl.Nonlinear("tanh"), "l"),
        ("o", kl.Affine(4), "t"),
    ]
)


def test_linen():
    x, model = jnp.ones((2, 8, 8, 3)), CNN()
    variables = model.init(jax.random.key(0), x, False)
    for r in (
        read((model, variables), x, sigmas=False),
        read(model, variables, x, sigmas=False),
        read(model, variables, x, False, sigmas=False),
    ):
        assert r.network.isomorphic(LINEN), str(r)
    assert {"Conv_0", "BatchNorm_0", "Dropout_0", "Dense_1"} <= set(r.network)
    with refused("variables"):
        read(model, x)


def test_shapes_serve_as_examples():
    layer = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    assert read(layer, (2, 3)).network == read(layer, jnp.ones((2, 3))).network
    dense = nn.Dense(4)
    variables = dense.init(jax.random.key(0), jnp.ones((2, 3)))
    assert (
        read((dense, variables), (2, 3)).network == read(dense, variables, jnp.ones((2, 3))).network
    )
    for bad, words in (
        ((2, 0), "positive"),
        ((10**12, 3), "example input 1: an array of the shape .* too large"),
        ((2, 5), "be traced"),
    ):
        with refused(words):
            read(dense, variables, bad)


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
