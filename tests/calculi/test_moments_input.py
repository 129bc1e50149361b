"""The size of the input in exact moments: |x|^2 = 1 or a mean square, against drawn networks."""

from __future__ import annotations

from typing import Any

import sympy as sp
from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, Concat, Input, Nonlinear, Sum

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


def test_the_fourth_moment_of_the_input_may_be_a_symbol() -> None:
    """Signs as weights: E y_i^4 = 3 |x|^4 - 2 sum x_i^4 in units of E y_i^2, over 4 channels."""
    f = sp.Symbol("f", positive=True)
    found = kc.moments(kc.chain(Input(4), Affine(4)), weights=-2, input_fourth=f)
    assert sp.simplify(found.nodes["affine_1"].fourth - (3 - 2 * f + 3) / 4) == 0


def test_sums_and_concatenations_that_repeat_a_vector() -> None:
    """a + b - b is a, and two concatenations of a and b are one vector."""
    twice = ("s", Sum((1, 1, -1)), "a b b"), ("d", Concat(), "s b")
    steps = ("a", Affine(4)), ("b", Affine(4), "x"), ("c", Concat(), "a b"), *twice
    parts = ("p", Affine(5), "c"), ("r", Affine(5), "d"), ("t", Sum(), "p r")
    found = kc.moments(wired(*steps, *parts, ("o", Affine(2)), features=3)).nodes
    assert found["s"] == found["a"] and found["d"] == found["c"]
