"""Branches of solutions: continuous up to their folds, said where they jump, folds to nine digits, mirror images marked."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from shaping_oracle import truth

import kcalc as kc
from kcalc.shaping.conditions import SlopeSystem
from kcalc.shaping.curve import walk
from kcalc.shaping.search import default_end, solve, solve_all
from kcalc.shaping.solver import Point

A = kc.architectures
GRID = 1 + np.geomspace(1e-5, 3.0, 90)
FOLDS = {"gelu": 1.48487, "mish": 1.48389, "swish": 1.47993}  # where default branches turn back


def systems(name: str, slope: float) -> list[SlopeSystem]:
    return [SlopeSystem(kc.activation(name), slope - 1)]


@pytest.mark.parametrize(
    "name", ["atan", "erf", "gelu", "mish", "sigmoid", "softplus", "softsign", "swish", "tanh"]
)  # fmt: skip
def test_constants_are_continuous_except_where_a_warning_says_so(name: str) -> None:
    last = None
    for slope in (float(t) for t in GRID if t < FOLDS.get(name, 1.44 if name == "softplus" else 5.0) + 0.05):
        try:
            k = solve(systems(name, slope))
        except kc.UnreachableTarget:
            assert name in {"softplus", *FOLDS}
            break
        note = default_end(systems(name, slope), k)
        assert (note is not None) == (slope > FOLDS.get(name, 9.0))
        here = np.array([math.log(k.alpha), k.beta / max(1.0, k.alpha)])
        if note is None and last is not None:
            assert np.abs(here - last)[1] < 0.15, slope
        last = here


@pytest.mark.parametrize(("name", "fold"), FOLDS.items())
def test_a_jump_is_a_warning_of_the_shaping(name: str, fold: float) -> None:
    below = kc.shape(A.vanilla(1, name), zeta=fold - 0.01)
    beyond = kc.shape(A.vanilla(1, name), zeta=fold + 0.01)
    assert not any("default branch" in a.text for a in below.warnings)
    text = next(a.text for a in beyond.warnings if "default branch" in a.text)
    assert f"{fold:.6g}" in text and "jump" in text
    assert max(beyond.residuals.values()) < 1e-12


def test_a_fold_is_found_to_nine_digits() -> None:
    """At the fold the two equations have parallel gradients; on either side of it there are two solutions and none."""
    end = walk(SlopeSystem(kc.activation("gelu"), 0.6), Point(*_start("gelu", 1.45)))[1]
    assert end is not None and end.exact
    assert solve(systems("gelu", 1 + end.target * (1 - 1e-9))).beta == pytest.approx(end.point.beta, abs=1e-3)
    near = [k for k in solve_all(systems("gelu", 1 + end.target * (1 - 1e-6))) if abs(k.beta - end.point.beta) < 0.1]
    far = [k for k in solve_all(systems("gelu", 1 + end.target * (1 + 1e-6))) if abs(k.beta - end.point.beta) < 0.1]
    assert near and not far


def _start(name: str, slope: float) -> tuple[float, float]:
    k = solve(systems(name, slope))
    return math.log(k.alpha), k.beta


@pytest.mark.parametrize(("name", "slope"), [("tanh", 3.9), ("atan", 3.0), ("softplus", 1.42), ("sigmoid", 3.5)])
def test_steep_targets_at_large_input_scales(name: str, slope: float) -> None:
    k = solve(systems(name, slope))
    values = truth(k, False)
    for condition, target in {"Q(1)": 1.0, "Q'(1)": 1.0, "C(0)": 0.0, "C'(1)": slope}.items():
        assert abs(float(values[condition] - target)) < 1e-12, condition


@pytest.mark.parametrize(("name", "near"), [("gelu", "1.97905"), ("swish", "1.7471"), ("mish", "1.72861"), ("sin", "2.25643")])
def test_the_nearest_target_is_exact(name: str, near: str) -> None:
    with pytest.raises(kc.UnreachableTarget, match=rf"the nearest that can be reached is C'\(1\) = {re.escape(near)}"):
        solve(systems(name, 2.5))
    assert solve(systems(name, float(near) - 2e-4)).alpha > 0
    with pytest.raises(kc.UnreachableTarget):
        solve(systems(name, float(near) + 2e-5))


@pytest.mark.parametrize("name", ["tanh", "erf", "gelu", "softplus", "swish", "elu"])
@pytest.mark.parametrize("slope", [1.002, 1.1])
def test_all_solutions_solve_and_mirrors_are_visible(name: str, slope: float) -> None:
    found = solve_all(systems(name, slope))
    for k in found:
        values = truth(k, False)
        assert abs(float(values["Q'(1)"] - 1)) < 1e-11 and abs(float(values["C'(1)"] - slope)) < 1e-11
    odd = name in ("tanh", "erf")
    assert found.mirror_of == ({1: 0} if odd else {})
    assert "mirror of" in repr(found) and ("<td>0</td></tr>" in found._repr_html_()) == odd
    assert len(repr(found).splitlines()) == len(found) + 1


def test_all_solutions_of_a_shaping_are_marked() -> None:
    found = kc.shape(A.vanilla(50), "tanh").all_solutions["tanh"]
    assert found.mirror_of == {1: 0} and found[0].beta == pytest.approx(-found[1].beta, rel=1e-9)
    assert len(kc.shape(A.vanilla(50), "relu").all_solutions["relu"]) == 1
