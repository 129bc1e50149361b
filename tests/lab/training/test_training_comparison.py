"""Comparisons: networks side by side, and the table that is made of their runs."""

from __future__ import annotations

from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import chain, training
from kcalc.lab.training import Settings, classifier, compare

L = kc.layers
SPLIT = training.digits()
LINEAR = chain(L.Input(), L.Affine())
QUICK = Settings(steps=4, batch_size=32, evaluate_every=2)


# -- networks made to fit --------------------------------------------------------------------------


def test_a_head_gets_names_that_the_network_does_not_have() -> None:
    net = wired(
        ("head_nonlinear", L.Affine()),
        ("head_affine", L.Sum(), "x", "head_nonlinear"),
    )
    found = classifier(net, 3)
    assert set(net) < set(found) and found.layer(found.outputs[0]).features == 3


def test_networks_that_are_no_classifiers() -> None:
    net = wired(("a", L.Affine()), ("b", L.Affine(), "x"))
    with refused("1 inputs and 2 outputs"):
        classifier(net, 10)
    with refused("classes"):
        classifier(LINEAR, 0)
    with refused("Network"):
        classifier("vanilla", 10)  # pyright: ignore[reportArgumentType]


# -- comparisons -----------------------------------------------------------------------------------


def test_runs_that_diverge_count_as_failures() -> None:
    found = compare({"linear": LINEAR}, SPLIT, Settings("sgd", steps=10), seeds=1, rates=(1e38,))
    assert found.rows[0].diverged == 1 and found.rows[0].accuracy == 0


def test_a_single_look_is_drawn(untouched_pyplot: None) -> None:
    found = compare({"a": LINEAR}, SPLIT, Settings(steps=2), 1, (0.01,))
    (line,) = found.plot().lines
    assert line.get_marker() == "o" and len(line.get_xdata()) == 1
    with refused(r"\.csv"):
        found.save_table("a.txt")


test_comparisons_that_cannot_be = refusals(
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
    lambda changes: compare(
        **({"networks": {"a": LINEAR}, "splits": SPLIT, "settings": QUICK} | changes)
    ),
)
