"""Inputs that are nearly one, of slightly different norms.

Gaps and tangent kernels keep their digits.
"""

import mpmath as mp
import numpy as np
import pytest
from thinning import mostly_slow

import kcalc as kc

L = kc.layers


def erf_kernels(theta, q2, depth, sigma_w, sigma_b):
    """(NTK, 1 - c) of an erf chain at q1 = 1, by its closed forms in 60 digits."""
    with mp.workdps(60):
        levels = [mp.mpf(1), mp.mpf(q2)]
        k, tangent = mp.sqrt(levels[1]) * mp.cos(mp.mpf(theta)), mp.mpf(0)
        w, b = mp.mpf(sigma_w) ** 2, mp.mpf(sigma_b) ** 2
        for last in [False] * depth + [True]:
            k, levels = w * k + b, [w * q + b for q in levels]
            tangent = k + w * tangent
            if not last:
                below = (1 + 2 * levels[0]) * (1 + 2 * levels[1])
                tangent *= 4 / (mp.pi * mp.sqrt(below - 4 * k * k))
                k = 2 / mp.pi * mp.asin(2 * k / mp.sqrt(below))
                levels = [2 / mp.pi * mp.asin(2 * q / (1 + 2 * q)) for q in levels]
        return float(tangent), float(1 - k / mp.sqrt(levels[0] * levels[1]))


@pytest.mark.parametrize("sigma_b", [0, 0.3])
@pytest.mark.parametrize("q2", [1 + 1e-5, 1.001, 1.5])
def test_an_erf_chain_at_unequal_norms(sigma_b, q2):
    layers = [
        kc.chain(L.Affine(sigma_w=1.3, sigma_b=sigma_b), L.Nonlinear("erf")) for _ in range(4)
    ]
    net = kc.chain(L.Input(), *layers, L.Affine(sigma_w=1.3, sigma_b=sigma_b))
    tangent, cosine = kc.ntk(net), kc.c_map(net)
    for theta in (0.0, 1e-8, 1e-6, 0.3):
        wanted, gap = erf_kernels(theta, q2, 4, 1.3, sigma_b)
        assert float(tangent.at_angle(theta, 1.0, q2)) == pytest.approx(wanted, rel=1e-13)
        assert float(cosine.gap_at_angle(theta, 1.0, q2)) == pytest.approx(gap, rel=2e-10)


@pytest.mark.parametrize("name", mostly_slow(["relu6", "hard_tanh", "selu", "gelu"], 4))
def test_local_gaps_near_one_agree_with_enclosures(name):
    phi = kc.activation(name)
    for q2 in (1.7 * (1 + 1e-7), 1.7 * 1.0001):
        for gap in (2.0**-52, 2.0**-40):
            enclosed = 1 - mp.mpf(str(phi.c_map.ball(1 - gap, 1.7, q2, digits=28).mid))
            assert float(phi.taylor(gap, 1.7, q2)[0]) == pytest.approx(float(enclosed), rel=1e-8)


def test_a_sum_with_means_at_unequal_norms_keeps_the_gap_of_homogeneous_branches_zero():
    branches = kc.Network.from_steps(
        [
            ("x", L.Input(), ()),
            ("a", L.Affine(), ("x",)),
            ("b", L.Affine(), ("x",)),
            ("f", L.Nonlinear("relu"), ("a",)),
            ("h", L.Nonlinear("relu"), ("b",)),
            ("s", L.Sum((0.3, 1.7)), ("f", "h")),
            ("n", L.LayerNorm(), ("s",)),
            ("o", L.Affine(), ("n",)),
        ],
        ("o",),
    )
    gaps = kc.c_map(branches).gap_at_angle(np.array([0.0, 1e-7]), 1.0, 3.7)
    assert gaps[0] < 1e-30
    assert gaps[1] == pytest.approx(kc.c_map(branches).gap_at_angle(1e-7, 1.0, 1.0), rel=1e-9)
