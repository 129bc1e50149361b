"""Registered activations at another scale, s phi(a x).

Their closed forms, against exact kernels and quadrature on the expression.
"""

from __future__ import annotations

import mpmath
import pytest
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
