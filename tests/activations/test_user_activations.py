"""What users may write as an expression.

Kinks of every kind, odd conditions and symbols, bad arguments; answers against mpmath.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy as sp
from refusals import refused

from kcalc.activations import activation, combine
from kcalc.activations.acceptance import read_kinks
from kcalc.activations.registry import register
from kcalc.foundation.errors import KcalcError

Y = sp.Symbol("y")


def test_sets_as_conditions():
    phi = activation(sp.Piecewise((1, sp.Contains(Y, sp.Interval(0, 2))), (0, True)))
    assert phi.kink_points == (0.0, 2.0)
    assert phi.mean(1) == pytest.approx(math.erf(2 / math.sqrt(2)) / 2, rel=1e-14)


@pytest.mark.parametrize(
    ("expr", "name"),
    [
        (sp.sign(Y) * Y, "abs"),
        (Y * sp.Heaviside(Y, 0), "relu"),
        (sp.Max(sp.Min(Y, 1), -1), "hard_tanh"),
        (sp.Heaviside(Y), "heaviside"),
        (sp.Heaviside(Y, 1), "heaviside"),
        (2 * sp.Heaviside(Y) - 1, "sign"),
        (sp.Lambda(Y, sp.tanh(Y)), "tanh"),
        (sp.Poly(Y**2, Y), "square"),
    ],
)
def test_equal_functions_are_the_registered_ones(expr, name):
    assert activation(expr) == activation(name)


# --- functions with infinitely many kinks ---------------------------------------------------------


def test_endless_kinks_are_found_where_inputs_reach():
    phi = activation(sp.Max(sp.sin(5 * Y), 0))
    inside = [n * math.pi / 5 for n in range(-203, 204)]
    assert [k for k in phi.kink_points if abs(k) < 128] == pytest.approx(inside, abs=1e-13)
    # max(s, 0)^2 = (s^2 + s|s|)/2 and s|s| is odd: E = E sin^2 / 2
    assert phi.second_moment(100.0) == pytest.approx(0.25 * (1 - math.exp(-5000)), rel=1e-13)
    assert phi.second_moment(0.01) == pytest.approx((1 - math.exp(-0.5)) / 4, rel=1e-13)
    x = np.array([-900.3, 1.0, 500.2])
    np.testing.assert_allclose(phi(x), np.maximum(np.sin(5 * x), 0), rtol=1e-12)
    dense = np.linspace(-128, 128, 40_001)
    np.testing.assert_allclose(phi(dense), np.maximum(np.sin(5 * dense), 0), rtol=1e-10, atol=1e-13)
    with refused("infinitely many kinks"):
        phi.q_map.ball(1)
    for beyond in (
        lambda: phi.second_moment(150.0),
        lambda: phi.transformed(2).second_moment(50.0),
    ):
        with refused("128"):
            beyond()


@pytest.mark.parametrize(
    "expr", [sp.Max(sp.sin(30 * Y), 0), sp.Abs(sp.sin(Y**2)), sp.Abs(sp.cos(1000 * Y))]
)
def test_too_many_kinks_are_refused(expr):
    with refused("at most 500"):
        activation(expr)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (sp.Symbol("p", positive=True), "declared positive"),
        (sp.tanh(sp.Symbol("n", integer=True)), "declared integer"),
        (sp.Symbol("i", imaginary=True) ** 2, "declared imaginary"),
        (sp.Symbol("A", commutative=False) ** 2, "not commutative"),
        (sp.MatrixSymbol("M", 2, 2)[0, 0], "plain symbol"),
        (Y * sp.Symbol("z"), "one symbol"),
        (sp.Lambda((Y, X2 := sp.Symbol("z")), Y * X2), "takes 2"),
        (10**400, "double precision"),
        (sp.Integer(10) ** 400 * Y, "double precision"),
        (sp.zoo * Y, "infinity"),
        (float("nan"), "nan"),
        (2 + 3j, "complex"),
        (True, "Boolean"),
        (sp.I, "no real value anywhere"),
        (sp.sqrt(-(Y**2) - 1), "no real value anywhere"),
        (sp.Piecewise((Y, Y < 0)), r"not defined at x = 1.0.*\(value, True\)"),
        (sp.Piecewise((Y, Y < 0), (Y**2, Y > 1)), "not defined"),
        (sp.Piecewise((1, sp.Eq(Y, 3))), "not defined|no real value"),
        (sp.Integral(sp.exp(-(sp.Symbol("t") ** 2)), (sp.Symbol("t"), 0, Y)), "doit"),
        (sp.Mod(Y, 1), "jumps"),
        (sp.Float(0), "zero"),
        (sp.exp(sp.exp(Y)), "grows too fast"),
        (sp.asin(sp.sin(Y)), "varies too fast|not smooth"),
        (sp.sqrt(Y**2 - 4 * Y + 4), "varies too fast|not smooth"),
        (sp.sin(10**7 * Y), "varies too fast"),
        (sp.acos(sp.tanh(Y)), r"fewer than five digits of its value at x = 14\.37"),
        (sp.asin(sp.tanh(Y)), r"fewer than five digits of its slope at x = 14\.37"),
        (sp.zeta(Y), "numerically"),
        (Y > 0, "cannot make"),
        (sp.Matrix([Y]), "cannot make"),
        (None, "cannot make"),
        (np.array([1.0, 2.0]), "cannot make"),
        ("__import__('os').getcwd()", "unknown activation"),
    ],
)
def test_expressions_refused(spec, message):
    with refused(message):
        activation(spec)


@pytest.mark.parametrize(
    "kinks",
    [[math.nan], [math.inf], ["0"], "0", 0, [Y], [1j], [0, 1e-12], [10**400], [sp.zoo], [None]],
)
def test_bad_kinks(kinks):
    with pytest.raises(KcalcError):
        activation(sp.Abs(Y), kinks=kinks)


TANH, SIGN = activation("tanh"), activation("sign")


@pytest.mark.parametrize(
    "call",
    [
        lambda: TANH.derivative_expr(-1),
        lambda: TANH.derivative_expr(1.5),
        lambda: SIGN.jumps(-1),
        lambda: SIGN.jump_sizes("1"),
        lambda: TANH.numeric(-1),
        lambda: TANH.numeric(None),
        lambda: TANH.numeric([]),
        lambda: TANH.taylor(0.5, order=-1),
        lambda: TANH.taylor(0.5, order=1.0),
        lambda: TANH.taylor([[0.1], [0.2, 0.3]]),
        lambda: TANH.taylor([0.1, 0.2], [1, 2, 3]),
        lambda: TANH.second_moment([[1, 2], [3]]),
        lambda: TANH.mean({}),
        lambda: TANH.mean(10**400),
        lambda: TANH([[1], [1, 2]]),
        lambda: TANH(1j),
        lambda: TANH("1"),
        lambda: TANH.composed("relu"),
        lambda: SIGN.composed(activation("relu")),
        lambda: TANH.transformed(10**400),
        lambda: TANH.transformed("2"),
        lambda: combine([1]),
        lambda: combine(None),
        lambda: combine([(1, "relu", 1)]),
        lambda: combine([(1, TANH, 0)]),
    ],
)
def test_bad_arguments_of_methods(call):
    with pytest.raises(KcalcError):
        call()


def test_a_declared_growth_bound_lets_integrals_be_certified():
    x = sp.Symbol("x", real=True)
    wild = sp.exp(x - sp.sqrt(1 + x**2))
    with refused("growth"):
        activation(wild).q_map.ball(1)
    bounded = activation(wild, growth=(1, 0, 0))
    assert float(bounded.q_map.ball(1, digits=16)) == pytest.approx(
        float(bounded.q_map(1.0)), rel=1e-12
    )
    for bad in ((1, 0), (1, 0, -1), (0, 0, 1), "abc", (1e-3, 0, 0), (1, 0, float("nan"))):
        with refused("growth"):
            activation(wild, growth=bad)


def test_a_kink_written_in_two_ways_is_one():
    two = [sp.sqrt(3 + 2 * sp.sqrt(2)), 1 + sp.sqrt(2)]
    assert two[0] != two[1] and len(read_kinks(two)) == 1


def test_functions_of_torch_are_named_by_what_they_say():
    def relu(x):
        raise TypeError("relu(): argument 'input' must be Tensor, not numpy.ndarray")

    with refused("function.*NumPy"):
        activation(relu)


def test_functions_of_one_number_in_jax():
    import jax.numpy as jnp

    def single(x):
        if jnp.ndim(x):
            raise TypeError("one number")
        return jnp.tanh(x)

    def branching(x):
        return jnp.tanh(x) if single(x) > 0 else 0.5 * jnp.tanh(x)

    smooth, kinked = activation(single), activation(branching, kinks=[0])
    x = np.array([-2.0, -0.1, 0.4, 3.0])
    assert smooth.numeric(0)(x) == pytest.approx(np.tanh(x), abs=1e-15)
    assert smooth.numeric(1)(x) == pytest.approx(1 - np.tanh(x) ** 2, abs=1e-12)
    assert kinked.numeric(0)(x) == pytest.approx(np.where(x > 0, 1, 0.5) * np.tanh(x), abs=1e-15)
    assert kinked.second_moment(1.3) == pytest.approx(
        0.625 * activation("tanh").second_moment(1.3), rel=1e-13
    )


def test_names_of_the_catalogue_are_taken():
    with refused("activation.*'relu'"):
        register(activation(sp.tanh(Y) + 2 * Y, name="mine"), "relu", source="nobody")
    with refused("unknown activation 'mine'"):
        activation("mine")


def test_callables_with_a_pole_between_the_probes_are_refused():
    with refused(r"is infinite at x = |varies too fast|not smooth near"):
        activation(lambda x: np.where(np.abs(x - 1.7) < 0.01, np.inf, np.tanh(x)))
