"""``kcalc transfer``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_words import refused, run

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
    line = "transfer built_by_width:build --input 2,4 --width 8 --to 32 --optimizer sgd"
    shown = run(capsys, f"{line} --json rules.json").out
    assert "2.weight hidden sgd" in " ".join(shown.split())
    rules = json.loads((folder / "rules.json").read_text())["parameters"]
    rates = [rule["learning_rate"] for rule in rules if rule["name"].endswith("weight")]
    assert rates == [4, 1, 0.25]


def test_token_ids(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "transfer built_by_width:ids --ids 2,4 --width 8 --to 32"
    assert "embedding" in run(capsys, line).out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("built_by_width:build --input 2,4", "pass the widths of both models"),
        ("built_by_width:build --width 8 --to 16", "--input SIZES or --ids SIZES"),
        ("built_by_width:build --input 2,4 --width -3 --to 16", "--width must be an integer"),
        (
            "built_by_width:running --input 2,4 --width 8 --to 16",
            "cumsum.*operations that have width rules.*--unknown heuristic",
        ),
        (
            "built_by_width:build --input 2,4 --width 8 --to 16 --depth 1 --to-depth 2",
            "no counterpart|depths of the networks differ|several counterparts|different places",
        ),
    ],
)
def test_refusals(words: str, told: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(told, refused(capsys, f"transfer {words}"))
