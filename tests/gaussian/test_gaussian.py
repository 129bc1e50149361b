"""Gaussian expectations by name, expression and symbol, against brute force and hand results."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

x = sp.Symbol("x", real=True)


def test_one_variable():
    assert kc.expectation(sp.cos(x), 2.0) == pytest.approx(math.exp(-1), rel=1e-15)
    assert kc.expectation("relu", np.array([1.0, 4.0])) == pytest.approx(
        [1 / math.sqrt(2 * math.pi), 2 / math.sqrt(2 * math.pi)], rel=1e-14
    )
    q = sp.Symbol("q", positive=True)
    assert sp.simplify(kc.expectation("abs", q) - sp.sqrt(2 * q / sp.pi)) == 0


@pytest.mark.parametrize(("c", "q1", "q2"), [(0.3, 1, 2), (-0.8, 2, 0.5), (0.99, 1, 1.5)])
def test_two_variables_against_brute_force(c, q1, q2):
    """E[softplus(u) max(v, 0)] on a product grid: v > 0 outside, u given v inside."""
    nodes, weights = np.polynomial.legendre.leggauss(120)
    v, wv = 6 * (nodes + 1), 6 * weights
    y, wy = 12 * nodes, 12 * weights
    density = lambda z: np.exp(-z * z / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    u = math.sqrt(q1) * (c * v[:, None] + math.sqrt(1 - c * c) * y)
    inner = np.logaddexp(0, u) @ (wy * density(y))
    truth = (wv * density(v) * math.sqrt(q2) * v) @ inner
    assert kc.pair_expectation("softplus", sp.Max(x, 0), c, q1, q2) == pytest.approx(
        truth, rel=1e-12
    )


def test_refusals():
    for bad in (
        lambda: kc.pair_expectation("tanh", "relu", 1.2),
        lambda: kc.pair_expectation("tanh", "relu", 0.2, -1),
        lambda: kc.expectation("tanh", 0),
    ):
        with pytest.raises(kc.KcalcError):
            bad()
    with refused("diverges"):
        kc.expectation(sp.exp(x**2 / 8), 2.5)
    with refused("broadcast"):
        kc.pair_expectation("tanh", "relu", [0.1, 0.2], [1, 2, 3])
