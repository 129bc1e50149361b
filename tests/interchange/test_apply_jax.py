"""Shaped networks given back as JAX models of the kind that was read.

What they compute, by NumPy written down apart from them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from test_apply_jax_layers import apply_jax, conv

import kcalc as kc
from kcalc.interchange.apply import apply_to
from kcalc.interchange.jax_model.weights import generator
from kcalc.interchange.read import read


def shaped(reading):
    network = reading.network.without_normalization().normalised()
    return kc.shape(network, method="dks", zeta=1.5)


def residual(p, x):
    a = jnp.tanh(conv(x, p["stem"]))
    branch = conv(jnp.tanh(conv(a, p["a"], stride=2)), p["b"])
    h = conv(a, p["short"], stride=2) + branch
    return {"out": jnp.tanh(h).mean((1, 2)) @ p["head"] + p["bias"], "other": 3}


def drawn(**shapes):
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}


PARAMS = drawn(
    stem=(3, 3, 3, 8), a=(3, 3, 8, 8), b=(3, 3, 8, 8), short=(1, 1, 8, 8), head=(8, 5), bias=(5,)
)
IMAGE = np.ones((1, 8, 8, 3), "f")


def test_a_v1_network_rewritten_as_v2_is_another_model():
    def model(p, x):
        h = jax.nn.relu(x @ p["i"])
        return jax.nn.relu(h + jax.nn.relu(h @ p["a"]) @ p["b"])

    r = read(model, drawn(i=(6, 6), a=(6, 6), b=(6, 6)), jnp.ones((2, 6)))
    with refused("'add'.*reads"):
        apply_jax(r, r.network.preactivated().normalised())


def test_weights_are_not_the_numbers_that_numpy_gives_users():
    params = dict.fromkeys("wu", jnp.zeros((64, 64)))
    r = read(lambda p, x: jnp.tanh(x @ p["w"]) @ p["u"], params, jnp.ones((1, 64)))
    x = np.random.default_rng(0).normal(size=(64, 64))
    function, new = apply_jax(r, shaped(r).network, weights="gaussian_delta")
    correlations = [
        np.corrcoef(x.ravel(), w.ravel())[0, 1] for leaf in new.values() for w in (leaf, leaf.T)
    ]
    assert max(np.abs(correlations)) < 5 / 64
    assert function(new, x).var() == pytest.approx(1, abs=0.1)
    starts = {tuple(np.random.default_rng(n).normal(size=3)) for n in range(200)}
    keys = [*range(-100, 100), *map(jax.random.key, range(100))]
    drawn = [tuple(generator(key).normal(size=3)) for key in keys]
    assert not starts & set(drawn)
    assert len(set(drawn[:200])) == 200


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": "he"}, "distribution of initial weights"),
        ({"key": "seed"}, "key"),
        ({"key": True}, "key"),
    ],
)
def test_errors(change, words):
    r = read(residual, PARAMS, IMAGE)
    with refused(words):
        apply_jax(r, shaped(r).network, **change)


def test_networks_that_are_not_the_models():
    w, x = jnp.ones((3, 4)), jnp.ones((2, 3))
    other = kc.shape(kc.architectures.vanilla(3, "tanh"), method="dks")
    with refused("not an operation of the model"):
        apply_jax(read(residual, PARAMS, IMAGE), other.network)
    closed_over = lambda x: jnp.tanh(x @ w)  # noqa: E731
    closed_edits = kc.shape(read(closed_over, x).network, method="dks")
    with refused("weights.*from other parameters"):
        apply_to(closed_over, closed_edits, x)
    even = read(lambda p, x: jnp.tanh(conv(x, p["w"])), {"w": jnp.ones((2, 2, 3, 4))}, IMAGE)
    with refused("centre"):
        apply_jax(even, kc.shape(even.network, method="dks").network)
