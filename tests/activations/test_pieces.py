"""Where expressions switch, and what they are in between.

Kinks exact or to 50 digits, proven places and growth, refusals by name.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused

from kcalc.activations.acceptance import read_kinks
from kcalc.activations.jumps import exact_jumps, rounded_jumps, side_value
from kcalc.activations.pieces import (
    _exact_value,
    compile_pieces,
    landmark,
    real_roots,
    resolve,
    switch_points,
)

X = sp.Symbol("x", real=True)


# -- places ----------------------------------------------------------------------------------------


def test_roots_have_50_digits() -> None:
    (root,) = real_roots(X**3 - sp.sqrt(2))
    with mpmath.workdps(60):
        assert abs(mpmath.mpf(root._mpf_) / mpmath.root(2, 6) - 1) < mpmath.mpf(10) ** -48


def test_a_zero_on_the_grid_whose_slope_vanishes() -> None:
    """x^3 has its zero where Newton's method has no rate; it stays what the grid found."""
    assert [float(r) for r in real_roots(sp.sinh(X) ** 3)] == pytest.approx([0.0], abs=1e-15)


def test_too_many_kinks() -> None:
    for expr in (sp.Abs(sp.sin(20 * X)), sp.Abs(sp.sin(20 * X) + sp.Rational(1, 3))):
        with refused(r"kinks.*at most 500 are supported"):
            switch_points(expr)
    with refused("at most 500"):
        switch_points(sp.Abs(sp.sin(5 * X)) + sp.Abs(sp.cos(5 * X)))
    with refused("501.*kinks"):
        read_kinks(range(501))
    assert read_kinks([1, 1.0, 0]) == (0, 1)
    with refused("finite.*number"):
        read_kinks([sp.Integer(10) ** 400])
    with refused("finite.*number"):
        read_kinks([sp.I])


# -- pieces ----------------------------------------------------------------------------------------


def test_what_has_no_value_between_kinks() -> None:
    a = sp.Symbol("a")
    with refused("neither true nor false"):
        resolve(sp.Piecewise((X, a > 0), (0, True)), (), 0)
    with refused("1.0*.*Piecewise"):
        resolve(sp.Piecewise((X, X < 0), evaluate=False), (sp.Integer(0),), 1)
    with refused("no real value"):
        resolve(sp.Abs(sp.sqrt(X - 100)), (), 0)


def test_limits_at_kinks() -> None:
    zero = sp.Integer(0)
    assert side_value(sp.sin(X) / X, zero, "+") == 1
    assert exact_jumps((-sp.sin(X) / X, sp.sin(X) / X), (zero,)) == (2,)
    with refused("finite.*0"):
        rounded_jumps((sp.Integer(0), 1 / (2 * sp.sqrt(X))), (zero,))
    # so many that jumps are taken from the compiled pieces, where those are finite
    kinks = [sp.Integer(k) for k in range(25)]
    parts = [X * (i % 2) if i != 3 else sp.sin(X - 2) / (X - 2) for i in range(26)]
    by_hand = [
        float(sp.limit(b, X, k, "+") - sp.limit(a, X, k, "-"))
        for k, a, b in zip(kinks, parts, parts[1:], strict=False)
    ]
    assert rounded_jumps(parts, kinks) == pytest.approx(by_hand, rel=1e-14)


@pytest.mark.parametrize(
    ("inner", "marks"),
    [
        (2 * X - 3, [(1.5, 0.5)]),
        (4 * X**2 - 8 * X, [(1.0, 0.5)]),
        (X**3, []),
        (sp.exp(X), []),
        (sp.I * X, []),
    ],
)
def test_landmarks(inner: sp.Expr, marks: list[tuple[float, float]]) -> None:
    assert landmark(inner) == marks


def test_compiled_pieces() -> None:
    values = compile_pieces((-X, X**2, -X), (0.0, 2.0))
    np.testing.assert_array_equal(values(np.array([-3.0, 1.5, 2.0, 5.0])), [3.0, 2.25, -2.0, -5.0])
    np.testing.assert_array_equal(values(np.array([0.5, 1.0])), [0.25, 1.0])
    assert values(np.zeros(0)).size == 0


def test_values_that_overflow_in_between() -> None:
    soft = sp.log(1 + sp.exp(X))
    assert _exact_value(soft, 1000.0) == 1000.0
    assert math.isnan(_exact_value(soft, math.nan)) and math.isnan(_exact_value(sp.sqrt(X), -1.0))
    assert _exact_value(sp.exp(X), 1e5) == math.inf
    assert compile_pieces((soft,), ())(np.array([1000.0])) == pytest.approx([1000.0], rel=1e-15)


# -- proven places and bounds ----------------------------------------------------------------------
