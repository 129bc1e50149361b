"""``kcalc gain ACTIVATION ...``: the weight scale that keeps q."""

from __future__ import annotations

from typing import Annotated

from .. import gain
from ..activations import activation
from .command import Option
from .text import table


def run(
    activations: Annotated[
        list[str], Option("activations by name", "activations", nargs="+", metavar="NAME")
    ],
    q: Annotated[float, Option("the q value to keep; default 1")] = 1.0,
) -> None:
    """Print the gains of activations."""
    rows = [("activation", "gain", "centred gain")]
    for name in activations:
        phi = activation(name)
        variance = float(phi.second_moment(q)) - float(phi.mean(q)) ** 2
        centred = f"{gain(phi, q, centred=True):.13g}" if variance > 0 else "-"
        rows.append((phi.name, f"{gain(phi, q):.13g}", centred))
    print("\n".join(table(rows)))
