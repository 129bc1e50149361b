"""Activations near 0 and at the ends of double precision.

What cancels there as it is written keeps its digits.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

x = sp.Symbol("x", real=True)
SMOOTH = {
    "elu": "elu",
    "celu(1/3)": kc.activations.celu(sp.Rational(1, 3)),
    "selu": "selu",
    "logcosh": "logcosh",
    "bentid": "bentid",
    "tanhshrink": x - sp.tanh(x),
    "1 - cos": 1 - sp.cos(x),
    "sqrt": sp.sqrt(1 + x**2) - 1,
    "third order": sp.exp(x) - 1 - x - x**2 / 2,
    "log": sp.log(sp.cosh(x) + x**4),
    "softplus less its value": sp.log((1 + sp.exp(x)) / 2),
}


@pytest.mark.parametrize("name", ["elu", "selu", "logcosh", "tanhshrink", "1 - cos"])
def test_jax_functions_keep_the_digits_of_single_precision(name: str) -> None:
    jax = pytest.importorskip("jax")
    phi = kc.activation(SMOOTH[name])
    points = np.array([-3.0, -0.24, -1e-2, -1e-5, 1e-6, 1e-3, 0.2, 0.9])
    truth = np.array(
        [
            float(phi.expr.subs(next(iter(phi.expr.free_symbols)), sp.Float(p, 60)).evalf(40))
            for p in points
        ]
    )
    found = np.asarray(jax.jit(phi)(jax.numpy.asarray(points, dtype="float32")))
    np.testing.assert_allclose(found, truth, rtol=1e-6)
    slopes = np.asarray(jax.vmap(jax.grad(phi))(jax.numpy.asarray(points, dtype="float32")))
    np.testing.assert_allclose(slopes, phi.numeric(1)(points), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("expr", [x + sp.exp(x), sp.cosh(x)])
def test_what_overflows_is_refused_and_no_cosine_of_1(expr: sp.Expr) -> None:
    phi = kc.activation(expr)
    assert phi.c_map(0.625, 40.0) == pytest.approx(math.exp(-15), rel=1e-6)
    for call in (
        phi.c_map,
        lambda c, q: phi.c_map(c, q, 1.0),
        lambda c, q: phi.second_moment(q),
        lambda c, q: phi.cross(phi, q, q, c),
    ):
        with refused(r"beyond double precision.*q = 162|q = 162.*beyond double precision"):
            call(0.625, 162.0)
