"""Expressions as JSON trees: what cannot be written or read is refused in words, at the place where
it stands.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import sympy as sp
from refusals import refused

from kcalc.activations import X
from kcalc.interchange.expressions import TreeReader, to_tree

ROOT = {"op": "Pow", "args": [-1, {"rational": [1, 2]}]}
BAD: dict[str, tuple[Any, str]] = {
    "constant": ({"constant": "phi"}, "unknown constant 'phi'"),
    "infinite": (math.inf, "not a finite number"),
    "digits": ({"float": "1.5", "digits": 0}, "n <= 1000"),
    "no number": ({"float": "1e", "digits": 20}, "'1e' is not a number"),
    "words": ({"rational": ["a", "b"]}, "numerator, denominator"),
    "root": (ROOT, "must be finite|too large"),
    "no pair": ({"op": "Pow", "args": [2]}, "base and an exponent"),
    "flags": ({"symbol": "a", "is": ["complex"]}, "the flags of a symbol must be a list"),
    "both": ({"symbol": "a", "is": ["positive", "negative"]}, "cannot be positive and negative"),
    "arguments": ({"op": "sin", "args": [1, 2]}, "does not accept these 2 arguments"),
    "relation": (
        {"op": "Piecewise", "rows": [{"value": 1, "if": {"rel": "=", "args": [1, 2]}}]},
        "a condition must be",
    ),
    "no rows": ({"op": "Piecewise", "rows": []}, "rows with a value"),
    "many digits": ({"op": "Mul", "args": [10**40] * 40}, "too many digits"),
}


@pytest.mark.parametrize("name", BAD)
def test_trees_that_are_no_real_expressions_are_refused(name: str) -> None:
    tree, words = BAD[name]
    with refused(f"^here: .*({words})"):
        TreeReader().expression(tree, "here")


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        (True, "not a number"),
        (sp.gamma(X), "gamma.* cannot be written"),
        (sp.EulerGamma * X, "EulerGamma.* cannot be written"),
        (sp.Piecewise((1, sp.Ne(X, 0)), (0, True)), "condition.*cannot be written"),
        (sp.Function("f")(X), "is a callable"),
    ],
)
def test_expressions_without_a_tree_are_refused(expr: Any, words: str) -> None:
    with refused(words):
        to_tree(expr)


BELOW = sp.Piecewise((X, sp.Rational(1, 3) > X), (0, True))


@pytest.mark.parametrize(
    "expr", [2, 1.5, sp.Float("0.1", 40), sp.pi * X, sp.E * X, BELOW, sp.Integer(10) ** 30]
)
def test_expressions_come_back(expr: Any) -> None:
    assert TreeReader().expression(to_tree(expr), "here") == expr
