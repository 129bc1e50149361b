"""Regimes: asymptotics from recursions of their own, deep networks against the predicted limits,
the bound under DKS.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.calculi.regime import path_layers

A, L = kc.architectures, kc.layers


def chain_of(activation: Any, depth: int, sigma_w: float = 1.0, sigma_b: float = 0.0) -> kc.Network:
    """``depth`` equal weight layers, the last one the output."""
    layer = kc.chain(L.Affine(sigma_w=sigma_w, sigma_b=sigma_b), L.Nonlinear(activation))
    return kc.chain(
        L.Input(), kc.repeat(layer, depth - 1), L.Affine(sigma_w=sigma_w, sigma_b=sigma_b)
    )


def relu_ratio(depth: int) -> float:
    """K(0)/K(1) of a ReLU network of ``depth`` weight layers in 30 digits, by Theta_i = C_g
    C_h'(C_g) alone.
    """
    with mpmath.workdps(30):
        cosines = [mpmath.mpf(0)]
        for _ in range(depth - 1):
            c = cosines[-1]
            t = mpmath.acos(c)
            cosines.append((mpmath.sin(t) + (mpmath.pi - t) * c) / mpmath.pi)
        total, slope = cosines[-1], mpmath.mpf(1)
        for c in reversed(cosines[:-1]):
            slope *= 1 - mpmath.acos(c) / mpmath.pi
            total += c * slope
        return float(total / depth)


def test_alpha_bar_of_relu() -> None:
    """The value at depth 100 and the way to 1/4. [theory: .273 at D = 100, c0 = 0]"""
    found = {depth: kc.ntk(chain_of("relu", depth, 2**0.5)).regime() for depth in (25, 100, 400)}
    for depth, one in found.items():
        assert one.alpha_bar == pytest.approx(relu_ratio(depth), rel=1e-11)
        assert (
            one.predicted_alpha_bar == 0.25
            and one.limit is not None
            and one.limit.diagonal == pytest.approx(one.diagonal, rel=1e-12)
        )
    assert (
        round(found[100].alpha_bar, 3) == 0.273
        and found[100].kind == "edge"
        and found[25].kind == "data-dependent"
    )
    gaps = [found[depth].alpha_bar - 0.25 for depth in (25, 100, 400)]
    assert gaps[0] > 2 * gaps[1] > 5 * gaps[2] > 0


def test_layer_profiles_at_the_edge() -> None:
    one = kc.ntk(chain_of("relu", 400, 2**0.5)).regime()
    place = np.arange(1, 401) / 400
    assert one.limit is not None and one.limit.alphas == pytest.approx(place**3)
    assert np.max(np.abs(np.array(list(one.alphas.values())) - place**3)) < 0.02
    assert one.limit.matrix(3) == pytest.approx(one.diagonal * (np.eye(3) + 0.25 * (1 - np.eye(3))))


def test_collapsing() -> None:
    one = kc.ntk(chain_of("tanh", 100, 0.9, 0.3)).regime(c=-0.3)
    limit: Any = one.limit
    assert one.kind == "collapsing" and one.diagonal == pytest.approx(one.off_diagonal, rel=1e-12)
    assert limit.diagonal == limit.off_diagonal == pytest.approx(one.diagonal, rel=1e-12)


def test_exploding_with_means() -> None:
    """c* > 0: the off-diagonal c*/(1 - C'(c*)) and the profile of the last layers."""
    q = kc.shaping.depth_limit(
        kc.chain(L.Affine(sigma_w=2.5, sigma_b=0.5), L.Nonlinear("tanh")), 1.0
    ).q
    K = kc.ntk(chain_of("tanh", 150, 2.5, 0.5))
    one = K.regime(q=q)
    limit: Any = one.limit
    assert one.kind == "exploding"
    assert one.off_diagonal == pytest.approx(
        limit.off_diagonal, rel=1e-9
    ) and one.diagonal == pytest.approx(limit.diagonal, rel=1e-9)
    assert list(one.alphas.values())[-20:] == pytest.approx(
        limit.alphas[-20:], rel=1e-6
    ) and not any("settled" in n for n in one.notes)
    away = K.regime(q=3.0)
    assert away.off_diagonal == pytest.approx(away.limit.off_diagonal, rel=1e-6)  # type: ignore[union-attr]
    assert any("q is constant after the first layer" in note for note in away.notes)


def test_what_is_not_predicted_is_said() -> None:
    dag = kc.ntk(A.resnet_v2(50, activation="relu")).regime()
    assert (
        dag.limit is None
        and dag.bound is None
        and sum("not a chain" in note for note in dag.notes) == 2
    )
    assert dag.alpha_bar == pytest.approx(
        float(kc.ntk(A.resnet_v2(50, activation="relu"))(0.0)) / dag.diagonal
    )
    assert any("identity" in note for note in kc.ntk(chain_of("identity", 5)).regime().notes)
    assert any("q still changes" in note for note in kc.ntk(chain_of("tanh", 100)).regime().notes)
    mixed = kc.chain(L.Affine(), L.Nonlinear("tanh"), L.Affine(), L.Nonlinear("relu"), L.Affine())
    assert any("not equal" in note for note in kc.ntk(mixed).regime().notes)
    assert any("c = 0 becomes" in note for note in kc.ntk(chain_of("relu", 5)).regime().notes)
    standard = kc.ntk(A.vanilla(3), "standard", features=50).regime()
    assert (
        standard.limit is None
        and standard.bound is None
        and "NTK parameterisation" in standard.notes[0]
    )
    for network in (
        A.vanilla(2, readout=False),
        kc.residual(kc.chain(L.Affine(), L.Nonlinear("relu"), L.Affine())),
    ):
        assert path_layers(network) is None


def test_bad_input() -> None:
    K = kc.ntk(chain_of("relu", 3))
    for options, match in (
        ({"c": 1.0}, "c = 1"),
        ({"c": -1}, "c = -1"),
        ({"c": 2.0}, "cosine"),
        ({"q": -1.0}, "must be > 0"),
        ({"c": [0.1, 0.2]}, "one number"),
    ):
        with refused(match):
            K.regime(**options)  # type: ignore[arg-type]
    with refused("must be an integer >= "):
        K.regime().limit.matrix(0)  # type: ignore[union-attr]
