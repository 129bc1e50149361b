"""The size of the input in exact moments: |x|^2 = 1 or a mean square, against drawn networks."""

from __future__ import annotations

from typing import Any

import sympy as sp

import kcalc as kc
from kcalc.network.layers import Affine, Input, Nonlinear

n = sp.Symbol("n", integer=True, positive=True)
q = kc.symbols.q


def chain(width: Any, depth: int) -> kc.Network:
    return kc.chain(Input(width), *[Affine(width, sigma_w=sp.sqrt(2)), Nonlinear("relu")] * depth)


def block(width: Any) -> kc.Network:
    return chain(width, 1)


def test_blocks_of_symbolic_depth() -> None:
    powers = kc.moments_at_depth(block(n), q=q)
    assert sp.simplify(powers.out.mean - q * n) == 0
    assert sp.simplify(powers.relative - ((1 + 5 / n) ** powers.depth - 1)) == 0
    for shown in (repr(powers), str(powers), powers.assumptions[-1].text):
        assert "|x|^2 = n*q, q = q" in shown
    assert powers.to_dict()["input"] == {"square": "n*q", "q": "q"}
    assert r"E|y|^2 = |x|^2\\" in powers._repr_latex_()  # the factor 1 is left out
