"""Keras 3 models on the JAX backend read as networks."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import wide_models
from refusals import refused

import kcalc as kc
from kcalc.interchange.read import read
from kcalc.network import layers as kl

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="Keras runs on another backend in this process"
)
K = keras.layers
RELU, NORM = kl.Nonlinear("relu"), kl.BatchNorm()


def hand(steps, outputs=None):
    return kc.Network.from_steps(
        [(n, layer, tuple(p)) for n, layer, p in steps], outputs or [steps[-1][0]]
    )


def functional():
    x = keras.Input((16, 16, 3))
    h = K.Conv2D(8, 3, padding="same", name="stem")(x)
    y = K.Activation("relu", name="relu1")(K.BatchNormalization(name="bn1")(h))
    shortcut = K.Conv2D(16, 1, strides=2, name="short")(y)
    y = K.Conv2D(16, 3, strides=2, padding="same", use_bias=False, name="conv1")(y)
    y = K.Dropout(0.2, name="drop")(K.ReLU(name="relu2")(K.BatchNormalization(name="bn2")(y)))
    y = K.Conv2D(16, 3, padding="same", name="conv2")(y)
    h = K.LayerNormalization(name="ln")(K.Add(name="add")([shortcut, y]))
    h = K.GlobalAveragePooling2D(name="gap")(K.MaxPooling2D(2, name="pool")(h))
    return keras.Model(x, K.Dense(10, activation="softmax", name="head")(h))


TWIN = hand(
    [
        ("x", kl.Input(3, (16, 16)), ()),
        ("stem", kl.Affine(8, 3), ["x"]),
        ("n1", NORM, ["stem"]),
        ("r1", RELU, ["n1"]),
        ("s", kl.Affine(16, 1, 2), ["r1"]),
        ("c1", kl.Affine(16, 3, 2, bias=False), ["r1"]),
        ("n2", NORM, ["c1"]),
        ("r2", RELU, ["n2"]),
        ("d", kl.Dropout(0.2), ["r2"]),
        ("c2", kl.Affine(16, 3), "d"),
        ("add", kl.Sum(), ["s", "c2"]),
        ("ln", kl.LayerNorm(), ["add"]),
        ("p", kl.Pool("max", 2), ["ln"]),
        ("g", kl.Pool("mean"), "p"),
        ("h", kl.Affine(10), "g"),
    ]
)
TWIN = hand([(n, layer, ["d"] if n == "c2" else p) for n, layer, p in TWIN.steps()])


def test_functional_resnet():
    model = functional()
    before = [np.array(v.value) for v in model.variables]
    calls = {
        kind: kind.__dict__["call"]
        for kind in (K.BatchNormalization, K.LayerNormalization, K.Dropout)
    }
    for r in (read(model, sigmas=False), read(model, jnp.ones((3, 16, 16, 3)), sigmas=False)):
        assert r.network.isomorphic(TWIN), str(r)
    assert {"stem", "bn1", "short", "conv1", "drop", "ln", "head"} <= set(r.network)
    assert any("softmax" in note.text for note in r.notes)
    assert all(np.array_equal(a, v.value) for a, v in zip(before, model.variables, strict=True))
    assert all(kind.__dict__["call"] is call for kind, call in calls.items())


def test_sequential_and_other_layers():
    model = keras.Sequential(
        [
            keras.Input((12, 12, 4)),
            K.ZeroPadding2D(1),
            K.Conv2D(8, 3, activation="swish", name="a"),
            K.DepthwiseConv2D(3, padding="same", name="b"),
            K.GroupNormalization(2, name="n"),
            K.LeakyReLU(0.2, name="f"),
            K.AveragePooling2D(2, name="p"),
            K.Flatten(name="flat"),
            K.Dense(6, name="c"),
        ]
    )
    r = read(model, sigmas=False)
    leaky = r.network.layer(r.network.nodes_of(kl.Nonlinear)[1])
    assert np.allclose(leaky.activation(np.array([-1.0, 2.0])), [-0.2, 2])
    assert r.network.isomorphic(
        hand(
            [
                ("x", kl.Input(4, (12, 12)), ()),
                ("a", kl.Affine(8, 3), "x"),
                ("s", kl.Nonlinear("swish"), "a"),
                ("b", kl.Affine(8, 3, groups=8), "s"),
                ("n", kl.GroupNorm(2), "b"),
                ("f", leaky, "n"),
                ("p", kl.Pool("mean", 2), "f"),
                ("l", kl.Flatten(), "p"),
                ("c", kl.Affine(6), "l"),
            ]
        )
    ), str(r)


@pytest.mark.parametrize(
    "name",
    [
        "relu",
        "gelu",
        "silu",
        "elu",
        "celu",
        "selu",
        "softplus",
        "softsign",
        "tanh",
        "sigmoid",
        "mish",
        "hard_sigmoid",
        "leaky_relu",
    ],
)
def test_activations(name):
    r = read(keras.Sequential([keras.Input((3,)), K.Dense(4, activation=name)]), sigmas=False)
    phi = r.network.layer(r.network.nodes_of(kl.Nonlinear)[0]).activation
    grid = np.linspace(-4, 4, 33)
    assert np.allclose(
        phi(grid), np.asarray(keras.activations.get(name)(jnp.asarray(grid)), float), atol=2e-6
    )
    if name != "leaky_relu":  # its slope is 0.2 here
        assert phi == kc.activation(name)


def test_subclassed_and_several_inputs():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.norm = (
                K.Dense(8, name="a"),
                K.Dense(8, name="b"),
                K.BatchNormalization(name="norm"),
            )

        def call(self, x, training=False):
            return 0.8 * x + 0.6 * self.b(keras.ops.tanh(self.norm(self.a(x), training=training)))

    net = Net()
    with refused("call it once"):
        read(net, jnp.ones((2, 8)))
    net(jnp.ones((2, 8)))
    r = read(net, jnp.ones((2, 8)), sigmas=False)
    assert r.network.isomorphic(
        hand(
            [
                ("x", kl.Input(8), ()),
                ("a", kl.Affine(8), "x"),
                ("n", NORM, "a"),
                ("t", kl.Nonlinear("tanh"), "n"),
                ("b", kl.Affine(8), "t"),
                ("s", kl.Sum((0.8, 0.6)), "xb"),
            ]
        )
    ), str(r)
    one, two = keras.Input((3,), name="one"), keras.Input((2,), name="two")
    joined = keras.Model(
        [one, two], K.Dense(4)(K.Concatenate()([one, K.Dense(5, activation="tanh")(two)]))
    )
    assert len(read(joined, sigmas=False).network.inputs) == 2


def test_errors():
    open_size = keras.Sequential([keras.Input((None, None, 3)), K.Conv2D(4, 3)])
    with refused("not fixed"):
        read(open_size)
    assert len(read(open_size, jnp.ones((1, 8, 8, 3))).network) == 2
    assert read(open_size, (1, 8, 8, 3)).network == read(open_size, jnp.ones((1, 8, 8, 3))).network


@pytest.mark.slow
def test_predicted_q_and_c_values_of_wide_layers(every: int):
    """Dense layers as Keras draws them with He normal weights, biases 0.

    20 models of width 1024 (512 where --every thins).
    """
    u = wide_models.inputs(every)
    width = u.shape[1]

    def model(seed):
        keras.utils.set_random_seed(seed)
        stack = [
            K.Dense(width, activation="relu", kernel_initializer="he_normal") for _ in range(3)
        ]
        return keras.Sequential([keras.Input((width,)), *stack])

    network = read(model(0), sigmas=False).network
    network = network.map_layers(
        lambda _, layer: (
            kl.Affine(layer.features, sigma_w=np.sqrt(2)) if isinstance(layer, kl.Affine) else layer
        )
    )
    wide_models.check_maps(network, [model(seed)(u) for seed in range(1, 21)])
