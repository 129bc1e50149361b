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

A, L = kc.architectures, kc.layers


def relu_chain(c: str, depth: int, weight: str = "2", bias: str = "0") -> tuple[mp.mpf, mp.mpf]:
    """(NNGP, NTK) of ``depth`` combined ReLU layers and a readout, Var W = weight / fan_in, Var b =
    bias, for inputs of q = 1.
    """
    w, b = mp.mpf(weight), mp.mpf(bias)
    q, k = w + b, w * mp.mpf(c) + b
    theta = k
    for _ in range(depth):
        cosine = k / q
        angle = mp.acos(cosine)
        slope = (mp.pi - angle) / (2 * mp.pi)
        k = w * q * (mp.sin(angle) + (mp.pi - angle) * cosine) / (2 * mp.pi) + b
        q = w * q / 2 + b
        theta = k + w * slope * theta
    return k, theta


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


@pytest.mark.parametrize("c", ["0.3", "1", "-1", "0.999999"])
def test_balls_contain_the_truth(c: str) -> None:
    ball = ntk(A.vanilla(6, activation="relu", sigma_w=sp.sqrt(2))).ball(sp.Rational(c))
    with mp.workdps(60):
        assert (
            abs(mp.mpf(str(ball.mid)) - relu_chain(c, 6)[1])
            <= mp.mpf(str(ball.radius)) + mp.mpf(10) ** -38
        )
        assert mp.mpf(str(ball.radius)) < mp.mpf(10) ** -18
