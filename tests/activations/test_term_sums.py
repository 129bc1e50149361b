"""Closed forms of sums, and symbols in one's own activation, against quadrature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

x, alpha, w = sp.symbols("x alpha w")
SUMS = {
    "linear and sine": x + sp.sin(2 * x),
    "linear and erf": x / 2 + sp.erf(x) - sp.erf(2 * x) / 3 + 1,
    "waves and a square": sp.sin(x) + sp.cos(3 * x) + x**2,
    "power and exponential": x * sp.exp(-x / 2) + 1,
    "modulated": x * sp.sin(x),
    "damped": sp.exp(x / 3) * sp.cos(x) + x,
    "hyperbolic": sp.sinh(x) + x,
    "shifted wave": sp.cos(x + 1) + x,
}
PAIRS = [(-0.7, 1.3, 0.6), (0.9, 1.0, 1.0)]


def gamma(expr: Any, c: float, q1: float, q2: float) -> float:
    """E[phi(u) phi(v)] by the trapezoid rule in both directions."""
    phi = sp.lambdify(x, expr, ["scipy", "numpy"])
    z = 0.2 * np.arange(-65, 66)
    weights = 0.2 * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    u, v = np.sqrt(q1) * z, np.sqrt(q2) * (c * z[:, None] + np.sqrt(1 - c * c) * z)
    return float((phi(u) * weights) @ (phi(v) @ weights))


@pytest.mark.parametrize("name", SUMS)
def test_sums_have_closed_forms(name: str) -> None:
    expr = SUMS[name]
    phi = kc.activation(expr)
    assert phi.c_map.closed_form is not None and phi.has_closed_form
    for c, q1, q2 in PAIRS:
        norm = np.sqrt(gamma(expr, 1.0, q1, q1) * gamma(expr, 1.0, q2, q2))
        wanted = gamma(expr, c, q1, q2) / norm
        assert float(phi.c_expr(c, q1, q2)) == pytest.approx(wanted, rel=1e-12)
        assert float(phi.q_expr(q1)) == pytest.approx(gamma(expr, 1.0, q1, q1), rel=1e-12)


def test_means_of_sums_are_those_of_quadrature() -> None:
    for expr in SUMS.values():
        phi = kc.activation(expr)
        symbolic = phi.mean(sp.Rational(13, 10), kc.fields.SYMPY)
        assert float(sp.sympify(symbolic).evalf()) == pytest.approx(float(phi.mean(1.3)), abs=1e-13)
        slope = phi.mean_slope(sp.Rational(13, 10), kc.fields.SYMPY)
        assert float(sp.sympify(slope).evalf()) == pytest.approx(float(phi.mean_slope(1.3)), 1e-12)


@pytest.mark.parametrize("real", [None, True])
def test_symbols_in_ones_own_activation(real: bool | None) -> None:
    a = sp.Symbol("alpha", real=real)
    phi = kc.activation(sp.sin(a * x) + x)
    assert phi.free_symbols == {a}
    net = kc.architectures.vanilla(2, phi)
    C = kc.c_map(net)
    assert C.closed_form.free_symbols == {a, kc.symbols.c}
    for value in (sp.Rational(7, 5), 0.5):
        numeric = kc.activation(sp.sin(sp.nsimplify(value) * x) + x)
        wanted = kc.c_map(kc.architectures.vanilla(2, numeric))(0.3)
        found = C.closed_form.subs({a: value, kc.symbols.c: 0.3})
        assert float(found) == pytest.approx(wanted, rel=1e-12)
        assert kc.c_map(net.subs({a: value}))(0.3) == pytest.approx(wanted, rel=1e-12)
        assert phi.subs({a: value}) == numeric
    with refused(r"alpha.*\.subs"):
        phi.c_map(0.3)


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        (sp.sin(alpha * sp.Symbol("y")), "alpha, y; name the argument x"),
        (alpha * sp.tanh(x), "transformed"),
        (sp.Max(x, 0) + alpha * sp.sin(x), r"substitute numbers"),
        (sp.Symbol("q") * sp.sin(x) + x, "a different letter"),
        (sp.Symbol("k", imaginary=True) * x + sp.sin(x), "k must be real"),
    ],
)
def test_what_symbols_cannot_do_is_said(expr: sp.Expr, says: str) -> None:
    with refused(says):
        kc.activation(expr)
