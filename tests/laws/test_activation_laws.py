"""Laws that every registered activation obeys.

An entry without a source, an oracle row or a notebook page fails here.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy as sp
from thinning import mostly_slow

import kcalc as kc
from kcalc.activations import Activation, catalogue, names
from kcalc.fields import mpmath_field
from kcalc.fields.balls import ball_field

ROOT = Path(__file__).parents[2]
CLOSED = [name for name in names() if kc.activation(name).has_closed_form]
OPEN = sorted(set(names()) - set(CLOSED))
C = np.array([-1.0, -0.9, -0.4, 0.0, 0.3, 0.7, 0.99, 1.0])
Q_VALUES = (0.3, 1.0, 4.0)


def test_every_entry_says_what_it_is_and_where_it_comes_from():
    for entry in catalogue():
        assert len(entry.source) > 3, entry.name
        assert type(kc.activation(entry.name)).__doc__, entry.name
        assert entry.name == kc.activation(entry.name).name


def test_every_entry_is_on_the_notebook_page():
    cells = json.loads((ROOT / "notebooks" / "00_gallery_of_activations.ipynb").read_text())[
        "cells"
    ]
    page = "\n".join("".join(cell["source"]) for cell in cells)
    assert set(names()) <= set(re.findall(r'"(\w+)"', page))


def test_an_entry_needs_a_source():
    with pytest.raises(TypeError):
        kc.activations.register(Activation("nameless", sp.tanh(3 * kc.activations.X)))  # type: ignore[call-arg]
    assert "nameless" not in names()


@pytest.mark.parametrize("name", mostly_slow(names()))
def test_c_of_one_is_one_and_c_is_a_cosine(name):
    phi = kc.activation(name)
    for q in Q_VALUES:
        values = phi.c_map(C, q)
        assert values[-1] == pytest.approx(1, abs=2e-15)
        assert np.all(np.abs(values) <= 1 + 4e-15)
        mean, second = float(phi.mean(q)), float(phi.second_moment(q))
        assert phi.c_map(0.0, q) == pytest.approx(mean**2 / second, abs=1e-14)
    assert np.all(np.abs(phi.c_map(C, 0.3, 4.0)) <= 1 + 4e-15)


@pytest.mark.parametrize("name", names())
def test_c_rises_and_bends_upwards_on_the_right_half(name):
    phi = kc.activation(name)
    c = np.linspace(0, 1, 41)
    for q in Q_VALUES:
        value, slope = phi.c_map(c, q), phi.c_map.derivative(1)(c, q)
        assert (
            np.all(value >= -1e-15)
            and np.all(np.diff(value) >= -1e-15)
            and np.all(np.diff(slope[:-1]) >= -1e-12)
        )
        assert np.all(phi.c_map(-c, q) >= 2 * value[0] - value - 1e-14)


@pytest.mark.parametrize("name", names())
def test_derivatives_are_difference_quotients(name):
    maps = kc.activation(name).c_map
    c, h = np.array([-0.8, -0.2, 0.5, 0.9]), 1e-3
    for q1, q2 in ((1.0, None), (0.4, 2.0)):
        for n in (0, 1):
            f = maps if n == 0 else maps.derivative(n)
            steps = [f(c + k * h, q1, q2) for k in (-2, -1, 1, 2)]
            quotient = (steps[0] - 8 * steps[1] + 8 * steps[2] - steps[3]) / (12 * h)
            np.testing.assert_allclose(
                maps.derivative(n + 1)(c, q1, q2), quotient, rtol=3e-6, atol=3e-9
            )


@pytest.mark.parametrize("name", names())
def test_q_slope_is_a_difference_quotient_and_by_parts(name):
    phi, h = kc.activation(name), 1e-3
    for q in Q_VALUES:
        steps = [float(phi.second_moment(q * (1 + k * h))) for k in (-2, -1, 1, 2)]
        quotient = (steps[0] - 8 * steps[1] + 8 * steps[2] - steps[3]) / (12 * h * q)
        assert phi.q_map.derivative(1)(q) == pytest.approx(quotient, rel=1e-8, abs=1e-10)
        assert float(phi.q_slope(q)) == pytest.approx(quotient, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("name", names())
def test_hermite_weights_are_a_distribution(name):
    maps = kc.activation(name).c_map
    for q in Q_VALUES:
        weights = maps.series(12, q)
        assert np.all(weights >= 0) and maps.tail(12, q) >= 0
        assert weights.sum() + maps.tail(12, q) == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize("name", CLOSED)
def test_one_closed_form_in_four_number_systems(name):
    phi, c, q = kc.activation(name), sp.Symbol("c", real=True), sp.Symbol("q", positive=True)
    expr = phi.c_expr(c, q, 3 * q)
    assert len(sp.latex(phi.c_map.closed_form)) < 600
    for at, size in ((sp.Rational(2, 5), sp.Rational(1, 2)), (sp.Rational(-3, 4), sp.Integer(1))):
        with mpmath.workdps(40):
            truth = mpmath.mpf(str(sp.N(expr.subs({c: at, q: size}), 35)))
        precise = 1 - phi.taylor(1 - at, size, 3 * size, 0, mpmath_field(30))[0]
        assert abs(precise - truth) < 1e-26
        assert phi.c_map(float(at), float(size), 3 * float(size)) == pytest.approx(
            float(truth), abs=1e-14
        )
        ball = phi.c_map.ball(at, size, 3 * size, digits=30)
        assert ball.contains(truth) or abs(float(ball.mid - truth)) < 1e-30
        assert ball.radius < 1e-28


@pytest.mark.parametrize("name", mostly_slow(OPEN, 8))
def test_numbers_lie_where_the_certified_ones_do(name):
    phi = kc.activation(name)
    for c, q1, q2 in ((0.4, 0.5, 0.5), (-0.75, 1.0, 3.0)):
        ball = phi.c_map.ball(c, q1, q2, digits=18)
        assert ball.radius < 1e-16
        assert phi.c_map(c, q1, q2) == pytest.approx(float(ball), abs=1e-14)
    assert phi.q_map(2.0) == pytest.approx(float(phi.q_map.ball(2)), rel=1e-14)


@pytest.mark.parametrize("name", mostly_slow(names()))
def test_jax_arrays_in_jax_arrays_out(name):
    jnp = pytest.importorskip("jax.numpy")
    maps = kc.activation(name).c_map
    out = maps(jnp.asarray(C, dtype=jnp.float32))
    assert type(out).__module__.startswith("jax") and out.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(out), maps(C), atol=2e-6)
    assert isinstance(maps(C), np.ndarray)


@pytest.mark.parametrize("name", names())
def test_input_and_output_scales_and_q_are_one_thing(name):
    phi = kc.activation(name)
    scaled = phi.transformed(input_scale=2, output_scale=-3)
    np.testing.assert_allclose(scaled.c_map(C, 0.5, 0.25), phi.c_map(C, 2.0, 1.0), atol=3e-14)
    assert scaled.q_map(0.5) == pytest.approx(9 * phi.q_map(2.0), rel=1e-13)


@pytest.mark.parametrize("name", names())
def test_round_trips(name, tmp_path):
    phi = kc.activation(name)
    assert pickle.loads(pickle.dumps(phi)) == phi
    net = kc.chain(kc.layers.Affine(), kc.layers.Nonlinear(phi))
    kc.save_json(net, tmp_path / "net.json")
    assert kc.load_json(tmp_path / "net.json") == net


def test_certified_one_dimensional_numbers():
    """Q, mean and slopes of tanh at q = 1 with 40 digits, by the trapezoid rule in mpmath."""
    phi, field = kc.activation("tanh"), ball_field(40)
    with mpmath.workdps(60):
        step = mpmath.mpf(1) / 16
        nodes = [k * step for k in range(-320, 321)]
        weight = [step * mpmath.npdf(z) for z in nodes]
        second = mpmath.fsum(w * mpmath.tanh(z) ** 2 for w, z in zip(weight, nodes, strict=True))
        slope = mpmath.fsum(w * mpmath.sech(z) ** 2 for w, z in zip(weight, nodes, strict=True))
    assert (
        phi.q_map.ball(1, digits=40).contains(second)
        or abs(float(phi.q_map.ball(1, digits=40).mid - second)) < 1e-38
    )
    assert abs(float(phi.mean_slope(1, field)) - float(slope)) < 1e-15
    assert math.isclose(float(phi.mean(1, field)), 0, abs_tol=1e-30)
