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


def chain_of(activation: Any, depth: int, **sigmas: float) -> kc.Network:
    """``depth`` equal weight layers, the last one the output."""
    layer = chain(Affine(**sigmas), Nonlinear(activation))
    return chain(Input(), repeat(layer, depth - 1), Affine(**sigmas))


def test_collapsing() -> None:
    one = ntk(chain_of("tanh", 100, sigma_w=0.9, sigma_b=0.3)).regime(c=-0.3)
    limit: Any = one.limit
    assert one.kind == "collapsing" and one.diagonal == pytest.approx(one.off_diagonal, rel=1e-12)
    assert limit.diagonal == limit.off_diagonal == pytest.approx(one.diagonal, rel=1e-12)


def test_what_is_not_predicted_is_said() -> None:
    K = ntk(A.resnet_v2(50, activation="relu"))
    dag = K.regime()
    assert dag.limit is None and dag.bound is None
    assert sum("not a chain" in note for note in dag.notes) == 2
    assert dag.alpha_bar == pytest.approx(float(K(0.0)) / dag.diagonal)
    mixed = chain(Affine(), Nonlinear("tanh"), Affine(), Nonlinear("relu"), Affine())
    for net, words in (
        (chain_of("identity", 5), "identity"),
        (chain_of("tanh", 100), "q still changes"),
        (mixed, "not identical"),
        (chain_of("relu", 5), "c = 0 becomes"),
    ):
        assert any(words in note for note in ntk(net).regime().notes)
    standard = ntk(A.vanilla(3), "standard", features=50).regime()
    assert standard.limit is None and standard.bound is None
    assert "NTK parameterisation" in standard.notes[0]
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
        ({"c": [0.1, 0.2]}, "single number"),
    ):
        with refused(match):
            K.regime(**options)  # type: ignore[arg-type]
    with refused("must be an integer >= "):
        K.regime().limit.matrix(0)  # type: ignore[union-attr]
