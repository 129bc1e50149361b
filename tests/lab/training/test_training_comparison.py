"""Comparisons: networks side by side, and the table that is made of their runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import training
from kcalc.lab.training import Comparison, Result, Settings, classifier, compare

L = kc.layers
SPLIT = training.digits()
LINEAR = kc.chain(L.Input(), L.Affine())
QUICK = Settings(steps=4, batch_size=32, evaluate_every=2)


# -- networks made to fit --------------------------------------------------------------------------


def test_networks_without_a_readout_get_a_head_that_the_kernel_calculus_accepts() -> None:
    net = classifier(kc.architectures.rescaled_resnet(2, 2, 0.8, "tanh"), 10)
    assert isinstance(net.layer(net.outputs[0]), L.Affine) and len(net.nodes_of(L.Nonlinear)) == 5
    assert kc.shape(net).residuals
    bare = classifier(kc.architectures.vanilla(3, "tanh", readout=False), 10)
    assert len(bare.nodes_of(L.Nonlinear)) == 3
    images = training.digits(images=True)
    convolution = kc.chain(L.Input(), L.Affine(4, kernel=3), L.Nonlinear("tanh"))
    model = kc.to_jax(classifier(convolution, 10, images.image_shape))
    assert model.apply(model.init(0, images.x[:1]), images.x[:1]).shape == (1, 10)


def test_a_head_gets_names_that_the_network_does_not_have() -> None:
    net = wired(
        ("x", L.Input()),
        ("head_nonlinear", L.Affine(), "x"),
        ("head_affine", L.Sum(), "x", "head_nonlinear"),
    )
    found = classifier(net, 3)
    assert set(net) < set(found) and found.layer(found.outputs[0]).features == 3


def test_networks_that_are_no_classifiers() -> None:
    net = wired(("x", L.Input()), ("a", L.Affine(), "x"), ("b", L.Affine(), "x"))
    with refused("1 and 2"):
        classifier(net, 10)
    with refused("classes"):
        classifier(LINEAR, 0)
    with refused("Network"):
        classifier("vanilla", 10)  # pyright: ignore[reportArgumentType]


# -- the table -------------------------------------------------------------------------------------


def result(
    label: str, rate: float, seed: int, accuracy: float, diverged: int | None = None
) -> Result:
    return Result(
        label,
        rate,
        seed,
        "",
        ((10, 0.5, accuracy - 0.1), (20, 0.75, accuracy)),
        accuracy,
        1.0,
        diverged,
    )


def test_rows_are_means_at_the_best_rate() -> None:
    found = Comparison(
        "t",
        (
            *(result("a", 0.1, seed, value) for seed, value in enumerate((0.96, 0.98))),
            *(result("a", 0.01, seed, value) for seed, value in enumerate((0.5, 1.0))),
            result("b", 0.1, 0, 0.0, diverged=7),
        ),
    )
    a, b = found.rows
    assert (a.learning_rate, a.accuracy, a.steps_to_goal, a.diverged, a.runs) == (
        0.1,
        pytest.approx(0.97),
        20,
        0,
        2,
    )
    assert a.error == pytest.approx(0.01) and a.train_accuracy == 0.75
    assert (b.accuracy, b.steps_to_goal, b.diverged) == (0, None, 1)
    assert found.curve("a") == [(10, pytest.approx(0.87)), (20, pytest.approx(0.97))]
    assert "97.00" in str(found) and "1 of 1" in str(found)
    json.dumps(found.to_dict())


# -- comparisons -----------------------------------------------------------------------------------


def test_a_comparison_trains_every_network_at_every_rate_and_seed() -> None:
    lines: list[str] = []
    splits = [training.digits(fold) for fold in (0, 1)]
    networks = {
        "linear": LINEAR,
        "shaped": kc.shape(kc.architectures.vanilla(2, "tanh")),
        "model": kc.to_jax(classifier(LINEAR, 10)),
    }
    rates = (0.01, 0.1)
    found = compare(networks, splits, QUICK, 3, rates, lines.append)
    assert len(found.results) == len(lines) == 18 and found.labels == tuple(networks)
    first = found.of("linear")
    assert [(r.seed, r.learning_rate) for r in first] == [(s, r) for s in range(3) for r in rates]
    assert [r.split[:14] for r in first[::2]] == [f"digits, fold {i}" for i in (1, 2, 1)]
    direct = training.fit(
        networks["model"], SPLIT, Settings(**(QUICK.to_dict() | {"learning_rate": 0.1}))
    )
    assert found.of("model", 0.1)[0].accuracy == found.of("linear", 0.1)[0].accuracy
    assert found.of("model", 0.1)[0].accuracy == direct.accuracy


def test_runs_that_diverge_count_as_failures() -> None:
    found = compare({"linear": LINEAR}, SPLIT, Settings("sgd", steps=10), seeds=1, rates=(1e38,))
    assert found.rows[0].diverged == 1 and found.rows[0].accuracy == 0


def test_a_single_look_is_drawn(untouched_pyplot: None) -> None:
    found = compare({"a": LINEAR}, SPLIT, Settings(steps=2), 1, (0.01,))
    (line,) = found.plot().lines
    assert line.get_marker() == "o" and len(line.get_xdata()) == 1
    with refused(r"\.csv"):
        found.save_table("a.txt")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"seeds": 0}, "seeds"),
        ({"rates": (-1.0,)}, "learning_rate"),
        ({"rates": ()}, "rates"),
        ({"networks": {}}, "networks"),
        ({"networks": [LINEAR]}, "networks"),
        ({"networks": {"a": 3}}, "a: .*network"),
        ({"networks": {3: LINEAR}}, "label"),
        ({"splits": []}, "splits"),
        ({"splits": [SPLIT.x]}, "expected a split"),
        ({"settings": {"steps": 3}}, "Settings"),
        ({"report": "print"}, "report must be a function that takes a line of text, got 'print'"),
    ],
)
def test_comparisons_that_cannot_be(changes: dict[str, Any], match: str) -> None:
    given: dict[str, Any] = {"networks": {"a": LINEAR}, "splits": SPLIT, "settings": QUICK}
    with refused(match):
        compare(**(given | changes))


@pytest.mark.slow
def test_deep_shaped_networks_train_and_he_initialised_ones_do_not(every: int) -> None:
    """A hundred layers at one fold and one learning rate each; notebook 11 has more."""
    net, He = (kc.architectures.vanilla(100, phi) for phi in ("tanh", "relu"))
    wanted = {
        "He relu": (kc.shape(He, method="he"), 3e-4),
        "dks tanh": (kc.shape(net), 1e-4),
        "dks softplus": (kc.shape(net, "softplus"), 3e-4),
        "tat relu": (kc.shape(He, method="tat"), 3e-4),
    }
    wanted = dict(list(wanted.items())[: 4 if every == 1 else 2])
    settings = Settings(steps=500 if every == 1 else 100)
    found = {
        label: compare({label: shaped}, SPLIT, settings, 1, (rate,)).rows[0].accuracy
        for label, (shaped, rate) in wanted.items()
    }
    he = found.pop("He relu")
    assert min(found.values()) >= 0.955 and min(found.values()) - he >= 0.15, (found, he)
