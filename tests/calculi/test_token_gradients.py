"""Gradients over tokens that are alike, by hand."""

from __future__ import annotations

import math

import pytest
from refusals import refused
from wiring import wired

import kcalc as kc

L = kc.layers


def test_shared_branches_have_no_gradients_over_tokens() -> None:
    steps = [
        ("x", L.Input()),
        ("a", L.Affine(), "x"),
        ("f", L.Nonlinear("relu"), "a"),
        ("s", L.Sum((0.6, 0.8)), "a f"),
        ("out", L.Affine(), "s"),
    ]
    with refused("'s': the addends share weights.*gradients over tokens"):
        kc.gradients(wired(*steps, outputs=["out"]), tokens=3)


@pytest.mark.parametrize("tokens", [2, 5])
def test_modes_behind_a_mean_over_tokens(tokens: int) -> None:
    """The output is w . (mean of relu(z_t)), so that d out / d z_t = w relu'(z_t) / T.

    E relu'(z_s) relu'(z_t) is 1/2 for s = t, else (pi - arccos rho) / (2 pi).
    """
    rho, one = 0.35, 0.5
    two = (math.pi - math.acos(rho)) / (2 * math.pi)
    net = kc.chain(L.Input(8), L.Affine(8), L.Nonlinear("relu"), L.Pool("mean"), L.Affine(2))
    found = kc.gradients(net, tokens=tokens, token_cosine=rho)
    assert found.nodes["affine_1"] == pytest.approx(one / tokens, rel=1e-12)
    assert found.mean["affine_1"] == pytest.approx((one + (tokens - 1) * two) / tokens, rel=1e-12)
    assert found.difference["affine_1"] == pytest.approx((one - two) / tokens, rel=1e-12)
    assert found.weights["affine_1"] == pytest.approx(
        (one + (tokens - 1) * two * rho) / tokens, rel=1e-12
    )
    assert found.mean["nonlinear_1"] == pytest.approx(1, rel=1e-12)
    assert "affine_2" not in found.difference
    data = found.to_dict()
    assert data["mean"].keys() == data["nodes"].keys()
    assert data["difference"].keys() == {"input", "affine_1", "nonlinear_1"}
    assert "difference" in str(found)
