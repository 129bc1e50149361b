"""Cross moments and what they lose, against closed forms: E sin(g) sin(2 h) = exp(-(q1 + 4 q2)/2) sinh(2 Cov(g, h))."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import sympy as sp

import kcalc as kc
from kcalc.calculi.crossing import dropped, expected, lessened
from kcalc.fields.jets import Jet

SIN, TWICE = kc.activation("sin"), kc.activation(sp.sin(2 * sp.Symbol("x")))
Q1, Q2 = 0.7, 0.3


def truth(covariance: float) -> mpmath.mpf:
    return mpmath.exp(-(mpmath.mpf(Q1) + 4 * mpmath.mpf(Q2)) / 2) * mpmath.sinh(2 * mpmath.mpf(covariance))


@pytest.fixture(autouse=True)
def _digits():
    with mpmath.workdps(50):
        yield


def test_expected() -> None:
    for covariance in (-0.4, 0.0, 0.2):
        assert expected(SIN, TWICE, Q1, Q2, covariance) == pytest.approx(float(truth(covariance)), rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("loss", [1e-12, 1e-6, 1e-3, 0.02, 0.3])
@pytest.mark.parametrize("whole", [0.4, -0.1])
def test_what_is_lost_keeps_its_digits(whole: float, loss: float) -> None:
    """Values and two Taylor coefficients in the loss, short and long steps."""
    q1, q2 = np.array([Q1, Q1]), np.array([Q2, Q2])
    joint, drop = lessened(SIN, TWICE, q1, q2, np.array([whole, whole]), Jet((np.array([loss, loss]), 1.0, 0.0)))
    here = mpmath.mpf(whole) - mpmath.mpf(loss)
    scale = mpmath.exp(-(mpmath.mpf(Q1) + 4 * mpmath.mpf(Q2)) / 2)
    np.testing.assert_allclose(joint, float(truth(whole)), rtol=1e-13)
    np.testing.assert_allclose(drop.coefficients[0], float(truth(whole) - truth(here)), rtol=3e-13 if loss < 0.05 else 1e-12)
    np.testing.assert_allclose(drop.coefficients[1], float(2 * scale * mpmath.cosh(2 * here)), rtol=1e-11)
    np.testing.assert_allclose(drop.coefficients[2], float(-2 * scale * mpmath.sinh(2 * here)), rtol=1e-10)
    assert lessened(SIN, TWICE, Q1, Q2, whole, 0) == (pytest.approx(float(truth(whole)), rel=1e-13), 0)


@pytest.mark.parametrize("gap", [1e-12, 1e-3, 0.5, 1.7])
def test_the_loss_from_one_gaussian_to_two(gap: float) -> None:
    root = mpmath.sqrt(mpmath.mpf(Q1) * mpmath.mpf(Q2))
    joint, drop = dropped(SIN, TWICE, Q1, Q2, Jet((gap, 1.0)))
    lost = truth(root) - truth(root * (1 - mpmath.mpf(gap)))
    assert joint == pytest.approx(float(truth(root)), rel=1e-13)
    assert drop.coefficients[0] == pytest.approx(float(lost), rel=1e-11)
    slope = 2 * root * mpmath.exp(-(mpmath.mpf(Q1) + 4 * mpmath.mpf(Q2)) / 2) * mpmath.cosh(2 * root * (1 - mpmath.mpf(gap)))
    assert drop.coefficients[1] == pytest.approx(float(slope), rel=1e-11)
    assert dropped(SIN, TWICE, Q1, Q2, 0) == (pytest.approx(float(truth(root)), rel=1e-13), 0)
