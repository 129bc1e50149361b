"""The network of a JAX model, unchanged and with the model's own weights, given back: it computes what the model computes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc import layers as L
from kcalc.interchange.read import read

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from kcalc.interchange.jax_model import apply_jax  # noqa: E402

R = np.random.default_rng(3)
SIZES = {"w": (6, 4), "v": (6, 4), "u": (4, 5), "k": (3, 3, 3, 4), "c": (8, 5), "f": (36, 5), "t": (3, 5), "q": (6, 12)}
P = {name: jnp.asarray(R.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])), jnp.float32) for name, shape in SIZES.items()}
FLAT, IMAGE = (2, 6), (2, 6, 6, 3)


def conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def mean_pool(x: Any) -> Any:
    window = ((1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    return lax.reduce_window(x, 0.0, lax.add, *window) / lax.reduce_window(jnp.ones(x.shape), 0.0, lax.add, *window)


def flat_pool(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def norm(x: Any, axes: Any = (-1,), centre: bool = True) -> Any:
    d = x - x.mean(axes, keepdims=True) if centre else x
    return d / jnp.sqrt((d**2).mean(axes, keepdims=True) + 1e-5)


MODELS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "product": (lambda p, x: ((x @ p["w"]) * jnp.tanh(x @ p["v"])) @ p["u"], FLAT),
    "halves": (lambda p, x: (lambda h: jnp.tanh(h[:, :6]) * h[:, 6:])(x @ p["q"]), FLAT),
    "join": (lambda p, x: jnp.concatenate([jnp.tanh(x @ p["w"]), x @ p["v"]], -1) @ p["c"], FLAT),
    "scaled": (lambda p, x: 0.5 * (x @ p["w"]), FLAT),
    "repeated": (lambda p, x: jax.image.resize(conv(x, p["k"]), (2, 12, 12, 4), "nearest"), IMAGE),
    "layer norm": (lambda p, x: norm(conv(x, p["k"])) @ p["u"], IMAGE),
    "rms norm": (lambda p, x: norm(x @ p["w"], centre=False) @ p["u"], FLAT),
    "one group": (lambda p, x: norm(conv(x, p["k"]), (1, 2, 3)) @ p["u"], IMAGE),
    "mean pool": (lambda p, x: mean_pool(conv(x, p["k"])), IMAGE),
    "flattened": (lambda p, x: flat_pool(jnp.tanh(conv(x, p["k"]))).reshape(2, -1) @ p["f"], IMAGE),
    "an input reshaped": (lambda p, x: jnp.tanh(x.reshape(2, 6) @ p["w"]) @ p["u"], (2, 2, 3)),
    "an input scaled": (lambda p, x: jnp.tanh((2 * x - 1) @ p["w"]), FLAT),
    "an input turned": (lambda p, x: conv(x.transpose(0, 2, 3, 1), p["k"]), (2, 3, 6, 6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_unchanged_network_computes_what_the_model_computes(name: str) -> None:
    function, shape = MODELS[name]
    x = jnp.asarray(np.random.default_rng(1).standard_normal(shape), jnp.float32)
    reading = read(function, P, x)
    assert reading.fidelity.counts.get("not read", 0) == 0, [str(note) for note in reading.notes]
    again, new = apply_jax(function, reading, SimpleNamespace(network=reading.network), weights="keep")
    assert np.asarray(again(new, x)) == pytest.approx(np.asarray(function(P, x)), rel=1e-4, abs=1e-5)


def test_dropout_is_left_out() -> None:
    def model(p: Any, x: Any) -> Any:
        h = jnp.tanh(x @ p["w"])
        return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.8, h.shape), h / 0.8, 0) @ p["u"]

    x = jnp.asarray(R.standard_normal((50, 6)), jnp.float32)
    reading = read(model, P, x)
    assert len(reading.network.nodes_of(L.Dropout)) == 1
    again, new = apply_jax(model, reading, SimpleNamespace(network=reading.network), weights="keep")
    assert np.asarray(again(new, x)) == pytest.approx(np.tanh(np.asarray(x) @ np.asarray(P["w"])) @ np.asarray(P["u"]), rel=1e-4, abs=1e-5)


def test_exchanged_locations_and_missing_inputs_are_refused() -> None:
    x = jnp.ones(IMAGE)
    turned = read(lambda p, x: jnp.tanh(conv(x, p["k"]).transpose(0, 2, 1, 3)) @ p["u"], P, x)
    with pytest.raises(kc.KcalcError, match="exchanges the axes of locations"):
        apply_jax(None, turned, SimpleNamespace(network=turned.network))
    two = read(lambda p, x, y: jnp.tanh(x @ p["w"] + y @ p["v"]), P, jnp.ones(FLAT), jnp.ones(FLAT))
    function, new = apply_jax(None, two, SimpleNamespace(network=two.network))
    for inputs, words in (((jnp.ones(FLAT),), "takes 2 arrays"), ((), "takes arrays")):
        with pytest.raises(kc.KcalcError, match=words):
            function(new, *inputs)
