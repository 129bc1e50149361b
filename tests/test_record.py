"""The recorder: what it asks covers every layer and every calculus, and a comparison finds what has
changed.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
from command_words import words
from record import readers
from record.__main__ import compare, read, write
from record.corpus import numbered
from record.questions import QUESTIONS

import kcalc as kc

OPTIONS = words(
    "groups standardised stride sigma_b batch_c padding kernel weights bias causal identity rotary"
)


def test_the_corpus_has_every_kind_of_layer_and_option() -> None:
    layers = [layer for n in range(240) for _, layer, _ in numbered(n).network.steps()]
    kinds = Counter(type(layer).__name__ for layer in layers)
    options = Counter(
        item.name
        for layer in layers
        for item in fields(layer)
        if item.name in OPTIONS and getattr(layer, item.name) != item.default
    )
    assert set(kinds) == set(kc.layers.KINDS) - {"MoE", "Route"}  # guests with tests of their own
    assert min(kinds.values()) >= 5 and min(options.values()) >= 5 and set(options) == set(OPTIONS)


def test_a_record_equals_itself_and_shows_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    asked = ["c_map", "slopes", "moments", "gradients"]
    write(old, 4, asked, 1)
    assert {name for _, name in dict(read(old))} == set(asked)
    assert compare(old, old, 1e-13, 5) == 0
    lines = [json.loads(line) for line in Path(old).read_text().splitlines()]
    changed = next(line for line in lines if "answer" in line and line["question"] == "c_map")
    key = next(k for k in changed["answer"] if k.startswith("C."))
    value, condition = changed["answer"][key]
    changed["answer"][key] = [(float.fromhex(value) + 1e-10).hex(), condition]
    Path(new).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert compare(old, new, 1e-13, 5) == 1
    assert f"{changed['case']}: {key}" in capsys.readouterr().out


def test_every_question_is_asked_of_some_network() -> None:
    assert len(QUESTIONS) >= 20


def test_readers_are_recorded_and_compared_model_by_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    made = torch.nn.Sequential(*layers).eval(), (torch.ones(2, 6),)
    bare = made[0][0], made[1]
    lines = [
        {"case": name, "question": question} | found
        for name, model in (("a stack", made), ("one layer", bare))
        for question, found in readers.answers(lambda model=model: model)
    ]
    assert [line["question"] for line in lines] == ["reading", "kept", "shaped", "exports"] * 2
    stack = {line["question"]: line for line in lines[:4]}
    assert "BatchNorm" in stack["reading"]["answer"]["node 1"]
    assert stack["kept"]["answer"]["output 0"] == "(2, 3)" and "no nonlinear" in lines[6]["message"]
    shaped = stack["shaped"]["answer"]
    assert shaped["output 0"] == "(2, 3)" and "0.weight (8, 6)" in shaped["names"]
    assert set(stack["exports"]["answer"]) == set(readers.FORMATS)
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("\n".join(map(json.dumps, lines)))
    stack["reading"]["answer"]["fidelity"] = "another"
    new.write_text("\n".join(map(json.dumps, lines)))
    assert compare(str(old), str(old), 1e-13, 5, by="model") == 0
    capsys.readouterr()
    assert compare(str(old), str(new), 1e-13, 5, by="model") == 1
    told = capsys.readouterr().out
    assert told.startswith("a stack: 4 compared, 1 differ\n    reading: fidelity:")
    assert "one layer" not in told


def test_two_records_of_the_readers_are_equal() -> None:
    """No folder of one run is in a message, and random weights are the same."""
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("onnx")
    for make in (
        lambda: (b"no model", ()),
        lambda: (torch.nn.Linear(6, 8), (torch.ones(2, 6),)),
    ):
        one, two = (list(readers.answers(make)) for _ in range(2))
        assert one == two
    refused = dict(readers.answers(lambda: (b"no model", ())))["reading"]
    assert "case.onnx" in refused["message"] and refused["node"] is None


def test_generated_models_are_read_as_the_networks_that_they_were_written_from() -> None:
    pytest.importorskip("torch")
    from torch_networks import Untold, written

    count = 0
    for number in range(60):
        network = numbered(number).network
        try:
            model = written(network)
        except Untold:
            continue
        found = kc.read(model, *model.shapes(), sigmas=False)
        if found.fidelity.level == "exact" and not network.nodes_of(kc.layers.Dropout):
            count += 1
            one, two = ({net.features[n] for n in net.outputs} for net in (found.network, network))
            assert one == two
    assert count > 5
