"""Training at its edges: configurations, overflow, several processes, logs, versions."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from refusals import refused
from test_training_input import DIGITS, LINEAR, QUICK, SPLIT, linear

import kcalc as kc
from kcalc import training
from kcalc.training import (
    Preparation,
    RunConfiguration,
    Settings,
    Trainer,
    Unfinished,
    compare,
    prepare,
)

L = kc.layers


def test_the_error_of_the_first_run_is_no_unfinished_comparison() -> None:
    zeros = RunConfiguration(
        "b", kc.architectures.vanilla(2, "tanh"), "lsuv", weights="zeros", width=8
    )
    with refused("b: node 'affine_1'") as stopped:
        compare([zeros], DIGITS, QUICK, 1, rates=(0.01,))
    assert not isinstance(stopped.value, Unfinished)


def test_the_edge_of_chaos_of_a_configuration_that_does_not_say_where() -> None:
    net = kc.architectures.vanilla(2, "tanh")

    def shaped(activation: Any) -> Any:
        found: Any = RunConfiguration("a", net, "eoc", activation=activation).shaped(SPLIT)[0]
        return found.network.layer("affine_2")  # the first reads the input, not an activation

    assert (shaped("relu").sigma_w, shaped("relu").sigma_b) == (pytest.approx(2**0.5, abs=1e-12), 0)
    # tanh has a curve of points: the one of a small sigma_b
    assert shaped(None) == shaped("tanh") and shaped(None).sigma_b == pytest.approx(0.05, abs=1e-15)
    assert (
        shaped(None).sigma_w
        == kc.shape(net, "tanh", "eoc", sigma_b=0.05).network.layer("affine_2").sigma_w
    )
    with refused("nonlinear.*chaos"):
        RunConfiguration("a", LINEAR, "eoc").shaped(SPLIT)


def test_another_activation_without_shaping_replaces_all() -> None:
    net = RunConfiguration("a", kc.architectures.vanilla(2, "tanh"), activation="relu").shaped(
        SPLIT
    )[0]
    assert isinstance(net, kc.Network) and {
        net.layer(node).activation.name for node in net.nodes_of(L.Nonlinear)
    } == {"relu"}


def test_weights_that_overflow_in_the_last_step_are_a_divergence() -> None:
    settings = Settings("sgd", learning_rate=3e38, momentum=0.0, schedule="constant", steps=1)
    big = prepare(
        DIGITS, SPLIT.train, SPLIT.test, "big", Preparation(scale=1e3, normalisation=None)
    )
    with pytest.raises(training.Diverged, match="weights are not finite"):
        # the loss of the only step is that of the initial weights
        training.fit(linear(), big, settings)


def test_processes_and_devices_that_are_none() -> None:
    with refused("0.*got.*'localhost'"):
        training.connect("localhost")
    for devices in ([], ["cpu"], jax.devices()[:1] * 2):
        with refused("devices.*different"):
            training.data_mesh(devices)
    assert training.data_mesh(jax.devices()[:1]).shape == {"data": 1}


def test_a_process_that_is_not_the_first_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_index", lambda *_: 1)
    trainer = Trainer(linear(), QUICK, mesh=training.data_mesh(1))
    run = trainer.fit(SPLIT, checkpoint=tmp_path / "run.npz", log=tmp_path / "log.csv")
    assert run.history[-1].step == 4 and not list(tmp_path.iterdir())


def test_logs_as_json_lines_have_no_number_that_json_does_not_know(tmp_path: Path) -> None:
    """Of test examples so large that their logits overflow there is no loss."""
    x = SPLIT.x.copy()
    x[SPLIT.test] = 3e38
    run = training.fit(linear(), replace(SPLIT, x=x), QUICK, log=tmp_path / "log.jsonl")
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert len(rows) == len(run.history) > 1
    for row, record in zip(rows, run.history, strict=True):
        assert row["test_loss"] is None and not math.isfinite(record.test_loss)
        assert row["train_loss"] == record.train_loss > 0 and row["step"] == record.step


def test_a_rescaled_network_whose_shortcut_has_no_weight_is_skip_free() -> None:
    found = {one.label: one for one in training.recipe("dks-residual-weight").configurations(6, 64)}
    free, weighted = found["tanh, shortcut 0"], found["tanh, shortcut 0.5"]
    assert free.network == kc.architectures.vanilla(6, "tanh") != weighted.network


def test_an_optax_without_muon_for_stacked_weights_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import optax

    monkeypatch.delattr(optax.contrib, "MuonDimensionNumbers")
    with refused(f"optax {optax.__version__} has no Muon.*install optax >= 0.2.6"):
        training.fit(linear(), SPLIT, Settings("muon", steps=1))
