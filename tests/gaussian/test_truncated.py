"""Truncated Gaussian moments of piecewise x^n e^(rate x), the catalogue's and users' own, against
quadrature at 40 digits.
"""

from __future__ import annotations

import mpmath
import pytest
import sympy as sp
from flint import arb
from gaussian_quadrature import moments, mp
from thinning import mostly_slow

from kcalc.activations import X, activation, celu, combine, hard_shrink, truncated
from kcalc.fields import SYMPY, mpmath_field
from kcalc.fields.balls import Enclosure, ball_field

R = sp.Rational
WIDE = mpmath_field(30)

PIECES = {
    **{
        name: activation(name)
        for name in (
            "hard_tanh",
            "relu6",
            "hard_sigmoid",
            "hard_swish",
            "hard_shrink",
            "elu",
            "selu",
            "celu",
        )
    },
    "celu(1/3)": celu(R(1, 3)),
    "hard_shrink(2)": hard_shrink(2),
    "three pieces": activation(
        sp.Piecewise(
            (X**2 * sp.exp(X), X < -1),
            (3 * X - 1, X < 2),
            (sp.exp(-X) * (X - 1) ** 3 + R(1, 2), True),
        )
    ),
    "two-sided exponential": activation(sp.exp(-sp.Abs(X))),
    "power of two": activation(2 ** (-sp.Abs(X))),
    "cosh and corner": activation(sp.Abs(X - 1) + sp.cosh(X / 2)),
    "clipped parabola": activation(sp.Max(X**2 - 2, 0)),
    "shifted selu": activation("selu").transformed(0.3, 0.5, 2, -1),
    "reflected hard_tanh": activation("hard_tanh").transformed(-2, R(1, 3), 1, 0),
    "shifted relu": activation("relu").transformed(1, -1),
    "composed": activation("hard_tanh").composed(activation("hard_swish")),
    "combined": combine([(2, activation("elu"), 1), (-1, activation("hard_shrink"), R(-1, 2))]),
}


ON_ONE_SIDE = {
    "box on the right": activation(sp.Piecewise((0, X < 1), (1, X < 2), (0, True))),
    "box on the left": activation(sp.Piecewise((0, X < -3), (X, X < -1), (0, True))),
    "no kink": activation(X**2 + sp.exp(X / 2) - sp.exp(-X)),
    "jump at 0": activation(sp.Piecewise((sp.exp(X), X < 0), (X - 1, True))),
}


@pytest.mark.parametrize("name", mostly_slow(PIECES, 8))
def test_truncated_moments(name):
    check_moments(PIECES[name])


@pytest.mark.parametrize("name", ON_ONE_SIDE)
def test_truncated_moments_of_pieces_on_one_side(name):
    check_moments(ON_ONE_SIDE[name])


def check_moments(phi):
    assert truncated.pieces(phi) is not None
    for q in (R(1, 20), R(9)):
        with mpmath.workdps(40):
            for quantity, expected in zip(
                ("mean", "second_moment", "mean_slope"), moments(phi, X, q), strict=True
            ):
                bound = mpmath.mpf(10) ** -27 * max(1, abs(expected))
                assert abs(mp(getattr(phi, quantity)(q, WIDE)) - expected) < bound, (quantity, q)
                symbolic = getattr(phi, quantity)(q, SYMPY)
                assert not symbolic.atoms(sp.core.function.AppliedUndef)
                assert float(symbolic) == pytest.approx(float(expected), rel=1e-12, abs=1e-15)
                assert getattr(phi, quantity)(float(q)) == pytest.approx(
                    float(expected), rel=1e-13, abs=1e-14
                )
                balls = ball_field(30)
                with balls.working():
                    ball = getattr(phi, f"_closed_{quantity}")(balls.number(q), balls)
                assert (
                    Enclosure.of(ball + arb(0, 1e-33) * (1 + abs(ball))).contains(expected)
                    and float(ball.rad()) < 1e-28
                )
