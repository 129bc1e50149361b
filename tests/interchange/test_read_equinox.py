"""Equinox modules read as networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
from refusals import refused

from kcalc.interchange.read import read
from kcalc.network import layers as kl


def test_sequences_residuals_and_attention():
    class Mixer(eqx.Module):
        norm: eqx.nn.RMSNorm
        up: eqx.nn.Linear
        down: eqx.nn.Linear
        attend: eqx.nn.MultiheadAttention

        def __call__(self, x):
            h = x + jax.vmap(self.down)(jnp.tanh(jax.vmap(self.up)(jax.vmap(self.norm)(x))))
            return h + self.attend(h, h, h, mask=jnp.tril(jnp.ones((5, 5), bool)))

    keys = jax.random.split(jax.random.key(0), 3)
    model = Mixer(
        eqx.nn.RMSNorm(8, use_bias=False),
        eqx.nn.Linear(8, 16, key=keys[0]),
        eqx.nn.Linear(16, 8, key=keys[1]),
        eqx.nn.MultiheadAttention(2, 8, key=keys[2]),
    )
    r = read(model, jnp.ones((5, 8)), sigmas=False)
    attends = [r.network.layer(node) for node in r.network.nodes_of(kl.Attend)]
    assert attends == [kl.Attend(2, 4, causal=True)]
    assert all(r.network.nodes_of(kind) for kind in (kl.RMSNorm, kl.Nonlinear, kl.Sum))
    assert r.fidelity.nodes["up"] == "exact"


def test_shared_layers_and_errors():
    class Tied(eqx.Module):
        fc: eqx.nn.Linear

        def __call__(self, x):
            return self.fc(jnp.tanh(self.fc(x)))

    r = read(Tied(eqx.nn.Linear(4, 4, key=jax.random.key(0))), jnp.ones(4))
    assert any("shared" in str(note) or "same" in str(note) for note in r.notes)
    conv = eqx.nn.Conv2d(3, 8, 3, key=jax.random.key(0))
    with refused("cannot be traced"):
        read(conv, jnp.ones((2, 3, 8, 8)))
    with refused("example"):
        read(conv)


def test_an_axis_too_much_or_too_few_is_named():
    mlp = eqx.nn.MLP(8, 2, 4, 1, key=jax.random.key(0))

    class Batched(eqx.Module):
        inner: eqx.nn.MLP

        def __call__(self, x):
            return jax.vmap(self.inner)(x)

    batched = Batched(mlp)
    for given in (jnp.ones((5, 8)), (1, 5, 8)):
        assert len(read(batched, given).network) == 4
    whole = "The model takes one example at a time, without a batch axis; pass x"
    count = "a shape must start with the number of examples; pass"
    for model, given, words in (
        (mlp, jnp.ones((5, 8)), rf"{whole}\[0\] or the shape \(5, 8\)$"),
        (batched, (5, 8), rf"one example of shape \(5, 8\), but {count} \(1, 5, 8\)$"),
        (mlp, jnp.ones((5, 9)), "cannot be traced with these inputs: TypeError[^;]*$"),
        (mlp, (5, 9), "cannot be traced with these inputs: TypeError[^;]*$"),
        (mlp, (5, -1), "positive"),
    ):
        with refused(words):
            read(model, given)
    with refused(r"x\[0\].*examples"):
        read(mlp)
