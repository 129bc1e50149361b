"""Exponents of width and depth against published tables, the mup package, and exact symmetries."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import sympy as sp
from refusals import refused
from wiring import wired

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


@pytest.mark.parametrize("exponent", [HALF, sp.Rational(3, 4), 1])
def test_learning_rates_of_branches(exponent: Any) -> None:
    """Rates of Adam within branches are L^(a - 1) and of SGD L^(2a - 1)."""
    for optimizer, power in (("adamw", exponent - 1), ("sgd", 2 * exponent - 1)):
        found = kc.transfer(
            residual_network(), optimizer=optimizer, gauge="mup", branch_exponent=exponent
        )
        for rule in found.parameters.values():
            inside = rule.name.startswith(("affine_2", "affine_3", "affine_4", "affine_5"))
            wanted = power if inside else 0
            assert rule.exponent("learning_rate", "depth") == wanted


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


def transformer(width: int, heads: int) -> kc.Network:
    trunk = kc.architectures.gpt2(2, width, heads, 50, 8, std=None)
    graph = trunk.graph.copy()
    graph.add_node("logits", layer=L.Affine(50, bias=False))
    graph.add_edge(trunk.outputs[0], "logits", slot=0)
    return kc.Network(graph)


def test_attention_is_divided_by_the_channels_of_a_head() -> None:
    wider = kc.transfer(transformer(64, 4), base=transformer(16, 4))
    scores = {k: v for k, v in wider.multipliers.items() if k.endswith("(scores)")}
    assert len(scores) == 2 and set(scores.values()) == {0.5}
    assert "scores" in wider.edits[0]
    more = kc.transfer(transformer(64, 16), base=transformer(16, 4))
    assert not more.multipliers and not more.edits
    assert more["logits.weight"].learning_rate == 0.25


def test_heads_that_share_keys_and_values() -> None:
    """Four and sixteen heads over two of keys and values, 8 channels each."""

    def net(width: int) -> kc.Network:
        attend = L.Attend(heads=width // 8, key_width=8, key_heads=2)
        return wired(
            ("x", L.Input(5)),
            ("stem", L.Affine(width), "x"),
            ("q", L.Affine(width), "stem"),
            ("k", L.Affine(16), "stem"),
            ("v", L.Affine(16), "stem"),
            ("attend", attend, "q k v"),
            ("out", L.Affine(width), "attend"),
            ("sum", L.Sum(), "stem out"),
            ("head", L.Affine(3), "sum"),
        )

    found = kc.transfer(net(128), base=net(32))
    assert not found.edits
    roles = [found[f"{node}.weight"].role for node in ("q", "k", "v", "out")]
    assert roles == ["hidden", "readout", "readout", "hidden"]
    # a bias of keys or values gets what all heads send, one of queries what its head does
    assert [found[f"{node}.bias"].epsilon for node in ("q", "k", "v")] == [0.25, 1, 1]


def test_ratios_that_differ_are_symbols_of_their_own() -> None:
    def net(width: int, inner: int) -> kc.Network:
        return kc.chain(
            L.Input(3), L.Affine(width), L.Nonlinear("relu"), L.Affine(inner), L.Affine(width),
            L.Affine(2),
        )  # fmt: skip

    found = kc.transfer(net(32, 80), base=net(16, 20), optimizer="adamw")
    assert found.ratios == {"n_1": 2.0, "n_2": 4.0}
    rates = [found[f"affine_{k}.weight"].learning_rate for k in (1, 2, 3, 4)]
    assert rates == [1, 0.5, 0.25, 0.5]
    spectral = kc.transfer(net(32, 80), base=net(16, 20), optimizer="muon")
    # a matrix of 80 rows and 32 columns already stands behind sqrt(rows / columns)
    assert spectral["affine_2.weight"].learning_rate == pytest.approx(1)
    assert spectral["affine_3.weight"].learning_rate == pytest.approx(math.sqrt(2 / 4))


def test_weights_on_the_stream_have_no_exponent_of_depth() -> None:
    block = kc.chain(kc.residual(kc.chain(L.LayerNorm(), L.Affine())), L.Affine())
    net = kc.chain(L.Input(8), L.Affine(), kc.repeat(block, 3), L.Affine(2))
    with refused("residual.*branches"):
        kc.transfer(net)
    assert kc.transfer(net, axes="width").parameters


# -- results ---------------------------------------------------------------------------------------


def test_results_show_powers_and_numbers() -> None:
    found = kc.transfer(perceptron(), base=64, to=1024)
    assert repr(found) == "Transfer(adamw, 6 parameters, n = 16)"
    assert "1/sqrt(n) = 0.25" in str(found) and "<table>" in found._repr_html_()
    table = found.to_dataframe()
    assert list(table.name) == list(found.parameters) and table.learning_rate.min() == 1 / 16
    assert json.loads(json.dumps(found.to_dict()))["parameters"][2]["exponents"]["init_std"]
    assert any("aligned" in note.text for note in found.assumptions)
    symbolic = kc.transfer(perceptron())
    assert symbolic["affine_2.weight"].learning_rate == 1 / n


# -- refusals --------------------------------------------------------------------------------------


vanilla = kc.architectures.vanilla
REFUSED = {
    "use optimizer='adamw'": lambda: kc.transfer(perceptron(), optimizer="adam"),
    "sgd, adamw, adafactor, lion, muon, muon-match-rms": lambda: kc.transfer(
        perceptron(), optimizer="rmsprop"
    ),
    "decay must be 0, 1/2 or 1": lambda: kc.transfer(perceptron(), decay=0.3),
    r"lie in \[1/2, 1\]": lambda: kc.transfer(perceptron(), branch_exponent=2),
    "no residual branches": lambda: kc.transfer(perceptron(), axes="depth"),
    "axes must not be empty": lambda: kc.transfer(perceptron(), axes=()),
    "both widths": lambda: kc.transfer(perceptron(), base=64),
    "needs no example inputs": lambda: kc.transfer(perceptron(), 64),
    "hidden layer has a fixed width": lambda: kc.transfer(vanilla(2, features=8)),
    "no exponents in the depth": lambda: kc.transfer(residual_network(), alignment="none"),
    "nothing grows": lambda: kc.transfer(residual_network(16), base=residual_network(16)),
    "has a different width": lambda: kc.transfer(
        residual_network(16), base=residual_network(8), axes="depth"
    ),
    "has the same depth": lambda: kc.transfer(
        residual_network(16), base=residual_network(8), axes=("width", "depth")
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
    "smaller network is unknown": lambda: kc.transfer(perceptron),
    "a function that builds a model": lambda: kc.transfer(3, base=1, to=2),
}


@pytest.mark.parametrize(("words", "make"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_has_no_exponents_is_refused(words: str, make: Any) -> None:
    with refused(words):
        make()
