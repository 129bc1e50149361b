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
