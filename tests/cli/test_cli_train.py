"""``kcalc train``: methods side by side."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from command_words import run

import kcalc as kc

QUICK = " --width 8 --steps 6 --evaluate-every 3"


def test_methods_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "train vanilla-2 --activation tanh --compare none,he:relu --learning-rate 1e-3,1e-2"
    files = f" --seeds 2 --table {tmp_path}/t.csv --plot {tmp_path}/p.svg"
    text = run(capsys, line + files + QUICK).out
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [row["label"] for row in rows] == ["none", "he:relu"]
    assert all(row["runs"] == "2" for row in rows)
    assert all(f"{100 * float(row['accuracy']):.2f}" in text for row in rows)
    assert (tmp_path / "p.svg").stat().st_size > 3000


def test_a_table_alone_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    line = "train vanilla-2 --activation tanh --learning-rate 1e-3 --table -"
    rows = csv.DictReader(run(capsys, line + QUICK).out.splitlines())
    assert [row["label"] for row in rows] == ["dks"]


def test_convolutional_networks_read_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    L, file = kc.layers, str(tmp_path / "net.json")
    kc.save_json(kc.chain(L.Input(), L.Affine(4, kernel=3), L.Nonlinear("relu")), file)
    line = f"train {file} --compare none:tanh --learning-rate 1e-3"
    assert "none:tanh" in run(capsys, line + QUICK).out


def test_runs_that_diverge_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--optimizer sgd --learning-rate 1e38 --steps 5 --width 8"
    text = run(capsys, f"train vanilla-3 --compare none {options}").out
    assert "1 of 1" in text and "fold 1 of 5" in text
