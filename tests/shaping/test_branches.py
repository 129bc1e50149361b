"""Branches of solutions: continuous up to their folds, said where they jump, folds to nine digits,
mirror images marked.
"""

from __future__ import annotations

import math
import re
from typing import Any

import mpmath as mp
import pytest
import sympy as sp
from refusals import refused
from thinning import mostly_slow

import kcalc as kc
from kcalc import UnreachableTarget
from kcalc.shaping.choose_branch import solve, solve_all
from kcalc.shaping.conditions import SlopeSystem, inwards
from kcalc.shaping.continuation import BranchEnd, follow_branch
from kcalc.shaping.solver import NewtonPoint

A = kc.architectures


def systems(slope: float) -> list[SlopeSystem]:
    return [SlopeSystem(kc.activation("gelu"), slope - 1)]


def test_a_fold_is_found_to_nine_digits() -> None:
    """At the fold the two equations have parallel gradients.

    On either side of it there are two solutions and none.
    """
    start = solve(systems(1.45))
    end = follow_branch(systems(1.6)[0], NewtonPoint(math.log(start.alpha), start.beta))
    assert isinstance(end, BranchEnd) and end.exact
    last = solve(systems(1 + end.target * (1 - 1e-9)))
    assert last.beta == pytest.approx(end.point.beta, abs=1e-3)
    near, far = (
        [
            k
            for k in solve_all(systems(1 + end.target * (1 + step)))
            if abs(k.beta - end.point.beta) < 0.1
        ]
        for step in (-1e-6, 1e-6)
    )
    assert near and not far
    assert end.target < 0.9 and solve(systems(1.9)).alpha  # on another curve, which ends later
    with pytest.raises(UnreachableTarget, match=r"C'\(1\) = 1\.979"):
        solve(systems(5.0))
    tanh = SlopeSystem(kc.activation("tanh"), 0.02)
    start, last = solve([tanh.at(0.4)]), solve([tanh])
    back = follow_branch(tanh, NewtonPoint(math.log(start.alpha), start.beta))
    assert isinstance(back, NewtonPoint) and back.beta == pytest.approx(last.beta)


# -- steep activations -----------------------------------------------------------------------------


def test_narrow_features_of_the_users_own() -> None:
    """The four conditions, by integrals that end where the activation is steep."""
    x, slope = sp.Symbol("x"), 1.01
    phi = kc.activation(x / 10 + sp.tanh(1000 * x + sp.Rational(1000, 3)))
    k = solve([SlopeSystem(phi, slope - 1)])
    assert k.alpha < 0.01
    steep = (-1 / 3 - k.beta) / k.alpha

    def mean(f: Any) -> float:
        ends = sorted([-12, steep - 1, steep, steep + 1, 12])
        return float(mp.quad(lambda x: f(x) * mp.npdf(x), ends))

    def value(x: Any) -> Any:
        u = k.alpha * x + k.beta
        return k.gamma * (u / 10 + mp.tanh(1000 * (u + 1 / 3)) + k.delta)

    def rise(x: Any) -> Any:
        u = k.alpha * x + k.beta
        return k.gamma * k.alpha * (0.1 + 1000 * mp.sech(1000 * (u + 1 / 3)) ** 2)

    assert mean(value) ** 2 == pytest.approx(0, abs=1e-10)
    assert mean(lambda x: value(x) ** 2) == pytest.approx(1, abs=1e-10)
    assert mean(lambda x: value(x) * rise(x) * x) == pytest.approx(1, abs=1e-10)
    assert mean(lambda x: rise(x) ** 2) == pytest.approx(slope, abs=1e-10)


@pytest.mark.parametrize(
    ("name", "zeta"),
    mostly_slow(
        [
            ("hard_tanh", 1.03),
            ("swish", 20.0),
            ("abs", 1e3),
        ]
    ),
)
def test_the_nearest_value_that_is_printed_can_be_reached(name: str, zeta: float) -> None:
    with pytest.raises(UnreachableTarget) as refusal:
        kc.shape(A.vanilla(3), name, zeta=zeta)
    near = re.findall(r"zeta = ([.\de+-]+) in this network", str(refusal.value))
    slope = re.findall(r"C'\(1\) = ([.\d]+)", str(refusal.value))[-1]
    kc.shape(A.vanilla(3), name, zeta=float(near[0]))
    kc.shape(A.vanilla(1), name, zeta=float(slope))


def test_rounding_inwards() -> None:
    for upwards, text in ((True, "1.46694"), (False, "1.46695"), (None, "1.46694")):
        assert inwards(1.4669422, upwards) == text
    with pytest.raises(
        UnreachableTarget, match=r"C'\(1\) = 1 \+ 3\.33.*e-11.*the target is 1 \+ 1.*e-10"
    ):
        kc.shape(A.vanilla(3), "tanh", zeta=1 + 1e-10)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("activation", "options"), [(sp.exp(sp.Symbol("x") ** 2), {}), ("tanh", {"q_slope": 1e300})]
)
def test_what_cannot_be_met_is_refused_without_noise(
    activation: object, options: dict[str, float]
) -> None:
    with refused():
        kc.shape(A.vanilla(100), activation, **options)
