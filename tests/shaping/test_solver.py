"""The solver of shaping: constants against 50-digit quadrature, branches, all
solutions, refusals.
"""

from __future__ import annotations

import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc import activation
from kcalc.shaping.dks import constants_for

A = kc.architectures


def test_no_least_q_slope() -> None:
    """That of elu falls on and on, towards that of relu, as the input scale grows."""
    with refused(r"Q'\(1\).*C'\(1\).*1.4"):
        constants_for(activation("elu"), 1.4, "minimize")


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
        constants_for(activation(name), slope)


@pytest.mark.parametrize("q_slope", ["least", 0.0, -1.0, float("nan"), sp.Symbol("a")])
def test_bad_slopes_of_q(q_slope: object) -> None:
    with refused("q_slope"):
        kc.shape(A.vanilla(10), "tanh", q_slope=q_slope)
