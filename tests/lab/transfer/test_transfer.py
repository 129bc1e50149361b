"""Exponents of width and depth against published tables, the mup package, and exact symmetries."""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

L = kc.layers
n, HALF = sp.Symbol("n", positive=True), sp.Rational(1, 2)


def perceptron() -> kc.Network:
    relu = L.Nonlinear("relu")
    return kc.chain(L.Input(16), L.Affine(), relu, L.Affine(), relu, L.Affine(10))


def residual_network(features: int | None = None, blocks: int = 2) -> kc.Network:
    branch = kc.chain(
        L.LayerNorm(), L.Affine(features), L.Nonlinear("relu"), L.Affine(features, bias=False)
    )
    block = kc.residual(branch)
    return kc.chain(L.Input(8), L.Affine(features), kc.repeat(block, blocks), L.Affine(10))


def biased_network(features: int, blocks: int) -> kc.Network:
    block = kc.residual(kc.chain(L.Nonlinear("relu"), L.Affine(features)))
    return kc.chain(L.Input(8), L.Affine(features), kc.repeat(block, blocks), L.Affine(10))


# -- published tables ------------------------------------------------------------------------------


def test_parametrisations_that_say_too_little_are_refused() -> None:
    for given, words in (
        ({"hiden": (0, HALF)}, "hidden"),
        ({"hidden": (0, HALF, 1)}, r"\(a, b\)"),
        ({"hidden": 0}, "hidden"),
        ({"hidden": (0, "x")}, "hidden"),
        ([(0, HALF)], "role"),
    ):
        with refused(words):
            kc.abc_exponents(perceptron(), given)  # type: ignore[arg-type]
    with refused("Network"):
        kc.abc_exponents(3, {})  # type: ignore[arg-type]


# -- gauges ----------------------------------------------------------------------------------------


def test_branches_end_with_weights_that_take_the_factor() -> None:
    """In gauge "none" the last weights of a branch are those of "mup" times L^-1."""
    plain = kc.transfer(residual_network(), gauge="none")
    other = kc.transfer(residual_network(), gauge="mup")
    assert not plain.edits
    last = plain["affine_3.weight"]
    assert last.exponent("init_std", "depth") == last.exponent("learning_rate", "depth") == -1
    assert other["affine_3.weight"].exponent("init_std", "depth") == 0


# -- folds -----------------------------------------------------------------------------------------


def test_weights_on_the_stream_have_no_exponent_of_depth() -> None:
    block = kc.chain(kc.residual(kc.chain(L.LayerNorm(), L.Affine())), L.Affine())
    net = kc.chain(L.Input(8), L.Affine(), kc.repeat(block, 3), L.Affine(2))
    with refused("residual.*branches"):
        kc.transfer(net)
    assert kc.transfer(net, axes="width").parameters


# -- results ---------------------------------------------------------------------------------------


# -- refusals --------------------------------------------------------------------------------------


vanilla = kc.architectures.vanilla
REFUSED = {
    "sgd, adamw, adafactor, lion, muon, muon-match-rms": lambda: kc.transfer(
        perceptron(), optimizer="rmsprop"
    ),
    "no residual branches": lambda: kc.transfer(perceptron(), axes="depth"),
    "leaves its width open": lambda: kc.transfer(vanilla(2, features=8)),
    "depth has no exponents": lambda: kc.transfer(residual_network(), alignment="none"),
    "nothing grows": lambda: kc.transfer(residual_network(16), base=residual_network(16)),
    "has a different width": lambda: kc.transfer(
        residual_network(16), base=residual_network(8), axes="depth"
    ),
    "has bias False, but": lambda: kc.transfer(residual_network(16), base=vanilla(1, features=8)),
    "has no counterpart": lambda: kc.transfer(
        kc.chain(L.Input(), L.Embedding(8, 9), L.Affine(3)), base=vanilla(1, features=8)
    ),
    "output 'affine_3' grows with the width": lambda: kc.transfer(
        vanilla(2, features=16), base=vanilla(2, features=8)
    ),
    "different places on residual": lambda: kc.transfer(
        biased_network(16, 2), base=biased_network(8, 1)
    ),
    "ZeroDivisionError": lambda: kc.transfer(lambda width: 1 / 0, base=1, to=2),
    "returned None for base=1": lambda: kc.transfer(lambda width: None, base=1, to=2),
    "a function that builds a model": lambda: kc.transfer(3, base=1, to=2),
}


@pytest.mark.parametrize(("words", "make"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_has_no_exponents_is_refused(words: str, make: Any) -> None:
    with refused(words):
        make()
