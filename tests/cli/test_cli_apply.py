"""kcalc shape --edits and kcalc apply: a PyTorch model shaped from the command line."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest
from command_words import refused, run

import kcalc as kc

torch = pytest.importorskip("torch")
MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def build(width=16):
    return Net(width)


def other():
    return nn.Linear(3, 3)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with models, in the present folder."""
    name = f"model_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_edits_are_written_and_performed(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run(capsys, f"shape {module}:build --input 2,8 --edits edits.json").out
    assert "alpha" in printed and "kcalc apply" in printed
    call = f"apply {module}:build edits.json --output weights.pt --seed 3"
    assert "kc.load_edited(build, 'weights.pt', 'edits.json')" in run(capsys, call).out
    models = importlib.import_module(module)
    build = models.build
    found = kc.load_edited(build, "weights.pt", "edits.json")
    generator = torch.Generator().manual_seed(3)
    same = kc.apply_edits(build(), kc.load_edits("edits.json"), generator=generator)
    x = torch.randn(5, 8)
    assert torch.equal(found(x), same(x)) and isinstance(found, models.Net)


def test_a_patch_is_written(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"shape {module}:build --input 2,8 --patch shaped.patch"
    assert "patch -p1" in run(capsys, line).out
    done = subprocess.run(["patch", "-p1", "-i", "shaped.patch"], capture_output=True)
    assert done.returncode == 0 and Path("shaped_net.py").is_file()
    assert "shaped(self, 1, torch.tanh, self.first(x))" in Path(f"{module}.py").read_text()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("shape vanilla-5 --activation tanh --edits out.json", "PyTorch"),
        ("shape {}:build --input 2,8 --edits out.json --json out.json", "same file"),
        ("apply {}:other edits.json --output w.pt", "shape the model again"),
        ("apply {}:build missing.json --output w.pt", "missing.json"),
        ("apply {}:build bad.json --output w.pt", "schema"),
        ("apply {}:build edits.json --output missing/w.pt", "missing"),
        ("apply {}:build edits.json --output -", "--output"),
        ("apply vanilla-5 edits.json --output w.pt", "module:attribute"),
        ("apply {}:build edits.json --output w.pt --weights none", "keep"),
        ("apply {}:build edits.json --output w.pt --seed 1" + "0" * 30, "--seed"),
    ],
)
def test_mistakes_are_one_line(
    module: str, call: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = importlib.import_module(module).build()
    kc.shape(kc.read(model, (2, 8))).edits.save("edits.json")
    Path("bad.json").write_text("{}")
    assert said in refused(capsys, call.format(module))
    assert not Path("w.pt").exists()
