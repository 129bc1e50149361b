"""Exponents of width and depth against published tables, the mup package, and exact symmetries."""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import abc_exponents, architectures, chain, repeat, residual, transfer

L = kc.layers
Affine, Input, LayerNorm, Nonlinear = L.Affine, L.Input, L.LayerNorm, L.Nonlinear
n, HALF = sp.Symbol("n", positive=True), sp.Rational(1, 2)


def perceptron() -> kc.Network:
    relu = Nonlinear("relu")
    return chain(Input(16), Affine(), relu, Affine(), relu, Affine(10))


def residual_network(features: int | None = None) -> kc.Network:
    last = Affine(features, bias=False)
    branch = chain(LayerNorm(), Affine(features), Nonlinear("relu"), last)
    return chain(Input(8), Affine(features), repeat(residual(branch), 2), Affine(10))


def bent_network(functions: int) -> kc.Network:
    bends = [residual(Nonlinear("relu")) for _ in range(functions)]
    return chain(Input(8), Affine(4), *bends, Affine(2))


def replaced_network(blocks: int) -> kc.Network:
    """Sums that multiply the stream by 0."""
    steps: list[Any] = [("s0", Affine(8), "x")]
    for k in range(blocks):
        steps += [(f"f{k}", Affine(8)), (f"s{k + 1}", L.Sum((0, 1)), f"s{k} f{k}")]
    return wired(("x", Input(8)), *steps, ("out", Affine(2)))


def biased_network(features: int, blocks: int) -> kc.Network:
    block = residual(chain(Nonlinear("relu"), Affine(features)))
    return chain(Input(8), Affine(features), repeat(block, blocks), Affine(10))


def branched(ends: Any, *after: Any) -> kc.Network:
    """Residual sums with branches of (inner width, weight), and further steps."""
    steps: list[Any] = []
    last = "x"
    for k, (size, weight) in enumerate(ends):
        steps += [(f"u{k}", Affine(size), last), (f"f{k}", Affine(8))]
        steps += [(f"s{k}", L.Sum((1, weight)), f"{last} f{k}")]
        last = f"s{k}"
    return wired(("x", Input(8)), *steps, *after, ("out", Affine(2)))


def streams(count: int) -> kc.Network:
    """One branch in each of one or two streams."""
    second = [("u9", Affine(8)), ("f9", Affine(8)), ("s9", L.Sum(), "down f9")] * (count - 1)
    return branched([(8, 1)], ("down", Affine(8)), *second)


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
            abc_exponents(perceptron(), given)  # type: ignore[arg-type]
    with refused("Network"):
        abc_exponents(3, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("exponent", [HALF, 1])
def test_learning_rates_of_branches(exponent: Any) -> None:
    """Rates of Adam within branches are L^(a - 1) and of SGD L^(2a - 1)."""
    for optimizer, power in (("adamw", exponent - 1), ("sgd", 2 * exponent - 1)):
        found = transfer(
            residual_network(), optimizer=optimizer, gauge="mup", branch_exponent=exponent
        )
        for rule in found.parameters.values():
            inside = rule.name.startswith(("affine_2", "affine_3", "affine_4", "affine_5"))
            wanted = power if inside else 0
            assert rule.exponent("learning_rate", "depth") == wanted


def test_changes_without_alignment_are_capped() -> None:
    """D = min(p^-1/2, sigma) = 1/n at the readout, so g is 1/n and eta = D / g before it (SGD)."""
    found = transfer(perceptron(), optimizer="sgd", alignment="none")
    rates = [found[f"affine_{k}.weight"].exponent("learning_rate") for k in (1, 2, 3)]
    assert rates == [1, HALF, -1]


# -- gauges ----------------------------------------------------------------------------------------


def test_branches_end_with_weights_that_take_the_factor() -> None:
    """In gauge "none" the last weights of a branch are those of "mup" times L^-1."""
    plain = transfer(residual_network(), gauge="none")
    other = transfer(residual_network(), gauge="mup")
    assert not plain.edits
    last = plain["affine_3.weight"]
    assert last.exponent("init_std", "depth") == last.exponent("learning_rate", "depth") == -1
    assert other["affine_3.weight"].exponent("init_std", "depth") == 0
    dropped = chain(LayerNorm(), Affine(), L.Dropout(0.1))
    found = transfer(chain(Input(8), Affine(), repeat(residual(dropped), 2), Affine(10)))
    assert found["affine_2.weight"].exponent("init_std", "depth") == -1 and not found.edits

    def scaled(depth: int) -> kc.Network:
        block = residual(chain(LayerNorm(), Affine(16)), residual_weight=depth**-0.5)
        return chain(Input(16), repeat(block, depth))

    seen = [branched([(8, 1)] * k, ("c", L.Concat(), f"s{k - 1} f0")) for k in (4, 2)]
    found = transfer(seen[0], base=seen[1])  # the output of f0 is read directly, too
    assert [found[f"f{k}.weight"].exponent("init_std", "depth") for k in (0, 3)] == [0, -1]
    assert found.multipliers == {"s0 (branch)": 0.5}
    halved = transfer(scaled(4), base=scaled(2))
    assert halved["affine_1.weight"].exponent("init_std", "depth") == -HALF  # the rest of 1 / L


# -- folds -----------------------------------------------------------------------------------------


def heads(width: int, scale: Any, key_width: int | None = None, count: int = 1) -> kc.Network:
    branch = [(name, Affine(width), "stem") for name in "qkv"]
    attend = ("a", L.Attend(heads=count, key_width=key_width, scale=scale), "q k v")
    return wired(("x", Input(5)), ("stem", Affine(width)), *branch, attend, ("out", Affine(3)))


@pytest.mark.parametrize(("power", "factor"), [(0, 1 / 4), (-0.5, 1 / 2), (-1, 1)])
def test_scales_that_are_numbers(power: float, factor: float) -> None:
    """All scores are divided by the channels of a head, of which there are four times as many."""
    large, small = (heads(width, width**power, width) for width in (32, 8))
    found = transfer(large, base=small).multipliers
    assert found == ({} if factor == 1 else {"a (scores)": factor})


def test_more_heads_need_no_edit() -> None:
    more = transfer(heads(64, "sqrt", count=8), base=heads(16, "sqrt", count=2))
    assert not more.multipliers and not more.edits


def test_heads_that_share_keys_and_values() -> None:
    """Four and sixteen heads over two of keys and values, 8 channels each."""

    def net(width: int) -> kc.Network:
        attend = L.Attend(heads=width // 8, key_width=8, key_heads=2)
        return wired(
            ("x", Input(5)),
            ("stem", Affine(width)),
            ("q", Affine(width)),
            ("k", Affine(16), "stem"),
            ("v", Affine(16), "stem"),
            ("attend", attend, "q k v"),
            ("out", Affine(width)),
            ("sum", L.Sum(), "stem out"),
            ("head", Affine(3)),
        )

    found = transfer(net(128), base=net(32))
    assert not found.edits
    roles = [found[f"{node}.weight"].role for node in ("q", "k", "v", "out")]
    assert roles == ["hidden", "readout", "readout", "hidden"]
    # a bias of keys or values gets what all heads send, one of queries what its head does
    assert [found[f"{node}.bias"].epsilon for node in ("q", "k", "v")] == [0.25, 1, 1]


def test_weights_on_the_stream_have_no_exponent_of_depth() -> None:
    block = chain(residual(chain(LayerNorm(), Affine())), Affine())
    net = chain(Input(8), Affine(), repeat(block, 3), Affine(2))
    with refused("residual.*branches"):
        transfer(net)
    assert transfer(net, axes="width").parameters


@pytest.mark.parametrize("after", [Nonlinear("relu"), L.Dropout(0)])
def test_what_keeps_the_stream_has_exponents_of_depth(after: Any) -> None:
    """ReLU after a sum changes nothing at the next ReLU."""
    block = chain(residual(chain(LayerNorm(), Affine(8))), after)
    found = transfer(chain(Input(8), Affine(8), repeat(block, 3), Affine(2)), axes="depth")
    assert found["affine_3.weight"].exponent("init_std", "depth") == -1


# -- results ---------------------------------------------------------------------------------------


def test_results_show_powers_and_numbers() -> None:
    found = transfer(perceptron(), base=64, to=1024)
    assert repr(found) == "Transfer(adamw, 6 parameters, n = 16)"
    assert "1/sqrt(n) = 0.25" in str(found)
    table = found.to_dataframe()
    assert list(table.name) == list(found.parameters) and table.learning_rate.min() == 1 / 16
    assert any("aligned" in note.text for note in found.assumptions)
    assert transfer(perceptron())["affine_2.weight"].learning_rate == 1 / n


# -- refusals --------------------------------------------------------------------------------------


vanilla = architectures.vanilla
REFUSED = {
    "use optimizer='adamw'": lambda: transfer(perceptron(), optimizer="adam"),
    "sgd, adamw, adafactor, lion, muon, muon-match-rms": lambda: transfer(
        perceptron(), optimizer="rmsprop"
    ),
    "decay must be 0, 1/2 or 1": lambda: transfer(perceptron(), decay=0.3),
    r"lie in \[1/2, 1\]": lambda: transfer(perceptron(), branch_exponent=2),
    "no residual branches": lambda: transfer(perceptron(), axes="depth"),
    "axes must not be empty": lambda: transfer(perceptron(), axes=()),
    "pass both base= and to=": lambda: transfer(perceptron(), base=64),
    "got base=0 and to=64": lambda: transfer(perceptron(), base=0, to=64),
    "needs no example inputs": lambda: transfer(perceptron(), 64),
    "hidden layer has a fixed width": lambda: transfer(vanilla(2, features=8)),
    "no depth exponents": lambda: transfer(residual_network(), alignment="none"),
    "nothing grows": lambda: transfer(residual_network(16), base=residual_network(16)),
    "has a different width": lambda: transfer(
        residual_network(16), base=residual_network(8), axes="depth"
    ),
    "has the same depth": lambda: transfer(
        residual_network(16), base=residual_network(8), axes=("width", "depth")
    ),
    "has bias False, but": lambda: transfer(residual_network(16), base=vanilla(1, features=8)),
    "has no counterpart": lambda: transfer(
        chain(Input(), L.Embedding(8, 9), Affine(3)), base=vanilla(1, features=8)
    ),
    "output 'affine_3' grows with the width": lambda: transfer(
        vanilla(2, features=16), base=vanilla(2, features=8)
    ),
    "different places on residual": lambda: transfer(
        biased_network(16, 2), base=biased_network(8, 1)
    ),
    "base has no residual branches": lambda: transfer(bent_network(2), base=bent_network(0)),
    "the larger network has none": lambda: transfer(bent_network(0), base=bent_network(2)),
    "'s4' forgets its past.* 0 and 0": lambda: transfer(
        replaced_network(4), base=replaced_network(2)
    ),
    "scale of the scores is 'linear'": lambda: transfer(heads(8, "linear"), base=heads(4, "sqrt")),
    "a power of the number of channels per head": lambda: transfer(
        heads(8, 0.3, 8), base=heads(4, "sqrt", 4)
    ),
    "'affine_1': the number of channels must be known": lambda: transfer(
        perceptron(), base=vanilla(2, features=8)
    ),
    "'nonlinear_1', a function, acts on the residual stream": lambda: transfer(
        chain(
            Input(8), Affine(), repeat(chain(residual(Affine()), Nonlinear("tanh")), 2), Affine(2)
        )
    ),
    "ZeroDivisionError": lambda: transfer(lambda width: 1 / 0, base=1, to=2),
    "returned None for base=1": lambda: transfer(lambda width: None, base=1, to=2),
    "base has the same widths and depth": lambda: transfer(perceptron(), base=perceptron()),
    "several counterparts of different widths": lambda: transfer(
        branched([(4, 1), (8, 1), (16, 1)]), base=branched([(4, 1), (8, 1)])
    ),
    "has 2 residual streams .* has 1": lambda: transfer(streams(2), base=streams(1)),
    "'s0' multiplies its branch by 0.5, 1, but by 1": lambda: transfer(
        branched([(8, 1), (8, 1), (8, 0.5)]), base=branched([(8, 1), (8, 1)])
    ),
    "node 'sum_2' adds contains another .* 'sum_1'": lambda: transfer(
        chain(Input(8), repeat(residual(chain(residual(Affine(8)), Affine(8))), 2), Affine(2)),
        axes="depth",
    ),
    "'pool_1'.*no rule for Pool": lambda: transfer(
        chain(Input(3), Affine(kernel=(3, 3)), L.Pool("weighted_mean", 2), Affine(2))
    ),
    "smaller network is unknown": lambda: transfer(perceptron),
    "a function that builds a model": lambda: transfer(3, base=1, to=2),
}


test_what_has_no_exponents_is_refused = refusals([row[::-1] for row in REFUSED.items()])
