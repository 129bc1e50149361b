"""Geometric initialisation: equal gamma however the network is built, sizes that stay, outputs of a
given size.
"""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc.backend.output_scale import scale_output
from kcalc.verification.scaling import hessian_blocks

A, L = kc.architectures, kc.layers
RELU = L.Nonlinear("relu")
MLP = kc.chain(L.Input(20), L.Affine(30), RELU, L.Affine(300), RELU, L.Affine(7))

LARGE_IMAGE = kc.chain(
    L.Input(3, (256, 256)), L.Affine(4, kernel=3), RELU, L.Affine(4, kernel=3), L.Pool("mean")
)


def test_results_draw(untouched_pyplot: None) -> None:
    s = kc.shape(MLP, method="geometric")
    assert len(s.plot().axes[0].get_lines()) >= 2 and any("sigma_w" in edit for edit in s.changes)
    assert kc.shape(A.vanilla(3), method="geometric", features=9).plot() is not None


def test_two_outputs_without_biases() -> None:
    ends = wired(
        ("a", L.Affine(30, bias=False)), ("r", RELU), ("b", L.Affine(7, bias=False)),
        ("c", L.Affine(7, bias=False), "r"), features=20,
    )  # fmt: skip
    values = kc.shape(ends, method="geometric").values
    assert values == pytest.approx({"max gamma / min gamma": 1, "max nu / min nu": 1})


test_bad_input = refusals(
    [
        (lambda: kc.shape(A.vanilla(3), method="geometric"), "features"),
        (lambda: kc.shape(MLP, "tanh", method="geometric"), "relu, leaky_relu"),
        (lambda: kc.shape(MLP, method="geometric", typical=0), "typical"),
        (lambda: kc.shape(MLP, method="geometric", output_std=-1), "output_std"),
        (lambda: kc.shape(MLP, method="geometric", input_scaling="yes"), "True or False"),
        (lambda: kc.shape(MLP, method="geometric", balance="x"), "gamma"),
        (lambda: kc.shape(LARGE_IMAGE, method="geometric", balance="nu"), "too many locations"),
        (lambda: kc.shape(MLP, method="geometric", input_moment=0), "> 0"),
        (lambda: kc.shape(A.layernorm_resnet(50), method="geometric"), "normalised"),
        (lambda: kc.shape(MLP, method="geometric", zeta=2), "target"),
    ]
)


# -- on arrays -------------------------------------------------------------------------------------


def test_the_output_scale_of_one_batch() -> None:
    s = kc.shape(MLP, method="geometric")
    model = kc.to_jax(s, weights="gaussian")
    params, x = model.init(0), np.random.default_rng(0).standard_normal((256, 20))
    found = scale_output(model, params, x, std=0.05)
    out = np.asarray(found.model.apply(found.params, x))
    assert out.std() == pytest.approx(0.05, rel=1e-5) and "affine_3" in str(found)
    assert out == pytest.approx(
        np.asarray(model.apply(params, x)) * found.factors["affine_3"], rel=1e-5
    )
    with refused("std"):
        scale_output(model, params, x, std=0)
    with refused("deviation"):
        scale_output(model, params, np.zeros((4, 20)))


def test_hessian_blocks(untouched_pyplot: None) -> None:
    """Mean squared singular values of the diagonal blocks are gamma, to the width's 5/n and 4
    standard errors.
    """
    net = kc.chain(L.Input(40), L.Affine(30), RELU, L.Affine(80), RELU, L.Affine(20))
    found = hessian_blocks(kc.shape(net, method="geometric"), draws=20, batch=8)
    for i in range(3):
        assert (
            abs(found.squares[i, i] - found.predicted[i])
            < 4 * found.error[i, i] + 0.2 * found.predicted[i]
        )
    assert np.allclose(found.predicted, found.predicted[0]) and "affine_2" in str(found)
    assert found.plot() is not None and found.histogram() is not None
    with refused("draws"):
        hessian_blocks(net, draws=1)
