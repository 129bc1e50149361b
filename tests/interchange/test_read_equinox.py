"""Equinox modules read as networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
from refusals import refused

import kcalc as kc
from kcalc.interchange.read import read
from kcalc.network import layers as kl


class CNN(eqx.Module):
    conv1: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    depth: eqx.nn.Conv2d
    drop: eqx.nn.Dropout
    pool: eqx.nn.MaxPool2d
    last: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.conv1 = eqx.nn.Conv2d(3, 8, 3, padding=1, key=keys[0])
        self.norm = eqx.nn.GroupNorm(2, 8)
        self.depth = eqx.nn.Conv2d(8, 8, 3, padding=1, groups=8, use_bias=False, key=keys[1])
        self.drop, self.pool, self.last = (
            eqx.nn.Dropout(0.3),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.LayerNorm((128,)),
        )
        self.mlp = eqx.nn.MLP(128, 5, 7, 2, key=keys[2])

    def __call__(self, x, key=None):
        x = jax.nn.relu(self.norm(self.conv1(x)))
        x = self.drop(self.pool(self.depth(x)), key=key)
        return self.mlp(self.last(x.reshape(-1)))


def test_shapes_have_the_examples_first():
    model, whole = CNN(jax.random.key(0)), jnp.ones((3, 8, 8))
    assert read(model, (2, 3, 8, 8)).network == read(model, whole).network
    mlp = eqx.nn.MLP(8, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(0))
    reading = read(mlp, (7, 8))
    assert reading.network == read(mlp, jnp.ones(8)).network
    new = kc.shape(reading.network, method="dks").apply_to(mlp)
    assert new(jnp.ones(8)).shape == (2,)


def test_an_axis_too_much_or_too_few_is_named():
    mlp = eqx.nn.MLP(8, 2, 4, 1, key=jax.random.key(0))

    class Batched(eqx.Module):
        inner: eqx.nn.MLP

        def __call__(self, x):
            return jax.vmap(self.inner)(x)

    assert (
        len(read(Batched(mlp), jnp.ones((5, 8))).network)
        == len(read(Batched(mlp), (1, 5, 8)).network)
        == 4
    )
    for model, given, words in (
        (
            mlp,
            jnp.ones((5, 8)),
            r"it takes one example at a time, without an axis of examples: give x\[0\], or the "
            r"shape \(5, 8\)$",
        ),
        (
            Batched(mlp),
            (5, 8),
            r"one example of the shape \(5, 8\): in a shape the number of examples comes "
            r"first, give \(1, 5, "
            r"8\)$",
        ),
        (mlp, jnp.ones((5, 9)), "cannot be traced with these inputs: TypeError[^;]*$"),
        (mlp, (5, 9), "cannot be traced with these inputs: TypeError[^;]*$"),
        (mlp, (5, -1), "positive"),
    ):
        with refused(words):
            read(model, given)
    with refused(r"x\[0\].*examples"):
        read(mlp)


TWIN = kc.chain(
    kl.Input(3, (8, 8)),
    kl.Affine(8, 3),
    kl.GroupNorm(2),
    kl.Nonlinear("relu"),
    kl.Affine(8, 3, groups=8, bias=False),
    kl.Pool("max", 2),
    kl.Dropout(0.3),
    kl.Flatten(),
    kl.LayerNorm(),
    kl.Affine(7),
    kl.Nonlinear("relu"),
    kl.Affine(7),
    kl.Nonlinear("relu"),
    kl.Affine(5),
)


def test_convolutions_norms_and_dropout():
    model = CNN(jax.random.key(0))
    before = jax.tree.leaves(model)
    r = read(model, jnp.ones((3, 8, 8)), sigmas=False)
    assert r.network.isomorphic(TWIN), str(r)
    assert {"conv1", "norm", "depth", "drop", "mlp.layers.0"} <= set(r.network)
    assert r.fidelity.level == "pooling"
    assert all(a is b for a, b in zip(before, jax.tree.leaves(model), strict=True))
    assert read(eqx.nn.inference_mode(model), jnp.ones((3, 8, 8)), sigmas=False).network.isomorphic(
        TWIN
    )
