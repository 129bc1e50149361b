"""Activations made of Python, NumPy and JAX callables.

The same numbers as the expressions, and every refusal.
"""

from __future__ import annotations

import copy
import functools
import math
import pickle

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special
import sympy as sp

import kcalc as kc
from kcalc import KcalcError
from kcalc.activations import X, activation
from kcalc.fields import SYMPY, mpmath_field

C = sp.Symbol("c", real=True)
GAPS = np.array([1e-3, 0.3, 1.0, 1.7])
COUNT = [0]


@pytest.mark.parametrize("function", [np.tanh, jnp.tanh])
def test_derivatives_are_those_of_the_function(function):
    phi = activation(function)
    x = np.array([-9.0, -2.2, -1e-3, 0.0, 0.7, 1.0, 2.0, 5.5])
    for n, tolerance in ((1, 1e-12), (2, 1e-10), (3, 1e-8)):
        truth = [float(mpmath.diff(mpmath.tanh, value, n)) for value in x]
        np.testing.assert_allclose(phi.numeric(n)(x), truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("function", "expr", "kinks"),
    [
        (lambda x: x**2, X**2, ()),
        (lambda x: x**3 - x, X**3 - X, ()),
        (lambda x: np.minimum(0.1, x), sp.Min(sp.Float(0.1), X), (0.1,)),
        (lambda x: np.tanh(x**2), sp.tanh(X**2), ()),
        (lambda x: np.maximum(x, 0) ** 2, sp.Max(X, 0) ** 2, (0,)),
    ],
)
def test_functions_whose_derivatives_vanish_or_whose_values_do(function, expr, kinks):
    phi, known = activation(function, kinks=kinks), activation(expr)
    for q in (0.3, 4.0):
        got, truth = phi.taylor(GAPS, q, None, 2), known.taylor(GAPS, q, None, 2)
        for one, two, tolerance in zip(got, truth, (1e-12, 1e-10, 1e-7), strict=True):
            np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)


# --- refusals -------------------------------------------------------------------------------------


def noise(x):
    return x + np.random.default_rng().normal(size=np.shape(x))


def counting(x):
    COUNT[0] += 1
    return x + COUNT[0]


def fails_far_out(x):
    if np.any(x > 20):
        raise RuntimeError("boom")
    return np.tanh(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (scipy.special.softmax, "not elementwise"),
        (np.sort, "not elementwise"),
        (np.cumsum, "not elementwise"),
        (lambda x: x - x.mean(), "not elementwise"),
        (lambda x: np.roll(x, 1), "not elementwise"),
        (lambda x: x * x.size, "not elementwise"),
        (lambda x: x * np.arange(x.size), "not elementwise"),
        (jax.nn.softmax, "not elementwise"),
        (np.linalg.norm, "shape"),
        (lambda x: np.outer(x, x), "shape"),
        (lambda x: 1.0, "shape"),
        (noise, "deterministic"),
        (counting, "deterministic"),
        (lambda x: x + 0j, "complex"),
        (lambda x: x > 0, "Booleans"),
        (lambda x: None, "NoneType"),
        (lambda x: np.tanh(x.astype(np.float32)), "double precision"),
        (lambda x: jnp.tanh(x.astype(jnp.float32)), "double precision"),
        (lambda x: np.tanh(x.astype(np.float32)).astype(float), "double precision"),
        (np.sqrt, "no real value at x = -30"),
        (math.log, "math domain error.*x = -1.2"),
        (lambda x: 0 * x, "is zero everywhere"),
        (lambda x: 1 / 0, "ZeroDivisionError"),
        (fails_far_out, "fails_far_out.*boom.*x = 20.5"),
        (lambda x, y: x, "positional argument"),
        (lambda x: 1 / x, "infinite at x = 0"),
        (np.tan, "not smooth near x = 1.57"),
        (np.floor, "kinks="),
        (lambda x: np.maximum(x, 0), r"kinks=\[...\]"),
        (lambda x: np.maximum(x, 0) ** 2, r"kinks=\[...\]"),
        (lambda x: np.abs(x - 0.3), "x = 0.3; .*kinks="),
        (lambda x: np.abs(x - 4), "kinks="),
        (lambda x: x + np.maximum(x - 32, 0), "kinks="),
        (jax.nn.relu, "kinks="),
        (lambda x: np.exp(x**4), "grows too fast"),
        (np.add, "takes 2 arguments"),
        (dict, "is a class"),
        (sp.tanh, "expression such as tanh"),
    ],
)
def test_refusals(function, message):
    with pytest.raises(KcalcError, match=message):
        activation(function)


def test_torch_is_refused_with_a_hint():
    module = type(
        "GELU", (), {"__module__": "torch.nn.modules.activation", "__call__": lambda self, x: x}
    )()
    tensor = type("Tensor", (), {"__module__": "torch"})()
    for function in (module, functools.partial(module), lambda x: tensor):
        with pytest.raises(KcalcError, match="from_numpy"):
            activation(function)


@pytest.mark.parametrize(
    "kinks",
    [
        [math.nan],
        [math.inf],
        ["0"],
        "0",
        0,
        [sp.Symbol("y")],
        [1j],
        [0, 1e-12],
        [10**400],
        [True],
        [None],
    ],
)
def test_bad_kinks(kinks):
    with pytest.raises(KcalcError):
        activation(np.abs, kinks=kinks)


# --- the object -----------------------------------------------------------------------------------


def test_names_equality_and_printing():
    phi = activation(np.tanh, name="swoosh")
    assert (
        phi == activation(np.tanh)
        and hash(phi) == hash(activation(np.tanh))
        and phi.name == "swoosh"
    )
    assert (
        phi != activation("tanh")
        and phi != activation(np.sin)
        and activation(np.abs, kinks=[0]) != activation(np.abs, kinks=[0, 1])
    )
    first, second = activation(lambda x: np.tanh(x)), activation(lambda x: np.sin(x))
    assert (
        first != second
        and first.transformed(2) != second.transformed(2)
        and first.composed(phi) != second.composed(phi)
    )
    assert str(phi.expr) == "swoosh(x)" and phi.expr.free_symbols == {X} and phi.degree is None
    assert str(phi.derivative_expr(2)) == "Derivative(swoosh(x), (x, 2))"
    assert (
        "swoosh" in phi._repr_latex_()
        and repr(activation(np.abs, kinks=[0]))
        == "<activation absolute: a Python callable, kinks [0.0]>"
    )
    assert (
        first.name == "phi"
        and activation(functools.partial(np.clip, a_min=-1, a_max=1), kinks=[-1, 1]).name == "clip"
    )


def test_pickling_is_by_reference():
    phi = activation(np.tanh).transformed(2, 0.5)
    assert pickle.loads(pickle.dumps(phi)) == phi
    alone = activation(lambda x: np.tanh(x))
    assert copy.deepcopy(alone) == alone
    with pytest.raises(KcalcError, match="top level"):
        pickle.dumps(alone.transformed(2))


def test_what_is_numeric_only_says_so():
    phi = activation(np.tanh, name="mine")
    assert phi.second_moment(sp.Symbol("q"), SYMPY) == sp.Function("Q_mine")(sp.Symbol("q"))
    assert phi.taylor(1 - C, 1, None, 0, SYMPY)[0] == 1 - sp.Function("C_mine")(C)
    assert not phi.has_closed_form and phi.c_map.closed_form is None
    for refused in (
        lambda: phi.second_moment(1, mpmath_field(30)),
        lambda: phi.transformed(2).taylor(0.5, 1, None, 0, mpmath_field(30)),
    ):
        with pytest.raises(KcalcError, match="only numerically"):
            refused()
    with pytest.raises(KcalcError, match="order 3"):
        phi.numeric(4)


def test_files_hold_no_callables(tmp_path):
    mine = kc.architectures.vanilla(5, activation=activation(np.tanh))
    with pytest.raises(KcalcError, match="'tanh' is a callable"):
        kc.save_json(mine, tmp_path / "net.json")


@pytest.mark.parametrize(("function", "name"), [(np.tanh, "tanh"), (jax.nn.silu, "swish")])
def test_shaping_finds_the_same_constants(function, name):
    network = kc.architectures.vanilla(20)
    one, two = (
        kc.shape(network, activation=phi, method="dks", zeta=1.5)
        for phi in (activation(function), activation(name))
    )
    a, b = next(iter(one.constants.by_node.values())), next(iter(two.constants.by_node.values()))
    for constant in ("alpha", "beta", "gamma", "delta"):
        assert getattr(a, constant) == pytest.approx(getattr(b, constant), rel=1e-9)
    assert max(one.residuals.values()) < 1e-9
