"""kcalc read, and the other commands on models of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_words import words
from wiring import wired

import kcalc as kc
from kcalc.cli import main

L = kc.layers
MODULE = """
import jax.numpy as jnp
import kcalc as kc
print("imported")
L = kc.layers
network = kc.chain(L.Input(4), L.Affine(8), L.BatchNorm(), L.Nonlinear("tanh"), L.Affine(3))

def make():
    return network

class Holder:
    inner = network

def broken():
    raise RuntimeError("boom")

number = 3
"""


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_models_of_a_test.py").write_text(MODULE)
    yield
    sys.modules.pop("own_models_of_a_test", None)


EMBEDDING = """
import torch
from torch import nn
embedded = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).eval()
seen = []
embedded.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    def forward(self, ids):
        return self.model(ids) if int(ids.min()) > 2 else self.model(ids).sort(-1)[0]
picky = Picky().eval()
"""


def test_token_ids_of_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "own_models_of_a_test.py").write_text(EMBEDDING)
    name = "own_models_of_a_test:embedded"
    assert main(["read", name, "--input", "2,6"]) == 2
    assert "such as token ids, give --ids SIZES" in capsys.readouterr().err
    for more in (["read"], ["maps"], words("shape --activation tanh")):
        assert main([*more, name, "--ids", "2,6"]) == 0
    assert "Embedding(8, vocabulary=9" in capsys.readouterr().out
    assert main(["report", name, *words("--ids 2,6 -o page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "kcalc report own_models_of_a_test:embedded --ids 2,6 -o page.html" in page
    assert main(["read", name, "--ids", "4,3"]) == 0
    seen = sys.modules["own_models_of_a_test"].seen
    assert any(ids.shape == (4, 3) and not ids.is_floating_point() for ids in seen)
    capsys.readouterr()
    assert main(["read", "own_models_of_a_test:picky", "--ids", "4,3"]) == 0
    assert "sort" not in capsys.readouterr().out  # ids that models may give a meaning are not drawn


def residual() -> kc.Network:
    return wired(
        ("x", L.Input(4)),
        ("a", L.Affine(4), "x"),
        ("n", L.BatchNorm(), "a"),
        ("f", L.Nonlinear("relu"), "n"),
        ("b", L.Affine(4), "f"),
        ("s", L.Sum(), "a b"),
        ("g", L.Nonlinear("relu"), "s"),
        ("y", L.Affine(2), "g"),
    )


def test_long_networks_are_cut_short_unless_all_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kc.save_json(kc.architectures.vanilla(60), tmp_path / "net.json")
    assert main(["read", "net.json"]) == 0
    assert "(--all prints them)" in (short := capsys.readouterr().out)
    assert main(words("read net.json --all")) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(short.splitlines()) + 40


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "read own_models_of_a_test:broken",
            "broken: RuntimeError",
        ),
        ("read own_models_of_a_test:absent", "has no attribute 'absent'"),
        ("read no_such_module_here:x", "no Python module 'no_such_module_here'"),
        ("read own_models_of_a_test:number", "cannot read a int"),
        ("read missing.onnx", "cannot read missing.onnx"),
        ("read missing.json", "cannot read 'missing.json'"),
        ("read own_models_of_a_test.py", "end in .onnx or .json"),
        ("read net.json --json missing/out.json", "its folder does not exist"),
        ("maps vanilla-3 --input 1,3", "vanilla-3"),
        ("maps net.json --shortcut-weight .5", "applies to the built-in ResNets"),
        ("maps net.json", "BatchNorm"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    arguments: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kc.save_json(residual(), tmp_path / "net.json")
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.strip().splitlines()) == 1


def test_bad_shapes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("1,x", "0,3", "1,,3", "-1"):
        with pytest.raises(SystemExit):
            main(["read", "net.json", f"--input={text}"])
        assert "1,3,224,224" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(["read", "net.json", f"--ids={text}"])
        assert "argument --ids" in capsys.readouterr().err
    for text in (f"{10**12},4", "65536,65536", "9" * 5000):
        with pytest.raises(SystemExit):
            main(["read", "net.json", f"--input={text}"])
        error = capsys.readouterr().err
        assert "too large for an example input; use a smaller" in error and error.count("\n") == 1


def test_normalisation_is_dropped_on_request_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kc.save_json(residual(), tmp_path / "net.json")
    for command in ("maps", "shape"):
        assert main([command, "net.json", "--without-normalization"]) == 0
        printed = capsys.readouterr().out
        assert "removed normalisation: n" in printed and "normalised sums: s" in printed


def test_the_commands_take_onnx_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx_graphs import model, node, weights

    nodes = [node("Gemm", "x w", "a"), node("Relu", "a", "b"), node("Gemm", "b v", "y")]
    onnx.save(
        model(nodes, {"x": ["N", 6]}, ["y"], {"w": weights(6, 8), "v": weights(8, 3)}),
        tmp_path / "m.onnx",
    )
    assert main(words("read m.onnx --no-sigmas")) == 0
    assert (
        "onnx, 4 nodes, 4 exact" in (printed := capsys.readouterr().out)
        and "sigma_w" not in printed
    )
    assert main(words("shape m.onnx --activation tanh --method dks")) == 0
    assert main(["maps", "m.onnx"]) == 0
    assert "activations: relu" in capsys.readouterr().out
