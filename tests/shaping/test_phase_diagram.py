"""Phase diagrams against root finders that share no code with kcalc.

Closed forms, and quadrature on panels.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from kcalc import phase_diagram


def test_relu_near_its_edge_has_the_fixed_point_of_the_formula() -> None:
    weights = np.array([1.0, 1.2, math.sqrt(2) * (1 - 1e-5), 1.4142])
    found = phase_diagram("relu", weights, [0.1, 0.3])
    for row, bias in enumerate((0.1, 0.3)):
        assert found.q[row] == pytest.approx(bias**2 / (1 - weights**2 / 2), rel=1e-6)
    assert np.all(found.chi < 1) and np.all(found.c == 1)
    # sin: Q = exp(-q) sinh(q), and C(c) Q = exp(-q) sinh(c q)
    found = phase_diagram("sin", s := np.array([2.0, 2.1]), b := [0.5, 0.6])
    q, b = found.q, np.array(b)[:, None]
    inner, outer = (s * s * np.exp(-q) * np.sinh(c * q) + b * b for c in (found.c, 1))
    np.testing.assert_allclose(outer, q, rtol=2e-13)
    np.testing.assert_allclose(inner, found.c * q, rtol=1e-6)
    slope = s * s * np.exp(-q) * np.cosh(found.c * q)
    np.testing.assert_allclose(np.exp(-1 / found.depth), slope, rtol=1e-6)


def test_growth_without_end_has_no_fixed_point() -> None:
    found = phase_diagram("relu", [1.0, math.sqrt(2), 1.5], [0.0, 0.1, 0.3])
    assert np.isnan(found.q[1:, 1:]).all() and found.q[0, 1] == 1
    assert np.isnan(found.q[0, [0, 2]]).all()  # shrinks to 0, and grows
    assert np.all(found.depth[:, 1] == math.inf) and np.all(found.c[:, 1] == 1)
    assert np.isnan(found.depth[:, 2]).all() and np.isnan(found.chi[:, 2]).all()
    assert np.isnan(phase_diagram("gelu", [1.0, math.sqrt(2)], [0.1, 0.5]).q[1, 1])


def test_odd_activations_without_biases_forget_cosines() -> None:
    """In the chaotic phase c tends to 0, where the slope is w^2 (E sech^2)^2."""
    found = phase_diagram("tanh", [0.5, 1.5], [0.0, 5.0])
    assert found.c.tolist() == [[1, 0], [1, 1]]
    z, w = np.polynomial.hermite_e.hermegauss(180)
    slope = w @ np.cosh(found.q[0, 1] ** 0.5 * z) ** -2 / w.sum()
    assert found.rate[0] == pytest.approx([0.25, (1.5 * slope) ** 2], rel=1e-9)
