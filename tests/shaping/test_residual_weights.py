"""Residual weights: blocks by the shape of the graph, slopes by closed forms."""

from __future__ import annotations

import json

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import UnreachableTarget, chain, residual, with_residual_weights
from kcalc.network.layers import (
    Affine,
    BatchNorm,
    Identity,
    Input,
    Layer,
    LayerNorm,
    Nonlinear,
    RMSNorm,
    Sum,
)
from kcalc.shaping import residual_weights

A = kc.architectures


with mpmath.workdps(40):
    # of tanh: E phi^2, and C'(1) when scaled to Q(1) = 1
    SQUARE, GRADIENT = (
        mpmath.quad(lambda x, f=f: f(x) * mpmath.npdf(x), [-13, -6, -2, 0, 2, 6, 13])
        for f in (lambda x: mpmath.tanh(x) ** 2, lambda x: mpmath.sech(x) ** 4)
    )
    PSI = GRADIENT / SQUARE


# -- finding blocks --------------------------------------------------------------------------------


def test_setting_weights_by_number_node_or_order() -> None:
    net = A.rescaled_resnet(3, 1)
    w = sp.Symbol("w", positive=True)
    symbolic = with_residual_weights(net, residual_weight=w)
    assert symbolic.layer("sum_2").weights == (sp.sqrt(1 - w**2), w)
    some = with_residual_weights(net, {"sum_2": sp.Rational(3, 5)})
    assert some.layer("sum_2").weights == (sp.Rational(3, 5), sp.Rational(4, 5))
    assert some.layer("sum_1") == net.layer("sum_1")
    each = kc.residual_blocks(with_residual_weights(net, residual_weight=[0.6, 0.8, 1.0]))
    expected = [(0.8, 0.6), (pytest.approx(0.6), 0.8), (0, 1.0)]
    assert [block.weights for block in each] == expected
    plain = with_residual_weights(net, 1, {"sum_1": 0.5, "sum_2": 0.5, "sum_3": 0.5})
    assert plain.layer("sum_3").weights == (1, 0.5)
    for options, words in [
        ({}, "pass shortcut_weight"),
        ({"residual_weight": {"affine_1": 0.5}}, "unknown residual Sum"),
        ({"residual_weight": [0.5, 0.5]}, "3 residual blocks, but 2"),
        ({"residual_weight": 1.5}, r"'sum_1'.*\[0, 1\]"),
        ({"shortcut_weight": 1}, "removes the effect"),
    ]:
        with refused(words):
            with_residual_weights(net, **options)
    with refused("no residual block"):
        with_residual_weights(A.vanilla(3), 0.5)


# -- schemes ---------------------------------------------------------------------------------------


def test_layernorms_that_read_means_have_no_equivalent() -> None:
    layer = chain(Nonlinear("relu"), LayerNorm(), Affine())
    net = chain(Input(), Affine(), residual(layer), residual(layer))
    with refused("no equivalent without LayerNorm"):
        residual_weights(net)
    branch = chain(LayerNorm(), Nonlinear("relu"), Affine())
    biased = chain(Input(), Affine(sigma_b=0.5), residual(branch))
    with refused("sigma_b"):
        residual_weights(biased)


@pytest.mark.parametrize(
    ("norm", "place"),
    [(LayerNorm(), "n"), (RMSNorm(), "s")],
)
def test_a_norm_at_one_of_several_outputs(norm: Layer, place: str) -> None:
    net = wired(
        ("a", Affine()),
        ("n", Nonlinear("tanh")),
        ("b", Affine()),
        ("s", Sum((0.6, 0.8)), "a b"),
        ("ln", norm, place),
        ("rms", RMSNorm()),
        outputs=["s", "ln", "rms"],
    )
    s = residual_weights(net)
    assert set(s.network.outputs) == {"s", place} and max(s.residuals.values()) < 1e-14
    kinds = {"ln": type(norm).__name__, "rms": "RMSNorm"}
    told = {f"{n}: {kind} removed; the output is {place!r} instead" for n, kind in kinds.items()}
    assert told < set(s.changes)
    # q of b, that of a being 1
    share = float(0.8 * mpmath.sqrt(SQUARE) / mpmath.sqrt(0.36 + 0.64 * SQUARE))
    assert s.weights["s"][1] == pytest.approx(share, rel=1e-13)


def test_de_smith_counts_blocks_through_the_network() -> None:
    s = residual_weights(A.resnet_v2(50), "relu", "de_smith")
    found = [pair[1] for pair in s.weights.values()]
    assert np.allclose(found, 1 / np.sqrt(np.arange(2, 18)), rtol=1e-15)
    layer = chain(Nonlinear("relu"), Affine())
    outer = residual(chain(layer, residual(layer)))
    nested = residual_weights(chain(Input(), Affine(), outer, outer), scheme="de_smith")
    # along shortcuts, not through branches
    assert [1 / b**2 - 1 for _, b in nested.weights.values()] == pytest.approx([1, 1, 2, 2])


@pytest.mark.parametrize(("power", "blocks"), [(0.5, 54), (2.0, 6)])
def test_powers_of_depth(power: float, blocks: int) -> None:
    s = residual_weights(A.rescaled_resnet(blocks, 3), "tanh", "power", power=power)
    square = mpmath.mpf(blocks) ** (-2 * power)
    truth = (1 + square / (1 + square) * (PSI**3 - 1)) ** blocks
    assert s.values["C_f'(1)"] == pytest.approx(float(truth), rel=2e-13)
    assert s.values["shortcuts alone: C_f'(1)"] == 1 and s.values["shortcuts alone: C_f(0)"] == 0


# -- solving for a slope ---------------------------------------------------------------------------


def test_the_weight_for_a_slope_in_closed_form() -> None:
    blocks, slope = 100, 1.6
    s = kc.shape(
        A.rescaled_resnet(blocks, 2), "tanh", method="residual_weights", scheme="slope", slope=slope
    )
    with mpmath.workdps(40):
        # residual weight squared
        square = (mpmath.mpf(slope) ** (mpmath.mpf(1) / blocks) - 1) / (PSI**2 - 1)
        truth = mpmath.sqrt(1 - square), mpmath.sqrt(square)
    for pair in s.weights.values():
        assert pair == pytest.approx(tuple(map(float, truth)), rel=1e-13)
    assert s.residuals["max C_f'(1)"] <= 1e-13


def test_resnets_meet_the_papers_polynomial() -> None:
    s = residual_weights(A.resnet_v2(50), scheme="slope", slope=1.5, local_slope=1.02)
    with mpmath.workdps(40):
        psi, square = mpmath.mpf("1.02"), mpmath.mpf(next(iter(s.weights.values()))[1]) ** 2
        truth = (square * psi**3 + 1 - square) ** 12 * (square * psi**2 + 1 - square) ** 4 * psi**5
    assert float(truth) == pytest.approx(1.5, abs=1e-13) and s.residuals["max C_f'(1)"] <= 1e-13
    shaped = kc.shape(s.network, "softplus", zeta=1.5)
    assert shaped.targets["C'(1)"] == pytest.approx(1.02, abs=1e-13)


def test_slopes_out_of_reach_name_the_nearest() -> None:
    net = A.rescaled_resnet(4, 2)
    top = float(PSI**8)
    with pytest.raises(UnreachableTarget, match=f"nearest is {str(top)[:8]}"):
        residual_weights(net, "tanh", "slope", slope=top + 1)
    with pytest.raises(UnreachableTarget, match=f"nearest is {str(float(PSI**2))[:8]}"):
        # a branch alone is steeper
        residual_weights(net, "tanh", "slope", slope=float(PSI) ** 2 - 0.1)
    with pytest.raises(UnreachableTarget, match="for all weights"):
        residual_weights(net, "relu", "slope", slope=2)
    with refused("slopes decrease with depth"):
        residual_weights(net, "softplus", "slope", slope=2)


# -- results and bad input -------------------------------------------------------------------------


def test_the_result_is_a_shaping_like_others() -> None:
    s = kc.shape(A.rescaled_resnet(3), "tanh", method="residual_weights", scheme="inverse_sqrt")
    data = json.loads(json.dumps(s.to_dict()))
    assert data["residual_weights"]["sum_1"] == list(s.weights["sum_1"])
    assert any(text.startswith("sum_1: weights") for text in s.changes)
    assert any("tanh" in text for text in s.changes)
    assert any("L blocks" in note.text for note in s.assumptions)
    plain = chain(Input(), Affine(), residual(chain(Nonlinear("tanh"), Affine())))
    with refused("not normalised"):
        kc.shape(plain)
    found = residual_weights(plain, scheme="inverse_sqrt").values["Q_f(1)"]
    assert found == pytest.approx(1, abs=1e-14)


test_refusals = refusals(
    [
        ({"scheme": "fixup"}, "unknown scheme"),
        ({"scheme": "power"}, "needs power"),
        ({"scheme": "power", "power": -1}, "power must be >= 0"),
        ({"scheme": "common"}, "exactly one"),
        ({"scheme": "common", "residual_weight": 0.5, "shortcut_weight": 0.5}, "exactly one"),
        ({"scheme": "common", "residual_weight": 0}, "strictly between"),
        ({"scheme": "common", "shortcut_weight": 1}, "strictly between"),
        (
            {"scheme": "common", "shortcut_weight": sp.Symbol("w")},
            "with_residual_weights accepts symbols",
        ),
        ({"scheme": "slope"}, "needs slope"),
        ({"scheme": "slope", "slope": 1}, "slope must be > 1"),
        ({"scheme": "slope", "slope": 2, "local_slope": 1}, "local_slope must be > 1"),
        ({"slope": 2}, "applies only to scheme 'slope'"),
    ],
    lambda options: kc.shape(A.rescaled_resnet(3), "tanh", method="residual_weights", **options),
)


def test_networks_that_cannot_be_weighted() -> None:
    with refused("no residual block"):
        kc.shape(A.densenet(3), method="residual_weights")
    normed = chain(Input(), Affine(), residual(chain(BatchNorm(), Nonlinear("relu"), Affine())))
    with refused("BatchNorm"):
        kc.shape(normed, method="residual_weights", scheme="de_smith")
    with refused("jumps"):
        kc.shape(A.rescaled_resnet(3), "sign", method="residual_weights", scheme="slope", slope=2)


def test_shortcuts_that_only_pass_and_activations_that_vanish() -> None:
    ways = (("n", Nonlinear("relu")), ("b", Affine()), ("i", Identity(), "a"))
    net = wired(("a", Affine()), *ways, ("s", Sum((1, 1)), "i b"), ("o", Affine()))
    found = kc.shape(net, method="residual_weights").network.layer("s")
    assert found.weights == pytest.approx((0.5**0.5, 0.5**0.5))
    zero = kc.activation(sp.Max(0, sp.Symbol("x") - 60))
    branch = residual(chain(Affine(), Nonlinear(zero), Affine()))
    with refused(r"Max\(0, x - 60\) vanishes \(or underflows\) at q = 1"):
        kc.shape(branch, method="residual_weights", scheme="slope", slope=1.2)
