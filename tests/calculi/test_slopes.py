"""Slope polynomials: the papers' formulas, exactness, and agreement between the symbolic and the
numeric reading.
"""

import pytest
import sympy as sp

from kcalc import chain, repeat, residual
from kcalc.calculi.slopes import slope_polynomial
from kcalc.network.layers import (
    Affine,
    Nonlinear,
)

w = sp.Symbol("w")


@pytest.mark.parametrize("weight", [w, 0.6, w / (1 + w**2), sp.sqrt(sp.Rational(1, 3))])
@pytest.mark.parametrize("by_activation", [False, True])
def test_expansion_agrees_with_sympys(weight, by_activation):
    block = residual(
        chain(Nonlinear("tanh"), Affine(), Nonlinear("relu"), Affine()), residual_weight=weight
    )
    net = chain(Affine(), repeat(block, 3), Nonlinear("tanh"))
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
