"""Moments, q derivatives and Hermite coefficients of one function against closed forms in many
digits.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from flint import arb
from gaussian_pieces import (
    Pieces,
    digits,
    hermite,
    weighted,
)
from refusals import refused

import kcalc as kc


@lru_cache(maxsize=64)
def coefficients(f: Pieces, q: float, numbers: tuple[int, ...]) -> list[float]:
    with digits(40 + max(numbers)):
        found = weighted(f, 0, arb(q).sqrt(), [hermite(n) for n in numbers])
        return [
            float(a / arb(math.factorial(n)).sqrt()) for n, a in zip(numbers, found, strict=True)
        ]


# -- derivatives in q where q is small -------------------------------------------------------------


def test_callables_whose_derivatives_are_lost_are_refused() -> None:
    phi = kc.activation(lambda x: np.tanh(x))
    assert phi.q_map.derivative(1)(1e-8) == pytest.approx(1, rel=1e-7)
    with refused("3.*digits.*1e-08"):
        phi.q_map.derivative(3)(1e-8)
