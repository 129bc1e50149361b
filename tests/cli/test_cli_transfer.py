"""``kcalc transfer``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcalc.cli import main

BUILDER = """
from torch import nn


def build(width=8, depth=1):
    hidden = [nn.Linear(width, width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), *hidden, nn.ReLU(), nn.Linear(width, 2))


class Running(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Linear(4, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.two(self.one(x).cumsum(1))


def running(width):
    return Running(width)


def ids(width):
    return nn.Sequential(nn.Embedding(9, width), nn.Linear(width, 2))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("built_by_width.py").write_text(BUILDER)
    return tmp_path


def test_a_function_of_the_width(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "transfer built_by_width:build --input 2,4 --width 8 --to 32 --optimizer sgd"
    assert main([*words.split(), "--json", "rules.json"]) == 0
    assert "2.weight hidden sgd" in " ".join(capsys.readouterr().out.split())
    rules = json.loads((folder / "rules.json").read_text())["parameters"]
    assert [rule["learning_rate"] for rule in rules if rule["name"].endswith("weight")] == [
        4,
        1,
        0.25,
    ]


def test_token_ids(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "transfer built_by_width:ids --ids 2,4 --width 8 --to 32"
    assert main(words.split()) == 0
    assert "embedding" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("vanilla-3 --width 8", "--width and --to"),
        ("vanilla-3 --depth 1 --to-depth 2", "--depth applies only to functions"),
        ("built_by_width:build --input 2,4", "give the widths of both models"),
        ("built_by_width:build --width 8 --to 16", "--input SIZES or --ids SIZES"),
        ("built_by_width:build --input 2,4 --width -3 --to 16", "--width must be an integer"),
        ("vanilla-3 --optimizer adam", "Adam without decay"),
        ("vanilla-3 --optimizer rmsprop", "sgd, adamw, adafactor, lion, muon, muon-match-rms"),
        ("resnet-50 --optimizer sgd", "all widths of resnet-50 are fixed"),
        (
            "built_by_width:running --input 2,4 --width 8 --to 16",
            "cumsum.*operations that have such a rule.*--unknown heuristic",
        ),
        (
            "built_by_width:build --input 2,4 --width 8 --to 16 --depth 1 --to-depth 2",
            "has no counterpart|differ in depth by more|several counterparts|different places",
        ),
    ],
)
def test_refusals(words: str, told: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    assert main(["transfer", *words.split()]) == 2
    assert re.search(told, capsys.readouterr().err)
