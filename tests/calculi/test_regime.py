"""Regimes: asymptotics from recursions of their own, deep networks against the predicted limits,
the bound under DKS.
"""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refused

import kcalc as kc
from kcalc import chain, ntk, repeat, residual
from kcalc.calculi.regime import path_layers
from kcalc.network.layers import Affine, Input, Nonlinear

A = kc.architectures


def chain_of(activation: Any, depth: int, sigma_w: float = 1.0, sigma_b: float = 0.0) -> kc.Network:
    """``depth`` equal weight layers, the last one the output."""
    layer = chain(Affine(sigma_w=sigma_w, sigma_b=sigma_b), Nonlinear(activation))
    return chain(Input(), repeat(layer, depth - 1), Affine(sigma_w=sigma_w, sigma_b=sigma_b))


def test_collapsing() -> None:
    one = ntk(chain_of("tanh", 100, 0.9, 0.3)).regime(c=-0.3)
    limit: Any = one.limit
    assert one.kind == "collapsing" and one.diagonal == pytest.approx(one.off_diagonal, rel=1e-12)
    assert limit.diagonal == limit.off_diagonal == pytest.approx(one.diagonal, rel=1e-12)


def test_what_is_not_predicted_is_said() -> None:
    dag = ntk(A.resnet_v2(50, activation="relu")).regime()
    assert (
        dag.limit is None
        and dag.bound is None
        and sum("not a chain" in note for note in dag.notes) == 2
    )
    assert dag.alpha_bar == pytest.approx(
        float(ntk(A.resnet_v2(50, activation="relu"))(0.0)) / dag.diagonal
    )
    assert any("identity" in note for note in ntk(chain_of("identity", 5)).regime().notes)
    assert any("q still changes" in note for note in ntk(chain_of("tanh", 100)).regime().notes)
    mixed = chain(Affine(), Nonlinear("tanh"), Affine(), Nonlinear("relu"), Affine())
    assert any("not equal" in note for note in ntk(mixed).regime().notes)
    assert any("c = 0 becomes" in note for note in ntk(chain_of("relu", 5)).regime().notes)
    standard = ntk(A.vanilla(3), "standard", features=50).regime()
    assert (
        standard.limit is None
        and standard.bound is None
        and "NTK parameterisation" in standard.notes[0]
    )
    for network in (
        A.vanilla(2, readout=False),
        residual(chain(Affine(), Nonlinear("relu"), Affine())),
    ):
        assert path_layers(network) is None


def test_bad_input() -> None:
    K = ntk(chain_of("relu", 3))
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
