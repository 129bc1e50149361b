"""Tables of C maps against mpmath, trapezoid sums and the functions they were made from."""

from __future__ import annotations

import json

import mpmath
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.fields.tables import Table, tabulate, tabulate_q
from kcalc.foundation.errors import KcalcError

RANDOM = np.random.default_rng(7)
NEAR = np.concatenate([1 - 10.0 ** -np.arange(1, 16), -1 + 10.0 ** -np.arange(1, 16)])
COSINES = np.concatenate(
    [RANDOM.uniform(-1, 1, 200), NEAR, [1.0, -1.0, 0.0, -0.0, 0.5, -0.5, 1e-300]]
)
TINY_GAPS = 10.0 ** -np.arange(0.0, 60.0, 1.7)
PI = mpmath.mp.clone()
PI.dps = 40


def angle(gap):
    return 2 * np.arctan2(np.sqrt(gap), np.sqrt(2 - gap))


def sign_gap(gap):
    return 2 / np.pi * angle(gap)


def rbf_gap(gap):
    return -np.expm1(-3.0 * gap)


def relu_gap(gap):
    """Via mpmath: an independent and accurate 1 - C of relu."""
    return np.array([float(relu_exact(u)) for u in gap])


def relu_exact(u):
    u = PI.mpf(float(u))
    t = 2 * PI.asin(PI.sqrt(u / 2))
    return u - (PI.sin(t) - t * (1 - u)) / PI.pi


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return {
        name: tabulate(f, name=name)
        for name, f in {"sign": sign_gap, "rbf": rbf_gap, "relu": relu_gap}.items()
    }


def test_nodes_and_values_are_those_of_the_function(tables):
    table = tables["sign"]
    assert np.array_equal(table.values, sign_gap(table.nodes)) and np.all(np.diff(table.nodes) > 0)
    assert {0.0, 2.0} <= set(table.nodes)


def test_bisection_serves_functions_that_are_less_smooth_than_c_maps():
    table = tabulate(lambda gap: 1 / (1 + 30 * (gap - 0.7) ** 2))
    assert table.nodes.size > 4200
    assert table.verify(4000, seed=1) <= table.error_bound < 1e-12


def test_long_arrays_are_evaluated_like_short_ones(tables):
    c = RANDOM.uniform(-1, 1, 80_001)
    assert np.array_equal(tables["sign"](c)[::1000], tables["sign"](c[::1000]))
    assert np.array_equal(tables["sign"].gap(1 + c)[-3:], tables["sign"].gap(1 + c[-3:]))
    assert np.array_equal(tables["sign"](c.reshape(3, -1).T), tables["sign"](c).reshape(3, -1).T)


@pytest.mark.parametrize("bad", [1.1, -1.00001, np.nan, np.inf, "c", 1j, [0.5, np.nan], None])
def test_what_is_no_cosine_is_refused(tables, bad):
    with pytest.raises(KcalcError):
        tables["rbf"](bad)
    with pytest.raises(KcalcError):
        tables["rbf"].slope(bad)


def test_rounding_beyond_one_is_clipped(tables):
    assert tables["sign"](1 + 1e-13) == 1.0 and tables["sign"](-1 - 1e-13) == -1.0
    assert tables["sign"].gap(-1e-13) == 0.0 and tables["sign"].at_angle(np.pi) == pytest.approx(
        np.pi, rel=1e-15
    )
    for wrong in (-0.1, 2.1, np.nan):
        with pytest.raises(KcalcError):
            tables["sign"].gap(wrong)
    with pytest.raises(KcalcError):
        tables["sign"].at_angle(3.5)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda gap: np.full(gap.shape, np.nan), "not finite"),
        (lambda gap: 1.0, "shape"),
        (lambda gap: gap + 1j, "real"),
        (lambda gap: np.abs(gap - 0.3), "too rough"),
    ],
)
def test_functions_that_cannot_be_tabulated_are_named(function, message):
    with refused(message) as caught:
        tabulate(function, name="odd one")
    assert "odd one" in str(caught.value)


def test_a_table_shows_itself(tables):
    assert repr(tables["sign"]).startswith("Table(sign, ") and "\n" not in repr(tables["sign"])
    assert json.loads(json.dumps(tables["sign"].to_dict()))["table"] == "sign"
    with pytest.raises(KcalcError):
        tabulate(sign_gap, tolerance=0)


# --- JAX ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sign", "relu"])
def test_jax_arrays_give_the_same_values(tables, name):
    import jax
    import jax.numpy as jnp

    table = tables[name]
    with jax.enable_x64(True):
        double = jnp.asarray(COSINES)
    single = jnp.asarray(COSINES, dtype=jnp.float32)
    assert (
        table(double).dtype == jnp.float64
        and np.abs(np.asarray(table(double)) - table(COSINES)).max() < 1e-15
    )
    assert table(single).dtype == jnp.float32
    assert np.abs(np.asarray(table(single)) - table(np.asarray(single, dtype=float))).max() < 4e-7
    gaps = jnp.asarray(TINY_GAPS[:18], dtype=jnp.float32)
    assert np.asarray(table.gap(gaps)) == pytest.approx(
        table.gap(np.asarray(gaps, dtype=float)), rel=1e-6
    )
    assert not jax.config.read("jax_enable_x64")


def test_jit_vmap_and_grad(tables):
    import jax
    import jax.numpy as jnp

    table = tables["relu"]
    c = jnp.asarray([1.0, -1.0, 0.3, 0.999, -0.999])
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(table)))(c)
    exact = np.asarray(c, dtype=float)
    assert value == pytest.approx(1 - relu_gap(1 - exact), abs=3e-7)
    assert slope == pytest.approx(1 - np.arccos(exact) / np.pi, abs=1e-6)
    assert np.asarray(table.slope(c)) == pytest.approx(np.asarray(slope), abs=1e-7)
    assert np.all(np.isfinite(jax.jit(jax.vmap(jax.grad(tables["sign"])))(c)))
    turned = jax.jit(jax.vmap(jax.grad(tables["rbf"].at_angle)))(jnp.asarray([0.0, 1e-15, 1e-3]))
    assert turned == pytest.approx(np.sqrt(3.0), rel=1e-5)


def test_jax_says_nan_where_numpy_raises_and_refuses_second_derivatives(tables):
    import jax
    import jax.numpy as jnp

    table = tables["rbf"]
    assert np.array_equal(
        np.isnan(table(jnp.asarray([1.5, np.nan, -1.0, -1.1]))), [True, True, False, True]
    )
    with refused("only a first derivative"):
        jax.grad(jax.grad(table))(0.5 * jnp.ones(()))
    with refused("int32"):
        table(jnp.arange(2, dtype=jnp.int32))
    assert table(jnp.asarray(0.5, dtype=jnp.bfloat16)).dtype == jnp.bfloat16


def test_refusals_of_q_tables() -> None:
    q_map = kc.activation("tanh").q_map
    with refused(r"30.*table's.*\[0.01.*20\]"):
        q_map.table(0.01, 20)(30)
    with refused("high.*2.*1"):
        q_map.table(2, 1)
    with refused("tolerance"):
        q_map.table(tolerance=0)
    with refused("Q.*half.*0.0"):
        tabulate_q(lambda q: np.where(q > 1, q, 0.0), 0.1, 10, name="half")
    with refused("too rough"):
        tabulate_q(lambda q: np.where(q > 1.1, 2 * q, q), 0.1, 10)
