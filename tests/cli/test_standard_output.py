"""A document that is written to standard output, by -, is all that stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_words import words

from kcalc.cli import main


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
        "shape vanilla-3 --activation tanh --export torch -o a.py --json a.py",
        "verify --json - --html -",
    ],
)
def test_two_options_do_not_write_to_one_place(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(command)) == 2
    assert "--json" in capsys.readouterr().err
