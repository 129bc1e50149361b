"""Products of branches: gates, their kernels, slopes and gradients, against simulations,
neural-tangents and written-out sums.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wiring import layered, wired

import kcalc as kc
from kcalc import FreshnessError, c_map, chain, ntk, residual
from kcalc.network.layers import Affine, Input, Nonlinear, Product, Sum

PEER = json.loads((Path(__file__).parents[1] / "oracles" / "modern_peer.json").read_text())


def gated(phi: Any = "swish", *after: Any, sigma_w: Any = 1) -> kc.Network:
    """``phi(U x) * V x``."""
    gate = wired(
        ("u", Affine(sigma_w=sigma_w)),
        ("v", Affine(), "x"),
        ("f", Nonlinear(phi), "u"),
        ("p", Product(), "f v"),
    )
    return chain(gate, *after) if after else gate


def test_dependent_factors_are_refused_unless_told_otherwise():
    shared = wired(
        ("u", Affine()),
        ("v", Affine(), "x"),
        ("f", Nonlinear("relu"), "u"),
        ("s", Sum(), "u v"),
        ("p", Product(), "f s"),
    )
    with pytest.raises(
        FreshnessError,
        match=r"node 'p' multiplies feature maps that share weights \(.*put an Affine",
    ):
        c_map(shared)
    assert any(
        n.kind == "heuristic" and n.node == "p"
        for n in c_map(shared, assume_independent=True).assumptions
    )
    two = wired(("x", Input()), ("y", Input()), ("p", Product(), "x y"))
    with pytest.raises(FreshnessError, match="multiplies the inputs 'x' and 'y' directly"):
        c_map(two)
    assert kc.node_values(two, 0.3, {"x": 2.0, "y": 0.4}, assume_independent=True)["p"] == (
        pytest.approx((0.8, 0.8, 0.09), rel=1e-14)
    )
    with pytest.raises(
        FreshnessError,
        match="tanh is applied to the output of the product 'product_1', not to a fresh Gaussian",
    ):
        c_map(gated("relu", Nonlinear("tanh")))


# -- slopes ----------------------------------------------------------------------------------------


def test_residual_weights_for_a_slope_with_gates() -> None:
    """Every block has slope 1 - y + y (psi + 1), y the square of the residual weight."""
    psi, blocks = 1.3, [residual(gated("relu", Affine()), shortcut_weight=0.9)] * 3
    s = kc.shape(
        chain(Input(), Affine(), *blocks, Affine()),
        method="residual_weights",
        scheme="slope",
        slope=4.0,
        local_slope=psi,
    )
    y = (4 ** (1 / 3) - 1) / psi
    assert all(pair[1] ** 2 == pytest.approx(y, rel=1e-13) for pair in s.weights.values())
    assert kc.maximal_slope(s.network)(psi) == pytest.approx(4.0, rel=1e-14)
    assert max(s.residuals.values()) < 1e-13


# -- tangent kernels -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(PEER["networks"]))
def test_kernels_are_those_of_neural_tangents(name: str):
    frozen = PEER["networks"][name]
    image = name.startswith("image")
    x, y = (np.array(v) for v in PEER["inputs"]["pictures" if image else "vectors"])
    net = layered(frozen["layers"], x.shape[1:3] if image else None)
    K = ntk(net, spatial="exact", image_shape=x.shape[1:3]) if image else ntk(net)
    np.testing.assert_allclose(K.matrix(x, y), frozen["ntk"], rtol=1e-12)
    np.testing.assert_allclose(K.nngp.matrix(x, y), frozen["nngp"], rtol=1e-12)
