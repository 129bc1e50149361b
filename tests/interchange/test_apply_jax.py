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
from thinning import mostly_slow

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


@pytest.mark.parametrize("layout", mostly_slow(["NHWC", "NCHW"], 2))
def test_functions_compute_the_shaped_network(layout):
    params = residual_params()
    x = jax.random.normal(jax.random.key(1), (4, 8, 8, 3) if layout == "NHWC" else (4, 3, 8, 8))

    def model(p, x):
        return residual(p, x, layout)

    before = jax.tree.map(np.array, params)
    r = read(model, params, x)
    s = shaped(r)
    function, new = apply_jax(model, r, s, key=3)
    assert jax.tree.all(jax.tree.map(np.array_equal, before, params))
    assert jax.tree.structure(new) == jax.tree.structure(params)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, params)
    assert not np.asarray(new["bias"]).any()
    phi = s.constants["tanh"].transformed

    def by_hand(p, x):
        h = conv(x, p["stem"], layout=layout)
        a = phi(np.asarray(h, np.float64)).astype(np.float32)
        b = phi(np.asarray(conv(a, p["a"], 2, layout), np.float64)).astype(np.float32)
        h = (conv(a, p["short"], 2, layout) + conv(b, p["b"], layout=layout)) / np.sqrt(2)
        return (
            phi(np.asarray(h, np.float64)).mean((1, 2) if layout == "NHWC" else (2, 3)) @ p["head"]
        )

    out = function(new, x)
    assert np.allclose(out["out"], by_hand(new, x), atol=2e-5)
    assert set(out) == {"out", "other"}
    assert np.allclose(jax.jit(function)(new, x)["out"], out["out"], atol=1e-5)
    gradient = jax.jit(jax.grad(lambda p: function(p, x)["out"].sum()))(new)
    assert all(
        bool(jnp.isfinite(leaf).all() and jnp.abs(leaf).max() > 0)
        for leaf in jax.tree.leaves(gradient)
    )
    assert np.allclose(
        jax.jit(jax.vmap(lambda one: function(new, one[None])["out"][0]))(x), out["out"], atol=1e-5
    )


def test_initial_weights_are_orthogonal_on_the_central_tap():
    params, x = residual_params(), jnp.ones((1, 8, 8, 3))
    r = read(residual, params, x)
    _, new = apply_jax(residual, r, shaped(r))
    for name in ("a", "b"):
        w = np.array(new[name])
        assert np.allclose(w[1, 1].T @ w[1, 1], np.eye(8), atol=1e-5)
        w[1, 1] = 0
        assert not w.any()
    assert np.allclose(
        np.asarray(new["stem"])[1, 1] @ np.asarray(new["stem"])[1, 1].T,
        8 / 3 * np.eye(3),
        atol=1e-5,
    )
    _, again = apply_jax(residual, r, shaped(r))
    _, other = apply_jax(residual, r, shaped(r), key=jax.random.key(7))
    assert np.array_equal(new["a"], again["a"])
    assert not np.array_equal(new["a"], other["a"])
    _, gaussian = apply_jax(residual, r, shaped(r), weights="gaussian_delta")
    assert np.mean(np.square(gaussian["a"][1, 1])) == pytest.approx(1 / 8, rel=6 * np.sqrt(2 / 64))
    _, kept = apply_jax(residual, r, shaped(r), weights="keep")
    assert all(np.array_equal(kept[name], params[name]) for name in params)


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
