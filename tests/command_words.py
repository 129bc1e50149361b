"""Command lines as they are typed."""

from __future__ import annotations

import argparse
from typing import Any

from kcalc.cli import main, parser


def words(text: str) -> list[str]:
    """The words of a command line without spaces in them."""
    return text.split()


def arguments(command: str) -> list[Any]:
    """What the parser knows of the arguments of a command."""
    (verbs,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return verbs.choices[command]._actions


def run(capsys: Any, line: str, status: int = 0) -> Any:
    """(out, err) of a command without spaces in its words, which ends with ``status``."""
    try:
        found = main(words(line))
    except SystemExit as stop:
        found = stop.code
    assert found == status
    return capsys.readouterr()


def refused(capsys: Any, line: str) -> str:
    """The error of a command that says one line and nothing else."""
    out, err = run(capsys, line, 2)
    assert not out and err.count("\n") == 1
    return err
