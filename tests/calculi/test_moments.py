"""Exact moments against closed forms derived apart, drawn networks, exact enumeration, and the
chi-square mixture.
"""

from __future__ import annotations

import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.calculi.moments import moments

HE = sp.sqrt(2)
n = sp.Symbol("n", integer=True, positive=True)


def vanilla(depth, width):
    return kc.architectures.vanilla(depth, "relu", features=width, sigma_w=HE, readout=False)


def test_symbolic_kurtosis():
    e = sp.Symbol("e", real=True)
    symbolic = moments(vanilla(2, n), weights=e).subs({n: 11, e: 3})
    numeric = moments(vanilla(2, 11), weights="laplace")
    assert symbolic.out.fourth == pytest.approx(numeric.out.fourth, rel=1e-13)
    assert symbolic.weights["affine_1"].fourth == pytest.approx(
        numeric.weights["affine_1"].fourth, rel=1e-13
    )
    with refused("expressions are limited"):
        moments(vanilla(12, n), weights=e)
