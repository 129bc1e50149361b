"""Products of branches: gates, their kernels, slopes and gradients, against simulations,
neural-tangents and written-out sums.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from monte_carlo import simulate
from refusals import refused
from scipy import special
from wiring import layered, wired

import kcalc as kc

L = kc.layers
PEER = json.loads((Path(__file__).parents[1] / "oracles" / "modern_peer.json").read_text())


def gated(phi: Any = "swish", *after: Any, sigma_w: Any = 1) -> kc.Network:
    """``phi(U x) * V x``."""
    gate = wired(
        ("x", L.Input()),
        ("u", L.Affine(sigma_w=sigma_w), "x"),
        ("v", L.Affine(), "x"),
        ("f", L.Nonlinear(phi), "u"),
        ("p", L.Product(), "f v"),
    )
    return kc.chain(gate, *after) if after else gate


def test_swish_gate_has_the_stated_moments():
    C, Q = kc.c_map(gated()), kc.q_map(gated())
    z, w = np.polynomial.hermite_e.hermegauss(120)
    f = z * special.expit(z)
    assert Q(1.0) == pytest.approx(w @ f**2 / np.sqrt(2 * np.pi), rel=1e-13)
    assert float(Q(1.0)) == pytest.approx(0.355776, abs=5e-7)
    a, b = np.meshgrid(z, z, indexing="ij")
    other = 0.3 * a + np.sqrt(1 - 0.09) * b
    moment = np.einsum("i,j,ij,ij->", w, w, a * special.expit(a), other * special.expit(other)) / (
        2 * np.pi
    )
    assert C(0.3) * Q(1.0) == pytest.approx(0.3 * moment, rel=1e-11)
    assert float(0.3 * moment) == pytest.approx(0.036973, abs=5e-7)


def test_a_gate_of_one_pre_activation_is_one_activation():
    net = wired(
        ("x", L.Input()),
        ("u", L.Affine(), "x"),
        ("f", L.Nonlinear("sigmoid"), "u"),
        ("p", L.Product(), "u f"),
    )
    swish = kc.activation("swish")
    for q1, q2 in ((1.0, None), (2.0, 0.3)):
        np.testing.assert_allclose(
            kc.c_map(net)([-0.7, 0.0, 0.4, 0.999], q1, q2),
            swish.c_map([-0.7, 0.0, 0.4, 0.999], q1, q2),
            atol=1e-13,
        )
    assert any(note.kind == "exact" and note.node == "p" for note in kc.c_map(net).assumptions)
    square = wired(("x", L.Input()), ("u", L.Affine(), "x"), ("p", L.Product(), "u u"))
    np.testing.assert_allclose(
        kc.c_map(square)([-0.5, 0.3]), kc.activation("square").c_map([-0.5, 0.3]), atol=1e-14
    )
    by_hand = kc.activations.multiply(kc.activation(np.tanh), kc.activation("relu"))
    z = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(by_hand(z), np.tanh(z) * np.maximum(z, 0))
    np.testing.assert_allclose(
        by_hand.numeric(1)(z[z != 0]),
        ((1 - np.tanh(z) ** 2) * np.maximum(z, 0) + np.tanh(z) * (z > 0))[z != 0],
    )


def test_dependent_factors_are_refused_unless_told_otherwise():
    shared = wired(
        ("x", L.Input()),
        ("u", L.Affine(), "x"),
        ("v", L.Affine(), "x"),
        ("f", L.Nonlinear("relu"), "u"),
        ("s", L.Sum(), "u v"),
        ("p", L.Product(), "f s"),
    )
    with pytest.raises(
        kc.FreshnessError,
        match=r"node 'p' multiplies feature maps that share weights \(.*put an Affine",
    ):
        kc.c_map(shared)
    assert any(
        n.kind == "heuristic" and n.node == "p"
        for n in kc.c_map(shared, assume_independent=True).assumptions
    )
    two = wired(("x", L.Input()), ("y", L.Input()), ("p", L.Product(), "x y"))
    with pytest.raises(kc.FreshnessError, match="multiplies the inputs 'x' and 'y' directly"):
        kc.c_map(two)
    assert kc.node_values(two, 0.3, {"x": 2.0, "y": 0.4}, assume_independent=True)["p"] == (
        pytest.approx((0.8, 0.8, 0.09), rel=1e-14)
    )
    with pytest.raises(
        kc.FreshnessError,
        match="tanh sees the output of the product 'product_1', not a fresh Gaussian",
    ):
        kc.c_map(gated("relu", L.Nonlinear("tanh")))


def test_number_systems_agree():
    net = kc.chain(L.Affine(), gated("erf"), L.Affine())
    C = kc.c_map(net)
    assert float(C.expr.evaluate({"c": 0.3})) == pytest.approx(float(C(0.3)), rel=1e-13)
    assert abs(float(C.ball(0.3)) - C(0.3)) < 1e-13
    t = 1e-5
    assert C.derivative(1)(0.3) == pytest.approx((C(0.3 + t) - C(0.3 - t)) / (2 * t), rel=1e-8)
    gap = 1e-12
    assert 1 - C(1 - gap) == pytest.approx(gap * C.derivative(1)(1.0), rel=1e-3)
    # slope 2
    assert kc.c_map(gated("relu")).at_angle(1e-7) == pytest.approx(np.sqrt(2) * 1e-7, rel=1e-6)


# -- slopes ----------------------------------------------------------------------------------------


def test_slopes_of_factors_add_up():
    psi = kc.symbols.psi
    assert sp.expand(kc.slope_polynomial(gated()) - (psi + 1)) == 0
    net = kc.chain(
        L.Affine(),
        kc.repeat(kc.residual(gated("tanh", L.Affine()), shortcut_weight=sp.Rational(3, 5)), 3),
    )
    expected = (sp.Rational(9, 25) + sp.Rational(16, 25) * (psi + 1)) ** 3
    assert sp.expand(kc.slope_polynomial(net) - expected) == 0
    mu = kc.maximal_slope(net)
    assert mu(1.0) == pytest.approx(max(2, (0.36 + 0.64 * 2) ** 3))
    assert mu(mu.inverse(6.0)) == pytest.approx(6.0, rel=1e-14)
    with refused("must exceed 4"):
        mu.inverse(1.5)
    with refused("Product.*network"):
        kc.maximal_curvature(net)


def test_dks_of_gated_networks():
    net = kc.chain(
        L.Input(),
        L.Affine(),
        kc.repeat(kc.residual(gated("tanh", L.Affine()), shortcut_weight=0.9), 5),
        L.Affine(),
    )
    with pytest.raises(
        kc.UnreachableTarget,
        match=r"out of reach: a Product .* slope 2\.3\d* or more .* e\.g\. zeta=",
    ):
        kc.shape(net, method="dks", zeta=1.5)
    s = kc.shape(net, "tanh", method="dks", zeta=4.0)
    assert max(s.residuals.values()) < 1e-13
    assert kc.c_map(s.network).derivative(1)(1.0) == pytest.approx(4.0, rel=1e-12)
    assert kc.c_map(s.network)(0.0) == pytest.approx(0.0, abs=1e-15)
    with refused("Product.*method='dks'"):
        kc.shape(net, "relu", method="tat")


def stages(*activations: str) -> kc.Network:
    """A gated residual block per activation."""
    blocks = (kc.residual(gated(name, L.Affine()), shortcut_weight=0.9) for name in activations)
    return kc.chain(L.Input(), L.Affine(), *blocks, L.Affine())


@pytest.mark.parametrize("psi", [1.01, 1.3, 2.0])
def test_residual_weights_for_a_slope_with_gates(psi: float) -> None:
    """Every block has slope 1 - y + y (psi + 1), y the square of the residual weight."""
    s = kc.shape(
        stages("relu", "relu", "relu"),
        method="residual_weights",
        scheme="slope",
        slope=4.0,
        local_slope=psi,
    )
    y = (4 ** (1 / 3) - 1) / psi
    assert all(pair[1] ** 2 == pytest.approx(y, rel=1e-13) for pair in s.weights.values())
    assert kc.maximal_slope(s.network)(psi) == pytest.approx(4.0, rel=1e-14)
    assert max(s.residuals.values()) < 1e-13


def test_slopes_of_gates_of_different_activations() -> None:
    s = kc.shape(stages("tanh", "erf"), method="residual_weights", scheme="slope", slope=2.5)
    z, w = np.polynomial.hermite_e.hermegauss(180)
    tanh = w @ np.cosh(z) ** -4 / (w @ np.tanh(z) ** 2)
    erf = w @ (4 / np.pi * np.exp(-2 * z * z)) / (w @ special.erf(z) ** 2)
    y = next(iter(s.weights.values()))[1] ** 2
    assert (1 + y * tanh) * (1 + y * erf) == pytest.approx(2.5, rel=1e-12)
    assert max(s.residuals.values()) < 1e-13 and s.values["C_f'(1)"] == pytest.approx(
        2.5, rel=1e-12
    )
    with pytest.raises(kc.UnreachableTarget, match=f"nearest is {(1 + tanh) * (1 + erf):.10g}"):
        kc.shape(stages("tanh", "erf"), method="residual_weights", scheme="slope", slope=9.0)


@pytest.mark.parametrize("phi", ["swish", "relu"])
def test_normalised_gates_keep_q(phi: str) -> None:
    s = kc.shape(stages(phi, phi), method="normalisation")
    assert s.residuals["Q_f(1)"] < 1e-14
    measured = simulate(s.network, 0.3, 1.0, 1.0, draws=16, width=8192, seed=1)
    out = s.network.outputs[0]
    assert max(measured[out].deviations(kc.node_values(s.network, 0.3)[out])) < 4.5
    shared = wired(
        ("x", L.Input()),
        ("u", L.Affine(), "x"),
        ("f", L.Nonlinear(phi), "u"),
        ("p", L.Product(), "f u"),
    )
    with pytest.raises(kc.FreshnessError, match="node 'p'.*one Gaussian"):
        kc.shape(shared, method="normalisation")


# -- tangent kernels -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(PEER["networks"]))
def test_kernels_are_those_of_neural_tangents(name: str):
    frozen = PEER["networks"][name]
    image = name.startswith("image")
    x, y = (np.array(v) for v in PEER["inputs"]["pictures" if image else "vectors"])
    net = layered(frozen["layers"], x.shape[1:3] if image else None)
    K = kc.ntk(net, spatial="exact", image_shape=x.shape[1:3]) if image else kc.ntk(net)
    np.testing.assert_allclose(K.matrix(x, y), frozen["ntk"], rtol=1e-12)
    np.testing.assert_allclose(K.nngp.matrix(x, y), frozen["nngp"], rtol=1e-12)
