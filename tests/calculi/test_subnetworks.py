"""Subnetworks as objects, and the maxima over them against the papers.

Enumeration is in test_subnetwork_enumeration.
"""

from __future__ import annotations

import math
import pickle

import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import architectures, c_map, chain, residual
from kcalc.calculi.slopes import slope_polynomial
from kcalc.calculi.subnetworks import (
    maximal,
    maximal_curvature,
    maximal_slope,
    subnetworks,
)
from kcalc.network.layers import Affine, BatchNorm, Input, LayerNorm, Nonlinear, Sum

psi, kappa = kc.symbols.psi, kc.symbols.kappa
w = sp.Symbol("w")


# -- the papers' networks --------------------------------------------------------------------------


def test_curvature_of_rescaled_resnets():
    found = maximal_curvature(architectures.rescaled_resnet(16, shortcut_weight=w))
    assert {sp.expand(p) for p in found.pieces} == {3 * kappa, sp.expand(48 * (1 - w**2) * kappa)}
    for weight in (sp.Rational(1, 10), sp.Rational(99, 100)):
        numeric = maximal_curvature(architectures.rescaled_resnet(16, shortcut_weight=weight))
        assert numeric.pieces == (max(3, 48 * (1 - weight**2)) * kappa,)
    assert numeric.inverse(0.3) == pytest.approx(0.1, rel=1e-15)
    with_transitions = maximal_curvature(architectures.resnet_v2(50, w))
    assert sp.expand(with_transitions.expr / kappa) == sp.expand(44 * (1 - w**2) + 5)


# -- subnetworks as objects ------------------------------------------------------------------------


def test_subnetworks_go_back_into_any_function(untouched_pyplot):
    for k, piece in enumerate(subnetworks(architectures.resnet_v2(50))):
        part = piece.network
        assert slope_polynomial(part).subs(psi, 1) == 1
        assert 0 <= c_map(part)(0.3) <= 1
        assert len(subnetworks(part)) >= 1
        if k < 3:
            part.draw()


def test_subnetworks_show_themselves(untouched_pyplot):
    found = subnetworks(chain(Affine(), residual(chain(Nonlinear("tanh"), Affine())), Affine()))
    assert [line.split() for line in str(found).splitlines()[2:]] == [
        ["input", "affine_3", "5"],
        ["affine_1", "affine_2", "2"],
    ]
    assert "<table>" in found._repr_html_()
    assert pickle.loads(pickle.dumps(found)) == found
    areas = {
        str(p.get_gid()) for p in found.draw().patches if str(p.get_gid()).startswith("region:")
    }
    assert areas == {"region:1", "region:2"}
    axes = found.network.draw(regions=found[1:])
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "1:  affine_1 → affine_2 (2 layers)" in texts
    assert "Subnetworks" not in repr(subnetworks(chain(Affine(), BatchNorm(), Affine())))


# -- what the strict reading hides -----------------------------------------------------------------


def test_inputs_that_meet_at_once_leave_no_subnetwork():
    net = wired(("x", Input()), ("y", Input()), ("s", Sum(), "x y"))
    assert subnetworks(net) == ()
    mu = maximal_slope(net)
    assert mu.pieces == (1,)
    assert mu([1.0, 5.0]) == pytest.approx([1, 1])
    for ask in (mu.inverse, mu.active, mu.forward.inverse):
        with refused("no nonlinear layer"):
            ask(1.5)
    assert maximal(net, lambda x: x)(0.5) == 0.5
    with refused("no subnetwork"):
        maximal(net, lambda x: x).active(0.5)


# -- habits and bad input --------------------------------------------------------------------------


def test_symbolic_weights_need_numbers_for_numbers():
    mu = maximal_slope(architectures.resnet_v2(50, residual_weight=w))
    with refused(r'net.subs\(\{"w"'):
        mu(1.1)
    numeric = maximal_slope(mu.network.subs({w: 0.3}))
    assert numeric(1.1) == pytest.approx(
        float(mu.expr.subs({w: sp.Rational(3, 10), psi: sp.Rational(11, 10)})), rel=1e-13
    )


def test_curvature_checks_its_input():
    bend = maximal_curvature(architectures.vanilla(4))
    assert bend([0.0, 2.0]) == pytest.approx([0, 8])
    assert repr(bend) == "MaximalCurvature(4*kappa)"
    with refused("target"):
        bend.inverse(0)
    with refused("no nonlinear layer"):
        maximal_curvature(chain(Affine())).inverse(1)


# -- LayerNorm -------------------------------------------------------------------------------------


def test_layer_norm_slopes():
    layers = Affine(), Nonlinear("relu"), LayerNorm()
    net = chain(*layers, *layers, Affine())
    formal, true = maximal_slope(net), maximal_slope(net, q=1.0)
    steep = math.pi / (math.pi - 1)
    assert formal.pieces == (psi**2,)
    assert true(1.0) == pytest.approx(steep**2, rel=1e-13)
    assert true(1.0) == pytest.approx(c_map(net).derivative(1)(1.0), rel=1e-12)
    for slope in (true, true.forward, true.longest_path_bound):
        assert slope(2.0) == pytest.approx(4 * steep**2, rel=1e-13)
    assert true(true.inverse(5.0)) == pytest.approx(5, rel=1e-13)
    assert float(slope_polynomial(net, 1.0).subs(psi, 1)) == pytest.approx(steep**2, rel=1e-13)
    assert slope_polynomial(net, 1.0, expand=True).degree() == 2
    for found, words in ((formal, "C(0) = 0"), (true, "1.46694")):
        nodes = [a.node for a in found.assumptions if words in a.text]
        assert nodes == ["layernorm_1", "layernorm_2"]
    assert any("assumed to be fresh" in a.text for a in formal.assumptions)
    with refused("must exceed 2.15"):
        true.inverse(2.0)
    with refused("layernorm_1"):
        maximal_curvature(net, q=1.0)
