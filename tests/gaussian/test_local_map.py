"""``phi.c_map`` and ``phi.q_map``.

The habits of map objects, derivatives in q, series with their tails, fixed points.
"""

from __future__ import annotations

import pickle

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from thinning import mostly_slow

import kcalc as kc

X = sp.Symbol("x", real=True)
POINTS = [
    (0.3, 1.0, 2.0),
    (0.97, 1.0, 2.0),
    (-0.99, 3.0, 0.5),
    (1.0, 2.0, 1.0),
    (-1.0, 2.0, 2.5),
    (0.995, 2.0, 2.0),
    (0.0, 0.1, 20.0),
]


def quotient(f, h=2e-4):
    """A difference quotient of order 4."""
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)


@pytest.mark.parametrize(
    "name", mostly_slow(["tanh", "softplus", "elu", "hard_tanh", "softsign", "swish"])
)
@pytest.mark.parametrize("which", [1, 2, None])
def test_q_derivatives_are_difference_quotients(name, which):
    C = kc.activation(name).c_map
    moves = {1: (1, 0), 2: (0, 1), None: (1, 1)}[which]
    for c, q1, q2 in POINTS:
        truth = quotient(lambda h, c=c, q1=q1, q2=q2: C(c, q1 + h * moves[0], q2 + h * moves[1]))
        assert C.q_derivative(which)(c, q1, q2) == pytest.approx(truth, abs=2e-9), (c, q1, q2)


def test_q_derivatives_of_closed_forms_to_rounding():
    """erf and sin + cos by mpmath's differentiation of their textbook forms.

    Homogeneous ones do not depend on q.
    """

    def erf(c, q1, q2):
        t = lambda q, p: 2 * mpmath.sqrt(q * p) / mpmath.sqrt((1 + 2 * q) * (1 + 2 * p))  # noqa: E731
        return mpmath.asin(c * t(q1, q2)) / mpmath.sqrt(
            mpmath.asin(t(q1, q1)) * mpmath.asin(t(q2, q2))
        )

    def rbf(c, q1, q2):
        return mpmath.exp(-(q1 + q2) / 2 + c * mpmath.sqrt(q1 * q2))

    for name, truth in (("erf", erf), ("rbf", rbf)):
        for c, q1, q2 in POINTS:
            with mpmath.workdps(40):
                one = mpmath.diff(lambda q, c=c, q2=q2, truth=truth: truth(c, q, q2), q1)
            assert kc.activation(name).c_map.q_derivative(1)(c, q1, q2) == pytest.approx(
                float(one), rel=1e-12, abs=1e-14
            )
    assert kc.activation("relu").c_map.q_derivative(None)(np.array([0.1, 0.9])).tolist() == [
        0.0,
        0.0,
    ]


def test_q_derivatives_where_the_function_jumps():
    """x 1[|x| > 1/2]: Gamma by mpmath from the product of the two truncated functions."""
    C = kc.activation(
        sp.Piecewise((X, -sp.Rational(1, 2) > X), (0, sp.Rational(1, 2) > X), (X, True))
    ).c_map
    for c, q1, q2 in ((0.3, 1.0, 2.0), (-0.8, 2.0, 1.0), (0.97, 0.5, 0.8)):
        truth = quotient(lambda h, c=c, q1=q1, q2=q2: C(c, q1 + h, q2))
        assert C.q_derivative(1)(c, q1, q2) == pytest.approx(truth, abs=5e-9)


def test_bad_arguments():
    C, Q = kc.activation("tanh").c_map, kc.activation("tanh").q_map
    for call in (
        lambda: C(0.5, 0),
        lambda: C(0.5, 1, -1),
        lambda: C(0.5, float("inf")),
        lambda: Q(0),
        lambda: Q(-1.0),
        lambda: Q(1j),
        lambda: C([0.1, 0.2], [1, 2, 3]),
        lambda: C.derivative(-1),
        lambda: C.series(0),
        lambda: C.tail(0),
        lambda: C.q_derivative(3),
        lambda: C.at_angle(4.0),
        lambda: C.at_angle(-0.1),
        lambda: kc.activation("relu").c_map.series(10_000),
    ):
        with pytest.raises(kc.KcalcError):
            call()


def test_high_derivatives_are_right_or_refused():
    """Against the series, whose coefficients keep their digits, summed in mpmath."""
    for name, q, c in (
        ("softplus", 1.0, 0.9),
        ("softplus", 1.0, 0.4),
        ("tanh", 1.0, 0.5),
        ("swish", 0.1, 0.9),
        ("hard_tanh", 1.0, 0.5),
    ):
        C = kc.activation(name).c_map
        weights = C.series(200, q) if name != "hard_tanh" else C.series(600, q)
        for n in (3, 6, 10, 15):
            truth = float(
                mpmath.fsum(
                    mpmath.ff(k, n) * mpmath.mpf(b) * mpmath.mpf(c) ** (k - n)
                    for k, b in enumerate(weights)
                    if k >= n
                )
            )
            try:
                found = C.derivative(n)(c, q)
            except kc.KcalcError as error:
                assert "digits" in str(error) or "terms" in str(error)
                continue
            assert found == pytest.approx(truth, rel=1e-8, abs=1e-9), (name, n)


def test_underflow_and_overflow_are_said():
    shrink = kc.activation("hard_shrink")
    for call in (
        lambda: shrink.c_map(0.5, 1e-4),
        lambda: shrink.c_map.series(4, 1e-4),
        lambda: kc.gain(shrink, 1e-4),
    ):
        with refused(r"underflows|double precision"):
            call()
    power = kc.activation(
        X**100
    ).c_map  # Q(1) = 199!! = 7e186, whose square is beyond double precision
    assert power(1.0) == 1 and abs(power(0.3) - 1.58e-19) < 1e-15
    assert shrink.q_map.fixed_points() == ()
    with refused("<= 100"):
        kc.activation("tanh").c_map.derivative(10**9)
    steep = kc.activation("tanh").transformed(1e6)
    assert steep.c_map(0.97, 30.0, 60.0) == pytest.approx(2 / np.pi * np.arcsin(0.97), abs=1e-6)
    table = kc.activation("tanh").c_map.table(2.0)
    assert pickle.loads(pickle.dumps(table))(0.3) == table(0.3)
