"""Tailored activation transformations.

Published slopes, curvature conditions, the ends of what can be reached.
"""

from __future__ import annotations

import json
import math
import re

import mpmath
import numpy as np
import pytest
import sympy as sp
from shaping_oracle import truth
from thinning import mostly_slow

import kcalc as kc

A, L = kc.architectures, kc.layers


def plain_c_value(slope: float, depth: int) -> float:
    """c after so many tailored ReLU layers, from 0, in 40 digits by [TAT eq. 9]."""
    with mpmath.workdps(40):
        a, c = mpmath.mpf(slope), mpmath.mpf(0)
        k = (1 - a) ** 2 / (mpmath.pi * (1 + a * a))
        for _ in range(depth):
            c = c + k * (mpmath.sqrt(1 - c * c) - c * mpmath.acos(c))
        return float(c)


@pytest.mark.parametrize(("depth", "slope"), [(50, 0.43052), (100, 0.57044), (1000, 0.84435)])
def test_published_negative_slopes(depth: int, slope: float) -> None:
    k = kc.shape(A.vanilla(depth), "relu", method="tat", eta=0.9).constants["relu"]
    assert k.negative_slope == pytest.approx(slope, abs=6e-6)
    assert plain_c_value(k.negative_slope, depth) == pytest.approx(0.9, abs=1e-13)
    assert k.output_scale == pytest.approx(math.sqrt(2 / (1 + k.negative_slope**2)), rel=1e-15)


@pytest.mark.parametrize("eta", [0.5, 0.9, 0.95])
def test_tailored_networks_keep_q_slope_and_the_c_value(eta: float) -> None:
    s = kc.shape(A.rescaled_resnet(30, 3, shortcut_weight=0.6), method="tat", eta=eta)
    assert max(s.residuals.values()) < 1e-12
    assert kc.c_map(s.network)(0.0) <= eta + 1e-12
    assert kc.q_map(s.network)(np.array([0.3, 1.0, 7.0])) == pytest.approx(
        [0.3, 1.0, 7.0], rel=1e-12
    )
    assert float(
        kc.maximal(s.network, lambda c: s.constants["relu"].transformed.c_map(c))(0.0)
    ) == pytest.approx(eta, abs=1e-12)


def test_plain_networks_need_thirteen_layers_for_nine_tenths() -> None:
    with pytest.raises(kc.UnreachableTarget, match=r"13 layers.*0\.897148"):
        kc.shape(A.vanilla(12), method="tat", eta=0.9)
    assert plain_c_value(0.0, 12) == pytest.approx(0.897148, abs=1e-6)
    assert kc.shape(A.vanilla(13), method="tat", eta=0.9).constants["relu"].negative_slope > 0


def test_the_depth_that_a_target_needs_is_right_however_near_to_one_it_is() -> None:
    eta = 1 - 2e-6
    with pytest.raises(
        kc.UnreachableTarget, match=r"^eta = 0\.999998 is not reachable.*needs (\d+) layers"
    ) as refused:
        kc.shape(A.vanilla(12), method="tat", eta=eta)
    depth = int(re.findall(r"needs (\d+) layers", str(refused.value))[0])
    assert plain_c_value(0.0, depth - 1) < eta <= plain_c_value(0.0, depth)
    with pytest.raises(kc.UnreachableTarget, match="needs more than 1000000 layers"):
        kc.shape(A.vanilla(12), method="tat", eta=1 - 1e-13)
    with pytest.raises(kc.KcalcError, match="<= 1000000, got 1000001"):
        A.vanilla(1000001)


def test_the_largest_eta_gives_a_relu() -> None:
    most = float(kc.maximal_c_value(A.vanilla(20))(0.0))
    assert kc.shape(A.vanilla(20), method="tat", eta=most).constants[
        "relu"
    ].negative_slope == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("name", ["tanh", "softplus", "swish", "elu"])
@pytest.mark.parametrize("tau", mostly_slow([0.2, 0.5], 2))
def test_smooth_activations_have_the_wanted_curvature(name: str, tau: float) -> None:
    net = A.resnet_v2(50, shortcut_weight=0.8)
    s = kc.shape(net, name, method="tat", tau=tau)
    values = truth(s.constants[name], curvature=True)
    multiplier = kc.maximal_curvature(net).multiplier
    for condition, target in {
        "Q(1)": 1.0,
        "Q'(1)": 1.0,
        "C'(1)": 1.0,
        "C''(1)": tau / multiplier,
    }.items():
        assert float(values[condition]) == pytest.approx(target, abs=1e-13)
    assert max(s.residuals.values()) < 1e-12
    # the whole network is one of the subnetworks
    assert float(kc.c_map(s.network).derivative(2)(1.0)) <= tau * (1 + 1e-9)


def test_vanilla_curvature_is_tau_over_the_depth() -> None:
    s = kc.shape(A.vanilla(60), "gelu", method="tat", tau=0.3)
    assert s.targets["C''(1)"] == pytest.approx(0.3 / 60, rel=1e-14)


def test_the_activations_choose_the_kind() -> None:
    assert "eta" in kc.shape(A.vanilla(30), "leaky_relu", method="tat").options
    assert "tau" in kc.shape(A.vanilla(30), "tanh", method="tat").options
    net = kc.chain(
        L.Input(), L.Affine(), L.Nonlinear("tanh"), L.Affine(), L.Nonlinear("softplus"), L.Affine()
    )
    s = kc.shape(net, method="tat")
    assert set(s.constants) == {"tanh", "softplus"} and max(s.residuals.values()) < 1e-12


def test_both_signs_of_the_mean_are_found() -> None:
    s = kc.shape(A.vanilla(50), "tanh", method="tat")
    found = s.all_solutions["tanh"]
    assert kc.shaping.mirrors(found)[0] == (0, 1)
    assert found[0].beta == pytest.approx(s.constants["tanh"].beta)


@pytest.mark.parametrize(
    ("activation", "options", "words"),
    [
        ("relu", {"tau": 0.3}, r"kink at 0.*C''\(1\) is infinite.*give eta"),
        ("selu", {}, r"kink at 0.*infinite"),
        ("hard_swish", {"tau": 0.3}, "kink at -3, 3"),
        ("square", {}, "positively homogeneous"),
        ("tanh", {"eta": 0.9}, "only relu and leaky_relu"),
        ("tanh", {"eta": 0.9, "tau": 0.3}, "mutually exclusive"),
        ("relu", {"eta": 1.0}, "between 0 and 1"),
        ("relu", {"eta": -0.2}, "between 0 and 1"),
        ("tanh", {"tau": 0}, "> 0"),
        ("tanh", {"tau": float("nan")}, "finite"),
        ("tanh", {"tau": sp.Symbol("t")}, "tau"),
        ("tanh", {"tau": 1e3}, "nearest|cannot"),
        ("tanh", {"zeta": 1.5}, "eta"),
    ],
)
def test_refusals_say_why(activation: str, options: dict, words: str) -> None:
    with pytest.raises(kc.KcalcError, match=words):
        kc.shape(A.vanilla(10), activation, method="tat", **options)


def test_it_exports_and_compares() -> None:
    s = kc.shape(A.vanilla(50), "relu", method="tat")
    data = json.loads(json.dumps(s.to_dict()))
    assert data["method"] == "tat" and data["constants"]["relu"]["negative_slope"] == pytest.approx(
        0.43052, abs=6e-6
    )
    table = str(s.compare(kc.shape(A.vanilla(50), "relu")))
    assert "eta" in table and "zeta" in table and "residual of C'(1)" in table
    assert "<table>" in s.compare(s)._repr_html_()


def notes(result: object) -> list[str]:
    return [line for line in str(result).splitlines() if line.startswith("note: ")]


@pytest.mark.parametrize(("depth", "eta"), [(13, 0.9), (30, 0.972), (2, 0.49)])
def test_nearly_plain_relus_carry_a_note_that_names_a_smaller_eta(depth: int, eta: float) -> None:
    s = kc.shape(A.vanilla(depth), method="tat", eta=eta)
    slope = s.constants["relu"].negative_slope
    assert slope < 0.05
    (note,) = (line for line in notes(s) if f"slope {slope:.3g}, below" in line)
    tried, found = re.search(r"eta=([\d.]+) gives ([\d.]+)$", note).groups()
    other = kc.shape(A.vanilla(depth), method="tat", eta=float(tried))
    assert other.constants["relu"].negative_slope == pytest.approx(float(found), rel=5e-3)
    assert plain_c_value(other.constants["relu"].negative_slope, depth) == pytest.approx(
        float(tried), abs=1e-12
    )
    assert len(notes(other)) == len(notes(s)) - 1
    assert any(note.endswith(a.text) for a in s.assumptions)


def test_steeper_slopes_carry_no_such_note() -> None:
    s = kc.shape(A.vanilla(20), method="tat")
    assert s.constants["relu"].negative_slope > 0.05 and "eta=" not in "".join(notes(s))


def test_regions_of_a_model_print_their_notes() -> None:
    torch = pytest.importorskip("torch")
    body = [layer for _ in range(13) for layer in (torch.nn.Linear(4, 4), torch.nn.ReLU())]

    class Opaque(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.out = torch.nn.Sequential(*body), torch.nn.Linear(4, 4)

        def forward(self, x):  # pyright: ignore[reportMissingParameterType]
            return torch.sort(self.out(self.body(x)))[0]

    s = kc.shape(kc.read(Opaque(), (2, 4)), method="tat", eta=0.9)
    assert isinstance(s, kc.RegionalShaping)
    assert [line for line in notes(s) if "eta=0.5 gives" in line]
    assert "eta=0.5 gives" in s._repr_html_()
