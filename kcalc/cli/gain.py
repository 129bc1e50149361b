"""``kcalc gain ACTIVATION ...``: the weight scale that preserves q."""

from __future__ import annotations

from typing import Annotated

from .. import gain
from ..activations import activation
from .command import Option
from .text import Json, check_files, show, table


def run(
    activations: Annotated[
        list[str], Option("activations by name", "activations", nargs="+", metavar="NAME")
    ],
    q: Annotated[float, Option("the q value to preserve; default 1")] = 1.0,
    json: Json = None,
) -> None:
    """Print gains of activations: the sigma_w that preserves q, for plain and centred weights."""
    check_files({"--json": json})
    found: dict[str, dict[str, float | None]] = {}
    for name in activations:
        phi = activation(name)
        varies = float(phi.second_moment(q)) > float(phi.mean(q)) ** 2
        centred = float(gain(phi, q, centred=True)) if varies else None
        found[phi.name] = {"gain": float(gain(phi, q)), "centred_gain": centred}
    rows = [
        (name, *("-" if value is None else f"{value:.13g}" for value in gains.values()))
        for name, gains in found.items()
    ]
    text = "\n".join(table([("activation", "gain", "centred gain"), *rows]))
    show(text, lambda: {"q": q, "gains": found}, json)
