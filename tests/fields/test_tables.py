"""Tables of C maps against mpmath, trapezoid sums and the functions they were made from."""

from __future__ import annotations

import json

import mpmath
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.fields.tables import Table, tabulate, tabulate_q
from kcalc.fields.tables.dyadic import OCTAVES, PARTS, ROWS, locate
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


def sign_exact(u):
    return 4 / PI.pi * PI.asin(PI.sqrt(PI.mpf(float(u)) / 2))


def rbf_exact(u):
    return -PI.expm1(-3 * PI.mpf(float(u)))


EXACT = {"sign": sign_exact, "rbf": rbf_exact, "relu": relu_exact}


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return {
        name: tabulate(f, name=name)
        for name, f in {"sign": sign_gap, "rbf": rbf_gap, "relu": relu_gap}.items()
    }


def exact_gap(c):
    """1 - c without rounding, as mpmath would have it."""
    return 1 - PI.mpf(float(c))


def test_every_distance_is_in_its_interval():
    w = np.concatenate(
        [2.0 ** -RANDOM.uniform(0, OCTAVES, 500), 2.0 ** -np.arange(0.0, OCTAVES + 1)]
    )
    row, t, octave = locate(w, np.zeros(w.size, bool))
    part = (row - 1) % PARTS
    assert np.array_equal(octave * (1 + (part + t + 0.5) / PARTS), w)
    assert np.all((t >= -0.5) & (t < 0.5)) and row.min() == 1 and row.max() == ROWS - 1
    assert np.array_equal(
        locate(np.array([0.0, -1e-16, 2.0**-97]), np.array([False, True, True]))[0], [0, ROWS, ROWS]
    )


@pytest.mark.parametrize("name", EXACT)
def test_values_are_within_the_bound_of_mpmath(tables, name):
    table = tables[name]
    truth = (
        np.array([float(1 - (4 / PI.pi * PI.asin(PI.sqrt(exact_gap(c) / 2)))) for c in COSINES])
        if name == "sign"
        else None
    )
    if truth is None:
        truth = np.array(
            [
                float(1 - EXACT[name](1 - c))
                if abs(c) > 0.5
                else float(1 - EXACT[name](exact_gap(c)))
                for c in COSINES
            ]
        )
    error = np.abs(table(COSINES) - truth)
    assert error.max() <= table.error_bound < 2e-14
    assert table(1.0) == 1.0


@pytest.mark.parametrize("name", EXACT)
def test_gaps_and_angles_keep_their_digits_however_small(tables, name):
    truth = np.array([float(EXACT[name](u)) for u in TINY_GAPS])
    table = tables[name]
    assert np.all(np.abs(table.gap(TINY_GAPS) - truth) <= table.relative_bound * truth)
    assert table.relative_bound < 2e-14
    theta = np.array([1e-8, 1e-5, 0.01, 1.0])
    angles = [
        float(2 * PI.asin(PI.sqrt(EXACT[name](2 * PI.sin(PI.mpf(t) / 2) ** 2) / 2))) for t in theta
    ]
    assert table.at_angle(theta) == pytest.approx(angles, rel=1e-14 if name != "relu" else 2e-14)


def test_smooth_maps_of_tanh_agree_with_a_trapezoid_sum():
    from kcalc.activations import activation

    step = np.arange(-90, 91) / 10
    x, y = np.meshgrid(step, step, indexing="ij")
    weight = np.exp(-(x**2 + y**2) / 2) / (2 * np.pi) / 100
    second = float((weight * np.tanh(x) ** 2).sum())
    phi = activation("tanh")
    table = tabulate(lambda gap: phi.taylor(gap, 1.0)[0], name="tanh")
    for gap in (1e-12, 1e-5, 0.3, 1.0, 1.7, 2.0):
        v = (1 - gap) * x + np.sqrt(gap * (2 - gap)) * y
        truth = float((weight * (np.tanh(x) - np.tanh(v)) ** 2).sum()) / (2 * second)
        assert table.gap(gap) == pytest.approx(truth, rel=1e-13 if gap > 1e-3 else 1e-8, abs=1e-15)
    assert table.error_bound < 3e-14


@pytest.mark.parametrize(
    ("name", "derivative"),
    [("relu", lambda c: 1 - np.arccos(c) / np.pi), ("rbf", lambda c: 3 * np.exp(-3 * (1 - c)))],
)
def test_slopes_and_their_limits_at_the_ends(tables, name, derivative):
    c = np.concatenate([RANDOM.uniform(-0.999, 0.999, 100), [1 - 1e-6, -1 + 1e-6]])
    assert tables[name].slope(c) == pytest.approx(derivative(c), abs=1e-8, rel=1e-10)
    assert tables[name].slope(np.array([1.0, -1.0])) == pytest.approx(
        derivative(np.array([1.0, -1.0])), abs=1e-8, rel=1e-10
    )


def test_an_infinite_slope_is_that_of_the_neighbouring_float(tables):
    neighbour = 2 / np.pi / np.sqrt(2.0**-53 * (2 - 2.0**-53))
    assert tables["sign"].slope(np.array([1.0, -1.0])) == pytest.approx(neighbour, rel=1e-9)
    assert tables["sign"].slope(np.nextafter(1.0, 0)) == pytest.approx(neighbour, rel=1e-9)


def test_unequal_q_values_leave_a_gap_at_one():
    offset = 0.01
    table = tabulate(lambda gap: offset + rbf_gap(gap) / 2)
    c = np.array([1.0, 1 - 1e-15, 1 - 1e-9, 0.3, -1.0])
    assert np.abs(table(c) - (1 - offset - rbf_gap(1 - c) / 2)).max() <= table.error_bound < 1e-14
    assert table.slope(1.0) == pytest.approx(1.5, rel=1e-9)


def test_a_gap_computed_as_a_difference_spoils_only_its_own_digits():
    table = tabulate(lambda gap: 1 - np.exp(-3.0 * gap))
    c = np.concatenate([COSINES, [1.0]])
    assert np.abs(table(c) - np.exp(-3.0 * (1 - c))).max() < 1e-14
    assert table.slope(np.array([1.0, 1 - 1e-12])) == pytest.approx(3.0, rel=1e-6)
    assert table.relative_bound > 1e-6


@pytest.mark.parametrize("noise", [1e-14, 1e-12, 1e-9])
def test_the_error_bound_covers_what_is_measured_elsewhere(noise):
    def rough(gap):
        return rbf_gap(gap) + noise * np.sin(1e5 * gap)

    table = tabulate(rough)
    assert noise / 4 < table.verify(3000, seed=3) <= table.error_bound < 100 * noise + 1e-14


def test_verify_finds_a_wrong_table(tables):
    wrong = Table(**{**vars(tables["rbf"]), "gap_function": lambda gap: rbf_gap(gap) + 1e-9})
    assert wrong.verify(100) == pytest.approx(1e-9, rel=1e-4)
    assert tables["rbf"].verify(4000, seed=5) <= tables["rbf"].error_bound


def test_nodes_and_values_are_those_of_the_function(tables):
    table = tables["sign"]
    assert np.array_equal(table.values, sign_gap(table.nodes)) and np.all(np.diff(table.nodes) > 0)
    assert {0.0, 2.0} <= set(table.nodes)


def test_bisection_serves_functions_that_are_less_smooth_than_c_maps():
    table = tabulate(lambda gap: 1 / (1 + 30 * (gap - 0.7) ** 2))
    assert table.nodes.size > 4200
    assert table.verify(4000, seed=1) <= table.error_bound < 1e-12


def test_shapes_and_precisions(tables):
    table = tables["rbf"]
    assert isinstance(table(0.5), np.float64) and table(0.5) == pytest.approx(
        np.exp(-1.5), abs=1e-15
    )
    assert table(1) == 1.0 and table([0.5, 1]).shape == (2,)
    assert table(np.zeros((2, 0))).shape == (2, 0) and table(np.zeros((2, 3)))[1, 2] == table(0.0)
    single = table(np.linspace(-1, 1, 5, dtype=np.float32))
    assert single.dtype == np.float32 and single == pytest.approx(
        np.exp(-3 * (1 - np.linspace(-1, 1, 5))), abs=1e-7
    )
    assert (
        table.gap(np.float32(0.5)).dtype
        == table.at_angle(np.float32(0.5)).dtype
        == table.slope(np.float32(0.5)).dtype
        == np.float32
    )


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


@pytest.mark.parametrize(
    ("name", "truth", "slope"),
    [
        (
            "erf",
            lambda q: 2 / np.pi * np.arcsin(2 * q / (1 + 2 * q)),
            lambda q: 4 / np.pi / (1 + 2 * q) / np.sqrt(1 + 4 * q),
        ),
        ("relu", lambda q: q / 2, lambda q: 0.5 + 0 * q),
        ("sin", lambda q: -np.expm1(-2 * q) / 2, lambda q: np.exp(-2 * q)),
    ],
)
def test_a_q_map_by_table_against_its_closed_form(name: str, truth, slope) -> None:
    table = kc.activation(name).q_map.table(1e-2, 20.0)
    q = np.exp(RANDOM.uniform(np.log(0.01), np.log(20.0), (50, 3)))
    assert table.error_bound <= 1e-13 and table(q).shape == q.shape
    np.testing.assert_allclose(table(q), truth(q), rtol=table.error_bound)
    assert (np.abs(table.slope(q) - slope(q)) <= 1e-11 * (np.abs(slope(q)) + truth(q) / q)).all()
    assert table.verify(200) <= table.error_bound and table(np.float32(0.5)).dtype == np.float32
    assert [float(table(end)) for end in (0.01, 20.0)] == pytest.approx(
        [truth(0.01), truth(20.0)], rel=1e-13
    )


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
