"""Slope polynomials: the papers' formulas, exactness, and agreement between the symbolic and the
numeric reading.
"""

import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.calculi.slopes import slope_polynomial
from kcalc.network.layers import (
    Affine,
    Concat,
    Input,
    Nonlinear,
)

psi = kc.symbols.psi
w = sp.Symbol("w")


def two_branches(mix, activation="relu"):
    return wired(
        ("x", Input()),
        ("a", Affine(), "x"),
        ("f", Nonlinear(activation), "a"),
        ("b", Affine(), "f"),
        ("m", mix, "x b"),
    )


# -- the papers' networks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weight", [w, sp.Rational(3, 5), 0.6, w / (1 + w**2), sp.sqrt(sp.Rational(1, 3))]
)
@pytest.mark.parametrize("by_activation", [False, True])
def test_expansion_agrees_with_sympys(weight, by_activation):
    block = kc.residual(
        kc.chain(Nonlinear("tanh"), Affine(), Nonlinear("relu"), Affine()), residual_weight=weight
    )
    net = kc.chain(Affine(), kc.repeat(block, 3), Nonlinear("tanh"))
    found = slope_polynomial(net, symbols_by_activation=by_activation, expand=True)
    factored = slope_polynomial(net, symbols_by_activation=by_activation)
    assert sp.simplify(sp.expand(factored) - found.as_expr()) == 0 or isinstance(weight, float)
    numbers = {
        symbol: sp.Rational(3 + i, 2 + i)
        for i, symbol in enumerate(sorted(factored.free_symbols, key=str))
    }
    assert float(found.as_expr().subs(numbers)) == pytest.approx(
        float(factored.subs(numbers)), rel=1e-13
    )
    assert found.total_degree() >= 7


# -- rules -----------------------------------------------------------------------------------------


def test_concat_mixes_by_channels():
    assert slope_polynomial(two_branches(Concat((1, 3)))) == sp.Rational(1, 4) + 3 * psi / 4
    assert slope_polynomial(two_branches(Concat())) == sp.Rational(1, 2) + psi / 2
    k = sp.Symbol("k", positive=True)
    assert sp.simplify(slope_polynomial(two_branches(Concat((k, 1)))) - (k + psi) / (k + 1)) == 0
    steps = [
        ("x", Input(2)),
        ("a", Affine(6), "x"),
        ("f", Nonlinear("relu"), "a"),
        ("m", Concat(), "x f"),
    ]
    assert slope_polynomial(wired(*steps)) == sp.Rational(1, 4) + 3 * psi / 4
    steps[1] = ("a", Affine(), "x")
    with refused(r"node 'm' \(Concat\)"):
        slope_polynomial(wired(*steps))
