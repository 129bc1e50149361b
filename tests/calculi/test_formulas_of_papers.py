"""Formulas in the form of papers: w^2 c + (1 - w^2) C, and Theta = K + sigma_w^2 K' Theta."""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp

import kcalc as kc

L = kc.layers
w, sigma_w, sigma_b = sp.symbols("w sigma_w sigma_b", positive=True)
c = kc.symbols.c
RELU = kc.activation("relu").transformed(output_scale=sp.sqrt(2))


def block(activation: Any, shortcut: Any = w, sigma: Any = 1) -> kc.Network:
    branch = kc.chain(L.Nonlinear(activation), L.Affine(sigma_w=sigma))
    return kc.chain(L.Input(), L.Affine(), kc.residual(branch, shortcut_weight=shortcut))


def named(net: kc.Network, kernel: bool = False) -> dict[str, sp.Expr]:
    found = (kc.ntk(net) if kernel else kc.c_map(net)).expr
    return {str(symbol): value for symbol, value in found.definitions} | {"": found.result}


def applied(name: str, *arguments: Any) -> Any:
    return sp.Function(name)(*arguments)


def test_residual_blocks_mix_cosines() -> None:
    C = applied("C_relu", c)
    assert named(block(RELU))["c_1"] == w**2 * c + (1 - w**2) * C
    unscaled = named(block("relu"))
    top, below = sp.fraction(unscaled["c_1"])
    assert sp.Add.make_args(top)[0] == w**2 * c and len(sp.Add.make_args(top)) == 2
    assert sp.expand(top - w**2 * c - (1 - w**2) / 2 * C) == 0
    assert str(below) == "q_1" and "q_1" in unscaled
    tanh = named(block("tanh", sigma=sigma_w))
    top, _ = sp.fraction(tanh["c_1"])
    Q, C = applied("Q_tanh", 1), applied("C_tanh", c, 1)
    assert top == w**2 * c + sigma_w**2 * (1 - w**2) * Q * C


def test_tangents_are_their_own_cosine_and_slope_times_tangent() -> None:
    found = named(kc.architectures.vanilla(3, "tanh", sigma_w=sigma_w), kernel=True)
    q1, c1, c2, t1, q3, t3 = sp.symbols("q_1 c_1 c_2 t_1 q_3 t_3")
    plain = {
        name: value.xreplace({s: sp.Symbol(s.name) for s in value.free_symbols})
        for name, value in found.items()
    }
    assert plain["t_2"] == c2 + t1 * applied("DC_tanh", c1, q1)
    assert plain[""] == q3 * t3


def test_a_bias_belongs_to_the_kernel_of_its_layer() -> None:
    net = kc.architectures.vanilla(2, "tanh", sigma_w=sigma_w)
    net = net.map_layers(lambda _, layer: L.Affine(sigma_w=sigma_w, sigma_b=sigma_b), L.Affine)
    found = named(net, kernel=True)
    tangent = next(value for name, value in reversed(found.items()) if name.startswith("t_"))
    own, rest = sp.Add.make_args(tangent)
    assert {str(own)[:2], str(rest)[:2]} & {"c_"} and tangent.count(sp.Integer(1)) <= 2


@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_the_rewritten_formulas_have_the_values_of_the_kernel(activation: str) -> None:
    net = kc.architectures.vanilla(3, activation).map_layers(
        lambda _, layer: L.Affine(sigma_w=sp.Rational(13, 10), sigma_b=sp.Rational(1, 5)), L.Affine
    )
    kernel = kc.ntk(net)
    for cosine in (-0.6, 0.0, 0.8):
        found = float(kernel.expr.evaluate({c: sp.Rational(str(cosine))}))
        assert found == pytest.approx(float(kernel(cosine)), rel=1e-12)
    both = kc.chain(block(RELU, sp.Rational(3, 5)), L.Nonlinear(RELU), L.Affine())
    assert float(kc.ntk(both).expr.evaluate({c: 0.25})) == pytest.approx(kc.ntk(both)(0.25), 1e-12)


def test_q_values_of_normalised_sums_cancel() -> None:
    assert kc.q_map(block(RELU)).closed_form == kc.symbols.q


def test_cosines_divide_by_named_q_values() -> None:
    layers = [L.Nonlinear("erf"), L.Affine(sigma_w=sigma_w, sigma_b=sigma_b)]
    found = named(kc.chain(L.Affine(sigma_w=sigma_w, sigma_b=sigma_b), *layers), kernel=True)
    assert str(sp.fraction(found["c_2"])[1]) == "q_2"
    assert "q_2" in map(str, found["t_2"].free_symbols)
