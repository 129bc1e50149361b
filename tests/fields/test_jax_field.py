"""JAX as a number system: accuracy against mpmath, gradients at c = +-1, and activations as JAX
functions.
"""

from __future__ import annotations

import subprocess
import sys

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from thinning import mostly_slow

import kcalc as kc
from kcalc.activations import Activation, X, names
from kcalc.activations.jax_function import jax_function
from kcalc.fields.jax_field import is_jax, jax_field
from kcalc.fields.jets import Jet, JetField
from kcalc.foundation.errors import KcalcError

jax = pytest.importorskip("jax")
jnp = jax.numpy
F = jax_field()
MP = mpmath.mp.clone()
MP.dps = 50


def array(values, dtype: type = np.float64):
    with jax.enable_x64(dtype == np.float64):
        return jnp.asarray(np.asarray(values, dtype=dtype))


def gradients(function, x):
    with jax.enable_x64(x.dtype == np.float64):
        return np.asarray(jax.jit(jax.vmap(jax.grad(function)))(x))


def angle(u):
    return 2 * MP.asin(MP.sqrt(MP.mpf(float(u)) / 2))


# --- the field ------------------------------------------------------------------------------------


def test_asking_whether_a_value_is_jax_does_not_import_it():
    code = "import sys, kcalc.fields.tables; from kcalc.fields.jax_field import is_jax; "
    code += "assert not is_jax(1.0); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert is_jax(jnp.ones(2)) and not is_jax(np.ones(2)) and not is_jax(1.0)
    assert jax.jit(lambda x: x * is_jax(x))(1.0) == 1.0


def test_gradients_of_angle_functions_are_finite_at_the_ends():
    gaps = array([0.0, 1e-12, 0.3, 1.9, 2.0])
    assert gradients(F.sine_excess, gaps) == pytest.approx(
        [float(angle(u)) for u in np.asarray(gaps)], rel=1e-14
    )
    inner = np.asarray(gaps)[1:4]
    assert gradients(F.angle, gaps)[1:4] == pytest.approx(
        1 / np.sqrt(inner * (2 - inner)), rel=1e-12
    )
    assert np.all(np.isfinite(gradients(F.angle, gaps))) and np.all(
        np.isfinite(gradients(F.sine, gaps))
    )


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("erf", 0.7),
        ("erfc", 4.0),
        ("expm1", 1e-9),
        ("asin", 0.3),
        ("acos", 0.3),
        ("atan", 2.0),
        ("tanh", 1.0),
    ],
)
def test_elementary_functions(name, at):
    truth = float(getattr(MP, name)(MP.mpf(at)))
    assert F.__getattribute__(name)(at) == pytest.approx(truth, rel=1e-15)
    with jax.enable_x64(True):
        assert float(F.__getattribute__(name)(jnp.asarray(at))) == pytest.approx(truth, rel=1e-14)


def test_numbers():
    single = jnp.ones(3, dtype=jnp.float32)
    assert F.number(single) is single
    assert isinstance(F.number(sp.Rational(1, 3)), float) and F.number(sp.Rational(1, 3)) == 1 / 3
    assert F.number(jnp.arange(3)).dtype == jnp.float32 and is_jax(F.number([1, 2]))
    assert (single * F.sqrt(F.number(2))).dtype == jnp.float32
    assert jax.jit(lambda x: F.number(x) + 1)(2.0) == 3.0
    for bad in (np.nan, "x", 1j, None, jnp.asarray(1j), jnp.asarray(True), sp.Symbol("q")):
        with pytest.raises(KcalcError):
            F.number(bad)


def test_jets_over_jax():
    gap = array(0.4)
    with jax.enable_x64(True):
        series = JetField(F).sine_excess(Jet.variable(gap, 2))
    t = float(angle(0.4))
    assert [float(a) for a in series.coefficients] == pytest.approx(
        [np.sin(t) - t * np.cos(t), t, 0.5 / np.sin(t)], rel=1e-14
    )


# --- C maps ---------------------------------------------------------------------------------------

PLACES = np.array([0.0, 1e-9, 0.01, 0.4, 1.0, 1.7, 2 - 1e-6, 2.0])


@pytest.mark.parametrize("name", mostly_slow(names(), 6))
def test_values_and_gradients_agree_with_numpy(name):
    phi = kc.activation(name)
    value, slope = phi.taylor(PLACES, 0.7, 1.6, 1)
    gaps = array(PLACES)
    found, derivative = phi.taylor(gaps, 0.7, 1.6, 1, F)
    assert found.dtype == np.float64 and np.asarray(found) == pytest.approx(
        value, abs=2e-14, rel=1e-13
    )
    finite = np.isfinite(slope)
    assert np.asarray(derivative)[finite] == pytest.approx(slope[finite], rel=1e-9, abs=2e-6)
    single = array(PLACES, np.float32)
    out, rate = jax.jit(jax.vmap(jax.value_and_grad(lambda u: phi.taylor(u, 0.7, 1.6, 0, F)[0])))(
        single
    )
    exact = phi.taylor(np.asarray(single, dtype=float), 0.7, 1.6, 1)
    assert out.dtype == np.float32 and np.asarray(out) == pytest.approx(
        exact[0], abs=1e-6, rel=2e-6
    )
    assert np.all(np.isfinite(rate)) and np.asarray(rate)[2:6] == pytest.approx(
        exact[1][2:6], rel=1e-5, abs=1e-5
    )
    assert not jax.config.read("jax_enable_x64")


def test_gradients_at_the_ends_are_the_derivatives():
    ends = array([0.0, 2.0])
    for name, truth in {
        "relu": (1, 0),
        "abs": (1, -1),
        "exp": (np.exp(0) * 1, np.exp(-2)),
        "square": (4 / 3, -4 / 3),
    }.items():
        phi = kc.activation(name)
        assert gradients(lambda u, phi=phi: phi.taylor(u, 1, None, 0, F)[0], ends) == pytest.approx(
            truth, rel=1e-14, abs=1e-15
        )
    phi = kc.activation("erf")
    slope = 4 / np.pi / np.sqrt(5) / (2 / np.pi * np.arcsin(2 / 3))
    assert gradients(lambda u: phi.taylor(u, 1, None, 0, F)[0], ends) == pytest.approx(
        [slope, slope], rel=1e-13
    )
    phi = kc.activation("sign")
    assert gradients(lambda u: phi.taylor(u, 1, None, 0, F)[0], ends)[0] == pytest.approx(
        2 / np.pi / np.sqrt(2 * 2.2e-16), rel=0.01
    )
    assert np.isinf(np.asarray(phi.taylor(ends, 1, None, 1, F)[1])).all()


def test_gradients_in_q():
    q = array([0.5, 1.5])
    phi = kc.activation("rbf")  # C = exp(c sqrt(q1 q2) - (q1 + q2)/2)
    with jax.enable_x64(True):
        slope = jax.grad(lambda q: phi.taylor(jnp.asarray(0.3), q[0], q[1], 0, F)[0])(q)
    k = 0.7 * np.sqrt(0.75)
    cosine = np.exp(k - 1)
    assert np.asarray(slope) == pytest.approx(
        [-cosine * (k / 1.0 - 0.5), -cosine * (k / 3.0 - 0.5)], rel=1e-13
    )
    assert gradients(lambda q: kc.activation("relu").second_moment(q, F), q) == pytest.approx(
        [0.5, 0.5], rel=1e-15
    )
    assert gradients(lambda q: kc.activation("exp").mean(q, F), q) == pytest.approx(
        np.exp(np.asarray(q) / 2) / 2, rel=1e-14
    )


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh", "elu"])
def test_moments(name):
    phi = kc.activation(name)
    for what in ("mean", "second_moment", "mean_slope"):
        exact = getattr(phi, what)(np.array([0.5, 3.0]))
        found = getattr(phi, what)(array([0.5, 3.0]), F)
        assert found.dtype == np.float64 and np.asarray(found) == pytest.approx(
            exact, rel=1e-14, abs=1e-15
        )
        assert getattr(phi, what)(jnp.float32(0.5), F).dtype == jnp.float32
        assert getattr(phi, what)(0.5, F) == pytest.approx(exact[0], rel=1e-14, abs=1e-15)


def test_what_jax_cannot_do_is_said():
    tanh, gap = kc.activation("tanh"), jnp.asarray(0.3)
    with refused("q1.*concrete"):
        jax.jit(lambda q: tanh.taylor(gap, q, None, 0, F)[0])(1.0)
    with refused("concrete.*number"):
        jax.grad(lambda q: tanh.second_moment(q, F))(1.0)
    with refused("q1.*q2"):
        tanh.taylor(gap, [1.0, 2.0], None, 0, F)
    with refused("NumPy for order 2"):
        tanh.taylor(gap, 1.0, None, 2, F)
    for phi in (tanh, kc.activation("relu")):
        with refused("positive"):
            phi.taylor(gap, -1.0, None, 0, F)
        with refused("positive"):
            phi.second_moment(jnp.asarray([1.0, 0.0]), F)
        assert np.array_equal(
            np.isnan(phi.taylor(jnp.asarray([-0.1, 2.1, np.nan, 2.0]), 1.0, None, 0, F)[0]),
            [True, True, True, False],
        )


def test_broadcasting_in_closed_form():
    gap, q = jnp.asarray([[0.1], [0.2], [2.0]]), jnp.asarray([1.0, 2.0])
    found = kc.activation("erf").taylor(gap, q, 3.0, 1, F)
    exact = kc.activation("erf").taylor(
        np.asarray(gap, dtype=float), np.asarray(q, dtype=float), 3.0, 1
    )
    assert all(
        a.shape == (3, 2) and np.asarray(a) == pytest.approx(b, abs=1e-6)
        for a, b in zip(found, exact, strict=True)
    )


# --- activations as JAX functions -----------------------------------------------------------------


def test_cosines_keep_the_precision_of_their_arguments():
    c = np.array([1.0, 1 - 1e-12, 0.3, -1.0, 1.5])
    for phi, truth in (
        (kc.activation("sign"), 2 / np.pi * np.arcsin(np.clip(c, -1, 1))),
        (kc.activation("tanh"), None),
    ):
        found = phi.c_map(array(c), 1.3)
        exact = 1 - phi.taylor(1 - c[:4], 1.3)[0] if truth is None else truth[:4]
        assert (
            found.dtype == np.float64
            and np.asarray(found)[:4] == pytest.approx(exact, abs=1e-14)
            and np.isnan(found[4])
        )
        assert phi.c_map(jnp.float32(0.3), 1.3) == pytest.approx(exact[2], abs=3e-7)


def test_higher_derivatives_and_gradients_of_gradients():
    phi = kc.activation("gelu_tanh")
    x = array([-30.0, -1.0, 0.5, 30.0, 1e3])
    assert gradients(jax.grad(jax_function(phi)), x) == pytest.approx(
        phi.numeric(2)(np.asarray(x)), rel=1e-12, abs=1e-14
    )
    assert np.asarray(jax_function(phi, 3)(x)) == pytest.approx(
        phi.numeric(3)(np.asarray(x)), rel=1e-12, abs=1e-13
    )


def test_functions_of_callables_and_their_limits():
    phi = kc.activation(lambda x: x * jax.nn.sigmoid(x), name="my swish")
    swish = kc.activation("swish")
    x = array([-4.0, 0.3, 2.0])
    for n in (0, 1, 2):
        assert np.asarray(jax_function(phi, n)(x)) == pytest.approx(
            np.asarray(jax_function(swish, n)(x)), rel=1e-13
        )
    with refused("jax.numpy"):
        jax_function(kc.activation(np.tanh, name="np.tanh"))
    with refused("must be an integer >= "):
        jax_function(swish, -1)
    with refused("real numbers"):
        jax_function(swish)(jnp.asarray(1j))
    assert jax_function(swish)(jnp.arange(2)).dtype == jnp.float32
    with refused("no JAX form"):
        jax_function(Activation("odd", sp.Si(X)))(jnp.ones(1))
