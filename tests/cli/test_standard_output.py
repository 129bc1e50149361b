"""A document that is written to standard output, by -, is all that stands there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_words import words

from kcalc.cli import main

LOUD = """
print("imported")
def build(width=8):
    print("built")
    from torch import nn
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
"""


@pytest.fixture
def loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    name = f"loud_{abs(hash(tmp_path)) % 10**8}"
    (tmp_path / f"{name}.py").write_text(LOUD)
    return f"{name}:build"


@pytest.mark.parametrize(
    "command",
    [
        "read {} --input 2,4 --json -",
        "shape {} --input 2,4 --json -",
        "scaling {} --input 2,4 --json -",
        "transfer {} --input 2,4 --width 8 --to 16 --json -",
        "audit {} --input 16,4 --json -",
    ],
)
def test_json_is_pure_where_the_module_prints(
    loud: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(command.format(loud))) == 0
    found = capsys.readouterr()
    assert json.loads(found.out) and "imported" in found.err
    assert sys.stdout is not None and "built" not in found.out


def test_pages_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("report vanilla-3 --activation tanh -o -")) == 0
    out = capsys.readouterr().out
    assert out.lstrip().lower().startswith("<!doctype html") and "wrote" not in out
    assert not Path("-").exists()
    assert main(words("shape vanilla-3 --activation tanh --export torch -o -")) == 0
    source = capsys.readouterr().out
    compile(source, "source", "exec")
    assert main(words("shape vanilla-3 --activation tanh --export torch")) == 0
    assert capsys.readouterr().out == source


@pytest.mark.parametrize(
    "command",
    [
        "shape vanilla-3 --activation tanh --export torch --json -",
        "shape vanilla-3 --activation tanh --export torch -o - --json -",
        "shape vanilla-3 --activation tanh --export torch -o a.py --json a.py",
        "verify --json - --html -",
    ],
)
def test_two_options_do_not_write_to_one_place(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(command)) == 2
    assert "--json" in capsys.readouterr().err


def test_an_empty_name_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shape", "vanilla-3", "--json", ""]) == 2
    assert "--json" in capsys.readouterr().err
