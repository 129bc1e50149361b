"""The solver of shaping: constants against 50-digit quadrature, branches, all
solutions, refusals.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from shaping_oracle import truth
from thinning import mostly_slow

import kcalc as kc
from kcalc.shaping.choose_branch import solve, solve_all, solve_scale
from kcalc.shaping.conditions import CurvatureSystem, SlopeSystem
from kcalc.shaping.dks import constants_for
from kcalc.shaping.hypotheses import simply_fresh
from kcalc.shaping.moments import moments
from kcalc.shaping.solutions import mirrors
from kcalc.shaping.tat import curvature_systems

A, L = kc.architectures, kc.layers
SMOOTH = (
    "asinh",
    "atan",
    "erf",
    "gelu",
    "logcosh",
    "mish",
    "sigmoid",
    "sin",
    "softplus",
    "swish",
    "tanh",
)
KINKED = (kc.activations.celu(2), "elu", "hard_swish", "selu", "softsign")
HOMOGENEOUS = ("abs", "cube", "relu", "relu2", "square")


def worst(constants, targets: dict[str, float]) -> float:
    """The largest |value - target| at 50 digits."""
    values = truth(constants, "C''(1)" in targets)
    return max(abs(float(values[name] - target)) for name, target in targets.items())


def dks_targets(slope: float, q_slope: float | None = 1.0) -> dict[str, float]:
    return {"Q(1)": 1.0, "C(0)": 0.0, "C'(1)": slope} | (
        {} if q_slope is None else {"Q'(1)": q_slope}
    )


@pytest.mark.parametrize("name", mostly_slow(SMOOTH + KINKED))
@pytest.mark.parametrize("slope", [1.0001, 1.00406288, 1.1])
def test_dks_conditions_to_thirteen_digits(name: str, slope: float) -> None:
    k = constants_for(kc.activation(name), slope)
    assert k.alpha is not None and k.alpha > 0
    assert worst(k, dks_targets(slope)) < 1e-13


@pytest.mark.parametrize("name", HOMOGENEOUS)
@pytest.mark.parametrize("slope", [1.001, 1.4])
def test_homogeneous_activations_meet_three_conditions(name: str, slope: float) -> None:
    k = constants_for(kc.activation(name), slope)
    assert k.alpha is not None and k.alpha > 0 and abs(k.beta or 0) == 1
    assert worst(k, dks_targets(slope, None)) < 1e-13


@pytest.mark.parametrize("name", ["tanh", "softplus", "gelu", kc.activations.celu(2), "softsign"])
@pytest.mark.parametrize("curvature", [0.002, 0.3])
def test_curvature_conditions_to_thirteen_digits(name: str, curvature: float) -> None:
    k = solve(curvature_systems(kc.activation(name), curvature))
    assert worst(k, {"Q(1)": 1.0, "Q'(1)": 1.0, "C'(1)": 1.0, "C''(1)": curvature}) < 1e-13


@pytest.mark.parametrize(
    ("name", "shift"),
    [
        ("tanh", math.atanh(0.5)),
        ("softplus", math.log(1.5)),
        ("erf", 1 / math.sqrt(3)),
        ("atan", 0.5),
    ],
)
def test_small_targets_tend_to_the_analytic_limit(name: str, shift: float) -> None:
    """As the slope tends to 1: beta solves phi''^2 + 2 phi' phi''' = 0 and alpha = sqrt(2 (t - 1))
    |phi'/phi''|.
    """
    phi = kc.activation(name)
    k = constants_for(phi, 1 + 1e-7)
    assert k.beta == pytest.approx(shift, abs=1e-5)
    x = kc.activations.X
    one, two = (float(sp.diff(phi.expr, x, n).subs(x, shift)) for n in (1, 2))
    assert k.alpha == pytest.approx(math.sqrt(2e-7) * abs(one / two), rel=1e-4)


@pytest.mark.parametrize("name", ["tanh", "gelu", "selu", "hard_swish", "relu2"])
def test_derivatives_of_moments_are_difference_quotients(name: str) -> None:
    phi = kc.activation(name)
    order = 2 if any(phi.jump_sizes(1)) else 3
    s, beta, h = math.log(0.7), 0.33, 1e-5
    m = moments(phi, s, beta, 1, order)
    for quantity in ("variance", "excess", "turn", "tilt", *(["bend"] if order == 3 else [])):
        difference = [
            (
                getattr(moments(phi, s + ds, beta + db, 1, order), quantity)
                - getattr(moments(phi, s - ds, beta - db, 1, order), quantity)
            )
            / (2 * h)
            for ds, db in ((h, 0.0), (0.0, h))
        ]
        assert getattr(m, f"d_{quantity}") == pytest.approx(difference, abs=2e-9), quantity


@pytest.mark.parametrize("name", ["tanh", "softplus", "swish", "gelu", "selu"])
def test_the_default_is_continuous_in_the_target(name: str) -> None:
    """Neighbouring targets have neighbouring constants, so that there is no hop from one branch to
    another.
    """
    phi = kc.activation(name)
    excess = np.geomspace(1e-4, 0.05, 60)
    points = np.array(
        [(math.log(k.alpha), k.beta) for k in (constants_for(phi, 1 + float(e)) for e in excess)]
    )
    assert np.all(np.diff(points[:, 0]) > 0)
    assert np.abs(np.diff(points[:, 1])).max() < 0.05


def test_equal_slopes_of_hard_swish() -> None:
    """Between its kinks hard_swish is a quadratic, of which C'(1) = Q'(1) at any scale and shift.

    So the constants are not isolated where the two targets are equal; both equations hold.
    """
    k = constants_for(kc.activation("hard_swish"), 1.3, 1.3)
    assert worst(k, dks_targets(1.3, 1.3)) < 1e-13


@pytest.mark.parametrize(
    ("name", "slope"), [("celu", 1.05), ("gelu", 1.05), ("logcosh", 1.4), ("softplus", 1.002)]
)
def test_the_least_q_slope_is_less_than_on_both_sides(name: str, slope: float) -> None:
    """Q'(1) at 50 digits, of the same slope C'(1) at neighbouring shifts."""
    phi = kc.activation(name)
    k = constants_for(phi, slope, "minimize")
    least = truth(k)["Q'(1)"]
    for step in (-0.03, 0.03):
        near = solve_scale(phi, slope - 1, (k.beta + step * k.alpha,))
        assert abs(near.alpha / k.alpha - 1) < 0.2
        assert truth(near)["Q'(1)"] > least


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


def test_curvature_solutions_have_means_of_either_sign() -> None:
    found = solve_all(curvature_systems(kc.activation("softplus"), 0.01))
    assert len(found) == 2 and mirrors(found) == ()
    means = [float(k.transformed.mean()) for k in found]
    assert min(means) < 0 < max(means)
    assert isinstance(curvature_systems(kc.activation("softplus"), 0.01)[1], CurvatureSystem)


@pytest.mark.parametrize("q_slope", [0.99, 1.002])
def test_other_slopes_of_q(q_slope: float) -> None:
    s = kc.shape(A.vanilla(40), "tanh", q_slope=q_slope)
    assert worst(s.constants["tanh"], dks_targets(s.targets["C'(1)"], q_slope)) < 1e-13
    assert s.targets["Q'(1)"] == q_slope


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


def test_leaky_relu_with_its_slope_meets_all_four_conditions() -> None:
    s = kc.shape(A.vanilla(100), "leaky_relu")
    k = s.constants["leaky_relu"]
    assert 0 < k.negative_slope < 1 and k.alpha is None
    assert set(s.targets) == {"Q(1)", "Q'(1)", "C(0)", "C'(1)"}
    assert max(s.residuals.values()) < 1e-12
    fixed = kc.shape(A.vanilla(100), "leaky_relu", free_slope=False).constants["leaky_relu"]
    assert fixed.negative_slope is None and fixed.beta == 1


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


def test_the_nearest_target_can_be_reached_and_not_exceeded() -> None:
    phi = kc.activation("hermite3")
    with pytest.raises(kc.UnreachableTarget, match="2.2"):
        constants_for(phi, 2.21)
    assert worst(constants_for(phi, 2.19), dks_targets(2.19)) < 1e-13


@pytest.mark.parametrize(
    ("name", "words"),
    [("sign", "jumps"), ("heaviside", "jumps"), ("hard_shrink", "jumps"), ("identity", "linear")],
)
@pytest.mark.parametrize("method", ["dks", "tat", "eoc"])
def test_activations_that_nothing_can_shape(name: str, words: str, method: str) -> None:
    with refused(words):
        kc.shape(A.vanilla(10), name, method=method)


def test_linear_functions_of_the_users_own_are_refused() -> None:
    x = sp.Symbol("x")
    with refused("linear"):
        kc.shape(A.vanilla(10), 2 * x + 3)


@pytest.mark.parametrize("q_slope", ["least", 0.0, -1.0, float("nan"), sp.Symbol("a")])
def test_bad_slopes_of_q(q_slope: object) -> None:
    with refused("q_slope"):
        kc.shape(A.vanilla(10), "tanh", q_slope=q_slope)


@pytest.mark.parametrize("scale", [0.01, 50.0])
def test_constants_do_not_depend_on_the_scale_of_the_input(scale: float) -> None:
    x = sp.Symbol("x")
    k, plain = (
        constants_for(kc.activation(phi), 1.004)
        for phi in (sp.tanh(sp.nsimplify(scale) * x), sp.tanh(x))
    )
    assert (k.alpha * scale, k.beta * scale, k.gamma, k.delta) == pytest.approx(
        (plain.alpha, plain.beta, plain.gamma, plain.delta), rel=1e-9
    )


def random_network(pick: random.Random) -> kc.Network:
    steps: list = [("x", L.Input(), ())]
    for i in range(pick.randrange(3, 9)):
        kind = pick.choice(
            [
                L.Affine(),
                L.Affine(),
                L.Nonlinear("tanh"),
                L.Nonlinear("tanh"),
                L.Identity(),
                L.Sum((0.6, 0.8)),
            ]
        )
        steps.append(
            (
                i,
                kind,
                tuple(pick.choice(steps)[0] for _ in range(2 if isinstance(kind, L.Sum) else 1)),
            )
        )
    return kc.Network.from_steps(steps)


def test_what_looks_fresh_is_fresh() -> None:
    """Where the shape of the graph is taken as proof, the kernel calculus finds no exact correction
    and no refusal.
    """
    pick, fresh = random.Random(3), 0
    for _ in range(150):
        net = random_network(pick)
        if simply_fresh(net):
            fresh += 1
            assert all(a.kind != "exact" for a in kc.c_map(net).assumptions)
    assert fresh > 10
