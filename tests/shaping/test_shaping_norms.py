"""Norms in networks to be shaped.

Refused where what they subtract or set breaks the local conditions, kept where it does not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
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


def leaky(c: float, slope: float) -> float:
    """The C map of a leaky ReLU. [TAT eq. 9]"""
    k = (1 - slope) ** 2 / (math.pi * (1 + slope**2))
    return c + k * (math.sqrt(1 - c * c) - c * math.acos(c))


def by_hand(slope: float, centred: bool, blocks: int = 4) -> tuple[float, float]:
    """(C(0), C'(1)) of ``stack`` of tailored ReLUs.

    Subtracting mu^2 = (1 - a)^2/(pi (1 + a^2)) divides 1 - c by 1 - mu^2.
    """
    square = (1 - slope) ** 2 / (math.pi * (1 + slope**2)) if centred else 0.0
    c, gain = 0.0, 1.0
    for _ in range(blocks):
        c = WEIGHTS[0] ** 2 * c + WEIGHTS[1] ** 2 * (leaky(c, slope) - square) / (1 - square)
        gain *= WEIGHTS[0] ** 2 + WEIGHTS[1] ** 2 / (1 - square)
    return leaky(c, slope), gain


@pytest.mark.parametrize("norm", ["layer", "group"])
@pytest.mark.parametrize(("phi", "targets"), [("relu", {"eta": 0.3}), ("tanh", {"tau": 0.2})])
def test_tailored_activations_refuse_norms_that_subtract_their_mean(
    norm: str, phi: str, targets: dict
) -> None:
    with refused(r"Norm at node 'n0'.*mean is not 0.*RMSNorm.*Affine.*without_normalization"):
        kc.shape(stack(NORMS[norm], phi), method="tat", **targets)


def test_the_slope_in_the_refusal_is_that_of_the_closed_form() -> None:
    slope = kc.shape(stack(NORMS["rms"]), method="tat", eta=0.3).constants["relu"].negative_slope
    square = (1 - slope) ** 2 / (math.pi * (1 + slope**2))
    with refused(f"multiplies the slope by {1 / (1 - square):.6g} "):
        kc.shape(stack(NORMS["layer"]), method="tat", eta=0.3)


def test_a_norm_is_found_behind_sums_and_concatenations() -> None:
    relu, affine = L.Nonlinear("relu"), L.Affine(64)
    steps = [
        ("x", L.Input(64), ()),
        ("a", affine, ("x",)),
        ("p", relu, ("a",)),
        ("i", L.Identity(), ("p",)),
        ("b", affine, ("p",)),
    ]
    for last in (("m", L.Sum(WEIGHTS), ("i", "b")), ("m", L.Concat(), ("b", "i"))):
        net = kc.Network.from_steps(
            [
                *steps,
                last,
                ("n", L.LayerNorm(), ("m",)),
                ("c", affine, ("n",)),
                ("q", relu, ("c",)),
                ("o", affine, ("q",)),
            ]
        )
        with refused("LayerNorm at node 'n'"):
            kc.shape(net, method="tat", eta=0.2)
        assert kc.shape(net, method="dks").residuals["C_f'(1)"] < 1e-12


@pytest.mark.parametrize(
    ("norm", "behind"), [("rms", True), ("rms", False), ("layer", False), ("group", False)]
)
def test_norms_that_subtract_nothing_stay(norm: str, behind: bool) -> None:
    s = kc.shape(stack(NORMS[norm], behind=behind), method="tat", eta=0.3)
    slope = s.constants["relu"].negative_slope
    assert by_hand(slope, centred=False) == pytest.approx((0.3, 1.0), abs=1e-12)
    assert float(kc.c_map(s.network)(0.0)) == pytest.approx(0.3, abs=1e-12)
    assert max(s.residuals.values()) < 1e-12
    tau = kc.shape(stack(NORMS[norm], "tanh", behind), method="tat", tau=0.2)
    assert float(kc.c_map(tau.network).derivative(2)(1.0)) == pytest.approx(0.2, rel=1e-9)


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_residuals_are_those_of_the_network_with_its_norms(norm: str) -> None:
    """A shaping whose network was given norms that read means.

    Its values are the true ones, not the promised ones.
    """
    s = kc.shape(stack(NORMS["rms"]), method="tat", eta=0.3)
    swapped = replace(
        s,
        network=s.network.map_layers(
            lambda _, layer: NORMS[norm] if isinstance(layer, L.RMSNorm) else layer
        ),
    )
    c, gain = by_hand(s.constants["relu"].negative_slope, centred=True)
    assert (swapped.values["max C_f(0)"], swapped.values["C_f'(1)"]) == pytest.approx(
        (c, gain), abs=1e-12
    )
    assert swapped.residuals["max C_f(0)"] == pytest.approx(0.3 - c, abs=1e-12) and c < 0.2


@pytest.mark.parametrize("norm", ["layer", "group"])
@pytest.mark.parametrize("method", ["dks", "self_normalising"])
def test_methods_that_centre_activations_take_every_norm(norm: str, method: str) -> None:
    s, same = (kc.shape(stack(NORMS[which]), method=method) for which in (norm, "rms"))
    c = np.array([-0.5, 0.0, 0.7])
    assert kc.c_map(s.network)(c) == pytest.approx(kc.c_map(same.network)(c), abs=1e-12)
    assert max(s.residuals.values()) < 1e-12


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


def test_the_edge_of_chaos_refuses_sums_that_change_q() -> None:
    """q of a tanh at the edge is (q* - sigma_b^2)/sigma_w^2, not q*.

    a Sum of it with an Affine has another q than q*.
    """
    affine, tanh = L.Affine(64), L.Nonlinear("tanh")
    steps = [
        ("x", L.Input(64), ()),
        ("f", affine, ("x",)),
        ("p", tanh, ("f",)),
        ("a", affine, ("p",)),
        ("s", L.Sum(WEIGHTS), ("p", "a")),
    ]
    net = kc.Network.from_steps(
        [*steps, ("b", affine, ("s",)), ("r", tanh, ("b",)), ("o", affine, ("r",))]
    )
    z, w = np.polynomial.hermite_e.hermegauss(120)
    seen = 0.64 * float(w @ np.tanh(z) ** 2) / math.sqrt(2 * math.pi) + 0.36
    with refused(f"activation 'r' sees q = {seen:.6g}.*own Affine"):
        kc.shape(net, method="eoc", q=1.0)
    own = [step if step[0] != "s" else ("s", L.Sum(WEIGHTS), ("i", "a")) for step in steps]
    own.insert(3, ("i", affine, ("p",)))
    good = kc.Network.from_steps(
        [*own, ("b", affine, ("s",)), ("r", tanh, ("b",)), ("o", affine, ("r",))]
    )
    assert max(kc.shape(good, method="eoc", q=1.0).residuals.values()) < 1e-12
