"""Tailored activation transformations.

Published slopes, curvature conditions, the ends of what can be reached.
"""

from __future__ import annotations

import json
import math

import pytest
import sympy as sp
from refusals import refusals

import kcalc as kc
from kcalc.shaping.conditions import CurvatureSystem, SlopeSystem
from kcalc.shaping.solver import branches
from kcalc.shaping.starting_points import curves

A = kc.architectures


def test_plain_networks_need_thirteen_layers_for_nine_tenths() -> None:
    # 0.897148: from 0, 12 steps of [TAT eq. 9], c + (sqrt(1 - c^2) - c acos(c)) / pi
    with pytest.raises(kc.UnreachableTarget, match=r"13 layers.*0\.897148"):
        kc.shape(A.vanilla(12), method="tat", eta=0.9)
    assert kc.shape(A.vanilla(13), method="tat", eta=0.9).constants["relu"].negative_slope > 0


def test_both_signs_of_the_mean_are_found() -> None:
    s = kc.shape(A.vanilla(50), "tanh", method="tat")
    found = s.all_solutions["tanh"]
    assert kc.shaping.mirrors(found)[0] == (0, 1)
    assert found[0].beta == pytest.approx(s.constants["tanh"].beta)
    assert [row[-1] for row in found.rows[1:3]] == ["", "0"]
    pairs = [point.beta for point in curves(SlopeSystem(kc.activation("tanh"), 0.02))]
    assert sum(pairs) == pytest.approx(0, abs=1e-9) and len(pairs) > 1
    # where a b' + b |b| / sqrt(2) = 0 with a = tanh', b = a', t = tanh: 3 t^2 - 1 = sqrt(2) t |t|
    starts = branches(CurvatureSystem(kc.activation("tanh"), 0.3))
    squares = [math.tanh(start.beta) ** -2 for start in starts]
    assert squares == pytest.approx([3 + math.sqrt(2), 3 - math.sqrt(2)])


test_refusals_say_why = refusals(
    [
        ("relu", {"tau": 0.3}, r"kink at 0.*C''\(1\) is infinite.*pass eta"),
        ("hard_swish", {"tau": 0.3}, "kink at -3, 3"),
        ("square", {}, "positively homogeneous"),
        ("tanh", {"eta": 0.9}, "applies only to relu and leaky_relu"),
        ("tanh", {"eta": 0.9, "tau": 0.3}, "mutually exclusive"),
        ("relu", {"eta": 1.0}, "between 0 and 1"),
        ("relu", {"eta": -0.2}, "between 0 and 1"),
        ("tanh", {"tau": 0}, "> 0"),
        ("tanh", {"tau": sp.Symbol("t")}, "tau"),
        ("tanh", {"zeta": 1.5}, "eta"),
    ],
    lambda activation, options: kc.shape(A.vanilla(10), activation, method="tat", **options),
)


def test_it_exports_and_compares() -> None:
    s = kc.shape(A.vanilla(50), "relu", method="tat")
    data = json.loads(json.dumps(s.to_dict()))
    assert data["method"] == "tat" and data["constants"]["relu"]["negative_slope"] == pytest.approx(
        0.43052, abs=6e-6
    )
    table = str(s.compare(kc.shape(A.vanilla(50), "relu")))
    assert "eta" in table and "zeta" in table and "residual of C'(1)" in table
    assert "<table>" in s.compare(s)._repr_html_()
