"""The solver of shaping: constants against 50-digit quadrature, branches, all
solutions, refusals.
"""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from shaping_oracle import truth

import kcalc as kc
from kcalc.shaping.choose_branch import solve, solve_all
from kcalc.shaping.conditions import SlopeSystem
from kcalc.shaping.dks import constants_for
from kcalc.shaping.moments import moments
from kcalc.shaping.solutions import mirrors
from kcalc.shaping.tat import curvature_systems

A, L = kc.architectures, kc.layers


def worst(constants, targets: dict[str, float]) -> float:
    """The largest |value - target| at 50 digits."""
    values = truth(constants, "C''(1)" in targets)
    return max(abs(float(values[name] - target)) for name, target in targets.items())


def dks_targets(slope: float, q_slope: float | None = 1.0) -> dict[str, float]:
    return {"Q(1)": 1.0, "C(0)": 0.0, "C'(1)": slope} | (
        {} if q_slope is None else {"Q'(1)": q_slope}
    )


@pytest.mark.parametrize("name", ["tanh", "softplus", "gelu", kc.activations.celu(2), "softsign"])
@pytest.mark.parametrize("curvature", [0.002, 0.3])
def test_curvature_conditions_to_thirteen_digits(name: str, curvature: float) -> None:
    k = solve(curvature_systems(kc.activation(name), curvature))
    assert worst(k, {"Q(1)": 1.0, "Q'(1)": 1.0, "C'(1)": 1.0, "C''(1)": curvature}) < 1e-13


def test_equal_slopes_of_hard_swish() -> None:
    """Between its kinks hard_swish is a quadratic, of which C'(1) = Q'(1) at any scale and shift.

    So the constants are not isolated where the two targets are equal; both equations hold.
    """
    k = constants_for(kc.activation("hard_swish"), 1.3, 1.3)
    assert worst(k, dks_targets(1.3, 1.3)) < 1e-13


def test_no_least_q_slope() -> None:
    """That of elu falls on and on, towards that of relu, as the input scale grows."""
    with refused(r"Q'\(1\).*C'\(1\).*1.4"):
        constants_for(kc.activation("elu"), 1.4, "minimize")


def test_all_solutions_are_solutions_and_mirrors_are_marked() -> None:
    phi = kc.activation("tanh")
    found = solve_all([SlopeSystem(phi, 0.05)])
    assert len(found) == 2 and mirrors(found) == ((0, 1),)
    assert found[0].beta > 0 and found[0] == solve([SlopeSystem(phi, 0.05)])
    swish = solve_all([SlopeSystem(kc.activation("swish"), 0.004)])
    assert len(swish) >= 3 and mirrors(swish) == ()
    assert [abs(k.beta) for k in swish] == sorted(abs(k.beta) for k in swish)
    for k in swish:
        assert worst(k, dks_targets(1.004)) < 1e-12


def test_dropping_the_slope_of_q_takes_the_smallest_shift() -> None:
    s = kc.shape(A.vanilla(40), "exp", q_slope=None)
    k = s.constants["exp"]
    assert k.beta == 0 and "Q'(1)" not in s.targets
    assert worst(k, dks_targets(s.targets["C'(1)"], None)) < 1e-13
    assert any("dropped for exp" in a.text for a in s.assumptions)


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_the_least_slope_of_q(name: str) -> None:
    """No shift on a fine grid does better, the scale being adjusted to keep C'(1)."""
    s = kc.shape(A.vanilla(40), name, q_slope="minimize")
    k, slope = s.constants[name], s.targets["C'(1)"]
    assert worst(k, dks_targets(slope, None)) < 1e-13
    least = float(truth(k)["Q'(1)"])
    phi = kc.activation(name)
    log_alpha = np.log(np.geomspace(0.02, 4, 240))
    for beta in np.linspace(-4, 4, 41):
        ms = [moments(phi, float(a), float(beta), 0) for a in log_alpha]
        slopes, q_slopes = (
            np.array(v)
            for v in (
                [1 + m.excess / m.variance for m in ms],
                [1 + m.turn / m.variance for m in ms],
            )
        )
        for i in np.nonzero((slopes[:-1] < slope) & (slopes[1:] >= slope))[0]:
            assert (
                np.interp(slope, slopes[i : i + 2], q_slopes[i : i + 2])
                > least - 1e-3 * (1 - least) - 1e-6
            )


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "slope", "words"),
    [
        ("hard_tanh", 1.01, "C'\\(1\\) = 1.46695"),  # above pi/(pi - 1), a ReLU at its kink
        ("relu6", 1.01, "C'\\(1\\) = 1.46695"),
        ("exp", 1.01, "Q'\\(1\\) = 1 cannot be met"),
        ("sin", 10.0, "C'\\(1\\) = 2.25643"),
        ("cube", 10.0, "no input scale"),
        ("abs", 10.0, "nearest"),
        ("leaky_relu", 2.0, "1.46694"),
    ],
)
def test_unreachable_targets_name_the_nearest(name: str, slope: float, words: str) -> None:
    with pytest.raises(kc.UnreachableTarget, match=words):
        constants_for(kc.activation(name), slope)


@pytest.mark.parametrize("q_slope", ["least", 0.0, -1.0, float("nan"), sp.Symbol("a")])
def test_bad_slopes_of_q(q_slope: object) -> None:
    with refused("q_slope"):
        kc.shape(A.vanilla(10), "tanh", q_slope=q_slope)
