"""The catalogue against frozen truth, laws every activation must obey, and what users may and may
not call an activation.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from thinning import mostly_slow

from kcalc.activations import X, activation, celu, combine, leaky_relu, names
from kcalc.fields import SYMPY, mpmath_field
from kcalc.foundation.errors import KcalcError

RECORDS = json.loads((Path(__file__).parents[1] / "oracles" / "activations.json").read_text())[
    "records"
]
Y = sp.Symbol("y")
REAL = sp.Symbol("a", real=True)


# --- frozen truth ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_one_dimensional_moments(name):
    phi = activation(name)
    for row in RECORDS[name]["moments"]:
        for quantity in ("mean", "second_moment", "mean_slope", "q_slope"):
            truth = float(row[quantity])
            assert getattr(phi, quantity)(row["q"]) == pytest.approx(truth, rel=1e-14, abs=1e-14), (
                quantity,
                row["q"],
            )


def check_c_map(name, rows):
    phi = activation(name)
    moments = {row["q"]: float(row["second_moment"]) for row in RECORDS[name]["moments"]}
    for row in rows:
        q1, q2, c = row["q1"], row["q2"], row["c"]
        norm = math.sqrt(moments[q1] * moments[q2])
        gamma, slope, bend = (float(value) / norm for value in row["values"])
        got = phi.taylor(1 - c, q1, q2, 2)
        assert got[0] == pytest.approx(1 - gamma, abs=1e-13), row
        assert got[1] == pytest.approx(slope, rel=1e-12, abs=1e-12), row
        assert 2 * got[2] == pytest.approx(bend, rel=1e-11, abs=1e-11), row


@pytest.mark.parametrize("name", names())
def test_c_maps_and_two_derivatives_at_q_one(name):
    check_c_map(
        name,
        [row for row in RECORDS[name]["gammas"] if row["q1"] == row["q2"] == 1 and row["c"] > -0.9],
    )


# --- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in names() if activation(name).has_closed_form])
def test_closed_forms_agree_in_every_field(name):
    phi, field = activation(name), mpmath_field(30)
    c, q = sp.Symbol("c", real=True), sp.Symbol("q", positive=True)
    expr = SYMPY.cosine(phi.taylor(1 - c, q, 2 * q, 0, SYMPY)[0])
    for at, size in ((sp.Rational(3, 10), sp.Rational(1, 2)), (sp.Rational(-7, 10), sp.Integer(2))):
        value = float(expr.subs({c: at, q: size}))
        assert 1 - phi.taylor(1 - float(at), float(size), 2 * float(size))[0] == pytest.approx(
            value, abs=1e-14
        )
        assert 1 - float(phi.taylor(1 - at, size, 2 * size, 0, field)[0]) == pytest.approx(
            value, abs=1e-14
        )
        for quantity in ("mean", "second_moment", "mean_slope"):
            exact = float(getattr(phi, quantity)(size, SYMPY))
            assert getattr(phi, quantity)(float(size)) == pytest.approx(exact, rel=1e-13, abs=1e-15)
        assert float(phi.q_slope(size, SYMPY)) == pytest.approx(
            phi.q_slope(float(size)), rel=1e-13, abs=1e-15
        )


@pytest.mark.parametrize("name", mostly_slow(["tanh", "elu", "hard_tanh"]))
def test_mpmath_agrees_with_numpy_and_knows_more_digits(name):
    phi, field = activation(name), mpmath_field(22)
    for quantity in ("mean", "second_moment", "mean_slope", "q_slope"):
        assert float(getattr(phi, quantity)(2, field)) == pytest.approx(
            getattr(phi, quantity)(2), rel=1e-14, abs=1e-15
        )
    assert float(phi.taylor(0.5, 1, None, 0, field)[0]) == pytest.approx(
        phi.taylor(0.5)[0], rel=1e-14
    )
    with mpmath.workdps(30):
        truth = mpmath.mpf(RECORDS[name]["moments"][2]["second_moment"])
        assert abs(phi.second_moment(1, field) - truth) < 1e-21


# --- new activations from old ---------------------------------------------------------------------


# --- what a user may call an activation -----------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "kinks"),
    [
        (sp.Max(Y, 0), (0,)),
        (sp.Abs(Y - 1) + sp.sin(Y), (1,)),
        (sp.Min(sp.Max(Y, -1), 1), (-1, 1)),
        (sp.sign(Y) * Y**2, (0,)),
        (sp.Max(Y**2 - 1, 0), (-1, 1)),
        (sp.Max(sp.tanh(Y), Y / 2), (-1.9150080481545415, 0, 1.9150080481545415)),
        (sp.tanh(Y) / 2, ()),
    ],
)
def test_kinks_of_expressions_are_found(expr, kinks):
    phi = activation(expr)
    assert phi.kink_points == pytest.approx([float(k) for k in kinks], abs=1e-14)
    assert np.isfinite(phi.taylor(np.array([0.0, 0.5, 2.0]), 1, None, 1)[0]).all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (X * Y, "symbolic constants"),
        (sp.Max(0, X) + REAL * sp.Min(0, X), r"leaky_relu\(a\)$"),
        (X + REAL * sp.Abs(X), r"abrelu\(1 - a, a \+ 1\)$"),
        (sp.log(Y), "real"),
        (sp.sqrt(Y), "real"),
        (1 / Y, "x = 0"),
        (1 / (Y - sp.Rational(3, 10)), "not smooth"),
        (sp.tan(Y), "not smooth"),
        (sp.I * Y, "real"),
        (sp.nan, "real"),
        (sp.Integer(0), "zero"),
        (sp.exp(Y**4), "grows too fast"),
        (sp.Function("f")(Y), "undefined"),
        (sp.floor(Y), "jumps"),
        ([1], "cannot make"),
        ("x**2", "unknown activation"),
    ],
)
def test_refusals(spec, message):
    with refused(message):
        activation(spec)


def test_kinks_given_must_be_all_the_kinks():
    assert activation(sp.Abs(Y - 1), kinks=[1]).kink_points == (1.0,)
    with refused("not among its kinks"):
        activation(sp.Abs(Y - 1), kinks=[0])


@pytest.mark.parametrize("q", [0, -1.0, float("nan")])
def test_bad_q_values(q):
    with pytest.raises(KcalcError):
        activation("tanh").second_moment(q)
    with pytest.raises(KcalcError):
        activation("relu").taylor(0.5, q)


def test_bad_c_values_and_constants():
    with refused("cosine"):
        activation("tanh").taylor(-0.1)
    with pytest.raises(KcalcError):
        leaky_relu(Y)
    with pytest.raises(KcalcError):
        celu(-1)
    with pytest.raises(KcalcError):
        combine([])


# --- rare arguments -------------------------------------------------------------------------------


def test_rare_arguments_and_compositions() -> None:
    relu = activation("relu")
    for call, words in (
        (lambda: relu.cross(3), "expected an activation, got 3"),
        (lambda: relu.taylor(0.0, 1, 1, 4), r"order 4 > 2 only for \|c\| < 1"),
        (lambda: activation("tanh").second_moment(-1), "must be > 0, got -1"),
        (lambda: activation("tanh").second_moment(1e-310), "too small for double precision"),
        (lambda: activation("tanh").taylor([0.5, 1.0], [1.0] * 3, 1.0), "broadcast"),
        (lambda: activation(sp.tanh(10**12 * (X - 4))), "not smooth near x = 4"),
        (lambda: activation(sp.sqrt(sp.Abs(X))).c_map(jnp.asarray(0.3)), "infinite at a kink"),
    ):
        with refused(words):
            call()
    assert relu.composed(activation(X**2 - 1)).kinks == (-1, 1)
    assert relu.composed(activation("abs")).kinks == activation("abs").composed(relu).kinks == (0,)
    step = activation(lambda x: np.where(x > 1, x, 0.0), kinks=[1.0])
    assert (step.jumps(0), step.steepness(0)) == (((1, sp.Float(1)),), (0,))
    assert activation(jnp.tanh).numeric(1)(np.zeros(0)).size == 0


def test_moments_by_hand() -> None:
    relu, wave = activation("relu"), 2 * sp.exp(-(X**2) / 3) * sp.cos(2 * X)
    moments = {  # E exp(-a x^2) cos(b x) = exp(-b^2 / (2 + 4 a)) / sqrt(1 + 2 a), and so on
        wave: 2 * (1 + math.exp(-24 / 7)) / math.sqrt(7 / 3),
        sp.erf(X) + X**2: 3 + 2 / math.pi * math.asin(2 / 3),
        X * sp.exp(-X): 5 * math.exp(2),
        lambda x: np.exp(3 * x): math.exp(18),
    }
    for phi, expected in moments.items():
        assert activation(phi).second_moment(1) == pytest.approx(expected, rel=1e-12)
    field, steep, shifted = mpmath_field(20), activation(X * sp.exp(-X)), activation("erf")
    shifted = shifted.transformed(input_shift=sp.Rational(1, 2))
    for found, expected in (
        (steep.mean(1, field), -math.exp(0.5)),
        (steep.mean_slope(1, field), 2 * math.exp(0.5)),
        (shifted.mean_slope(1, field), 2 / math.sqrt(3 * math.pi) * math.exp(-1 / 12)),
        (jax.grad(relu.c_map)(1.0), 1),
    ):
        assert float(found) == pytest.approx(expected)
    ball = steep.c_map.ball(0.0)  # E phi = -e^(1/2)
    assert float(ball.mid) == pytest.approx(1 / 5 / math.exp(1))
