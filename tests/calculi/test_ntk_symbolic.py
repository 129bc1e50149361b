"""The tangent kernel in symbols and in balls.

Against a recursion written out in mpmath and against the numeric calculus.
"""

from __future__ import annotations

import mpmath as mp
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc import ntk

A = kc.architectures


def relu_tangent(c: str) -> mp.mpf:
    """The tangent kernel of six ReLU layers of Var W = 2 / fan_in and a readout, q = 1."""
    cosine = mp.mpf(c)
    theta = 2 * cosine
    for _ in range(6):
        angle = mp.acos(cosine)
        cosine = (mp.sin(angle) + (mp.pi - angle) * cosine) / mp.pi
        theta = 2 * cosine + theta * (mp.pi - angle) / mp.pi
    return theta


def test_unequal_q_in_symbols() -> None:
    K = ntk(A.vanilla(3, activation="erf", sigma_w=1.2))
    assert float(K.symbolic(1, sp.Rational(5, 2)).evaluate({"c": 0.3})) == pytest.approx(
        float(K(0.3, 1, 2.5)), rel=1e-12
    )


def test_repetition_is_folded_and_activations_without_closed_forms_keep_a_name() -> None:
    text = str(ntk(A.vanilla(30, activation="relu", sigma_w=2**0.5)).expr)
    assert "29 times" in text and len(text) < 500
    composition = ntk(A.vanilla(3, activation="tanh")).expr
    assert "DC_tanh" in str(composition)
    with refused("no closed form"):
        composition.evaluate({"c": 0.5})
    assert ntk(A.vanilla(3, activation="tanh")).closed_form is None


@pytest.mark.parametrize("c", ["0.3", "-1", "0.999999"])
def test_balls_contain_the_truth(c: str) -> None:
    ball = ntk(A.vanilla(6, activation="relu", sigma_w=sp.sqrt(2))).ball(sp.Rational(c))
    with mp.workdps(60):
        radius = mp.mpf(str(ball.radius))
        assert abs(mp.mpf(str(ball.mid)) - relu_tangent(c)) <= radius + mp.mpf(10) ** -38
        assert radius < mp.mpf(10) ** -18
