"""The recursion over pairs of locations, against neural-tangents (frozen), plain loops in mpmath,
and the calculus of equal locations.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from oracles import spatial_loops
from thinning import mostly_slow
from wiring import layered, wired

import kcalc as kc
from kcalc.activations import activation
from kcalc.calculi.hermite_series import has_series, octave
from kcalc.calculi.location_maps import LocationMaps
from kcalc.calculi.spatial.images import Images
from kcalc.calculi.windows import pooling
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


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("name", ["dense after flatten", "no biases"])
def test_near_duplicates_keep_their_digits(name: str, distance: float) -> None:
    """1 - c of near-duplicates with unequal q everywhere, relatively accurate.

    No 1 - c from a rounded c.
    """
    images = two_images(distance, 2)
    reading = kc.c_map(layered(LOOPS[name]), spatial="exact", image_shape=(3, 3)).reading
    some = Images.of({"x": images.reshape(2, 9, 2)})
    kernel, states = reading.run(some.taken(slice(0, 1)), some.taken(slice(1, 2)), False, {})
    gap = float(np.ravel(kernel.whole(states[reading.network.outputs[0]])[2].value)[0])
    first, second, cross, _ = spatial_loops.kernels(LOOPS[name], *images.tolist())
    wanted = 1 - cross / mpmath.mp.sqrt(first * second)
    assert float(abs(gap / wanted - 1)) < 1e-15 / distance + 1e-14


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


@pytest.mark.parametrize("name", ["tanh", "softplus", "mish", "sigmoid", "gelu_tanh"])
def test_many_q_values_at_once(name: str) -> None:
    """The interpolated Hermite series against the local maps, one pair of q values
    after the other.
    """
    phi, rng = activation(name), np.random.default_rng(1)
    q1, q2 = np.exp(rng.uniform(-6, 0.7, (6, 1))), np.exp(rng.uniform(-6, 0.7, (1, 5)))
    q2[0, 0] = q1[0, 0]
    for gap in (rng.uniform(0, 2, (6, 5)), 10.0 ** rng.uniform(-14, -1, (6, 5))):
        jet = LOCAL.gap(phi, Jet((gap, np.ones_like(gap))), q1, q2)
        value, slope = phi.taylor(gap, q1, q2, 1)
        assert abs(jet.value - value).max() < 2e-14
        assert abs(jet.coefficients[1] / slope - 1).max() < 1e-12
        assert abs(jet.value[0, 0] / value[0, 0] - 1) < 1e-12  # equal q: relative, however small
    size, mean = LOCAL.q(phi, q1)
    assert abs(size / phi.second_moment(q1) - 1).max() < 1e-13
    assert abs(mean - phi.mean(q1)).max() < 1e-14


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


def test_weighted_pooling_cut_by_the_border_is_a_mean_of_the_products_there() -> None:
    images = np.random.default_rng(4).standard_normal((3, 3, 3, 5))
    net = kc.chain(
        L.Affine(kernel=1), L.Pool("weighted_mean", 2, 2, "same"), L.Flatten(), L.Affine()
    )
    dots = np.einsum("ahwc,bhwc->abhw", images, images) / 5
    windows = [
        dots[:, :, rows, columns].mean(axis=(2, 3))
        for rows in (slice(2), slice(2, 3))
        for columns in (slice(2), slice(2, 3))
    ]
    found = kc.ntk(net, spatial="exact", image_shape=(3, 3)).nngp.matrix(images)
    np.testing.assert_allclose(found, np.mean(windows, axis=0), rtol=1e-13, atol=1e-15)


def test_constant_locations() -> None:
    """Where q = 0 an activation is the constant phi(0): against Gauss-Hermite quadrature."""
    z, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()

    def softplus(x: Any) -> Any:
        return np.logaddexp(0, x)

    images = np.zeros((2, 1, 3, 1))
    images[0, 0] = [[0.0], [1.5], [0.0]]
    images[1, 0] = [[0.0], [0.0], [-0.7]]
    net = kc.chain(L.Affine(), L.Nonlinear("softplus"), L.Flatten(), L.Affine())
    K = kc.ntk(net, spatial="exact", image_shape=(1, 3))
    zero = np.log(2)
    wanted = (zero**2 + zero * (w @ softplus(1.5 * z)) + zero * (w @ softplus(0.7 * z))) / 3
    nngp, tangent = K.both(images)
    assert abs(nngp[0, 1] / wanted - 1) < 1e-13
    # nothing moves below where one of the two is constant
    assert abs(tangent[0, 1] / nngp[0, 1] - 1) < 1e-15
    own = (2 * zero**2 + w @ softplus(1.5 * z) ** 2) / 3
    assert abs(nngp[0, 0] / own - 1) < 1e-13
    assert (
        abs(tangent[0, 0] / (own + 1.5**2 * (w @ (1 / (1 + np.exp(-1.5 * z))) ** 2) / 3) - 1)
        < 1e-13
    )


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


def test_kernel_maps_are_of_the_same_recursion() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(2, 4, 3, 2))
    net = layered(
        [
            conv((3, 3)),
            RELU,
            ["mean", (2, 2), (2, 1)],
            conv((2, 2)),
            ERF,
            ["flatten"],
            ["dense", 1.3, 0.1],
        ]
    )
    K = kc.ntk(net, spatial="exact", image_shape=(4, 3))
    C = kc.c_map(net, spatial="exact", image_shape=(4, 3))
    nngp, out = K.nngp.matrix(X), net.outputs[0]
    q, c, pairs = C.q_values(X), C.c_values(X[0], X[1]), C.c_values(X[0], X[1], pairs=True)
    assert abs(C(X)[0, 1] - nngp[0, 1] / np.sqrt(nngp[0, 0] * nngp[1, 1])) < 1e-15
    assert abs(q[out][:, 0, 0] - np.diag(nngp)).max() < 1e-15
    assert abs(c[out][0, 0] - C(X)[0, 1]) < 1e-15
    for node, values in c.items():
        place = values.shape
        assert q[node].shape == (2, *place)
        assert pairs[node].shape == place * 2
        count = int(np.prod(place))
        assert abs(np.diagonal(pairs[node].reshape(count, count)) - values.ravel()).max() < 1e-15
    assert np.array_equal(
        np.diagonal(C.c_values(X[0], X[0], pairs=True)["n3"].reshape(4, 4)), np.ones(4)
    )
    pooled = q["n3"]
    assert (pooled < q["n2"].max()).all()


def test_only_what_is_needed_is_followed() -> None:
    body = [conv((3, 3)), RELU, conv((3, 3)), RELU]
    last = ["dense", 1, 0]
    stacks = (
        [*body, ["flatten"], last],
        [*body, ALL, last],
        [conv((3, 3)), ["mean", (2, 2), None], *body],
    )
    flat, mean, early = (
        kc.ntk(layered(stack), spatial="exact", image_shape=(8, 8)).reading for stack in stacks
    )
    assert max(p.entries for p in flat.places.values()) == 64
    assert max(p.entries for p in mean.places.values()) == 64**2
    assert [early.places[f"n{i}"].full for i in range(1, 4)] == [True, False, False]


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


def test_pooling_cut_by_the_border_averages_what_is_there() -> None:
    from array_oracle import pooled

    pool = L.Pool("mean", (3, 2), 2, "same")
    x = np.random.default_rng(0).normal(size=(4, 5, 6, 3))
    net = kc.chain(
        L.Input(3, (5, 6)), pool, L.Affine(), L.Nonlinear("erf"), L.Flatten(), L.Affine()
    )
    y = pooled(pool, x, None).reshape(4, -1, 3)
    k = np.einsum("apc,bpc->abp", y, y) / 3
    q = np.einsum("aap->ap", k)
    expected = (2 / np.pi * np.arcsin(2 * k / np.sqrt((1 + 2 * q[:, None]) * (1 + 2 * q)))).mean(
        axis=-1
    )
    np.testing.assert_allclose(
        kc.ntk(net, spatial="exact").nngp.matrix(x), expected, rtol=0, atol=1e-15
    )


def test_padding_of_single_taps_warns_of_nothing() -> None:
    """A padded 1 x 1 layer is 0 at the 14 new locations of 20, where correlations are 0 / 0.

    One channel, so that all correlations are 1 or -1: E relu(w s) relu(w t) is st/2 for numbers of
    one sign and 0 for others, and the tangent kernel of each layer is the same.
    """
    padded = L.Affine(4, kernel=1, padding=1, bias=False)
    steps: list[Any] = [("x", L.Input(1)), ("a", padded, "x"), ("b", padded, "x")]
    steps += [("c", L.Concat(), "a b"), ("r", L.Nonlinear("relu"), "c")]
    steps += [("g", L.Affine(3, bias=False), "r"), ("p", L.Pool("mean"), "g")]
    steps += [("out", L.Affine(1, bias=False), "p")]
    X = np.random.default_rng(0).normal(size=(3, 2, 3, 1))
    X[1, 0] = 0.0
    K = kc.ntk(wired(*steps), spatial="exact", image_shape=(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nngp, tangent = K.nngp.matrix(X), K.matrix(X)
        cosines = kc.c_map(K.network, spatial="exact", image_shape=(2, 3))(X)
    above, below = (np.maximum(sign * X, 0).sum(axis=(1, 2, 3)) for sign in (1, -1))
    truth = (np.outer(above, above) + np.outer(below, below)) / 2 / 20**2
    np.testing.assert_allclose(nngp, truth, rtol=CORNER * 5)
    np.testing.assert_allclose(tangent, 3 * truth, rtol=CORNER * 5)
    size = np.sqrt(np.diag(truth))
    np.testing.assert_allclose(cosines, truth / np.outer(size, size), rtol=CORNER * 5)


@pytest.mark.parametrize(("window", "stride", "padding"), [(2, 2, "valid"), (3, 1, "same")])
def test_pooled_mean_squares_are_at_most_the_means_of_windows(
    window: int, stride: int, padding: str
) -> None:
    """Means over the positions of a window that are in the image, by loops."""
    network = kc.chain(L.Input(2, (4, 4)), L.Pool("mean", window, stride, padding))
    found = pooling(network.operations[1].primitive, "pool", (4, 4))
    values = np.random.default_rng(0).random((4, 4))
    first = -(window // 2) if padding == "same" else 0
    starts = range(0, 4 - window + 1 if padding == "valid" else 4, stride)
    means = [
        np.mean(
            values[max(a + first, 0) : a + first + window, max(b + first, 0) : b + first + window]
        )
        for a in starts
        for b in starts
    ]
    np.testing.assert_allclose(found.greatest(values.ravel()), means, rtol=1e-15)


def test_an_activation_whose_mean_square_underflows_has_no_series() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert octave(activation("tanh"), -1070) is None
        assert octave(activation("tanh"), -1000) is not None


@pytest.mark.slow
def test_many_pairs_of_large_q() -> None:
    """Dense images through tanh at q where it has no Hermite series: 5184 pairs of locations.

    The truth: E tanh(u) tanh(v) by the trapezoid rule in the plane, location by location.
    """
    shape = (6, 6)
    net = wired(
        ("x", L.Input(2, image_shape=shape), ()),
        ("a", L.Affine(4, kernel=(3, 3)), "x"),
        ("t", L.Nonlinear("tanh"), "a"),
        ("m", L.Pool("mean", window=shape), "t"),
        ("f", L.Flatten(), "m"),
        ("out", L.Affine(1), "f"),
    )
    images = 7 * np.random.default_rng(0).normal(size=(2, *shape, 2))
    found = kc.ntk(net, spatial="exact", image_shape=shape).nngp.matrix(images)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    patches = [
        [one[i : i + 3, j : j + 3].ravel() for i in range(6) for j in range(6)] for one in padded
    ]
    first, second = (np.array(one) / math.sqrt(18) for one in patches)
    z = np.linspace(-9, 9, 361)
    weight = np.exp(-z * z / 2) / np.exp(-z * z / 2).sum()
    total = 0.0
    for u in first:
        one = math.sqrt(u @ u)
        slope = second @ u / one
        rest = np.sqrt((second**2).sum(axis=1) - slope**2)
        two = np.tanh(slope[:, None, None] * z[:, None] + rest[:, None, None] * z) @ weight
        total += float((two @ (weight * np.tanh(one * z))).sum())
    assert found[0, 1] == pytest.approx(total / 36**2, rel=1e-9)
