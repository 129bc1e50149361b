"""Exact moments against closed forms derived apart, drawn networks, exact enumeration, and the
chi-square mixture.
"""

from __future__ import annotations

import moments_oracle as oracle
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.calculi.moments import moments

HE = sp.sqrt(2)
n = sp.Symbol("n", integer=True, positive=True)


def vanilla(depth, width):
    return kc.architectures.vanilla(depth, "relu", features=width, sigma_w=HE, readout=False)


# -- exact enumeration and drawing -----------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 8, 10, 14, 21])
def test_random_networks_against_draws(seed):
    net, law = oracle.random_network(seed), ("gaussian", "uniform", "laplace")[seed % 3]
    found = oracle.deviations(moments(net, weights=law), net, 2000 + seed, law)
    # of some 45 heavy-tailed estimates
    assert max(found.values()) < 5, max(found, key=found.get)


# -- symbols ---------------------------------------------------------------------------------------


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
