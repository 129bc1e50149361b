"""The parts that certified integrals rest on.

Growth and tail bounds, ranges, complex boxes, the error of Gauss-Legendre rules.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy as sp

from kcalc.activations import activation, names
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.activation import certified_within
from kcalc.gaussian.certified.growth import Growth, derive

X = sp.Symbol("x", real=True)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("order", [0, 1])
def test_growth_bounds_hold(name, order):
    phi = activation(name)
    bound = certified_within(phi, order).growth
    x = np.concatenate([np.linspace(-12, 12, 97), [-80.0, 80.0]]) + 1e-9
    with np.errstate(all="ignore"):
        values = np.abs(phi.numeric(order)(x))
    assert all(
        math.log(v) <= bound.at(abs(t)) + 1e-9
        for v, t in zip(values, x, strict=True)
        if 0 < v < math.inf
    )


def test_growth_of_expressions():
    assert (
        derive(sp.exp(-(X**2)), X) == Growth(derive(sp.exp(-(X**2)), X).log_scale)
        and derive(sp.exp(-(X**2)), X).log_scale < 1e-3
    )
    assert derive(sp.exp(2 * X), X).rate == pytest.approx(2) and derive(
        X**3, X
    ).power == pytest.approx(3)
    assert derive(1 / (1 + X**2), X).power == 0
    for bad in (1 / X, sp.exp(X**4), sp.tan(X), sp.log(X**2)):
        with pytest.raises(KcalcError):
            derive(bad, X)
