"""Attention: overlaps of softmax rows, and a deep transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import kcalc as kc
from kcalc.calculi.attention import overlaps
from kcalc.gaussian.softmax import Overlap

from ..book import Figure, Options, Section, Table, seconds, times
from ..timing import alternated

KEPT = ("_alone", "_alone_slope", "_value", "_slope", "_gap", "_gap_slopes")


def run(options: Options) -> Section:
    rows, ratio, worst = measured(options)
    deep, spent = transformer(options)
    return Section(
        "Attention",
        "The first table covers the overlap S of two softmax rows, and its derivative with "
        "respect to the covariance of their scores, each computed on a new grid. The floor is one "
        "exponential and one matrix product over that grid. The second table covers a transformer "
        "of 48 blocks, with every node computed from scratch.",
        [rows, deep],
        {
            "overlap": Figure(1e3 * worst[3], seconds(worst[3])),
            "overlap_wide": Figure(1e3 * worst[5], seconds(worst[5])),
            "overlap_ratio": Figure(ratio, times(ratio)),
            "transformer": Figure(spent, seconds(spent)),
        },
    )


def both(tokens: int, variance: float, covariance: float) -> tuple[float, float]:
    """S and dS/dk."""
    row = Overlap(tokens, variance, variance, covariance)
    return row.value, row.by_covariance


def measured(options: Options) -> tuple[Table, float, dict[int, float]]:
    """Median CPU times of S with its derivative, by number of tokens and standard deviation of
    scores.
    """
    rows, ratios, worst = [], [], {1: 0.0, 3: 0.0, 5: 0.0}
    for deviation in worst:
        for tokens in (16, 1024, 65536):
            v, k = float(deviation**2), 0.5 * deviation**2
            grid = Overlap(tokens, v, v, k)._grid
            first = np.ascontiguousarray(grid._first[0])
            actions: dict[str, Callable[[], Any]] = {
                "both": lambda t=tokens, v=v, k=k: both(t, v, k),
                "floor": lambda f=first, g=grid.log_phi: (np.exp(g), f @ f.T),
            }
            found = alternated(actions, options.size(5, 40))
            spent, floor = found["both"].cpu, found["floor"].cpu
            worst[deviation] = max(worst[deviation], spent)
            ratios.append(spent / floor)
            size = " x ".join(map(str, grid.log_phi.shape))
            rows.append(
                (
                    str(deviation),
                    str(tokens),
                    size,
                    seconds(spent),
                    seconds(floor),
                    times(spent / floor),
                )
            )
    columns = ("deviation of scores", "tokens", "grid", "S and dS/dk", "floor", "ratio")
    return Table("Softmax rows, CPU", columns, rows), float(np.median(ratios)), worst


def transformer(options: Options) -> tuple[Table, float]:
    """Values and gradients at every node of a deep GPT-2 without masks."""
    blocks = options.size(6, 48)
    network = kc.architectures.gpt2(blocks=blocks, causal=False)

    def fresh(act: Callable[[], Any]) -> Callable[[], Any]:
        def clear() -> Any:
            for name in KEPT:
                getattr(overlaps, name).cache_clear()
            return act()

        return clear

    actions = {
        "gradients (with values of one input)": fresh(lambda: kc.gradients(network, tokens=1024)),
        "values of two inputs": fresh(lambda: kc.node_values(network, c=0.5, tokens=1024)),
    }
    found = alternated(actions, options.size(1, 5))
    rows = [(name, seconds(t.wall), seconds(t.cpu)) for name, t in found.items()]
    caption = f"GPT-2 with {blocks} blocks, 1024 tokens, {len(network)} nodes"
    return Table(caption, ("what", "time", "CPU"), rows), found[
        "gradients (with values of one input)"
    ].cpu
