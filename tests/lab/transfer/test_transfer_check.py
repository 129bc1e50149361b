"""Best rates with and without rules, and whether rules pay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from refusals import refused

from kcalc import TransferCheck, transfer_check
from kcalc.lab.transfer import Gain

RATES = (0.1, 0.2, 0.4, 0.8)


def check(by: Any, plain: Any, seeds: int = 6) -> TransferCheck:
    """Losses by size and rate, times noise that seeds of both share."""
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal(seeds))
    arrays = [np.array(one, dtype=float)[:, :, None] * noise for one in (by, plain)]
    return TransferCheck((64.0, 256.0), RATES, arrays[0], plain=arrays[1])


BASE, NEVER = [1.0, 0.5, 0.4, 0.6], [math.inf] * 4
EQUAL = [BASE, BASE]


def test_an_interval_around_0_is_a_tie() -> None:
    draws = np.random.default_rng(1)
    losses = [0.3 * np.exp(0.1 * draws.standard_normal((2, 4, 8))) for _ in range(2)]
    found = TransferCheck((64.0, 256.0), RATES, losses[0], plain=losses[1])
    assert "without" not in repr(TransferCheck((64.0, 256.0), RATES, losses[0]))
    assert found.gain().tie and "tie" in repr(found)
    each = np.log(losses[1][-1, np.argmin(found.plain_means[-1])]) - np.log(
        losses[0][-1, np.argmin(found.means[-1])]
    )
    half = 2.3646 * each.std(ddof=1) / math.sqrt(8)  # Student's t with 7 degrees of freedom
    assert found.gain().high == pytest.approx(each.mean() + half, rel=1e-4)


def test_best_rates_at_the_end_of_the_grid() -> None:
    found = check([BASE, [0.1, 0.4, 0.6, 0.7]], [BASE, [0.9, 0.8, 0.7, 0.6]])
    assert [text.partition(";")[0] for text in found.at_edge] == [
        "width 256 with rules: the lowest loss is at the smallest rate, 0.1",
        "width 256 without rules: the lowest loss is at the largest rate, 0.8",
    ]
    assert "try smaller rates" in str(found) and "at_edge" in repr(found)
    assert not check(EQUAL, EQUAL).at_edge


def test_runs_that_diverge() -> None:
    worse = check(EQUAL, [BASE, NEVER]).gain()
    assert worse == Gain(math.inf, 0.0, math.inf)
    with refused("diverge"):
        check([BASE, NEVER], [BASE, NEVER]).gain()


def test_models_that_diverge() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.ones(4, 2), torch.ones(4, 1)
    found = transfer_check(
        lambda width: torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Linear(width, 1)),
        x, y, (1e30, 2e30, 4e30), (2, 4), "sgd", steps=3, seeds=1, standard=True,
    )  # fmt: skip
    assert np.isinf(found.losses).all() and np.isnan(found.best).all() and found.plain is None


def test_what_a_gain_needs() -> None:
    with refused("5 seeds"):
        check(EQUAL, EQUAL, seeds=4).gain()
    alone = TransferCheck((64.0, 256.0), RATES, np.ones((2, 4, 5)))
    for ask in (alone.gain, lambda: alone.best_plain):
        with refused("standard=True"):
            ask()
    with refused("at"):
        alone.gain("here")
    late, early = [3.0, 3, 3, 1], [3.0, 1, 0, 0]
    ends = TransferCheck((64.0, 256.0), RATES, np.exp([late, early])[..., None])
    assert ends.crossing_shift(math.exp(2)) == pytest.approx(0.5 - 2.5)
