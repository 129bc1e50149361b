"""Flax NNX and Linen modules read as networks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


class Block(nnx.Module):
    """A pre-activation residual block."""

    def __init__(self, inputs, outputs, stride, rngs):
        self.bn1 = nnx.BatchNorm(inputs, rngs=rngs)
        self.conv1 = nnx.Conv(inputs, outputs, (3, 3), strides=stride, use_bias=False, rngs=rngs)
        self.bn2 = nnx.BatchNorm(outputs, rngs=rngs)
        self.conv2 = nnx.Conv(outputs, outputs, (3, 3), use_bias=False, rngs=rngs)
        self.proj = (
            nnx.Conv(inputs, outputs, (1, 1), strides=stride, use_bias=False, rngs=rngs)
            if stride != 1 or inputs != outputs
            else None
        )
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        h = nnx.relu(self.bn1(x))
        shortcut = x if self.proj is None else self.proj(h)
        h = self.conv1(h)
        return shortcut + self.conv2(self.drop(nnx.relu(self.bn2(h))))


class ResNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.blocks = nnx.List([Block(8, 8, 1, rngs), Block(8, 16, 2, rngs)])
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.head = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = nnx.max_pool(nnx.relu(self.norm(x)), (2, 2), strides=(2, 2))
        return self.head(x.mean((1, 2)))


RELU, NORM = kl.Nonlinear("relu"), kl.BatchNorm()


@pytest.fixture(scope="module")
def resnet():
    return ResNet(nnx.Rngs(0))


def test_reading_changes_neither_the_model_nor_the_library(resnet):
    def snapshot():
        leaves = jax.tree.leaves(nnx.state(resnet))
        return [
            np.asarray(
                jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a
            )
            for a in leaves
        ]

    calls = {
        kind: kind.__dict__["__call__"]
        for kind in (nnx.BatchNorm, nnx.Dropout, nnx.Conv, Block, ResNet)
    }
    before = snapshot()
    read(resnet, jnp.ones((2, 16, 16, 3)))
    assert all(np.array_equal(a, b) for a, b in zip(before, snapshot(), strict=True))
    assert all(kind.__dict__["__call__"] is call for kind, call in calls.items())
    with pytest.raises(kc.KcalcError):
        read(resnet, jnp.ones((2, 16, 16, 5)))
    assert all(kind.__dict__["__call__"] is call for kind, call in calls.items())


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


def test_shapes_serve_as_examples(resnet):
    assert read(resnet, (2, 16, 16, 3)).network == read(resnet, jnp.ones((2, 16, 16, 3))).network
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
