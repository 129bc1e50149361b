"""Inputs that are nearly one, of slightly different norms.

Gaps and tangent kernels keep their digits.
"""

import mpmath as mp
import pytest
from thinning import mostly_slow

import kcalc as kc


@pytest.mark.parametrize("name", mostly_slow(["relu6", "hard_tanh", "selu", "gelu"], 4))
def test_local_gaps_near_one_agree_with_enclosures(name):
    phi = kc.activation(name)
    for q2 in (1.7 * (1 + 1e-7), 1.7 * 1.0001):
        for gap in (2.0**-52, 2.0**-40):
            enclosed = 1 - mp.mpf(str(phi.c_map.ball(1 - gap, 1.7, q2, digits=28).mid))
            assert float(phi.taylor(gap, 1.7, q2)[0]) == pytest.approx(float(enclosed), rel=1e-8)
