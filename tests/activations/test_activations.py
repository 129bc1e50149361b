"""The catalogue against frozen truth, laws every activation must obey, and what users may and may
not call an activation.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from thinning import mostly_slow

from kcalc.activations import X, activation, aliases, celu, combine, leaky_relu, names
from kcalc.fields import NUMPY, SYMPY, mpmath_field
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.expectations.single import hermite

RECORDS = json.loads((Path(__file__).parents[1] / "oracles" / "activations.json").read_text())[
    "records"
]
Y = sp.Symbol("y")
REAL = sp.Symbol("a", real=True)
FAR = np.array([-1e3, -400.0, -36.0, -1.0, -1e-3, 0.0, 1e-3, 0.3, 36.0, 400.0, 1e3])


def test_every_registered_activation_has_frozen_truth_and_is_documented():
    assert set(RECORDS) == set(names())
    assert all(type(activation(name)).__doc__ for name in names())


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


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_c_maps_and_two_derivatives_at_every_q(name):
    check_c_map(name, RECORDS[name]["gammas"])


@pytest.mark.parametrize("name", names())
def test_the_gap_keeps_its_digits_at_small_angles(name):
    for row in RECORDS[name]["gaps"]:
        gap = float(2 * mpmath.sin(mpmath.mpf(row["theta"]) / 2) ** 2)
        assert activation(name).taylor(gap, row["q"])[0] == pytest.approx(
            float(row["gap"]), rel=1e-12
        ), row


def test_selu_and_softplus_of_softplus():
    assert activation("selu").taylor(0.0, 1, None, 1)[1] == pytest.approx(1.071575, abs=5e-7)
    softplus = activation("softplus")
    assert softplus.composed(softplus).second_moment(1) == pytest.approx(1.5926, abs=1e-4)
    mu = activation("relu").mean(1)
    assert 0.5 / (0.5 - mu**2) == pytest.approx(1.46694, abs=5e-6)


# --- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_c_maps_are_c_maps(name):
    phi = activation(name)
    gap = np.linspace(0, 2, 101)
    out = phi.taylor(gap)[0]
    assert out[0] == 0
    assert np.all((out >= -1e-15) & (out <= 2 + 1e-15))
    upper = out[gap <= 1]
    assert np.all(np.diff(upper) >= 0) and np.all(np.diff(upper, 2) <= 1e-15)


@pytest.mark.parametrize("name", names())
def test_hermite_weights_are_a_distribution(name):
    phi = activation(name)
    series = hermite(phi, 1.0)
    total = series.mean**2 + float(series.coefficients @ series.coefficients)
    q = phi.second_moment(1)
    assert total <= q * (1 + 1e-14)
    assert total + series.tail == pytest.approx(q, rel=1e-13)


@pytest.mark.parametrize("name", names())
def test_derivatives_are_those_of_the_function(name):
    phi = activation(name)
    x = np.array([-7.3, -2.2, -0.7, 0.4, 1.3, 6.4])
    for n in range(3):
        low, high = (phi.numeric(n)(x + step) for step in (-1e-5, 1e-5))
        np.testing.assert_allclose(phi.numeric(n + 1)(x), (high - low) / 2e-5, rtol=1e-6, atol=1e-6)
        expr = sp.lambdify(X, phi.derivative_expr(n), "mpmath")
        np.testing.assert_allclose(
            phi.numeric(n)(x),
            [float(expr(mpmath.mpf(value))) for value in x],
            rtol=1e-12,
            atol=1e-14,
        )


@pytest.mark.parametrize("name", sorted(set(names()) - {"exp"}))
def test_no_overflow_far_out(name):
    phi = activation(name)
    for n in range(4):
        assert np.isfinite(phi.numeric(n)(FAR)).all()
    truth = [float(sp.N(phi.expr.subs(X, sp.Float(value, 60)), 30)) for value in FAR if value]
    np.testing.assert_allclose(phi(FAR[FAR != 0]), truth, rtol=1e-13, atol=5e-14)


@pytest.mark.parametrize("name", [name for name in names() if activation(name).degree is not None])
def test_degree_of_homogeneity(name):
    phi = activation(name)
    np.testing.assert_allclose(phi(3 * FAR), 3.0**phi.degree * phi(FAR), rtol=1e-14)


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


def test_unknown_closed_forms_print_as_functions():
    tanh, c = activation("tanh"), sp.Symbol("c", real=True)
    assert SYMPY.cosine(tanh.taylor(1 - c, 1, 1, 0, SYMPY)[0]) == sp.Function("C_tanh")(c)
    assert tanh.second_moment(2, SYMPY) == sp.Function("Q_tanh")(2)
    assert not tanh.has_closed_form and activation("erf").has_closed_form


# --- new activations from old ---------------------------------------------------------------------


def test_transformations_compute_what_they_say_and_merge():
    tanh, x = activation("tanh"), np.linspace(-3, 3, 7)
    one = tanh.transformed(0.5, 0.25, 2, -0.125)
    np.testing.assert_allclose(one(x), 2 * (np.tanh(0.5 * x + 0.25) - 0.125), rtol=1e-15)
    np.testing.assert_allclose(
        one.numeric(2)(x), 2 * 0.25 * tanh.numeric(2)(0.5 * x + 0.25), rtol=1e-15
    )
    two = one.transformed(3, 1, 0.5, 1)
    assert two.base == tanh
    np.testing.assert_allclose(two(x), 0.5 * (one(3 * x + 1) + 1), rtol=1e-14)
    assert tanh.transformed() is tanh and tanh.transformed(2).transformed(sp.Rational(1, 2)) == tanh
    for bad in (
        {"input_scale": 0},
        {"output_scale": 0},
        {"input_shift": float("nan")},
        {"output_shift": Y},
    ):
        with pytest.raises(KcalcError):
            tanh.transformed(**bad)


@pytest.mark.parametrize("constants", [(2, 0, 3, 0), (0.5, 0, 1, 0.25), (-1.5, 0, 2, -0.5)])
def test_transformed_closed_forms(constants):
    phi = activation("gelu").transformed(*constants)
    assert phi.has_closed_form
    for q in (sp.Rational(1, 2), sp.Integer(3)):
        assert float(phi.second_moment(q, SYMPY)) == pytest.approx(
            phi.second_moment(float(q)), rel=1e-13
        )
        assert float(phi.mean_slope(q, SYMPY)) == pytest.approx(phi.mean_slope(float(q)), rel=1e-13)
        assert float(phi.taylor(sp.Rational(2, 5), q, 2, 0, SYMPY)[0]) == pytest.approx(
            phi.taylor(0.4, float(q), 2)[0], abs=1e-14
        )


def test_kinks_and_jumps_follow():
    shaped = activation("relu").transformed(-2, 1, 3, 0)
    assert shaped.kink_points == (0.5,)
    assert shaped.jumps(1) == ((sp.Rational(1, 2), 6),)
    inner = activation("softplus")
    composed = activation("hard_tanh").composed(inner)
    assert composed.kink_points == pytest.approx((math.log(math.e - 1),), rel=1e-14)
    relu = activation("relu")
    total = combine([(2, relu, 1), (-1, relu, sp.Rational(-1, 2))])
    np.testing.assert_allclose(total(np.array([-2.0, 3.0])), [-1.0, 6.0])
    assert total.jumps(1) == ((0, sp.Rational(3, 2)),)


def test_celu_of_other_alpha_is_elu_on_another_scale():
    """celu(2)(x) = 2 elu(x/2), so that the frozen rows of elu at q are those of celu(2) at 4 q."""
    assert (
        activation("celu")(-1.5) == pytest.approx(math.expm1(-1.5), rel=1e-15)
        and activation("celu").name == "celu"
    )
    moments = {row["q"]: float(row["second_moment"]) for row in RECORDS["elu"]["moments"]}
    for row in [
        row
        for row in RECORDS["elu"]["gammas"]
        if row["q1"] != row["q2"] and max(row["q1"], row["q2"]) <= 10
    ]:
        gamma, slope = (
            float(value) / math.sqrt(moments[row["q1"]] * moments[row["q2"]])
            for value in row["values"][:2]
        )
        got = celu(2).taylor(1 - row["c"], 4 * row["q1"], 4 * row["q2"], 1)
        assert got[0] == pytest.approx(1 - gamma, abs=1e-13) and got[1] == pytest.approx(
            slope, rel=1e-12
        )


def test_composed_derivatives_match_the_expression():
    composed = activation("tanh").composed(activation("swish"))
    x = np.linspace(-4, 4, 9)
    for n in range(4):
        expr = sp.lambdify(X, composed.derivative_expr(n), "numpy")
        np.testing.assert_allclose(composed.numeric(n)(x), expr(x), rtol=1e-10, atol=1e-13)


# --- what a user may call an activation -----------------------------------------------------------


def test_names_aliases_and_case():
    assert activation("SiLU") == activation("swish") and activation("Linear") == activation(
        "identity"
    )
    assert set(aliases().values()) <= set(names())
    with refused("tanh"):
        activation("tahn")
    assert activation("tanh", name="mine").name == "mine"


@pytest.mark.parametrize(
    "spelling",
    [
        sp.Piecewise((sp.exp(Y) - 1, Y < 0), (Y, True)),
        sp.Piecewise((Y, Y > 0), (sp.exp(Y) - 1, True)),
    ],
)
def test_of_two_names_of_one_function_the_usual_one_is_found(spelling):
    assert activation(spelling).name == "elu"


@pytest.mark.parametrize(
    ("expr", "kinks"),
    [
        (sp.Max(Y, 0), (0,)),
        (sp.Abs(Y - 1) + sp.sin(Y), (1,)),
        (sp.Min(sp.Max(Y, -1), 1), (-1, 1)),
        (sp.Piecewise((sp.exp(Y) - 1, Y < 0), (Y, True)), (0,)),
        (sp.Heaviside(Y - sp.Rational(1, 3)), (sp.Rational(1, 3),)),
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


def test_known_expressions_bring_their_closed_forms():
    assert activation(sp.erf(Y)).has_closed_form
    assert activation(sp.Max(Y, 0)) == activation("relu") == leaky_relu(0)
    assert hash(activation(Y**2)) == hash(activation("square"))
    assert activation(Y**4 - Y).has_closed_form


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (X * Y, "symbols for constants"),
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


def test_growth_is_refused_where_the_moment_diverges():
    phi = activation(sp.exp(Y**2 / 8))
    assert phi.second_moment(1) == pytest.approx(math.sqrt(2), rel=1e-13)
    with refused("diverges"):
        phi.second_moment(2.5)


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


def test_broadcasting_and_scalars():
    phi = activation("tanh")
    out = phi.taylor(np.array([[0.1], [0.5]]), np.array([1.0, 2.0, 3.0]), 2.0, 1)
    assert out[0].shape == (2, 3)
    assert out[0][1, 2] == pytest.approx(phi.taylor(0.5, 3.0, 2.0, 1, NUMPY)[0], rel=1e-15)
    assert phi.second_moment(np.array([1.0, 2.0])).shape == (2,)
    assert isinstance(phi(0.5), float)
