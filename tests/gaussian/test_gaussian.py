"""Gaussian expectations by name, expression and symbol, against brute force and hand results."""

from __future__ import annotations

import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

x = sp.Symbol("x", real=True)


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
