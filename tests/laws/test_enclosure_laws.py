"""Certified C and Q maps of whole networks against an evaluation in 50 digits that shares nothing
with kcalc.
"""

from __future__ import annotations

import mpmath
import pytest
import sympy as sp

import kcalc as kc
from laws.random_networks import seeded
from laws.test_kernel_laws import SIMPLE, UNEVEN, by_output, oracle


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("recipe", "q2"), [(SIMPLE, None), (UNEVEN, 2)])
def test_enclosures_contain_the_truth(recipe, q2, seed):
    net = seeded(seed, recipe)
    truth = oracle(net, -0.625, 1.5, q2)
    for node, ball in by_output(net, kc.c_map(net).ball(-0.625, 1.5, q2, digits=25)).items():
        assert ball.radius < 1e-23
        assert abs(ball.mid - truth[node][2]) <= ball.radius + 1e-45
    for node, ball in by_output(net, kc.q_map(net).ball(1.5, digits=25)).items():
        assert abs(ball.mid - truth[node][0]) <= ball.radius + 1e-40 * truth[node][0]


def test_deep_chains_stay_narrow():
    """relu 60 layers deep, by iterating its closed form in 60 digits."""
    with mpmath.workdps(60):
        c = mpmath.mpf(3) / 10
        for _ in range(60):
            c = (mpmath.sqrt(1 - c * c) + (mpmath.pi - mpmath.acos(c)) * c) / mpmath.pi
        ball = kc.c_map(kc.architectures.vanilla(60, "relu")).ball(sp.Rational(3, 10))
        assert abs(ball.mid - c) <= ball.radius + 1e-50
        assert ball.radius < 1e-25
