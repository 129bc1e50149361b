"""What shaping, gains and exports print on the command line, checked against the library."""

from __future__ import annotations

from pathlib import Path

import exported
import numpy as np
import pytest
from command_words import run

import kcalc as kc

A = kc.architectures
T = 5
TOKENS = np.exp(-np.abs(np.subtract.outer(np.arange(T), np.arange(T))))


def test_gains(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "gain tanh relu").out.splitlines()
    assert lines[2].split() == ["tanh", "1.592537419723", "1.592537419723"]
    assert lines[3].split()[:2] == ["relu", "1.414213562373"]


def test_the_edge_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "shape gpt2-2 --method edge --tokens 16 --growth 3").out
    assert "residual weights, attention" in found and "query-key scale" in found
    row = next(line for line in found.splitlines() if line.strip().startswith("stream growth"))
    assert row.split()[2:4] == ["3", "3"] and float(row.split()[4]) < 1e-9
    error = run(capsys, "shape gpt2-2 --method edge --mlp unheard", 2).err
    assert "treatment of activations" in error


def test_remedies_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    error = run(capsys, "shape vanilla-3 --activation abs --method edge", 2).err
    assert "tried: --method dks works" in error


def test_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape, path = "shape vanilla-5 --activation tanh --export", tmp_path / "acts.py"
    printed = exported.load(run(capsys, f"{shape} numpy").out)["tanh_dks"](0.0)
    expected = kc.shape(A.vanilla(5), "tanh").constants["tanh"].transformed(0.0)
    assert printed == pytest.approx(float(expected))
    assert "phi_hat" in run(capsys, f"{shape} torch -o {path}").out
    assert "class TanhDks" in path.read_text(encoding="utf-8")
    for line, said in (
        (f"{shape} numppy", "the nearest known: numpy"),
        (f"{shape} numpy -o {tmp_path}/no/acts.py", "folder does not exist"),
        ("shape vanilla-5 -o a.py", "--export torch -o"),
    ):
        assert said in run(capsys, line, 2).err


def test_shape_takes_token_cosines_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    net, mixing = tmp_path / "net.json", kc.token_mixing.exponential(T, [0.8, 0.6], start=1.0)
    kc.save_json(A.transformer(2, mixing, "tanh"), net)
    np.save(tmp_path / "tokens.npy", TOKENS)
    line = f"shape {net} --tokens {tmp_path}"
    assert "Q(1) at tokens" in run(capsys, f"{line}/tokens.npy --token-rows rescale").out
    np.savetxt(tmp_path / "tokens.csv", TOKENS, delimiter=",")
    run(capsys, f"{line}/tokens.csv --token-rows rescale --method tat --tau 0.1")
    for name, words in (("none.npy", "No such file"), ("net.json", "does not contain an array")):
        assert words in run(capsys, f"{line}/{name}", 2).err


def test_modern_networks_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    for name, activation in (("gated-mlp-4", "swish"), ("convnext-2", "gelu")):
        printed = run(capsys, f"maps {name}").out
        assert activation in printed and "shortcut weight 0.707107" in printed
