"""Trapezoid sums over two normals against frozen truth and closed forms, and what they leave."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy as sp
from test_local_accuracy import RECORDS, check_c_map
from thinning import mostly_slow

import kcalc as kc
from kcalc.activations import activation, names
from kcalc.gaussian.expectations.plane_sums import PlaneSum, plane_sum

SMOOTH = [name for name in names() if not activation(name).kink_points]
FAST = ()  # waves that no step of the rule resolves
X = sp.Symbol("x", real=True)


@pytest.mark.parametrize("name", mostly_slow(SMOOTH))
def test_single_points_have_the_digits_of_frozen_truth(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One c value at a time, as a network asks for them."""
    answers, serves = [], PlaneSum.serves

    def counted(self: PlaneSum, gap: np.ndarray, order: int) -> bool:
        answers.append(serves(self, gap, order))
        return answers[-1]

    monkeypatch.setattr(PlaneSum, "serves", counted)
    plane_sum.cache_clear()
    for row in range(0, len(RECORDS[name]["points"]), 3):
        check_c_map(name, slice(row, row + 1))
    assert any(answers) or activation(name).closed_in_numpy or name in FAST


@pytest.mark.parametrize("c", [-1.0, -0.7, 0.0, 0.3, 0.9, 0.998])
@pytest.mark.parametrize(("q1", "q2"), [(0.3, 0.3), (0.7, 2.0), (3.0, 0.1)])
def test_sines_and_exponentials(c: float, q1: float, q2: float) -> None:
    """E e^(a u) e^(b v) and E sin(a u) sin(b v) in closed form."""
    gap, root = np.array([1 - c]), math.sqrt(q1 * q2)
    wave, growth = activation(sp.sin(X)), activation(sp.exp(X))
    found = PlaneSum(wave, q1, wave, q2)
    assert found.serves(gap, 2)
    half = math.exp(-(q1 + q2) / 2)
    truth = (
        half * (math.sinh(root) - math.sinh(c * root)),
        half * root * math.cosh(c * root),
        half * root**2 * math.sinh(c * root) / 2,
    )
    np.testing.assert_allclose(np.ravel(found.taylor(gap, 2)), truth, rtol=2e-13, atol=1e-15)
    found = PlaneSum(growth, q1, growth, q2)
    assert found.serves(gap, 2)
    whole = math.exp((q1 + q2) / 2)
    assert found.whole == pytest.approx(whole * math.exp(root), rel=1e-14)
    shift = whole * math.exp(c * root)
    truth = (whole * math.exp(root) - shift, root * shift, root**2 * shift / 2)
    np.testing.assert_allclose(np.ravel(found.taylor(gap, 2)), truth, rtol=2e-13)


def test_functions_of_two_kinds() -> None:
    """phi = sin and psi = x^3 - x: E sin(u) psi(v) by Stein's identity."""
    q1, q2, c = 0.8, 1.7, 0.4
    cubic = activation(X**3 - X)
    found = PlaneSum(activation(sp.sin(X)), q1, cubic, q2)
    gap = np.array([1 - c])
    assert found.serves(gap, 0)

    def cross(c: float) -> float:
        k = c * math.sqrt(q1 * q2)
        return math.exp(-q1 / 2) * (3 * q2 * k - k**3 - k)

    assert found.whole == pytest.approx(cross(1.0), rel=1e-13)
    assert found.taylor(gap, 0)[0][0] == pytest.approx(cross(1.0) - cross(c), rel=1e-13)


def test_kinks_small_gaps_and_many_points_are_left_to_others() -> None:
    smooth = activation("tanh")
    assert not PlaneSum(activation("relu"), 1.0, smooth, 1.0).serves(np.array([0.5]), 0)
    assert not PlaneSum(smooth, 1.0, smooth, 1.0).serves(np.array([0.5, 1e-9]), 0)
    assert not PlaneSum(smooth, 1.0, smooth, 1.0).serves(np.array([0.5]), 3)
    assert not PlaneSum(smooth, 1.0, smooth, 1.0).serves(np.linspace(0.1, 1.9, 5000), 0)
    found, gap = PlaneSum(smooth, 1.0, smooth, 1.0), np.array([0.5])
    asked = 0
    while found.serves(gap, 0):
        asked += 1
    assert 2 < asked < 200


def test_a_narrow_feature_is_resolved_or_left_to_the_panels() -> None:
    """exp(-((x - 0.37)/w)^2) between the nodes of every coarse grid: C at 30 digits."""
    for width in (0.5, 0.05, 0.004):
        phi = activation(sp.exp(-(((X - sp.Rational(37, 100)) / sp.Rational(str(width))) ** 2)))
        c, q = 0.35, 0.9
        found = float(phi.taylor(1 - c, q)[0])
        truth = _bump(1.0, width, 0.37, q) - _bump(c, width, 0.37, q)
        assert found == pytest.approx(truth / _bump(1.0, width, 0.37, q), rel=1e-12)


def _bump(c: float, width: float, place: float, q: float) -> float:
    """E f(u) f(v) of f = exp(-((x - place)/width)^2) in closed form."""
    covariance = q * np.array([[1, c], [c, 1]])
    precision = 2 / width**2
    inside = np.eye(2) + precision * covariance
    shift = np.array([place, place])
    exponent = -precision / 2 * shift @ np.linalg.solve(inside, shift)
    return float(np.exp(exponent) / np.sqrt(np.linalg.det(inside)))


def test_growth_that_diverges_at_the_next_power_is_left_to_the_series() -> None:
    """E exp(x^2/8)^2 exists for q < 2; at q = 1.5 the rule would be made at q = 2."""
    phi = activation(sp.exp(X**2 / 8))
    q, c = 1.5, 0.5
    matrix = np.eye(2) - q / 4 * np.array([[1, c], [c, 1]])
    ends = np.eye(2) - q / 4 * np.ones((2, 2))
    truth = 1 - math.sqrt(np.linalg.det(ends) / np.linalg.det(matrix))
    assert float(phi.taylor(1 - c, q)[0]) == pytest.approx(truth, rel=1e-11)


def test_zero_correlation_is_exact_for_odd_functions() -> None:
    assert float(kc.activation("tanh").c_map(0.0, 1.3)) == pytest.approx(0.0, abs=1e-17)
