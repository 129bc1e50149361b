"""Sampled attention goes on until its errors are those asked for, and these errors hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refusals

import kcalc as kc
from kcalc import Sampling
from kcalc.calculi.attention import sampling as rounds
from kcalc.network.layers import Attend

A = kc.architectures
GPT = A.gpt2(blocks=2, features=16, heads=2, vocabulary=20, length=16, std=None)


def test_an_error_out_of_reach_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MOST", 4)
    found = kc.node_values(GPT, tokens=6, sampling=Sampling(error=0.0005))
    assert found.heuristic and "heuristic" in repr(found)
    assert any("0.0005" in a.text and "draws=" in a.text for a in found.assumptions)


test_options_that_do_not_fit = refusals(
    [
        ({"draws": 3, "error": 0.1}, "pass only one"),
        ({"error": 2}, "error"),
        ({"seconds": -1}, "seconds"),
        ({"chains": 1}, "chains"),
    ],
    lambda options: Sampling(**options),
)


@pytest.mark.parametrize(
    "options", [{"rotary": 100.0}, {"window": 3}, {"alibi": True}, {"relative": (1.5, 6, 4)}]
)
def test_the_variance_of_scores_is_that_of_drawn_ones(options: dict[str, Any]) -> None:
    """The mean over rows of the variance about the mean of what a row sees, by formula."""
    from kcalc.calculi.attention.sampled import _Scores, score_variance

    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 7, 5))
    G, H = x @ x.T / 5, y @ y.T / 5
    op: Any = Attend(4, 8, causal=True, **options).lowered(None)  # pyright: ignore[reportArgumentType]
    drawn = _Scores(op, G, H, 1, 7, 7).drawn(rng, 20000)[0][:, 0]
    rows = [drawn[:, i, np.isfinite(drawn[0, i])].var(axis=1, ddof=1) for i in range(1, 7)]
    found = np.mean(rows, axis=0)
    error = found.std() / len(found) ** 0.5
    assert abs(score_variance(op, G, H) - found.mean()) < 4.5 * error
