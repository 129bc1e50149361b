"""Exact moments of sums of private weights, of activations of stacks and of activations in a row.

Refusals, and depth as a symbol.
"""

from __future__ import annotations

from typing import Any

import moments_oracle as oracle
import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

from kcalc import architectures
from kcalc.calculi.moments import moments, moments_at_depth
from kcalc.calculi.moments.moment import Moment
from kcalc.network.layers import (
    Affine,
    Concat,
    Input,
    Nonlinear,
    Pool,
    Scale,
    Sum,
)
from kcalc.network.network import Network

n = sp.Symbol("n", integer=True, positive=True)
alpha = sp.Symbol("alpha", positive=True)
X = ("x", Input(3))


def net(*steps: Any) -> Network:
    return wired(*steps, features=3)


def test_equal_sums_are_one_vector_and_stacks_of_sums_are_followed() -> None:
    """[W1 x, W2 x] + a [W3 x, W4 x], twice, added to a newer stack: read slot by slot."""
    heads = [(f"W{i}", Affine(3 if i % 2 else 2, sigma_w=0.8 + i / 10), "x") for i in range(1, 5)]
    network = net(
        *heads,
        ("one", Concat(), "W1 W2"),
        ("two", Concat(), "W3 W4"),
        ("sum", Sum((1, 0.5)), "one two"),
        ("same", Sum((1, 0.5)), "one two"),
        ("V1", Affine(3), "sum"),
        ("V2", Affine(2), "same"),
        ("three", Concat(), "V1 V2"),
        ("end", Sum((0.5, 0.5, -1)), "sum same three"),
        ("W", Affine(2)),
    )
    found = oracle.deviations(moments(network), network, 11)
    assert max(found.values()) < 4, max(found.items(), key=lambda item: item[1])


W, RELU = ("W", Affine(3), "x"), ("a", Nonlinear("relu"), "W")
PARTS = [(f"W{i}", Affine(k), "x") for i, k in enumerate((2, 3, 3, 2))]
STACKS = [("one", Concat(), "W0 W1"), ("two", Concat(), "W2 W3")]
REFUSED: dict[str, tuple[list[Any], str]] = {
    "the input after": ([W, ("j", Concat(), "W x"), ("r", RELU[1], "j")], "'r'.*network's"),
    "means": ([W, RELU, ("s", Sum(), "x a")], "'a'.*mean of the activation is not 0"),
    "a half line": ([W, RELU, ("m", Scale(-1), "a"), ("r", RELU[1], "m")], "maps to 0"),
    "a sign": (
        [W, ("m", Scale(sp.Symbol("a", real=True)), "W"), ("r", RELU[1], "m")],
        "unknown sign",
    ),
    "a difference": ([W, RELU, ("s", Sum((1, -1)), "a a")], "cancel"),
    "stacks": ([*PARTS, *STACKS, ("s", Sum(), "one two")], "differently aligned"),
    "smooth": ([W, ("r", Nonlinear("tanh"), "W")], "not for tanh"),
    "biases": ([("W", Affine(3, sigma_b=sp.Rational(1, 10)), "x")], "'W'.*sigma_b = 0"),
    "a kernel": ([("W", Affine(2, kernel=(1, 3)), "x")], "'W'.*convolution"),
    "a stride": ([("W", Affine(2, stride=2), "x")], "'W'.*convolution"),
    "groups": ([("W", Affine(3, groups=3), "x")], "'W'.*groups"),
    "standardised": ([("W", Affine(3, standardised=True), "x")], "standardised"),
    "pooling": ([W, ("p", Pool("mean"), "W")], "pooling"),
    "images": ([("W", Affine(3), "i"), ("i", Input(3, (4, 4)))][::-1], "image"),
    "two inputs": ([X, ("z", Input(3)), ("s", Sum(), "x z")], r"has 2 \(x, z\)"),
}


test_what_does_not_close_is_refused = refusals(REFUSED, lambda steps: moments(net(*steps)))
test_bad_options = refusals(
    [
        ({}, "features=N"),
        ({"features": sp.Symbol("n")}, "integer=True"),
        ({"features": 5, "weights": "gauss"}, "distribution of weights"),
        ({"features": 5, "weights": -2.1}, ">= -2"),
        ({"features": 5, "weights": {"nonlinear_1": 0}}, "no weights"),
        ({"features": 5, "input_fourth": 2}, "must lie in"),
    ],
    lambda options: moments(architectures.vanilla(2, sigma_w=sp.sqrt(2)), **options),
)


def test_single_taps_are_dense() -> None:
    with refused("ratio"):
        moments(architectures.densenet(3, growth=None), features=64)
    for layer in (Affine(2, kernel=(1, 1), stride=(1, 1)), Affine(2, kernel=1, stride=(1,))):
        assert moments(net(("W", layer, "x"))).out.mean == pytest.approx(2 / 3, rel=1e-14)


# -- laws, symbols, depth --------------------------------------------------------------------------


def test_symbols_are_filled_in_one_after_the_other() -> None:
    m = sp.Symbol("m", integer=True, positive=True)
    found = moments(
        wired(("x", Input(n)), ("W", Affine(m, sigma_w=alpha))),
        jacobian=True,
    )
    half = found.subs({"n": 5})
    assert sp.simplify(half.out.mean - m * alpha**2 / 5) == 0 and half.symbolic
    done = half.subs({m: 4, alpha: sp.Rational(1, 2)})
    assert done.out.mean == pytest.approx(0.2, rel=1e-15) and not done.symbolic
    assert done.out.fourth == pytest.approx(0.04 * (1 + 2 / 4), rel=1e-14)
    assert half.to_dict()["nodes"]["W"]["mean"] == str(half.out.mean) == half.out.text("mean")
    assert done.subs({}).out is done.out and done.out.subs({n: 3}) is done.out
    with refused("beta"):
        found.subs({"beta": 1})
    with refused("no symbols"):
        moments(net(("W", Affine(2), "x"))).subs({"n": 1})
    assert Moment.of_expressions(sp.Integer(0), sp.Integer(0)).relative == 0


def test_a_width_for_symbols_is_refused() -> None:
    open_ = wired(("W", Affine(sigma_w=alpha)))
    with refused("symbols"):
        moments(open_, features=4).width_for(0.1)
    plain = moments(wired(("W", Affine())), features=4)
    assert plain.width_for(0.1) == 20  # 2/n


def test_bad_blocks() -> None:
    for depth in (0, sp.Rational(3, 2), 2.5):
        with refused("depth"):
            moments_at_depth(net(W, RELU), depth)
    two = net(("W", Affine(3), "x"), ("V", Affine(3), "x"))
    with refused("2 outputs: W, V"):
        moments_at_depth(two)
    with refused("3 -> 4"):
        moments_at_depth(net(("W", Affine(4), "x")))
