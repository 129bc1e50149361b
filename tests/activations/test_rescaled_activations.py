"""Registered activations at another scale, s phi(a x).

Their closed forms, against exact kernels and quadrature on the expression.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.special
import sympy as sp

from kcalc.activations import X, activation


def wave_kernel(name: str, k: mpmath.mpf, m: mpmath.mpf) -> mpmath.mpf:
    """E f(u) f(v) for f = sin, cos of Var u + Var v = 2 m, Cov = k.

    E^(-m) sinh k, e^(-m) cosh k.
    """
    return mpmath.exp(-m) * (mpmath.sinh(k) if name == "sin" else mpmath.cosh(k))


@pytest.mark.parametrize(
    ("expr", "name", "rate"),
    [(sp.sin(30 * X), "sin", 30), (-2 * sp.cos(X * sp.Float(7.3)), "cos", 7.3)],
)
def test_waves_of_any_frequency_have_closed_forms(expr: sp.Expr, name: str, rate: float):
    phi = activation(expr)
    assert (
        phi.has_closed_form
        and phi.base is phi
        and phi.transformation is None
        and phi.expr == expr
        and phi.name == str(expr)
    )
    with mpmath.workdps(30):
        for q1, q2, c in (
            (1.0, 1.0, 0.9995),
            (0.01, 0.02, -0.7),
            (3.0, 2.9, 0.98),
            (40.0, 40.0, 1 - 1e-6),
        ):
            a = mpmath.mpf(rate) ** 2
            one, two = a * mpmath.mpf(q1), a * mpmath.mpf(q2)
            top = wave_kernel(name, mpmath.mpf(c) * mpmath.sqrt(one * two), (one + two) / 2)
            size = wave_kernel(name, one, one)
            wanted = top / mpmath.sqrt(size * wave_kernel(name, two, two))
            assert phi.c_map(c, q1, q2) == pytest.approx(float(wanted), rel=1e-11, abs=1e-13)
            assert phi.q_map(q1) == pytest.approx(
                float(size) * float(expr.as_coeff_Mul()[0]) ** 2, rel=1e-13
            )


@pytest.mark.parametrize(
    ("expr", "other"),
    [
        (3 * sp.exp(-50 * X**2), "gaussian"),
        (sp.exp(-sp.Float(0.3) * X**2), "gaussian"),
        (sp.exp(-X / 2), "exp"),
        (sp.erf(-3 * X), "erf"),
        (2 * sp.sin(3 * X) + 2 * sp.cos(3 * X), "rbf"),
        (X + sp.sin(5 * X) ** 2 / 5, "snake"),
        (7 * X * (1 + sp.erf(X / 3)), "gelu"),
        (5 * sp.exp(-100 * X**2) * sp.cos(20 * X), "gabor"),
    ],
)
def test_scaled_members_of_the_catalogue_keep_closed_forms(expr: sp.Expr, other: str):
    """Against a trapezoid rule in two dimensions on the expression itself."""
    phi, z = activation(expr), np.arange(-9, 9.01, 0.05)
    assert phi.has_closed_form and activation(other).has_closed_form
    f = sp.lambdify(X, expr, [{"erf": scipy.special.erf}, "numpy"])
    w = np.exp(-z * z / 2) * 0.05 / math.sqrt(2 * math.pi)
    for q1, q2, c in ((0.01, 0.02, 0.3), (0.05, 0.03, -0.7)):
        u, v = math.sqrt(q1) * z, math.sqrt(q2) * (c * z[:, None] + math.sqrt(1 - c * c) * z)
        sizes = w @ f(u) ** 2, w @ f(math.sqrt(q2) * z) ** 2
        assert phi.c_map(c, q1, q2) == pytest.approx(
            (w * f(u)) @ f(v) @ w / math.sqrt(sizes[0] * sizes[1]), abs=1e-12
        )
        assert (phi.q_map(q1), phi.mean(q1)) == pytest.approx(
            (sizes[0], w @ f(u)), rel=1e-12, abs=1e-13
        )
