"""The recursion over pairs of locations, against neural-tangents (frozen), plain loops in mpmath,
and the calculus of equal locations.
"""

from __future__ import annotations

import numpy as np

import kcalc as kc
from kcalc.activations import activation
from kcalc.calculi.hermite_series import has_series, octave
from kcalc.calculi.location_maps import LocationMaps
from kcalc.fields.jets import Jet
from kcalc.network import layers as L

LOCAL = LocationMaps()


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
