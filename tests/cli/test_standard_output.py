"""A document that is written to standard output, by -, is all that stands there."""

from __future__ import annotations

import pytest
from command_words import words

from kcalc.cli import main


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
