"""Arrays beside feature maps, odd paddings and long expressions.

What the network says of them, and what it notes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import model, node, weights

import kcalc as kc
from kcalc.interchange.read import read

pytest.importorskip("onnx")

L = kc.layers
F = np.float32
HELD: dict[str, Any] = {
    "w": weights(6, 6),
    "k": weights(4, 3, 3, 3),
    "mean": weights(3, 1, 1),
    "n": np.array([1, 2, 3, 4], F),
    "g": weights(4, 1, 1),
    "b": weights(6),
    "split": np.array([0, 2, 2, 6]),
}
ROWS, IMAGE = [2, 4, 6], [2, 3, 6, 6]
DENSE = node("MatMul", "x w", "a")
CASES: dict[str, tuple[list[Any], list[int], list[Any], str, str]] = {
    "an input shifted": (
        [node("Sub", "x mean", "s"), node("Conv", "s k", "y")],
        IMAGE,
        [L.Input(3, (6, 6)), L.Affine(4, 3, padding="valid", bias=False)],
        "first shifts or scales the input",
        "approximate",
    ),
    "gains twice": (
        [
            node("Conv", "x k", "a", pads=[1] * 4),
            node("BatchNormalization", "a n n n n", "c"),
            node("Mul", "c g", "y"),
        ],
        IMAGE,
        [L.Input(3, (6, 6)), L.Affine(4, 3, bias=False), L.BatchNorm()],
        "its gains and biases differ by channel",
        "approximate",
    ),
    "a bias behind a reshape": (
        [DENSE, node("Reshape", "a split", "r"), node("Add", "r b", "y")],
        ROWS,
        [L.Input(6, (4,)), L.Affine(6)],
        "",
        "exact",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_arrays_and_paddings_are_read_as_what_they_do_to_kernels(name: str) -> None:
    nodes, shape, layers, words, level = CASES[name]
    used = {name: HELD[name] for n in nodes for name in n.input if name in HELD}
    found = read(model(nodes, {"x": shape}, ["y"], used), sigmas=False)
    assert found.network.isomorphic(kc.chain(*layers)), list(map(str, found.network.steps()))
    assert found.fidelity.level == level
    assert not words or any(words in note.text for note in found.notes)


def test_expressions_without_end_are_cut_into_activations() -> None:
    nodes, last = [], "x"
    for i in range(5):
        nodes += [
            node("Tanh", last, f"t{i}"),
            node("Sin", last, f"s{i}"),
            node("Mul", f"t{i} s{i}", f"m{i}"),
            node("Add", f"m{i} {last}", f"a{i}"),
        ]
        last = f"a{i}"
    found = read(model(nodes, {"x": [2, 6]}, [last]), sigmas=False)
    assert found.fidelity.level == "exact" and len(found.network.nodes_of(L.Nonlinear)) > 1
    truth = 0.7
    values: dict[Any, Any] = {found.network.inputs[0]: truth}
    for _ in range(5):
        truth = np.tanh(truth) * np.sin(truth) + truth
    rules = {L.Nonlinear: lambda layer, x: layer.activation(x)[0], L.Sum: lambda _, x: x.sum()}
    rules[L.Product] = lambda _, x: x.prod()
    for name, layer, parents in found.network.steps():
        if parents:
            values[name] = rules[type(layer)](layer, np.array([values[p] for p in parents], float))
    assert values[found.network.outputs[0]] == pytest.approx(truth, rel=1e-9)
