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
OPTIMIZERS = ("sgd", "adamw", "adafactor", "muon", "muon-match-rms")
GAUGES = ("none", "mup", "abc", "unit")
ROLES = {"affine_1": "input", "affine_2": "hidden", "affine_3": "readout"}
SETTINGS = ("learning_rate", "epsilon", "weight_decay")


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

# [Yang et al. 2022, Tables 3, 8, 9]: gauge -> role -> powers of the width in (multiplier, standard
# deviation, rate of SGD, rate of Adam), for input weights, hidden weights and readouts
TENSOR_PROGRAMS = {
    "none": {"input": (0, 0, 1, 0), "hidden": (0, -HALF, 0, -1), "readout": (0, -1, -1, -1)},
    "mup": {"input": (0, 0, 1, 0), "hidden": (0, -HALF, 0, -1), "readout": (-1, 0, 1, 0)},
    "abc": {
        "input": (HALF, -HALF, 0, -HALF),
        "hidden": (0, -HALF, 0, -1),
        "readout": (-HALF, -HALF, 0, -HALF),
    },
}


@pytest.mark.parametrize("gauge", TENSOR_PROGRAMS)
def test_tables_of_tensor_programs_v(gauge: str) -> None:
    for column, optimizer in ((2, "sgd"), (3, "adamw")):
        found = kc.transfer(perceptron(), optimizer=optimizer, gauge=gauge)
        for node, role in ROLES.items():
            rule, row = found[f"{node}.weight"], TENSOR_PROGRAMS[gauge][role]
            assert rule.role == role
            assert rule.exponent("init_std") == row[1]
            assert rule.exponent("learning_rate") == row[column]
            factor = found.multipliers.get(f"{node} (weights)", sp.S.One)
            assert factor == n ** row[0]


# multiplier n^-a and standard deviation n^-b of (embedding, hidden, readout)
PARAMETRIZATIONS = {
    "standard": ((0, 0), (0, HALF), (0, HALF)),
    "ntk": ((0, 0), (HALF, 0), (HALF, 0)),
    "mup": ((-HALF, HALF), (0, HALF), (HALF, HALF)),
    "mean-field": ((0, 0), (HALF, 0), (1, 0)),
}
# [Everett et al. 2024, Table 1]: learning rate n^-c of (embedding, hidden, readout)
EVERETT = {
    ("standard", "sgd", "full"): (-HALF, HALF, 1),
    ("standard", "sgd", "none"): (-HALF, 0, HALF),
    ("standard", "adamw", "full"): (0, 1, 1),
    ("standard", "adamw", "none"): (0, HALF, HALF),
    ("ntk", "sgd", "full"): (-HALF, -HALF, 0),
    ("ntk", "sgd", "none"): (-HALF, -1, -HALF),
    ("ntk", "adamw", "full"): (0, HALF, HALF),
    ("ntk", "adamw", "none"): (0, 0, 0),
    ("mup", "sgd", "full"): (0, 0, 0),
    ("mup", "sgd", "none"): (0, -HALF, 0),
    ("mup", "adamw", "full"): (HALF, 1, HALF),
    ("mup", "adamw", "none"): (HALF, HALF, 0),
    ("mean-field", "sgd", "full"): (-1, -1, -1),
    ("mean-field", "sgd", "none"): (-1, -3 * HALF, -1),
    ("mean-field", "adamw", "full"): (0, HALF, 0),
    ("mean-field", "adamw", "none"): (0, 0, -HALF),
}


@pytest.mark.parametrize("case", EVERETT, ids="-".join)
def test_table_1_of_everett(case: tuple[str, str, str]) -> None:
    name, optimizer, alignment = case
    given = dict(zip(ROLES.values(), PARAMETRIZATIONS[name], strict=True))
    found = kc.abc_exponents(perceptron(), given, optimizer, alignment)
    assert tuple(found[role] for role in ROLES.values()) == EVERETT[case]


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


def test_exponents_of_completep() -> None:
    """[Dey et al. 2025]: branches behind L^-1, in the gauge with multipliers."""
    found = kc.transfer(residual_network(), optimizer="adamw", gauge="mup")
    hidden = [rule for rule in found.parameters.values() if rule.role == "hidden"]
    assert len(hidden) == 4
    for rule in hidden:
        assert [rule.exponent(q) for q in SETTINGS] == [-1, -1, 1]
        assert [rule.exponent(q, "depth") for q in SETTINGS] == [0, -1, 0]
    stem = found["affine_1.weight"]
    assert (stem.exponent("learning_rate"), stem.exponent("epsilon")) == (0, -1)
    assert stem.exponent("epsilon", "depth") == 0
    assert sum(name.endswith("(branch)") for name in found.multipliers) == 2


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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gauges_are_equal_by_the_exact_symmetries(optimizer: str) -> None:
    """A weight behind n^-t: the size takes n^t, the rate n^t, under SGD n^2t; epsilon n^-t."""
    net = residual_network()
    for axis in (None, ("width",)):
        plain = kc.transfer(net, optimizer=optimizer, gauge="mup", axes=axis)
        for gauge in GAUGES[1:]:
            found = kc.transfer(net, optimizer=optimizer, gauge=gauge, axes=axis)
            for name, rule in found.parameters.items():
                change = multiplier_of(found, name) / multiplier_of(plain, name)
                own, other = rule.exponents, plain[name].exponents
                rate = {"sgd": change**2, "adafactor": 1}.get(rule.optimizer, change)
                assert own["init_std"] * change == other["init_std"]
                assert own["learning_rate"] * rate == other["learning_rate"]
                small = (
                    own["epsilon"] * change if optimizer == "adafactor" else own["epsilon"] / change
                )
                assert small == other["epsilon"]


def multiplier_of(found: kc.Transfer, name: str) -> Any:
    return found.multipliers.get(name.replace(".weight", " (weights)"), sp.S.One)


def test_branches_end_with_weights_that_take_the_factor() -> None:
    """In gauge "none" the last weights of a branch are those of "mup" times L^-1."""
    plain = kc.transfer(residual_network(), gauge="none")
    other = kc.transfer(residual_network(), gauge="mup")
    assert not plain.edits
    last = plain["affine_3.weight"]
    assert last.exponent("init_std", "depth") == last.exponent("learning_rate", "depth") == -1
    assert other["affine_3.weight"].exponent("init_std", "depth") == 0


def test_decay_keeps_the_product_or_itself() -> None:
    for decay in (0, HALF, 1):
        for rule in kc.transfer(perceptron(), decay=decay).parameters.values():
            assert rule.exponent("weight_decay") == -decay * rule.exponent("learning_rate")


def test_muon_takes_hidden_matrices_alone() -> None:
    for name, power in (("muon", 0), ("muon-match-rms", -HALF)):
        found = kc.transfer(perceptron(), optimizer=name)
        takers = {rule.name: rule.optimizer for rule in found.parameters.values()}
        assert [key for key, taker in takers.items() if taker == name] == ["affine_2.weight"]
        assert found["affine_2.weight"].exponent("learning_rate") == power


# -- folds -----------------------------------------------------------------------------------------


def test_gradients_are_the_larger_of_initial_and_learned() -> None:
    """Behind a narrow layer initial weights pass n^-1/2 and learned ones 1."""
    relu = L.Nonlinear("relu")
    net = kc.chain(L.Input(4), L.Affine(), relu, L.Affine(3), relu, L.Affine(), relu, L.Affine(2))
    found = kc.transfer(net)  # an epsilon has the size of the gradients that it is compared with
    epsilons = [found[f"affine_{k}.weight"].exponents["epsilon"] for k in (1, 2, 3, 4)]
    assert epsilons == [1 / n, 1, 1 / n, 1]
    rule = kc.transfer(net, optimizer="sgd")["affine_2.weight"]
    assert (rule.role, rule.exponent("learning_rate")) == ("readout", -1)


def test_convolutions() -> None:
    def net(width: int) -> kc.Network:
        return kc.chain(
            L.Input(3, image_shape=(8, 8)),
            L.Affine(width, kernel=3),
            L.Affine(width, kernel=3, groups=width),
            L.Nonlinear("relu"),
            L.Affine(width, kernel=3, groups=2),
            L.Pool("mean"),
            L.Flatten(),
            L.Affine(5),
        )

    found = kc.transfer(net(64), base=net(16), optimizer="sgd")
    powers = [(r.role, r.init_std, r.learning_rate) for r in found.parameters.values()]
    assert powers == [
        ("input", 1, 4),
        ("bias", 1, 4),
        ("elementwise", 1, 4),
        ("bias", 1, 4),
        ("hidden", 0.5, 1),
        ("bias", 1, 4),
        ("readout", 0.25, 0.25),
        ("bias", 1, 1),
    ]
    taken = kc.transfer(net(64), base=net(16), optimizer="muon")
    assert {rule.optimizer for rule in taken.parameters.values()} == {"adamw"}  # no matrices


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


def test_branches_of_one_sum_after_another() -> None:
    """x + a(h) + b(h) has two branches, also where it is written as two sums."""
    relu = L.Nonlinear("relu")
    net = wired(
        ("x", L.Input()),
        ("stem", L.Affine(), "x"),
        ("norm", L.LayerNorm(), "stem"),
        ("a", L.Affine(), "norm"),
        ("first", L.Sum(), "stem a"),
        ("b", L.Affine(), "norm"),
        ("relu", relu, "b"),
        ("c", L.Affine(), "relu"),
        ("second", L.Sum(), "first c"),
        ("head", L.Affine(3), "second"),
    )
    scaled = kc.transfer(net, gauge="mup", branch_exponent=HALF)
    branches = {name for name in scaled.multipliers if name.endswith("(branch)")}
    assert branches == {"first (branch)", "second (branch)"}
    rates = {
        rule.name: rule.exponent("learning_rate", "depth") for rule in scaled.parameters.values()
    }
    inside = {name for name, power in rates.items() if power == -HALF}
    assert inside == {f"{node}.{kind}" for node in "abc" for kind in ("weight", "bias")}
    assert {power for name, power in rates.items() if name not in inside} == {0}
    rules = kc.transfer(net)
    powers = [rules[f"{node}.weight"].exponent("init_std", "depth") for node in "abc"]
    assert powers == [-1, 0, -1]


def test_embeddings_read_one_number() -> None:
    found = kc.transfer(transformer(64, 4), base=transformer(16, 4), optimizer="sgd")
    rules = [rule for rule in found.parameters.values() if rule.role == "embedding"]
    assert [(rule.init_std, rule.learning_rate) for rule in rules] == [(1, 4), (1, 4)]


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


def bottleneck(width: int, narrow: int) -> kc.Network:
    relu = L.Nonlinear("relu")
    return kc.chain(
        L.Input(3), L.Affine(width), relu, L.Affine(narrow), relu, L.Affine(width), relu,
        L.Affine(2),
    )  # fmt: skip


def test_widths_that_grow_at_different_rates() -> None:
    """A bottleneck of width sqrt(n): gradients by its input weights are n^-1/2, not n^-3/4.

    Behind it n^1/2 outputs per unit add aligned changes; into it weights are sqrt(r) / p, the
    condition on spectral norms [Yang, Simon, Bernstein 2023].
    """
    found = kc.transfer(bottleneck(256, 16), base=bottleneck(16, 4))
    assert found.ratios == {"n_1": 4.0, "n_2": 16.0}
    into = found["affine_2.weight"]
    assert (into.role, into.epsilon) == ("hidden", pytest.approx(16**-0.5))
    assert (into.init_std, into.learning_rate) == (pytest.approx(4**0.5 / 16), 1 / 16)
    assert found["affine_1.weight"].epsilon == pytest.approx(1 / 16)
    assert found["affine_3.weight"].init_std == pytest.approx(4**-0.5)
    plain = kc.transfer(bottleneck(256, 16), base=bottleneck(16, 4), optimizer="sgd")
    # D / (g s) with D = 1/16, g = 16^-1/2
    assert plain["affine_2.weight"].learning_rate == pytest.approx(16**-0.5)


def test_rounded_widths_grow_alike() -> None:
    """Ratios 4 and 4.07: no matrix is a readout, and powers are those of one width."""
    found = kc.transfer(bottleneck(244, 64), base=bottleneck(60, 16))
    roles = [found[f"affine_{k}.weight"].role for k in (1, 2, 3, 4)]
    assert roles == ["input", "hidden", "hidden", "readout"]
    assert found["affine_2.weight"].init_std == pytest.approx((244 / 60) ** -0.5)


def test_weights_on_the_stream_have_no_exponent_of_depth() -> None:
    block = kc.chain(kc.residual(kc.chain(L.LayerNorm(), L.Affine())), L.Affine())
    net = kc.chain(L.Input(8), L.Affine(), kc.repeat(block, 3), L.Affine(2))
    with refused("residual.*branches"):
        kc.transfer(net)
    assert kc.transfer(net, axes="width").parameters


def test_no_epsilon_where_the_optimizer_has_none() -> None:
    """Plain data has None where the table shows a dash."""
    found = kc.transfer(perceptron(), optimizer="sgd")
    rule = found.to_dict()["parameters"][0]
    assert rule["epsilon"] is None and rule["exponents"]["epsilon"] is None
    assert kc.transfer(perceptron()).to_dict()["parameters"][0]["exponents"]["epsilon"] == "1/n"


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
    "leaves its width open": lambda: kc.transfer(vanilla(2, features=8)),
    "depth has no exponents": lambda: kc.transfer(residual_network(), alignment="none"),
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
    "differ in depth by more": lambda: kc.transfer(
        kc.chain(L.Input(3), L.Affine(16), L.Affine(16), L.Affine(2)),
        base=kc.chain(L.Input(3), L.Affine(8), L.Affine(2)),
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


def test_multipliers_that_change_with_the_width_are_refused() -> None:
    def net(width: int) -> kc.Network:
        return kc.chain(L.Input(3), L.Affine(width), L.Scale(width**0.5), L.Affine(2))

    with refused("multiplies by"):
        kc.transfer(net(16), base=net(8))
