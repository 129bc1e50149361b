"""The solver of shaping: constants against 50-digit quadrature, branches, all
solutions, refusals.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc import activation
from kcalc.shaping.conditions import SlopeSystem
from kcalc.shaping.dks import constants_for
from kcalc.shaping.moments import _resolved, derivatives
from kcalc.shaping.solver import NewtonPoint, branches, newton, refined

A = kc.architectures
X = sp.Symbol("x", real=True)


def test_no_least_q_slope() -> None:
    """That of elu falls on and on, towards that of relu, as the input scale grows."""
    with refused(r"Q'\(1\).*C'\(1\).*1.4"):
        constants_for(activation("elu"), 1.4, "minimize")


def test_searches_end_where_functions_overflow() -> None:
    far = SlopeSystem(activation("exp"), 0.5), NewtonPoint(3.0, 0.0)
    assert newton(*far) is None and refined(*far) is None
    with refused("'sin' varies too fast at input scale 3000"):
        _resolved(activation("sin"), 3e3, 0.0, 0)
    unstable = activation(X * sp.exp(X) / (1 + sp.exp(X)))  # exp overflows at 800
    value, slope = derivatives(unstable, np.array([-30.0, 800.0]), 1)
    assert value == pytest.approx([-30 / (1 + math.exp(30)), 800], rel=1e-12)
    assert slope == pytest.approx([-29 * math.exp(-30), 1], rel=1e-11)


def test_limits_of_small_input_scales_with_kinks() -> None:
    """Of f''^2 + 2 f' f^(3), zeros are found but not changes of sign at the kink."""
    phi = sp.tanh(X) + sp.Abs(X - sp.Rational(1, 3)) * X**2
    (found,) = branches(SlopeSystem(activation(phi), 0.5))
    smooth = sp.tanh(X) + (sp.Rational(1, 3) - X) * X**2
    one, two, three = (float(smooth.diff(X, n).subs(X, found.beta)) for n in (1, 2, 3))
    assert two**2 + 2 * one * three == pytest.approx(0, abs=1e-9)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "slope", "words"),
    [
        ("hard_tanh", 1.01, "C'\\(1\\) = 1.46695"),  # above pi/(pi - 1), a ReLU at its kink
        ("exp", 1.01, "Q'\\(1\\) = 1 cannot be met"),
        ("sin", 10.0, "C'\\(1\\) = 2.25643"),
        ("cube", 10.0, "no input scale"),
        ("leaky_relu", 2.0, "1.46694"),
    ],
)
def test_unreachable_targets_name_the_nearest(name: str, slope: float, words: str) -> None:
    with pytest.raises(kc.UnreachableTarget, match=words):
        constants_for(activation(name), slope)


@pytest.mark.parametrize("q_slope", ["least", 0.0, sp.Symbol("a")])
def test_bad_slopes_of_q(q_slope: object) -> None:
    with refused("q_slope"):
        kc.shape(A.vanilla(10), "tanh", q_slope=q_slope)
