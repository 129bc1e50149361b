"""Factored polynomials against SymPy's, and how mixes weigh.

Shares by squares, channels and q values, and what is assumed of them.
"""

from __future__ import annotations

from typing import Any

import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import chain
from kcalc.calculi.convex import convex_shares
from kcalc.calculi.factored import ONE, Factors
from kcalc.calculi.slopes import Slopes, slope_polynomial, slope_texts
from kcalc.calculi.subnetworks import maximal_slope
from kcalc.network.layers import (
    Affine,
    Input,
    Nonlinear,
    Product,
    Sum,
)

psi = kc.symbols.psi
R = sp.Rational


def canonical(expr: sp.Expr) -> bool:
    """Whether SymPy, asked to build the expression again, builds the same."""
    return not expr.args or (all(map(canonical, expr.args)) and expr.func(*expr.args) == expr)


def nested(depth: int) -> Any:
    factors = Factors()
    one = factors.symbol(psi)
    made = one
    for k in range(depth):
        made = factors.mix([R(1, k + 3), R(k + 2, k + 3)], [factors.product(made, one), ONE])
    return factors.expr(made)


def test_expressions_of_common_sizes_are_in_sympys_own_form() -> None:
    for depth in range(1, 5):
        found = nested(depth)
        assert canonical(found), depth
        assert found.subs(psi, 1) == 1
    at = R(1)
    for k in range(6):
        at = (at if k else R(2)) * 2 / (k + 3) + R(k + 2, k + 3)
    assert nested(6).subs(psi, 2).doit() == at
    factors = Factors()
    powers = [factors.product(*[factors.symbol(psi)] * k) for k in range(70)]
    for count in (64, 70):
        weights = [R(k + 1, count * (count + 1) // 2) for k in range(count)]
        found = factors.expr(factors.mix(weights, powers[:count]))
        assert count > 64 or canonical(found)
        assert sp.Poly(found, psi).all_coeffs()[::-1] == weights
        level = factors.expr(factors.mix([R(1, count)] * count, powers[:count]))
        assert sp.Poly(level, psi).all_coeffs() == [R(1, count)] * count


# -- shares ----------------------------------------------------------------------------------------


def test_shares_of_other_amounts_are_simple() -> None:
    one, two = convex_shares((1 + sp.sqrt(2), sp.Integer(1)))
    assert one == sp.sqrt(2) / 2 and sp.expand(two) == 1 - sp.sqrt(2) / 2
    assert sp.fraction(two)[1] == 2
    for zeros in ((0.0, 0.0), (sp.Integer(0), sp.Integer(0))):
        with refused("0.*polynomial"):
            convex_shares(zeros)
    net = wired(("a", Affine()), ("s", Sum((1e-200, 1e-200)), "x a"))
    with refused("weights are all 0"):
        slope_polynomial(net)


# -- what is assumed -------------------------------------------------------------------------------


def of(*steps: Any) -> kc.Network:
    return wired(("x", Input(4)), ("a", Affine(4)), *steps)


def test_what_mixes_weigh_by_is_said() -> None:
    net = of(("f", Nonlinear("relu"), "a"), ("b", Affine(4), "f"), ("s", Sum((1, 2)), "x b"))
    nodes = dict.fromkeys(net, 2.0)
    told = {
        "by squared weights": None,
        "by the q values that were passed": nodes,
        "by the q values of the kernel calculus": 1.0,
    }
    for text, q in told.items():
        texts = [a.text for a in maximal_slope(net, q).assumptions]
        assert [f"are weighted {text}" in t for t in texts if "are weighted" in t] == [True]
        assert not any("Product" in t for t in texts)
    product = of(("b", Affine(4), "x"), ("p", Product(), "a b"))
    assert sum("factors of a Product" in a.text for a in maximal_slope(product).assumptions) == 1
    assert slope_polynomial(net, dict.fromkeys(net, 2)) == R(1, 5) + 4 * psi / 5
    assert slope_polynomial(net, {**dict.fromkeys(net, 2), "b": 1}) == R(1, 3) + 2 * psi / 3
    symbol = sp.Symbol("q", positive=True)
    same = slope_polynomial(net, dict.fromkeys(net, symbol))
    assert sp.simplify(same - (R(1, 5) + 4 * psi / 5)) == 0
    for wrong in (0, -1.0):
        with refused(r"q\['b'\].*0"):
            slope_polynomial(net, {**nodes, "b": wrong})
    with refused("'nobody'"):
        slope_polynomial(net, {**nodes, "nobody": 1.0})
    with refused("'s'.*mixes.*'b'"):
        slope_polynomial(net, {"x": 1.0})


def test_activations_of_one_name_are_numbered() -> None:
    x = sp.Symbol("x")
    kinds = [kc.activation(sp.tanh(k * x), name="half") for k in (1, 2, 3)]
    net = chain(*(Nonlinear(kinds[k]) for k in (0, 1, 0, 2, 1)))
    first, second, third = (kc.symbols.slope_of(name) for name in ("half", "half_2", "half_3"))
    assert slope_polynomial(net, symbols_by_activation=True) == first**2 * second**2 * third
    assert [str(s) for s in Slopes(net, None, True).symbols.values()] == []
    assert slope_texts(net) == {net.outputs[0]: "psi**5"}
