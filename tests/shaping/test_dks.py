"""Deep Kernel Shaping: the constants of the papers, measured conditions, refusals."""

from __future__ import annotations

import pytest
from refusals import refused
from thinning import mostly_slow

import kcalc as kc
from kcalc import c_map

A = kc.architectures


@pytest.mark.parametrize("name", mostly_slow(["tanh", "leaky_relu", "selu", "sigmoid"], 2))
@pytest.mark.parametrize("zeta", mostly_slow([1.5, 5.0]))
def test_global_map_has_slope_zeta_and_keeps_q(name: str, zeta: float) -> None:
    s = kc.shape(A.resnet_v2(50), name, zeta=zeta)
    assert s.values["C_f'(1)"] == pytest.approx(zeta, rel=1e-9)
    assert c_map(s.network).derivative(1)(1.0) == pytest.approx(zeta, rel=1e-9)
    assert kc.q_map(s.network)(1.0) == pytest.approx(1.0, rel=1e-10)
    assert abs(c_map(s.network)(0.0)) < 1e-12


def test_unknown_constants_name_the_known_ones() -> None:
    with refused("tanh"):
        kc.shape(A.vanilla(3), "tanh").constants["tan"]
