"""The recursion over pairs of locations, against neural-tangents (frozen), plain loops in mpmath,
and the calculus of equal locations.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from wiring import layered

from kcalc import architectures, c_map, chain, ntk
from kcalc.activations import activation
from kcalc.calculi.hermite_series import has_series, octave
from kcalc.calculi.location_maps import LocationMaps
from kcalc.fields.jets import Jet
from kcalc.network.layers import Affine, Flatten, LayerNorm, Nonlinear, Pool, RMSNorm

LOCAL = LocationMaps()
PEER = json.loads((Path(__file__).parents[1] / "oracles" / "spatial_peer.json").read_text())
CORNER = 2e-9  # neural-tangents rounds c, which a kink at c = 1 turns into the square root of that


@pytest.mark.parametrize("name", PEER["cases"])
def test_peer(name: str) -> None:
    case = PEER["cases"][name]
    x, y = np.array(PEER["x"])[: case["images"]], np.array(PEER["y"])
    K = ntk(layered(case["layers"]), spatial="exact", image_shape=(4, 5))
    for (nngp, tangent), suffix in ((K.both(x, y), ""), (K.both(x), " own")):
        for got, key in ((nngp, "nngp"), (tangent, "ntk")):
            wanted = np.array(case[key + suffix])
            assert got.shape == wanted.shape
            off = abs(got - wanted) / abs(wanted).max()
            assert off[~np.eye(*off.shape[:2], dtype=bool)].max() < 2e-14
            assert off.max() < (CORNER if suffix and key == "ntk" else 2e-14)


DELTA = {
    "flatten": chain(
        Affine(kernel=(3, 2), stride=2, sigma_b=0.3),
        Nonlinear("tanh"),
        Flatten(),
        Affine(),
        Nonlinear("gelu"),
        Affine(),
    ),
    "norms": chain(
        Affine(kernel=3),
        Nonlinear("relu"),
        LayerNorm(),
        Affine(kernel=2),
        RMSNorm(),
        Nonlinear("swish"),
        Affine(),
    ),
    "densenet": architectures.densenet(4),
}


@pytest.mark.parametrize("name", DELTA)
def test_equal_locations_are_the_calculus_of_angles(name: str) -> None:
    """Delta weights on images whose locations agree.

    What kc.ntk and kc.c_map say of one location.
    """
    colours, size = np.random.default_rng(0).normal(size=(3, 3)), (6, 5)
    q = np.mean(colours**2, axis=1)
    c = colours @ colours.T / 3 / np.sqrt(np.outer(q, q))
    images = np.broadcast_to(colours[:, None, None], (3, *size, 3))
    K = ntk(DELTA[name], spatial="exact", image_shape=size, weights="delta")
    plain = ntk(DELTA[name])
    at = c.clip(-1, 1), q[:, None], q[None, :]
    nngp, tangent = (v.reshape(3, 3, -1) for v in K.both(images))
    exact = ~np.eye(3, dtype=bool)  # on the diagonal the plain functions are handed a rounded c
    for got, wanted in ((nngp, plain.nngp(*at)), (tangent, plain(*at))):
        assert abs(got / wanted[..., None] - 1)[exact].max() < 1e-13
    diagonal = np.arange(3)
    for got, wanted in ((nngp, plain.nngp(1.0, q)), (tangent, plain(1.0, q))):
        assert abs(got[diagonal, diagonal] / wanted[:, None] - 1).max() < 1e-13
    C = c_map(DELTA[name], spatial="exact", image_shape=size, weights="delta")
    assert abs(C(images).reshape(3, 3, -1) - c_map(DELTA[name])(*at)[..., None]).max() < 1e-13


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
    layers = Affine(kernel=3, sigma_w=1.4, sigma_b=0.2), Nonlinear("relu")
    net = chain(*layers, *layers, Pool("mean"), Affine())
    K = ntk(net, spatial="exact", image_shape=(4, 4))
    nngp, tangent = K.both(X)
    pair = K.reading.bytes_per_pair() / 2**20
    for memory in (1.1 * pair, 9.5 * pair):
        for got, wanted in zip(K.both(X, memory=memory), (nngp, tangent), strict=True):
            assert abs(got - wanted).max() < 1e-15
    assert np.array_equal(nngp, nngp.T)
    assert np.array_equal(tangent, tangent.T)
    # equal images, equal rows: their angle is 0, not rounding
    assert np.array_equal(tangent[5], tangent[1])
    mixed = K.matrix(X, Y)
    assert abs(mixed - K.matrix(np.concatenate([X, Y]))[:7, 7:]).max() < 1e-15
    assert np.array_equal(K.matrix(X, X), tangent)
    assert abs(K.nngp.matrix(X) - nngp).max() < 1e-15
    assert K.matrix(X.astype(np.float32)).dtype == np.float32
    assert (
        abs(sum(K.layer_kernel(node, X) for node in net.nodes_of(Affine)) - tangent).max() < 1e-15
    )


def test_notes() -> None:
    net = chain(
        Affine(kernel=3),
        Nonlinear("relu"),
        Pool("weighted_mean", 2),
        Affine(kernel=3),
        Nonlinear("relu"),
        Affine(),
    )
    K = ntk(net, spatial="exact", image_shape=(4, 4))
    assert [a.node for a in K.assumptions if a.kind == "heuristic"] == ["pool_1"]
    assert K.heuristic
    assert "dense" in next(a.text for a in K.assumptions if a.node == "affine_1")
    delta = ntk(net, spatial="exact", image_shape=(4, 4), weights="delta")
    assert ["Delta" in a.text for a in delta.assumptions if a.node == "affine_1"] == [True, True]
    assert repr(K) == "SpatialTangentKernel(7 nodes, 4 x 4, dense weights, heuristic)"


def test_an_activation_whose_mean_square_underflows_has_no_series() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert octave(activation("tanh"), -1070) is None
        assert octave(activation("tanh"), -1000) is not None
