"""Norms in networks to be shaped.

Refused where what they subtract or set breaks the local conditions, kept where it does not.
"""

from __future__ import annotations

import math

import pytest
from refusals import refused

import kcalc as kc

L = kc.layers
NORMS = {"layer": L.LayerNorm(), "group": L.GroupNorm(4), "rms": L.RMSNorm()}
WEIGHTS = (0.8, 0.6)


def stack(norm: L.Layer, phi: str = "relu", behind: bool = True, blocks: int = 4) -> kc.Network:
    """Residual blocks with a norm behind (or in front of) the activation of each."""
    steps: list = [("x", L.Input(64), ()), ("f0", L.Affine(64), ("x",))]
    for i in range(blocks):
        inner = [(f"p{i}", L.Nonlinear(phi)), (f"n{i}", norm)]
        before = f"f{i}"
        for name, layer in inner if behind else inner[::-1]:
            steps.append((name, layer, (before,)))
            before = name
        steps += [
            (f"a{i}", L.Affine(64), (before,)),
            (f"f{i + 1}", L.Sum(WEIGHTS), (f"f{i}", f"a{i}")),
        ]
    return kc.Network.from_steps(
        [*steps, ("last", L.Nonlinear(phi), (f"f{blocks}",)), ("o", L.Affine(64), ("last",))]
    )


def test_the_slope_in_the_refusal_is_that_of_the_closed_form() -> None:
    slope = kc.shape(stack(NORMS["rms"]), method="tat", eta=0.3).constants["relu"].negative_slope
    square = (1 - slope) ** 2 / (math.pi * (1 + slope**2))
    with refused(f"multiplies the slope by {1 / (1 - square):.6g} "):
        kc.shape(stack(NORMS["layer"]), method="tat", eta=0.3)


def test_residual_weights_by_slope_refuse_norms_that_read_means() -> None:
    options = {"method": "residual_weights", "scheme": "slope", "slope": 1.3}
    with refused("LayerNorm.*'n0'.*maximal.*1.3.*hold.*dks"):
        kc.shape(stack(NORMS["layer"], "gelu"), **options)
    # and not a nearest slope
    with refused("LayerNorm.*'n0'.*maximal.*90.*hold.*dks"):
        kc.shape(stack(NORMS["layer"], "gelu"), **options | {"slope": 90})
    with pytest.raises(kc.UnreachableTarget, match="the nearest is"):
        kc.shape(stack(NORMS["rms"], "gelu"), **options | {"slope": 90})
    for net in (
        stack(NORMS["rms"], "gelu"),
        stack(NORMS["layer"], "gelu", behind=False),
        stack(NORMS["layer"], "tanh"),
    ):
        s = kc.shape(net, **options)
        assert float(kc.c_map(s.network).derivative(1)(1.0)) == pytest.approx(1.3, rel=1e-9)
        assert s.residuals["max C_f'(1)"] < 1e-12


def test_residual_weights_for_activations_shaped_later_say_what_the_norms_need() -> None:
    options = {"method": "residual_weights", "scheme": "slope", "slope": 1.3, "local_slope": 1.1}
    noted = {
        a.node
        for a in kc.shape(stack(NORMS["layer"], "gelu"), **options).warnings
        if "mean 0 afterwards" in a.text
    }
    assert noted == {"n0", "n1", "n2", "n3"}
    assert not any(
        "mean 0" in a.text for a in kc.shape(stack(NORMS["rms"], "gelu"), **options).warnings
    )


@pytest.mark.parametrize("norm", ["layer", "group", "rms"])
def test_the_edge_of_chaos_needs_q_1_where_a_norm_sets_it(norm: str) -> None:
    net = stack(NORMS[norm], "tanh", behind=False)
    with refused(r"'p0'.*1.*\w+.*'n0'.*q\*.*0.5.*choose.*q=1"):
        kc.shape(net, method="eoc", q=0.5)
    assert max(kc.shape(net, method="eoc", q=1.0).residuals.values()) < 1e-12
