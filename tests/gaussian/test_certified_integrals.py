"""The parts that certified integrals rest on.

Growth and tail bounds, ranges, complex boxes, the error of Gauss-Legendre rules.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import sympy as sp
from flint import acb, arb

from kcalc.activations import activation, names
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.activation import certified_within
from kcalc.gaussian.certified.evaluate import compile_smooth
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


COMPLEX = {
    "log1p": (sp.log(1 + sp.exp(X)), lambda z: mpmath.log(1 + mpmath.exp(z))),
    "logcosh": (sp.log(sp.cosh(X)), lambda z: mpmath.log(mpmath.cosh(z))),
    "logistic": (1 / (1 + sp.exp(-X)), lambda z: 1 / (1 + mpmath.exp(-z))),
    "asinh": (sp.asinh(X), mpmath.asinh),
    "atan": (sp.atan(X), mpmath.atan),
    "root": (sp.sqrt(1 + X**2), lambda z: mpmath.sqrt(1 + z**2)),
    "tanh": (sp.tanh(X), mpmath.tanh),
    "power": ((1 + X**2) ** sp.Rational(1, 3), lambda z: mpmath.cbrt(1 + z**2)),
}


@pytest.mark.parametrize("kind", sorted(COMPLEX))
def test_complex_boxes_contain_the_continuation_from_the_real_axis(kind):
    expr, truth = COMPLEX[kind]
    function = compile_smooth(expr).complex
    rng = np.random.default_rng(5)
    finite = 0
    for _ in range(60):
        x, y, size = rng.uniform(-6, 6), rng.uniform(-1.2, 1.2), rng.choice([1e-3, 0.2, 1.0])
        box = function(acb(arb(x, size), arb(y, size)))
        if not box.is_finite():
            continue
        finite += 1
        for s, t in rng.uniform(-1, 1, (4, 2)):
            value = truth(mpmath.mpc(x + s * size, y + t * size))
            assert abs(box.real.mid() - float(value.real)) <= box.real.rad() + 1e-12
            assert abs(box.imag.mid() - float(value.imag)) <= box.imag.rad() + 1e-12
    assert finite > 20
