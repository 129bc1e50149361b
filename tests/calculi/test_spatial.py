"""The recursion over pairs of locations, against neural-tangents (frozen), plain loops in mpmath,
and the calculus of equal locations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import spatial_loops
from thinning import mostly_slow
from wiring import layered

import kcalc as kc
from kcalc.activations import activation
from kcalc.calculi.hermite_series import has_series, octave
from kcalc.calculi.location_maps import LocationMaps
from kcalc.fields.jets import Jet
from kcalc.network import layers as L

PEER = json.loads((Path(__file__).parents[1] / "oracles" / "spatial_peer.json").read_text())
LOCAL = LocationMaps()
CORNER = 2e-9  # neural-tangents rounds c, which a kink at c = 1 turns into the square root of that


def conv(
    kernel: Any,
    stride: Any = (1, 1),
    padding: Any = "same",
    sigma_w: float = 1.4,
    sigma_b: float = 0.2,
) -> list[Any]:
    return ["conv", kernel, stride, padding, sigma_w, sigma_b]


@pytest.mark.parametrize("name", PEER["cases"])
def test_peer(name: str) -> None:
    case = PEER["cases"][name]
    x, y = np.array(PEER["x"])[: case["images"]], np.array(PEER["y"])
    K = kc.ntk(layered(case["layers"]), spatial="exact", image_shape=(4, 5))
    for (nngp, tangent), suffix in ((K.both(x, y), ""), (K.both(x), " own")):
        for got, key in ((nngp, "nngp"), (tangent, "ntk")):
            wanted = np.array(case[key + suffix])
            assert got.shape == wanted.shape
            off = abs(got - wanted) / abs(wanted).max()
            assert off[~np.eye(*off.shape[:2], dtype=bool)].max() < 2e-14
            assert off.max() < (CORNER if suffix and key == "ntk" else 2e-14)


RELU, ERF, ALL = ["relu"], ["erf"], ["mean", None, None]
LOOPS = {
    "dense after flatten": [
        conv((3, 3)),
        RELU,
        conv((2, 2)),
        RELU,
        ["flatten"],
        ["dense", 1.3, 0.1],
    ],
    "no biases": [
        conv((3, 3), sigma_b=0.0),
        RELU,
        conv((2, 2), sigma_b=0.0),
        RELU,
        ["flatten"],
        ["dense", 1.3, 0.0],
    ],
    "erf with strides": [
        conv((3, 3)),
        ERF,
        conv((2, 2), (2, 1)),
        ERF,
        ["flatten"],
        ["dense", 1.3, 0.1],
    ],
    "global mean": [
        conv((3, 3), padding="circular"),
        RELU,
        conv((2, 2)),
        RELU,
        ALL,
        ["dense", 1.3, 0.1],
    ],
    "numbers for padding": [
        conv((3, 3), (2, 1), 2),
        RELU,
        conv((2, 2), padding=1),
        RELU,
        ALL,
        ["dense", 1.3, 0.1],
    ],
    "pooled inside": [
        conv((3, 3)),
        RELU,
        ["mean", (2, 2), (1, 1)],
        conv((2, 2)),
        RELU,
        ALL,
        ["dense", 1.3, 0.1],
    ],
}


def two_images(distance: float, channels: int) -> np.ndarray:
    rng = np.random.default_rng(channels)
    x = rng.normal(size=(3, 3, channels))
    y = x + distance * rng.normal(size=x.shape)
    x[0, 1] = y[0, 1] = 0.0  # a black pixel in both
    y[2] = 0.0 if distance == 1 else y[2]  # a black row
    return np.stack([x, y])


@pytest.mark.parametrize("distance", [1, 1e-6])
@pytest.mark.parametrize("name", mostly_slow(LOOPS))
def test_loops(name: str, distance: float) -> None:
    images = two_images(distance, 1 if "mean" in name else 2)
    nngp, tangent = kc.ntk(layered(LOOPS[name]), spatial="exact", image_shape=(3, 3)).both(images)
    first, second, cross, both = spatial_loops.kernels(LOOPS[name], *images.tolist())
    assert float(abs(nngp[0, 0] / first - 1)) < 2e-15
    assert float(abs(nngp[1, 1] / second - 1)) < 2e-15
    assert float(abs(nngp[0, 1] / cross - 1)) < 2e-15
    # a kink after a pooling sees 1 - c with an absolute error of 1e-16, and its slope the square
    # root of that
    assert float(abs(tangent[0, 1] / both - 1)) < (
        1e-9 if name == "pooled inside" and distance < 1 else 3e-15
    )
    own = spatial_loops.kernels(LOOPS[name], images[0].tolist(), images[0].tolist())[3]
    assert float(abs(tangent[0, 0] / own - 1)) < 3e-15


def equal_locations(rng: np.random.Generator) -> tuple[np.ndarray, Any, Any]:
    """Three images whose locations are alike, their q values and cosines."""
    colours = rng.normal(size=(3, 3))
    q = np.mean(colours**2, axis=1)
    c = colours @ colours.T / 3 / np.sqrt(np.outer(q, q))
    return np.broadcast_to(colours[:, None, None], (3, 6, 5, 3)), q, c


DELTA = {
    "mean": kc.chain(
        L.Affine(kernel=3, sigma_w=1.4),
        L.Nonlinear("relu"),
        L.Affine(kernel=3),
        L.Nonlinear("erf"),
        L.Pool("mean"),
        L.Affine(),
    ),
    "flatten": kc.chain(
        L.Affine(kernel=(3, 2), stride=2, sigma_b=0.3),
        L.Nonlinear("tanh"),
        L.Flatten(),
        L.Affine(),
        L.Nonlinear("gelu"),
        L.Affine(),
    ),
    "norms": kc.chain(
        L.Affine(kernel=3),
        L.Nonlinear("relu"),
        L.LayerNorm(),
        L.Affine(kernel=2),
        L.RMSNorm(),
        L.Nonlinear("swish"),
        L.Affine(),
    ),
    "wide": kc.architectures.wide_resnet(16),
    "resnet": kc.architectures.layernorm_resnet(50).map_layers(
        lambda _, layer: (
            L.Pool("mean", layer.window, layer.stride) if isinstance(layer, L.Pool) else layer
        )
    ),
    "densenet": kc.architectures.densenet(4),
}


@pytest.mark.parametrize("name", DELTA)
def test_equal_locations_are_the_calculus_of_angles(name: str) -> None:
    """Delta weights on images whose locations agree.

    What kc.ntk and kc.c_map say of one location.
    """
    images, q, c = equal_locations(np.random.default_rng(0))
    size = (6, 5) if name in ("mean", "flatten", "norms", "densenet") else (8, 8)
    images = np.broadcast_to(images[:, :1, :1], (3, *size, 3))
    K = kc.ntk(DELTA[name], spatial="exact", image_shape=size, weights="delta")
    plain = kc.ntk(DELTA[name])
    at = c.clip(-1, 1), q[:, None], q[None, :]
    nngp, tangent = (v.reshape(3, 3, -1) for v in K.both(images))
    exact = ~np.eye(3, dtype=bool)  # on the diagonal the plain functions are handed a rounded c
    for got, wanted in ((nngp, plain.nngp(*at)), (tangent, plain(*at))):
        assert abs(got / wanted[..., None] - 1)[exact].max() < 1e-13
    diagonal = np.arange(3)
    for got, wanted in ((nngp, plain.nngp(1.0, q)), (tangent, plain(1.0, q))):
        assert abs(got[diagonal, diagonal] / wanted[:, None] - 1).max() < 1e-13
    C = kc.c_map(DELTA[name], spatial="exact", image_shape=size, weights="delta")
    assert abs(C(images).reshape(3, 3, -1) - kc.c_map(DELTA[name])(*at)[..., None]).max() < 1e-13


def test_long_series() -> None:
    """tanh at large q, whose Hermite series needs thousands of terms near |c| = 1."""
    phi, rng = activation("tanh"), np.random.default_rng(2)
    q1, q2 = rng.uniform(4, 15.9, (3, 1)), rng.uniform(0.1, 15.9, (1, 3))
    q2[0, 0] = q1[0, 0]
    assert has_series(phi, q1) and has_series(phi, q2)
    gap = np.array([[1e-9, 0.3, 1.95], [1e-4, 0.05, 1.0], [0.02, 0.7, 2.0]])
    jet = LOCAL.gap(phi, Jet((gap, np.ones_like(gap))), q1, q2)
    value, slope = phi.taylor(gap, q1, q2, 1)
    assert abs(jet.value - value).max() < 1e-14
    assert abs(jet.coefficients[1] / slope - 1).max() < 1e-12
    assert abs(jet.value[0, 0] / value[0, 0] - 1) < 1e-12


def test_blocks_and_halves() -> None:
    rng = np.random.default_rng(2)
    X, Y = rng.normal(size=(7, 4, 4, 2)), rng.normal(size=(3, 4, 4, 2))
    X[5] = X[1]
    Y[2] = X[0]
    net = layered([conv((3, 3)), RELU, conv((3, 3)), RELU, ALL, ["dense", 1.0, 0.0]])
    K = kc.ntk(net, spatial="exact", image_shape=(4, 4))
    nngp, tangent = K.both(X)
    pair = K.reading.bytes_per_pair() / 2**20
    for memory in (1.1 * pair, 4.5 * pair, 9.5 * pair):
        for got, wanted in zip(K.both(X, memory=memory), (nngp, tangent), strict=True):
            assert abs(got - wanted).max() < 1e-15
    assert np.array_equal(nngp, nngp.T)
    assert np.array_equal(tangent, tangent.T)
    # equal images, equal rows: their angle is 0, not rounding
    assert np.array_equal(tangent[5], tangent[1])
    mixed = K.matrix(X, Y)
    assert mixed[0, 2] == tangent[0, 0]
    assert abs(mixed - K.matrix(np.concatenate([X, Y]))[:7, 7:]).max() < 1e-15
    assert np.array_equal(K.matrix(X, X), tangent)
    assert np.array_equal(K.matrix(X), tangent)
    assert abs(K.nngp.matrix(X) - nngp).max() < 1e-15
    assert K.matrix(X.astype(np.float32)).dtype == np.float32
    assert (
        abs(sum(K.layer_kernel(node, X) for node in net.nodes_of(L.Affine)) - tangent).max() < 1e-15
    )


def test_notes() -> None:
    net = kc.chain(
        L.Affine(kernel=3),
        L.Nonlinear("relu"),
        L.Pool("weighted_mean", 2),
        L.Affine(kernel=3),
        L.Nonlinear("relu"),
        L.Affine(),
    )
    K = kc.ntk(net, spatial="exact", image_shape=(4, 4))
    assert [a.node for a in K.assumptions if a.kind == "heuristic"] == ["pool_1"]
    assert K.heuristic
    assert "dense" in next(a.text for a in K.assumptions if a.node == "affine_1")
    delta = kc.ntk(net, spatial="exact", image_shape=(4, 4), weights="delta")
    assert ["Delta" in a.text for a in delta.assumptions if a.node == "affine_1"] == [True, True]
    assert repr(K) == "SpatialTangentKernel(7 nodes, 4 x 4, dense weights, heuristic)"


def test_an_activation_whose_mean_square_underflows_has_no_series() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert octave(activation("tanh"), -1070) is None
        assert octave(activation("tanh"), -1000) is not None
