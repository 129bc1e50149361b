"""The network of a JAX model, unchanged and with the model's own weights, given back.

It computes what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.interchange.read import read
from kcalc.network import layers as L

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from kcalc.interchange.apply import apply_edits, edits_of  # noqa: E402


def apply_jax(model: Any, reading: Any, shaping: Any, **options: Any) -> Any:
    """The model of a reading with the edits of a shaping."""
    return apply_edits(reading.trace.model.subject, edits_of(reading, shaping), **options)


R = np.random.default_rng(3)
SIZES = {
    "w": (6, 4),
    "v": (6, 4),
    "u": (4, 5),
    "k": (3, 3, 3, 4),
    "c": (8, 5),
    "f": (36, 5),
    "t": (3, 5),
    "q": (6, 12),
}
SIZES |= {"r": (2, 4, 5), "r3": (1, 3, 4), "e": (2, 2, 4, 3), "a": ()}
P = {
    name: np.asarray(R.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])), np.float32)
    for name, shape in SIZES.items()
}
FLAT, IMAGE = (2, 6), (2, 6, 6, 3)


def conv(x: Any, w: Any, padding: str = "SAME") -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def padded(x: Any, mode: str) -> Any:
    return jnp.pad(x, ((0, 0), (1, 1), (2, 0), (0, 0)), mode=mode)


def windows_of_nine(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def row(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


def mean_pool(x: Any) -> Any:
    window = ((1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    return lax.reduce_window(x, 0.0, lax.add, *window) / lax.reduce_window(
        jnp.ones(x.shape), 0.0, lax.add, *window
    )


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
    "mean pool": (lambda p, x: mean_pool(conv(x, p["k"])), IMAGE),
    "mean that counts zeros": (lambda p, x: windows_of_nine(conv(x, p["k"])) / 9, IMAGE),
    "wrapped": (lambda p, x: conv(padded(x, "wrap"), p["k"], "VALID"), IMAGE),
    "reflected": (lambda p, x: conv(padded(x, "reflect"), p["k"], "VALID"), IMAGE),
    "flattened": (lambda p, x: flat_pool(jnp.tanh(conv(x, p["k"]))).reshape(2, -1) @ p["f"], IMAGE),
    "an input scaled": (lambda p, x: jnp.tanh((2 * x - 1) @ p["w"]), FLAT),
    "an image as a row": (
        lambda p, x: row(jnp.tanh(conv(x, p["k"])).reshape(2, 36, 4), p["r"][:, :4]),
        IMAGE,
    ),
    "an image of other rows": (
        lambda p, x: conv(jnp.tanh(conv(x, p["k"])).reshape(2, 9, 4, 4), p["e"]),
        IMAGE,
    ),
    "an image handed on with other rows": (
        lambda p, x: jnp.tanh(conv(x, p["k"])).reshape(2, 9, 4, 4),
        IMAGE,
    ),
    "a row plus an image": (
        lambda p, x: jnp.sin(
            jnp.tanh(conv(x, p["k"])) + row(x.reshape(2, 36, 3), p["r3"]).reshape(2, 6, 6, 4)
        ),
        IMAGE,
    ),
    "an image plus a row": (
        lambda p, x: jnp.sin(
            jnp.tanh(conv(x, p["k"])).reshape(2, 36, 4) + row(x.reshape(2, 36, 3), p["r3"])
        ),
        IMAGE,
    ),
    "a row beside an image": (
        lambda p, x: jnp.sin(
            jnp.concatenate(
                [jnp.tanh(conv(x, p["k"])), row(x.reshape(2, 36, 3), p["r3"]).reshape(2, 6, 6, 4)],
                -1,
            )
        ),
        IMAGE,
    ),
    "channels in the middle": (
        lambda p, x: jnp.tanh(x @ p["t"]).reshape(2, 2, 3, 6, 5).transpose(0, 1, 2, 4, 3),
        IMAGE,
    ),
    "windows of one": (
        lambda p, x: jnp.sin(
            lax.reduce_window(
                conv(x, p["k"]), -jnp.inf, lax.max, (1, 1, 1, 1), (1, 1, 1, 1), "VALID"
            )
        ),
        IMAGE,
    ),
    "weights with a factor": (lambda p, x: jnp.tanh(x @ (p["a"] * p["w"])) @ p["u"], FLAT),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_unchanged_network_computes_what_the_model_computes(name: str) -> None:
    function, shape = MODELS[name]
    x = jnp.asarray(np.random.default_rng(1).standard_normal(shape), jnp.float32)
    reading = read(function, P, x)
    assert reading.fidelity.counts.get("not read", 0) == 0, [str(note) for note in reading.notes]
    again, new = apply_jax(
        function, reading, SimpleNamespace(network=reading.network), weights="keep"
    )
    assert np.asarray(again(new, x)) == pytest.approx(
        np.asarray(function(P, x)), rel=1e-4, abs=1e-5
    )


def dropping(p: Any, x: Any) -> Any:
    h = jnp.tanh(x @ p["w"])
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.8, h.shape), h / 0.8, 0) @ p["u"]


def test_dropout_stays_where_the_network_has_it_and_goes_where_it_has_not() -> None:
    x = jnp.asarray(R.standard_normal((50, 6)), jnp.float32)
    reading = read(dropping, P, x)
    (drop,) = reading.network.nodes_of(L.Dropout)
    same = SimpleNamespace(network=reading.network)
    again, new = apply_jax(dropping, reading, same, weights="keep")
    assert np.array_equal(again(new, x), dropping(P, x))
    without = SimpleNamespace(network=reading.network.without([drop]))
    again, new = apply_jax(dropping, reading, without, weights="keep")
    assert np.asarray(again(new, x)) == pytest.approx(
        np.tanh(np.asarray(x) @ np.asarray(P["w"])) @ np.asarray(P["u"]), rel=1e-4, abs=1e-5
    )


def model(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["s"]) @ p["u"]


def test_networks_that_are_not_the_models_are_refused_by_name() -> None:
    x, own = jnp.asarray(R.standard_normal(FLAT), jnp.float32), {"s": P["w"], "u": P["u"]}
    reading = read(model, own, x)
    steps = list(reading.network.steps())
    last = reading.network.nodes_of(L.Affine)[-1]
    renamed = kc.Network.from_steps([*steps, ("new", L.Nonlinear("tanh"), (last,))])
    with refused("'new'.*operation"):
        apply_jax(model, reading, SimpleNamespace(network=renamed))
    with refused("does not hold the operations.*read the model again"):
        edits_of(replace(reading, trace=None), SimpleNamespace(network=reading.network))
    for key in (jax.random.split(jax.random.key(0), 3), jnp.ones(2)):
        with refused("key.*must"):
            apply_jax(model, reading, SimpleNamespace(network=reading.network), key=key)
    edits = edits_of(reading, SimpleNamespace(network=reading.network))
    with refused("parameter 's'"):
        apply_edits((model, {"u": own["u"]}), edits)


def test_parameters_whose_paths_fall_together() -> None:
    own = {"a.b": P["w"], "a": {"b": P["u"]}}
    x = jnp.asarray(R.standard_normal(FLAT), jnp.float32)

    def two(p: Any, x: Any) -> Any:
        return jnp.tanh(x @ p["a.b"]) @ p["a"]["b"]

    reading = read(two, own, x)
    function, new = apply_jax(
        two, reading, SimpleNamespace(network=reading.network), weights="keep"
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, new, own))
    assert np.asarray(function(new, x)) == pytest.approx(
        np.asarray(two(own, x)), rel=1e-5, abs=1e-5
    )
