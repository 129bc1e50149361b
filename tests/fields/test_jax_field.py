"""JAX as a number system: accuracy against mpmath, gradients at c = +-1, and activations as JAX
functions.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.activations import Activation, X
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


def test_what_is_no_cosine_is_refused():
    with refused(r"a cosine and must be in \[-1, 1\]"):
        kc.c_map(kc.architectures.vanilla(1, "relu"))(jnp.asarray(1.5))


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
        with refused("must be > 0"):
            phi.taylor(gap, -1.0, None, 0, F)
        with refused("must be > 0"):
            phi.second_moment(jnp.asarray([1.0, 0.0]), F)
        assert np.array_equal(
            np.isnan(phi.taylor(jnp.asarray([-0.1, 2.1, np.nan, 2.0]), 1.0, None, 0, F)[0]),
            [True, True, True, False],
        )


# --- activations as JAX functions -----------------------------------------------------------------


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
