"""Equinox modules read as networks."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import wide_models
from refusals import refused

import kcalc as kc
from kcalc.interchange.read import read
from kcalc.network import layers as kl


def hand(steps, outputs=None):
    return kc.Network.from_steps(
        [(n, layer, tuple(p)) for n, layer, p in steps], outputs or [steps[-1][0]]
    )


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


RELU = kl.Nonlinear("relu")
TWIN = hand(
    [
        ("x", kl.Input(3, (8, 8)), ()),
        ("c", kl.Affine(8, 3), "x"),
        ("n", kl.GroupNorm(2), "c"),
        ("r", RELU, "n"),
        ("d", kl.Affine(8, 3, groups=8, bias=False), "r"),
        ("p", kl.Pool("max", 2), "d"),
        ("o", kl.Dropout(0.3), "p"),
        ("f", kl.Flatten(), "o"),
        ("l", kl.LayerNorm(), "f"),
        ("1", kl.Affine(7), "l"),
        ("2", RELU, "1"),
        ("3", kl.Affine(7), "2"),
        ("4", RELU, "3"),
        ("5", kl.Affine(5), "4"),
    ]
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


def test_sigmas_of_the_library():
    r = read(eqx.nn.MLP(256, 256, 256, 2, key=jax.random.key(0)), jnp.ones(256))
    for node in r.network.nodes_of(kl.Affine):
        assert r.network.layer(node).sigma_w == pytest.approx(1 / np.sqrt(3), rel=0.02)
        assert r.network.layer(node).sigma_b == pytest.approx(1 / np.sqrt(3 * 256), rel=0.2)


def test_batch_norm_with_state():
    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.BatchNorm
        head: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(3, 6, 3, padding=1, key=keys[0])
            self.norm, self.head = (
                eqx.nn.BatchNorm(6, axis_name="batch"),
                eqx.nn.Linear(6, 4, key=keys[1]),
            )

        def __call__(self, x, state):
            x, state = self.norm(self.conv(x), state)
            return self.head(jnp.mean(jax.nn.silu(x), (1, 2))), state

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, state = eqx.nn.make_with_state(Net)(jax.random.key(0))
    r = read(model, jnp.ones((3, 8, 8)), state, sigmas=False)
    assert r.network.isomorphic(
        hand(
            [
                ("x", kl.Input(3, (8, 8)), ()),
                ("c", kl.Affine(6, 3), "x"),
                ("n", kl.BatchNorm(), "c"),
                ("s", kl.Nonlinear("swish"), "n"),
                ("p", kl.Pool("mean"), "s"),
                ("h", kl.Affine(4), "p"),
            ]
        )
    ), str(r)


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


@pytest.mark.slow
def test_predicted_q_and_c_values_of_wide_layers(every: int):
    """Weights and biases uniform on +-1/sqrt(fan_in), as Equinox draws them.

    20 models of width 1024 (512 where --every thins).
    """
    u = wide_models.inputs(every)
    width = u.shape[1]

    def model(seed):
        return eqx.nn.MLP(width, width, width, 2, activation=jnp.tanh, key=jax.random.key(seed))

    network = read(model(0), u[0], sigmas=False).network
    own = {"sigma_w": 1 / np.sqrt(3), "sigma_b": 1 / np.sqrt(3 * width)}
    network = network.map_layers(
        lambda _, layer: kl.Affine(layer.features, **own) if isinstance(layer, kl.Affine) else layer
    )
    wide_models.check_maps(network, [jax.vmap(model(seed))(u) for seed in range(1, 21)])
