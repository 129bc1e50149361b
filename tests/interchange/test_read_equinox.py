"""Equinox modules read as networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
from refusals import refused

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


def test_sequences_residuals_and_attention():
    class Mixer(eqx.Module):
        norm: eqx.nn.RMSNorm
        up: eqx.nn.Linear
        down: eqx.nn.Linear
        attend: eqx.nn.MultiheadAttention

        def __call__(self, x):
            h = x + jax.vmap(self.down)(jnp.tanh(jax.vmap(self.up)(jax.vmap(self.norm)(x))))
            return h + self.attend(h, h, h)

    keys = jax.random.split(jax.random.key(0), 3)
    attend = eqx.nn.MultiheadAttention(2, 8, key=keys[2])
    model = Mixer(
        eqx.nn.RMSNorm(8, use_bias=False),
        eqx.nn.Linear(8, 16, key=keys[0]),
        eqx.nn.Linear(16, 8, key=keys[1]),
        attend,
    )
    r = read(model, jnp.ones((5, 8)), sigmas=False)
    assert [r.network.layer(node) for node in r.network.nodes_of(kl.Attend)] == [kl.Attend(2, 4)]
    assert {"RMSNorm", "Nonlinear", "Sum"} <= {
        type(layer).__name__ for _, layer, _ in r.network.steps()
    }
    assert r.fidelity.nodes["up"] == "exact"


def test_shared_layers_and_errors():
    class Tied(eqx.Module):
        fc: eqx.nn.Linear

        def __call__(self, x):
            return self.fc(jnp.tanh(self.fc(x)))

    r = read(Tied(eqx.nn.Linear(4, 4, key=jax.random.key(0))), jnp.ones(4))
    assert any("shared" in str(note) or "same" in str(note) for note in r.notes)
    with refused("cannot be traced"):
        read(CNN(jax.random.key(0)), jnp.ones((2, 3, 8, 8)))
    with refused("example"):
        read(CNN(jax.random.key(0)))


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
            r"it takes one example at a time, without a batch axis: give x\[0\], or the "
            r"shape \(5, 8\)$",
        ),
        (
            Batched(mlp),
            (5, 8),
            r"one example of shape \(5, 8\); a shape must start with the number of examples, "
            r"give \(1, 5, 8\)$",
        ),
        (mlp, jnp.ones((5, 9)), "cannot be traced with these inputs: TypeError[^;]*$"),
        (mlp, (5, 9), "cannot be traced with these inputs: TypeError[^;]*$"),
        (mlp, (5, -1), "positive"),
    ):
        with refused(words):
            read(model, given)
    with refused(r"x\[0\].*examples"):
        read(mlp)
