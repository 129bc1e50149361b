"""The network of a JAX model, unchanged and with the model's own weights, given back.

It computes what the model computes.
"""

from __future__ import annotations

import json
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

from kcalc.interchange.apply import apply_edits, edits_of, scaled_edits_of  # noqa: E402
from kcalc.interchange.edits import edits_from_dict  # noqa: E402


def apply_jax(reading: Any, network: Any, **options: Any) -> Any:
    """The model of a reading with the edits of a network."""
    edits = edits_of(reading, SimpleNamespace(network=network))
    return apply_edits(reading.trace.model.subject, edits, **options)


R = np.random.default_rng(3)
SIZES = {
    "w": (6, 4), "v": (6, 4), "u": (4, 5), "k": (3, 3, 3, 4), "f": (36, 5), "q": (6, 12), "a": (),
}  # fmt: skip
P = {
    name: np.asarray(R.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])), np.float32)
    for name, shape in SIZES.items()
}
FLAT, IMAGE = (2, 6), (2, 6, 6, 3)


def conv(x: Any, w: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def windows(x: Any, size: int, stride: int, padding: str = "SAME") -> Any:
    """Sums over windows."""
    return lax.reduce_window(x, 0.0, lax.add, (1, size, size, 1), (1, stride, stride, 1), padding)


def norm(x: Any) -> Any:
    d = x - x.mean(-1, keepdims=True)
    return d / jnp.sqrt((d**2).mean(-1, keepdims=True) + 1e-5)


# of parameters and a convolution of the image
BEHIND_A_LAYER = {
    "repeated": lambda p, h: jax.image.resize(h, (2, 12, 12, 4), "nearest"),
    "mean pool": lambda p, h: windows(h, 3, 2) / windows(jnp.ones(h.shape), 3, 2),
    "flattened": lambda p, h: (windows(jnp.tanh(h), 2, 2, "VALID") / 4).reshape(2, -1) @ p["f"],
    "windows of one": lambda p, h: jnp.sin(windows(h, 1, 1)),
}
MODELS = {
    name: (lambda p, x, f=function: f(p, conv(x, p["k"])), IMAGE)
    for name, function in BEHIND_A_LAYER.items()
} | {
    "product": (lambda p, x: ((x @ p["w"]) * jnp.tanh(x @ p["v"])) @ p["u"], FLAT),
    "halves": (lambda p, x: (lambda h: jnp.tanh(h[:, :6]) * h[:, 6:])(x @ p["q"]), FLAT),
    "an input scaled": (lambda p, x: jnp.tanh((2 * x - 1) @ p["w"]), FLAT),
    "weights with a factor": (lambda p, x: jnp.tanh(x @ (p["a"] * p["w"])) @ p["u"], FLAT),
}


def close(found: Any, wanted: Any) -> Any:
    return np.asarray(found) == pytest.approx(np.asarray(wanted), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_an_unchanged_network_computes_what_the_model_computes(name: str) -> None:
    function, shape = MODELS[name]
    x = jnp.asarray(np.random.default_rng(1).standard_normal(shape), jnp.float32)
    reading = read(function, P, x)
    assert reading.fidelity.counts.get("not read", 0) == 0, [str(note) for note in reading.notes]
    again, new = apply_jax(reading, reading.network, weights="keep")
    assert close(again(new, x), function(P, x))


def dropping(p: Any, x: Any) -> Any:
    h = jnp.tanh(x @ p["w"])
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.8, h.shape), h / 0.8, 0) @ p["u"]


def test_dropout_stays_where_the_network_has_it_and_goes_where_it_has_not() -> None:
    x = jnp.asarray(R.standard_normal((50, 6)), jnp.float32)
    reading = read(dropping, P, x)
    again, new = apply_jax(reading, reading.network, weights="keep")
    assert np.array_equal(again(new, x), dropping(P, x))
    (drop,) = reading.network.nodes_of(L.Dropout)
    again, new = apply_jax(reading, reading.network.without([drop]), weights="keep")
    assert close(again(new, x), np.tanh(np.asarray(x) @ P["w"]) @ P["u"])


def changed(reading: Any, phi: Any, removed: bool = False) -> Any:
    """The edits of a reading: all activations are ``phi``, the norms are ``removed``."""
    layer = L.Nonlinear(phi)
    network = reading.network.map_layers(lambda _, g: layer if isinstance(g, L.Nonlinear) else g)
    network = network.without(network.nodes_of(L.LayerNorm)) if removed else network
    return edits_of(reading, SimpleNamespace(network=network))


GAINS = {"w": P["w"], "u": P["u"], "g": np.full(4, 1.5, "f"), "b": np.full(4, 0.25, "f")}


def gained(p: Any, x: Any) -> Any:
    return jnp.tanh(norm(x @ p["w"]) * p["g"] + p["b"]) @ p["u"]


@pytest.mark.parametrize("removed", [False, True], ids=["kept", "removed"])
@pytest.mark.parametrize("other", [False, True], ids=["same", "other"])
def test_activations_behind_a_norm_with_a_gain(other: bool, removed: bool) -> None:
    """The activation of the network acts on the norm z, without the gain and bias of the model."""
    x = jnp.asarray(R.standard_normal(FLAT), jnp.float32)
    reading = read(gained, GAINS, x)
    (node,) = reading.network.nodes_of(L.Nonlinear)
    own = kc.activation("sin") if other else reading.network.layer(node).activation
    edits = changed(reading, own.transformed(0.5, 0.125, 2, -0.25), removed)
    again, new = apply_edits((gained, GAINS), edits, weights="keep")
    f = jnp.sin if other else (lambda z: jnp.tanh(1.5 * z + 0.25))
    z = x @ P["w"] if removed else norm(x @ P["w"])
    assert close(again(new, x), (2 * (f(0.5 * z + 0.125) - 0.25)) @ P["u"])


CONTROLLED = {
    "a branch": lambda p, x, f: lax.cond(True, f, jnp.cos, x @ p["w"]) @ p["u"],
    "a branch in a branch": lambda p, x, f: lax.cond(
        True, lambda x: lax.cond(False, jnp.cos, f, x @ p["w"]) @ p["u"], lambda x: x[:, :5], x
    ),
    "a loop of one turn": lambda p, x, f: (
        lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x @ p["w"]))[1]
        @ p["u"]
    ),
}


@pytest.mark.parametrize("name", CONTROLLED)
def test_activations_in_branches_and_loops(name: str) -> None:
    function, x = CONTROLLED[name], jnp.asarray(R.standard_normal(FLAT), jnp.float32)
    model = lambda p, x: function(p, x, jnp.tanh)  # noqa: E731
    edits = changed(read(model, P, x), kc.activation("tanh").transformed(0.5, 0.125, 2, -0.25))
    again, new = apply_edits((model, P), edits, weights="keep")
    wanted = function(P, x, lambda z: 2 * (jnp.tanh(0.5 * z + 0.125) - 0.25))
    assert close(again(new, x), wanted)


def model(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["s"]) @ p["u"]


def test_networks_that_are_not_the_models_are_refused_by_name() -> None:
    own = {"s": P["w"], "u": P["u"]}
    reading = read(model, own, jnp.asarray(R.standard_normal(FLAT), jnp.float32))
    network = reading.network
    last = network.nodes_of(L.Affine)[-1]
    renamed = kc.Network.from_steps([*network.steps(), ("new", L.Nonlinear("tanh"), (last,))])
    with refused("'new'.*operation"):
        apply_jax(reading, renamed)
    edits = edits_of(reading, same := SimpleNamespace(network=network))
    with refused("does not contain the operations.*read the model again"):
        edits_of(replace(reading, trace=None), same)
    for key in (jax.random.split(jax.random.key(0), 3), jnp.ones(2)):
        with refused("key.*must"):
            apply_jax(reading, network, key=key)
    with refused("parameter 's'"):
        apply_edits((model, {"u": own["u"]}), edits)


def test_parameters_whose_paths_fall_together() -> None:
    own = {"a.b": P["w"], "a": {"b": P["u"]}}
    x = jnp.asarray(R.standard_normal(FLAT), jnp.float32)

    def two(p: Any, x: Any) -> Any:
        return jnp.tanh(x @ p["a.b"]) @ p["a"]["b"]

    reading = read(two, own, x)
    function, new = apply_jax(reading, reading.network, weights="keep")
    assert jax.tree.all(jax.tree.map(np.array_equal, new, own))
    assert close(function(new, x), two(own, x))


R2 = np.random.default_rng(6)
G = {
    name: R2.standard_normal(shape).astype("f") / np.sqrt(shape[0])
    for name, shape in {"t": (50, 16), "a": (16, 16), "s": (16, 8), "b": (16,)}.items()
}
IDS, ROWS = R2.integers(0, 50, (4, 6)), R2.standard_normal((4, 6, 16)).astype("f")
# {case: (model, input, {parameter: expected factor of its root mean square}, {left node: words})}
DRAWN: dict[str, tuple[Any, Any, dict[str, float], dict[str, str]]] = {
    "a table": (lambda p, i: jnp.tanh(p["t"][i] @ (3 * p["a"])), IDS, {"t": 1, "a": 1}, {}),
    "twice a table": (lambda p, i: jnp.tanh((2 * p["t"]).T.T[i] @ p["a"]), IDS, {"t": 1}, {}),
    "a table of squares": (
        lambda p, i: jnp.tanh((p["t"] ** 2)[i] @ p["a"]),
        IDS,
        {"t": 0},
        {"t": "recomputes its weights"},
    ),
    "biases of locations": (
        lambda p, x: jnp.tanh((x.mT @ p["a"][:6, :6]).mT @ p["a"].T + p["b"]),
        ROWS,
        {"b": -1},
        {},
    ),
    "rows in another order": (
        lambda p, x: jnp.tanh(x @ p["s"].T.reshape(16, 8)) @ p["a"][:8],
        ROWS,
        {"s": 0},
        {"s": "do not form rows of one parameter"},
    ),
    "twice a bias": (
        lambda p, x: jnp.tanh(x @ p["a"] + 2 * p["b"]),
        ROWS,
        {"a": 0, "b": 0},
        {"a": "recomputes its weights"},
    ),
    "repeated biases": (
        lambda p, x: jnp.tanh(x @ p["a"] + jnp.broadcast_to(p["b"], (6, 16)).T.T),
        ROWS,
        {"a": 0},
        {"a": "recomputes its weights"},
    ),
    "repeated weights": (
        lambda p, x: jnp.tanh(x @ jnp.broadcast_to(p["b"], (16, 16))[:, :4]),
        ROWS,
        {"b": 0},
        {"b": "recomputes its weights"},
    ),
    "halves of weights": (
        lambda p, x: jnp.tanh(x @ jnp.split(p["a"], 2, axis=1)[1]),
        ROWS,
        {"a": 1},
        {},
    ),
    "gains of no module": (
        lambda p, x: norm(x @ p["a"]) * p["b"],
        ROWS,
        {"b": 0},
        {"mul": "not parameters of a normalisation module"},
    ),
}


@pytest.mark.parametrize("case", DRAWN)
def test_redrawn_parameters(case: str) -> None:
    """The networks of the model and of its edited copy have the same sigmas.

    A parameter keeps its entries (0), or is drawn again (1), or becomes 0 (-1).
    """
    function, x, wanted, left = DRAWN[case]
    reading = read(function, G, x)
    edits = edits_of(reading, SimpleNamespace(network=reading.network))
    assert {n: left[n] in why for n, why in edits.left_alone.items()} == dict.fromkeys(left, True)
    _, new = apply_edits((function, G), edits)
    for name, factor in wanted.items():
        made = np.asarray(new[name])
        assert np.array_equal(made, G[name]) == (factor == 0) and made.any() == (factor >= 0)
        if factor > 0:
            assert made.std() == pytest.approx(G[name].std(), rel=0.2)


@pytest.mark.parametrize(
    ("law", "removed", "spread"),
    [("keep", True, 0.0), ("orthogonal_delta", False, 0.0), ("orthogonal_delta", False, 0.5)],
)
def test_the_gain_and_bias_of_a_norm_module(law: Any, removed: bool, spread: float) -> None:
    """New activations act on the norm without its gain and bias, or on the layer before it."""
    nnx = pytest.importorskip("flax.nnx")

    class Normed(nnx.Module):
        def __init__(self) -> None:
            self.layer = nnx.Linear(6, 8, use_bias=False, rngs=nnx.Rngs(0))
            self.norm, self.out = (
                nnx.LayerNorm(8, rngs=nnx.Rngs(0)),
                nnx.Linear(8, 3, rngs=nnx.Rngs(1)),
            )
            self.norm.scale[...] = 1.5 + spread * jnp.arange(8)
            self.norm.bias[...] = 0.25 + spread * jnp.arange(8)

        def __call__(self, x: Any) -> Any:
            return self.out(jnp.tanh(self.norm(self.layer(x).reshape(-1, 1, 8))))

    model, x = Normed(), R2.standard_normal((4, 6)).astype("f")
    phi = kc.activation("sin").transformed(0.5, 0.125, 2, -0.25)
    new = apply_edits(model, changed(read(model, x), phi, removed), weights=law)
    z = new.layer(x).reshape(-1, 1, 8)
    z = z if removed else norm(z)
    assert close(new(x), new.out(2 * (jnp.sin(0.5 * z + 0.125) - 0.25)))


def test_an_edited_module_updates_its_running_statistics() -> None:
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    parts = nnx.Linear(6, 8, rngs=rngs), nnx.BatchNorm(8, momentum=0.75, rngs=rngs), jnp.tanh
    model, x = nnx.Sequential(*parts), R2.standard_normal((16, 6)).astype("f")
    new = apply_edits(model, changed(read(model, x), "sin"), weights="keep")
    z = model.layers[0](x)
    assert close(new(x), jnp.sin((z - z.mean(0)) / jnp.sqrt(z.var(0) + 1e-5)))
    assert close(new.layers[1].mean[...], z.mean(0) / 4)


def test_edits_of_other_models_are_refused() -> None:
    reading = read(DRAWN["halves of weights"][0], G, ROWS)
    edits = edits_of(reading, SimpleNamespace(network=reading.network))
    cases: Any = (
        (3.5, edits, {}, "a float was passed"),
        ((model, G), edits, {"inplace": True}, "inplace= is for PyTorch"),
        ((model, G), replace(edits, framework="flax"), {}, "for flax models, .* a jax model"),
        ((model, G), replace(edits, framework="onnx"), {}, "'onnx' models are not supported"),
    )
    for subject, given, options, words in cases:
        with refused(words):
            apply_edits(subject, given, **options)
    for change in ({"kind": "scaled"}, {"layout": {"wide": [8, 16], "strides": [900, 1]}}):
        data = json.loads(json.dumps(edits.to_dict()))
        weight = data["edits"][0]["weights"][0]
        weight |= {k: weight[k] | v if k == "layout" else v for k, v in change.items()}
        with refused("not an edit of a JAX model"):
            apply_edits((model, G), edits_from_dict(data))
    with refused("multiply its weights by the factors"):
        scaled_edits_of(reading, {"a": 2.0})
