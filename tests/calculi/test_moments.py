"""Exact moments against closed forms derived apart, drawn networks, exact enumeration, and the
chi-square mixture.
"""

from __future__ import annotations

import moments_oracle as oracle
import pytest
import sympy as sp
from refusals import refused
from thinning import mostly_slow

import kcalc as kc
from kcalc.calculi.moments import moments

HE = sp.sqrt(2)
n = sp.Symbol("n", integer=True, positive=True)
alpha = sp.Symbol("alpha", positive=True)
SIGMAS = 4.0


def vanilla(depth, width, activation="relu", sigma_w=HE):
    return kc.architectures.vanilla(
        depth, activation, features=width, sigma_w=sigma_w, readout=False
    )


# -- closed forms of the architectures -------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "sigma_w", "excess", "slope"),
    [("relu", sp.sqrt(sp.Rational(8, 5)), 5, 2), ("identity", 1, 2, 1)],
)
def test_vanilla_closed_forms(activation, sigma_w, excess, slope):
    """``E|y|^4 = a^(2 L) (1 + e / n)^L``, e = 5 for ReLU and 2 for linear layers."""
    L, width = 7, 20
    a = float(sigma_w**2) / slope
    found = moments(vanilla(L, width, activation, sigma_w))
    fourth = a ** (2 * L) * (1 + excess / width) ** L
    assert found.out.mean == pytest.approx(a**L, rel=1e-12)
    assert found.out.fourth == pytest.approx(fourth, rel=1e-12)
    c = slope * a / width
    for k, moment in enumerate(found.weights.values(), 1):
        assert moment.mean == pytest.approx(a**L / c, rel=1e-12)
        mode = (1 + 2 * ((width - 1) / (width + excess)) ** (L - k + 1)) / 3
        assert moment.fourth == pytest.approx(fourth / c**2 * mode, rel=1e-12)


# -- exact enumeration and drawing -----------------------------------------------------------------


@pytest.mark.parametrize("seed", mostly_slow([s for s in range(1, 27) if s not in (5, 18)], 6))
def test_random_networks_against_draws(seed):
    net, law = oracle.random_network(seed), ("gaussian", "uniform", "laplace")[seed % 3]
    found = oracle.deviations(moments(net, weights=law), net, 12_000, 1000 + seed, law)
    # of some 45 heavy-tailed estimates
    assert max(found.values()) < SIGMAS + 1, max(found, key=found.get)


# -- symbols ---------------------------------------------------------------------------------------


def test_symbolic_powers():
    found = moments(vanilla(9, n, sigma_w=sp.sqrt(2 * alpha)))
    assert sp.simplify(found.out.mean - alpha**9) == 0
    assert sp.simplify(found.out.fourth - alpha**18 * (1 + 5 / n) ** 9) == 0
    weights = found.weights["affine_4"]
    expected = alpha**16 * n**2 / 4 * (1 + 5 / n) ** 9 / 3 * (1 + 2 * ((n - 1) / (n + 5)) ** 6)
    assert sp.simplify(weights.fourth - expected) == 0
    assert weights.fourth.count_ops() < 60


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


# -- answers ---------------------------------------------------------------------------------------


def test_small_variances_keep_their_digits():
    width = 10**9
    found = moments(vanilla(3, width))
    assert found.out.relative == pytest.approx(15 / width + 75 / width**2, rel=1e-9)


# -- the class and its borders ---------------------------------------------------------------------
