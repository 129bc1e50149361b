"""The form of a command, and the option types and files that commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """One word of the command line.

    ``help`` is its line in ``kcalc --help``; ``description`` and ``epilog`` stand above and below
    its own options, as written where the description has several lines. ``options`` adds its
    arguments to a parser; ``run`` does the work: it prints to standard output and raises KcalcError
    for bad input; its result is the exit status, None for 0.
    """

    name: str
    help: str
    description: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]
    epilog: str | None = None


def number(text: str) -> float:
    """A finite number from the command line. Raises: argparse.ArgumentTypeError naming the text."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def plot_option(command: argparse.ArgumentParser) -> None:
    """``--plot FILE``."""
    command.add_argument("--plot", metavar="FILE", help="write a figure (.png, .pdf or .svg)")


def save_figure(axes: Any, path: str) -> None:
    """Write the figure of some Axes to a file.

    Raises: KcalcError for a suffix or a folder that does not serve.
    """
    from .. import plotting

    plotting.save(axes, path)
