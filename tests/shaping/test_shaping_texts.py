"""What shapings print, and inputs out of range that once ended in an error from inside."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import phase_diagram
from kcalc.network.layers import Affine, Nonlinear
from kcalc.shaping.methods import shaping_method

A = kc.architectures


def test_no_fixed_point_is_made_up_where_q_grows() -> None:
    # E exp(2 sqrt(q) z) = exp(2 q) > q at every q, so no sigma_w >= 1 has a fixed point
    assert np.isnan(phase_diagram("exp", sigma_w=[1, 1.5], sigma_b=[0, 0.3]).q).all()
    assert len(repr(phase_diagram("tanh", sigma_w=[1.5, 2.0], sigma_b=[0.1, 0.5]))) < 80


@pytest.mark.parametrize("options", [{"sigma_b": 1e300}, {"sigma_w": 0}])
def test_sigmas_out_of_range_are_named(options: dict[str, float]) -> None:
    with refused(next(iter(options))):
        kc.shape(A.vanilla(5), "tanh", method="eoc", **options)


@pytest.mark.parametrize("axis", [[1], [2, 1], [-1, 1]])
def test_axes_of_phase_diagrams_are_checked(axis) -> None:
    with refused("sigma_w"):
        phase_diagram("tanh", sigma_w=axis)


def test_comparisons_list_the_constants_of_each_activation() -> None:
    net = A.vanilla(40, "relu")
    forward = kc.shape(net, "tanh", subnetworks="forward")
    assert "the forward bound" in forward.assumptions[-1].text
    assert forward.values["C_f'(1)"] == pytest.approx(1.5)
    names = [row[0] for row in forward.compare(kc.shape(net, method="tat", eta=0.8)).rows]
    assert "tanh alpha" in names and "relu negative_slope" in names
    assert not {"tanh negative_slope", "relu alpha"} & {*names}


def test_networks_of_several_outputs() -> None:
    ends = wired(("a", Affine()), ("p", Nonlinear("tanh")), ("b", Affine()), ("c", Affine(), "p"))
    assert kc.shape(ends, method="glorot").values == {}
    assert "Q_f(1)" not in kc.shape(ends, method="nf").residuals


def test_methods_without_a_record() -> None:
    mine = shaping_method("mine")(lambda network, activation=None: kc.shape(network, "erf"))
    net = A.vanilla(3)
    assert mine(net).network == kc.shape(net, "erf").network
