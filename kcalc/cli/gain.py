"""``kcalc gain ACTIVATION ...``: the weight scale that keeps q."""

from __future__ import annotations

import argparse

from ..activations import activation
from ..activations.gains import gain
from .command import Command, number
from .text import table


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("activations", nargs="+", metavar="NAME", help="activations by name")
    command.add_argument("--q", type=number, default=1.0, help="the q value to keep; default 1")


def _run(options: argparse.Namespace) -> None:
    rows = [("activation", "gain", "centred gain")]
    for name in options.activations:
        phi = activation(name)
        variance = float(phi.second_moment(options.q)) - float(phi.mean(options.q)) ** 2
        centred = f"{gain(phi, options.q, centred=True):.13g}" if variance > 0 else "-"
        rows.append((phi.name, f"{gain(phi, options.q):.13g}", centred))
    print("\n".join(table(rows)))


COMMAND = Command(
    "gain", "print the weight scale that keeps q", "Print the gains of activations.", _options, _run
)
