"""What shaping, gains and exports print on the command line, checked against the library."""

from __future__ import annotations

from pathlib import Path

import exported
import numpy as np
import pytest

import kcalc as kc
from kcalc.cli import main

A, L = kc.architectures, kc.layers
T = 5
TOKENS = np.exp(-np.abs(np.subtract.outer(np.arange(T), np.arange(T))))


def test_gains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gain", "tanh", "relu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["tanh", "1.592537419723", "1.592537419723"]
    assert lines[3].split()[:2] == ["relu", "1.414213562373"]
    assert main(["gain", "tahn"]) == 2


def test_the_edge_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shape", "gpt2-2", "--method", "edge", "--tokens", "16", "--growth", "3"]) == 0
    found = capsys.readouterr().out
    assert "residual weights, attention" in found and "query-key scale" in found
    row = next(line for line in found.splitlines() if line.strip().startswith("stream growth"))
    assert row.split()[2:4] == ["3", "3"] and float(row.split()[4]) < 1e-9
    assert main(["shape", "gpt2-2", "--method", "edge", "--mlp", "unheard"]) == 2
    assert "treatment of activations" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--method", "tat", "--tau", ".3"], "tried: --method dks works"),
        (["--method", "edge"], "tried: --method dks works"),
    ],
)
def test_remedies_are_tried(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shape", "vanilla-3", "--activation", "abs", *options]) == 2
    assert told in capsys.readouterr().err


def test_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["shape", "vanilla-5", "--activation", "tanh", "--export"]
    assert main([*shape, "numpy"]) == 0
    printed = capsys.readouterr().out
    assert exported.load(printed)["tanh_dks"](0.0) == pytest.approx(
        float(kc.shape(kc.architectures.vanilla(5), "tanh").constants["tanh"].transformed(0.0))
    )
    assert main([*shape, "torch", "-o", str(tmp_path / "acts.py")]) == 0
    assert "phi_hat" in capsys.readouterr().out and "class TanhDks" in (
        tmp_path / "acts.py"
    ).read_text(encoding="utf-8")
    assert main([*shape, "numppy"]) != 0
    assert "the nearest known: numpy" in capsys.readouterr().err
    assert main([*shape, "numpy", "-o", str(tmp_path / "no" / "acts.py")]) != 0
    assert "folder does not exist" in capsys.readouterr().err
    assert main(["shape", "vanilla-5", "-o", "a.py"]) != 0
    assert "--export torch -o" in capsys.readouterr().err


def test_shape_takes_token_cosines_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    net, tokens = tmp_path / "net.json", tmp_path / "tokens.npy"
    kc.save_json(
        A.transformer(2, kc.token_mixing.exponential(T, [0.8, 0.6], start=1.0), "tanh"), net
    )
    np.save(tokens, TOKENS)
    assert main(["shape", str(net), "--tokens", str(tokens), "--token-rows", "rescale"]) == 0
    assert "Q(1) at tokens" in capsys.readouterr().out
    np.savetxt(tmp_path / "tokens.csv", TOKENS, delimiter=",")
    assert (
        main(
            [
                "shape",
                str(net),
                "--method",
                "tat",
                "--tau",
                "0.1",
                "--tokens",
                str(tmp_path / "tokens.csv"),
                "--token-rows",
                "rescale",
            ]
        )
        == 0
    )
    capsys.readouterr()
    for name, words in (("none.npy", "No such file"), ("net.json", "does not contain an array")):
        with pytest.raises(SystemExit):
            main(["shape", str(net), "--tokens", str(tmp_path / name)])
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(("name", "zeta"), [("gated-mlp-4", "9"), ("convnext-2", "2")])
def test_modern_networks_have_names(name: str, zeta: str, capsys: pytest.CaptureFixture[str]):
    assert main(["shape", name, "--zeta", zeta]) == 0
    printed = capsys.readouterr().out
    assert (
        "swish" if "gated" in name else "gelu"
    ) in printed and "shortcut weight 0.707107" in printed
