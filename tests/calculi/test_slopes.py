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
    BatchNorm,
    Concat,
    Input,
    Nonlinear,
    Opaque,
    Sum,
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


@pytest.mark.parametrize("depth", [50, 101, 152])
@pytest.mark.parametrize(
    "weight", [w, sp.Symbol("w", positive=True), sp.Rational(3, 5), sp.sqrt(sp.Rational(1, 20))]
)
def test_resnet_v2_is_eq_20_in_structure(depth, weight):
    square = weight**2
    expected = (
        (square * psi**3 + 1 - square) ** sp.Rational(depth - 14, 3)
        * (square * psi**2 + 1 - square) ** 4
        * psi**5
    )
    assert slope_polynomial(kc.architectures.resnet_v2(depth, residual_weight=weight)) == expected


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


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        (None, (sp.Rational(1, 2), sp.Rational(1, 2))),
        ((1, 2), (sp.Rational(1, 5), sp.Rational(4, 5))),
        ((w, sp.sqrt(1 - w**2)), (w**2, 1 - w**2)),
        ((sp.cos(w), sp.sin(w)), (sp.cos(w) ** 2, sp.sin(w) ** 2)),
        ((sp.sqrt(2) / 2, -sp.sqrt(2) / 2), (sp.Rational(1, 2), sp.Rational(1, 2))),
        ((w, w), (sp.Rational(1, 2), sp.Rational(1, 2))),
        ((w, 1), (w**2 / (w**2 + 1), 1 / (w**2 + 1))),
        ((0, 3), (0, 1)),
        (
            (1 + sp.sqrt(2), 1),
            ((3 + 2 * sp.sqrt(2)) / (4 + 2 * sp.sqrt(2)), 1 / (4 + 2 * sp.sqrt(2))),
        ),
    ],
)
def test_sums_mix_by_normalised_squares(weights, shares):
    found = slope_polynomial(two_branches(Sum(weights)))
    assert sp.simplify(found - (shares[0] + shares[1] * psi)) == 0
    assert sp.simplify(found.subs(psi, 1)) == 1


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


@pytest.mark.parametrize(
    "layer", [BatchNorm(), Opaque("gate", "not understood")], ids=lambda layer: type(layer).__name__
)
def test_layers_without_a_rule_name_the_node(layer):
    steps = [("x", Input()), ("f", Nonlinear("relu"), "x")]
    steps.append(("odd", layer, "f"))
    with pytest.raises(kc.NoRule, match="node 'odd': slope polynomials have no rule for"):
        slope_polynomial(wired(*steps))


def test_true_q_values_weigh_what_is_mixed():
    net = two_branches(Sum())
    q = {"x": 1, "a": 1, "f": 3, "b": 3, "m": 4}
    assert slope_polynomial(net, q) == sp.Rational(1, 4) + 3 * psi / 4
    assert float(
        slope_polynomial(two_branches(Sum(), kc.activation("relu")), q=2.0).coeff(psi)
    ) == pytest.approx(1 / 3, rel=1e-13)
    with refused("has no value in q"):
        slope_polynomial(net, {"x": 1})
    for wrong in ({**q, "b": -1}, -1.0):
        with pytest.raises(kc.KcalcError):
            slope_polynomial(net, wrong)
