"""Shaped networks given back as JAX models of the kind that was read.

What they compute, by NumPy written down apart from them.
"""

import os
from types import SimpleNamespace

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from refusals import refused

import kcalc as kc
from kcalc.interchange.apply import apply_edits, apply_to, edits_of
from kcalc.interchange.jax_model.weights import generator
from kcalc.interchange.read import read


def apply_jax(model, reading, shaping, **options):
    """The model of a reading with the edits of a shaping."""
    return apply_edits(reading.trace.model.subject, edits_of(reading, shaping), **options)


def shaped(reading, **options):
    return kc.shape(
        reading.network.without_normalization().normalised(), method="dks", zeta=1.5, **options
    )


def conv(x, w, stride=1, layout="NHWC"):
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=(layout, "HWIO", layout)
    )


def residual(p, x, layout="NHWC"):
    axes = (1, 2) if layout == "NHWC" else (2, 3)
    h = conv(x, p["stem"], layout=layout)
    a = jnp.tanh(h)
    h = conv(a, p["short"], 2, layout) + conv(
        jnp.tanh(conv(a, p["a"], 2, layout)), p["b"], layout=layout
    )
    return {"out": jnp.tanh(h).mean(axes) @ p["head"] + p["bias"], "other": 3}


def residual_params():
    shapes = {
        "stem": (3, 3, 3, 8),
        "a": (3, 3, 8, 8),
        "b": (3, 3, 8, 8),
        "short": (1, 1, 8, 8),
        "head": (8, 5),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {n: jax.random.normal(k, s) for k, (n, s) in zip(keys, shapes.items(), strict=True)} | {
        "bias": jnp.ones(5)
    }


def test_a_v1_network_rewritten_as_v2_is_another_model():
    params = {n: jax.random.normal(jax.random.key(k), (6, 6)) for k, n in enumerate("iab")}

    def model(p, x):
        h = jax.nn.relu(x @ p["i"])
        return jax.nn.relu(h + jax.nn.relu(h @ p["a"]) @ p["b"])

    r = read(model, params, jnp.ones((2, 6)))
    with refused("'add'.*reads"):
        apply_jax(model, r, SimpleNamespace(network=r.network.preactivated().normalised()))


def test_weights_are_not_the_numbers_that_numpy_gives_users():
    params = {"w": jnp.zeros((64, 64)), "u": jnp.zeros((64, 64))}

    def model(p, x):
        return jnp.tanh(x @ p["w"]) @ p["u"]

    r = read(model, params, jnp.ones((1, 64)))
    s = shaped(r)
    x = np.random.default_rng(0).normal(size=(64, 64))
    function, new = apply_jax(model, r, s, weights="gaussian_delta")
    correlations = [
        np.corrcoef(x.ravel(), np.asarray(w).ravel())[0, 1]
        for leaf in new.values()
        for w in (leaf, leaf.T)
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
        ({"weights": "he"}, "law of initial weights"),
        ({"key": "seed"}, "key"),
        ({"key": True}, "key"),
    ],
)
def test_errors(change, words):
    r = read(residual, residual_params(), jnp.ones((1, 8, 8, 3)))
    with refused(words):
        apply_jax(residual, r, shaped(r), **change)


def test_networks_that_are_not_the_models():
    params, x = residual_params(), jnp.ones((1, 8, 8, 3))
    r, w = read(residual, params, x), jnp.ones((3, 4))
    other = kc.shape(kc.architectures.vanilla(3, "tanh"), method="dks")
    with refused("not an operation of the model"):
        apply_jax(residual, r, other)
    closed_over = lambda x: jnp.tanh(x @ w)  # noqa: E731
    closed = read(closed_over, jnp.ones((2, 3)))
    with refused("weights.*from other parameters"):
        closed_edits = kc.shape(closed.network, method="dks")
        apply_to(closed_over, closed_edits, jnp.ones((2, 3)))
    even = read(lambda p, x: jnp.tanh(conv(x, p["w"])), {"w": jnp.ones((2, 2, 3, 4))}, x)
    with refused("centre"):
        apply_jax(None, even, kc.shape(even.network, method="dks"))
