"""Networks on JAX arrays against plain NumPy, against PyTorch, and at initialisation against the
kernel maps.
"""

from __future__ import annotations

from typing import Any

import array_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import activation, architectures, chain, residual, to_jax
from kcalc.calculi import array_operations
from kcalc.network.layers import (
    Affine,
    BatchNorm,
    Concat,
    Dropout,
    Flatten,
    Identity,
    Input,
    LayerNorm,
    Nonlinear,
    Pool,
    Positions,
    Product,
    RMSNorm,
    Scale,
    Sum,
)

TANH = activation("tanh").transformed(0.4, 0.3, 2.0, -0.25)


def dense_network() -> kc.Network:
    """Every layer that needs no locations."""
    return wired(
        ("a", Affine(12, sigma_b=0.5)),
        ("t", Nonlinear(TANH)),
        ("g", Affine(6, groups=3, sigma_w=1.5)),
        ("r", Nonlinear("relu")),
        ("ln", LayerNorm()),
        ("b", Affine(6, bias=False)),
        ("s", Sum((0.6, -0.8)), "g", "b"),
        ("twice", Sum(), "s", "s"),
        ("rms", RMSNorm(), "twice"),
        ("p", Product(), "rms", "s"),
        ("c", Concat(), "p", "t"),
        ("k", Scale(-1.25), "c"),
        ("d", Dropout(0.5)),
        ("i", Identity()),
        ("l", Nonlinear(activation("identity").transformed(1, 0, -2.5))),
        ("y", Affine(5)),
    )


def image_network() -> kc.Network:
    """Convolutions with every padding, stride and grouping, and every pooling."""
    return wired(
        ("x", Input(4, (9, 8))),
        ("same", Affine(6, kernel=3, stride=2)),
        ("circular", Affine(6, kernel=(5, 3), padding="circular", groups=2, sigma_b=0.3)),
        ("phi", Nonlinear("softplus")),
        ("point", Affine(6, stride=(2, 1))),
        ("padded", Affine(4, kernel=(3, 2), padding=(2, 1))),
        ("max", Pool("max", 3, 2, "same"), "phi"),
        ("mean", Pool("mean", (3, 2)), "padded"),
        ("weighted", Pool("weighted_mean", 3, 2, "same"), "padded"),
        ("valid", Affine(3, kernel=2, padding="valid"), "max"),
        ("ln", LayerNorm()),
        ("all", Pool("weighted_mean")),
        ("flat", Flatten(), "mean"),
        ("top", Pool("max"), "weighted"),
        ("centre", Pool("mean"), "padded"),
        ("y", Concat(), "all", "flat", "top", "centre"),
    )


def relative(found: Any, expected: np.ndarray) -> float:
    """The largest difference, relative to the size of what is expected."""
    found = np.asarray(found, float)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


NETWORKS = pytest.mark.parametrize(
    ("net", "shape"),
    [(image_network(), (3, 9, 8, 4)), (dense_network(), (7, 10))],
    ids=["images", "dense"],
)


@NETWORKS
def test_every_node_is_what_numpy_makes_of_it(net: kc.Network, shape: tuple[int, ...]):
    x = np.random.default_rng(0).standard_normal(shape)
    model = to_jax(net, weights="gaussian", dtype="float64")
    params = model.init(3, x)
    found = model.trace(params, x)
    expected = array_oracle.run(net, x, model.unstack(params))
    assert set(found) == set(net)
    for node in net:
        assert found[node].dtype == jnp.float64
        assert relative(found[node], expected[node]) < 1e-13, node


@NETWORKS
def test_ntk_parameterization_is_the_same_function_of_the_same_draws(
    net: kc.Network, shape: tuple[int, ...]
):
    x = np.random.default_rng(1).standard_normal(shape)
    one, two = (
        to_jax(net, weights="gaussian", parameterization=name, dtype="float64")
        for name in ("standard", "ntk")
    )
    standard, ntk = one.init(5, x), two.init(5, x)
    for node in net.nodes_of(Affine):
        sigma_w, sigma_b = map(float, (net.layer(node).sigma_w, net.layer(node).sigma_b))
        assert ("bias" in ntk[node]) == (sigma_b > 0)
        ratio = np.asarray(standard[node]["weight"]) / np.asarray(ntk[node]["weight"])
        np.testing.assert_allclose(ratio, sigma_w / np.sqrt(ratio[..., 0].size), rtol=1e-12)
    assert relative(two.apply(ntk, x), np.asarray(one.apply(standard, x))) < 1e-12


def test_dropout_keeps_means_and_squares():
    net = wired(("d", Dropout(0.25)), ("y", Affine(8)))
    model = to_jax(net)
    x = jnp.ones((4, 50_000))
    params = {"y": {"weight": jnp.zeros((50_000, 8)), "bias": jnp.zeros(8)}}
    assert np.array_equal(model.trace(params, x)["d"], x)
    dropped = np.asarray(model.trace(params, x, train=True, key=1)["d"])
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(4 / 3)}
    assert np.mean(dropped == 0) == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / dropped.size))
    with refused("node 'd' .*key="):
        model.apply(params, x, train=True)


# -- several inputs and outputs --------------------------------------------------------------------


def test_several_inputs_and_outputs_of_any_label():
    net = wired(
        (("in", 1), Input(3)),
        (2, Input(3)),
        ("s", Sum(), (("in", 1), 2)),
        ("2", Affine(4)),
        ((0,), Affine(5), (2,)),
    )
    model = to_jax(net)
    params = model.init(0)
    # "2" is what the input 2 prints as
    assert sorted(params) == ["'2'", "(0,)"] and params["'2'"]["weight"].shape == (
        3,
        4,
    )
    out = model.apply(params, {2: np.ones((6, 3)), ("in", 1): np.zeros((6, 3))})
    assert {node: y.shape for node, y in out.items()} == {"2": (6, 4), (0,): (6, 5)}
    with refused("2 inputs"):
        model.apply(params, np.ones((6, 3)))


# -- bad input -------------------------------------------------------------------------------------

MLP = architectures.vanilla(2)
CNN = chain(Input(3), Affine(4, kernel=3), Nonlinear("relu"), Pool("mean"), Affine(2))


NO_MODELS: list[tuple[kc.Network, dict[str, Any], str]] = [
    (
        chain(Input(3), residual(Affine(), 0.6)),
        {"features": 8},
        r"'sum_1' \(Sum\).*'affine_1': 8",
    ),
    (
        chain(Input(3, (4, 4)), Affine(4, kernel=2)),
        {},
        r"'affine_1'.*2 x 2 kernel has no centre tap",
    ),
    (CNN, {}, r"'affine_1' is a convolution.*image_shape="),
    (chain(Input(3), Pool("max", 2), Affine(2)), {}, r"'pool_1' pools.*image_shape="),
    (MLP, {"features": {"afine_1": 3}}, r"unknown node 'afine_1'.*affine_1"),
    (MLP, {"features": {"nonlinear_1": 3}}, r"'nonlinear_1' is a Nonlinear"),
    (
        CNN,
        {"features": {"affine_1": 3}, "image_shape": (4, 4)},
        r"'affine_1' sets features=4, but 3 was passed",
    ),
    (
        MLP,
        {"features": 4, "weights": "orthogonl"},
        r"unknown distribution of initial weights 'orthogonl'.*orthogonal",
    ),
    (
        MLP,
        {"features": 4, "weights": {"nonlinear_1": "gaussian"}},
        r"'nonlinear_1' is a Nonlinear.*no weights",
    ),
    (MLP, {"features": 4, "parameterization": "tp5"}, r"unknown parameterization.*mup"),
    (
        architectures.rescaled_resnet(2, 1, kc.symbols.psi),
        {"features": 4},
        r"symbols \(psi\).*net.subs",
    ),
    (CNN, {"image_shape": (4, 4, 3)}, r"\(height, width\).*\(4, 4, 3\)"),
    (
        architectures.resnet_v2(),
        {"image_shape": (32, 32)},
        r"sets image_shape=\(224, 224\)",
    ),
    (
        chain(Input(3, (2, 2)), Affine(kernel=3, padding="valid")),
        {"features": 4},
        r"'affine_1'.*fit into 2 x 2",
    ),
    (MLP, {"features": 4, "remat": True, "rolled": False}, r"rolled=True"),
]
REFUSED = {
    "concat": (
        lambda: to_jax(architectures.densenet(2, growth=None), 8).init(0),
        r"'concat_1' \(Concat\).*ratio 2:1.*'stem': 8",
    ),
    "no features": (
        lambda: to_jax(MLP).init(0, np.ones((2, 3))),
        r"width of node 'affine_1' is unknown",
    ),
    "no input width": (
        lambda: to_jax(MLP, {"affine_1": 3}).init(0),
        r"input 'input'.*unknown.*model.init\(key, x\)",
    ),
    "shape of x": (
        lambda: to_jax(CNN, image_shape=(4, 4)).init(0, np.ones((2, 5, 4, 3))),
        r"\(\.\.\., 4, 4, channels\), got \(2, 5",
    ),
    "channels of x": (
        lambda: to_jax(CNN, image_shape=(4, 4)).init(0, np.ones((2, 4, 4, 1))),
        r"must have 3 channels, got 1",
    ),
    "params": (
        lambda: to_jax(MLP, 4).apply({}, np.ones((1, 4))),
        r"lack 'affine_1'.*model.init",
    ),
    "state": (
        lambda: bn().apply(bn().init(0), np.ones((2, 3))),
        r"'batchnorm_1' \(BatchNorm\).*init_state",
    ),
    "single example": (
        lambda: bn().apply(bn().init(0), np.ones(3), state=bn().init_state(), train=True),
        r"'batchnorm_1'.*needs a batch",
    ),
}


def bn() -> kc.Model:
    return to_jax(chain(Input(3), BatchNorm(), Affine(2)))


test_networks_without_a_model = refusals(NO_MODELS, lambda net, options: to_jax(net, **options))


test_bad_input_is_one_clear_error = refusals(REFUSED)


def test_images_are_resized_and_shuffled_as_by_pytorch() -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x = np.random.default_rng(0).normal(size=(2, 4, 6, 8)).astype("float32")
    image = torch.from_numpy(np.moveaxis(x, -1, 1).copy())

    def last(y: Any) -> Any:
        return np.moveaxis(y.numpy(), 1, -1)

    for kind, options in (
        ("nearest", {"mode": "nearest"}),
        ("linear", {"mode": "bilinear"}),
        ("corners", {"mode": "bilinear", "align_corners": True}),
    ):
        for size in ((8, 12), (5, 9), (2, 3)):
            found = array_operations.resize(x, (size[0] / 4, size[1] / 6), (0, 0), kind)
            expected = last(functional.interpolate(image, size, **options))
            np.testing.assert_allclose(found, expected, atol=1e-6)
    for back, shuffle in enumerate((functional.pixel_shuffle, functional.pixel_unshuffle)):
        found = array_operations.pixel_shuffle(x, (2, 2), bool(back))
        np.testing.assert_array_equal(found, last(shuffle(image, 2)))


def test_sinusoidal_positions_are_added_over_channels() -> None:
    """``sqrt(2) sigma (sin(t / 10000^(2 f / n)), cos(...))`` at token t, pairs of channels f."""
    model = to_jax(chain(Input(7, (4, 1)), Positions("sinusoidal", 0.5)))
    x = np.random.default_rng(1).standard_normal((2, 4, 1, 7)).astype("float32")
    angles = np.arange(4)[:, None] / 10000.0 ** (np.array([0, 0, 2, 2, 4, 4, 6]) / 7)
    added = np.sqrt(0.5) * np.where(np.arange(7) % 2, np.cos(angles), np.sin(angles))
    found = model.apply(model.init(jax.random.key(0), x), x)
    np.testing.assert_allclose(found, x + added[:, None], atol=1e-6)
