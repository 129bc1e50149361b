"""The stationary size of weights under AdamW, beside Monte Carlo and closed forms."""

from __future__ import annotations

import pytest
from refusals import refused

from kcalc import equilibrium

BAD = {
    "lr must be positive": (0, 0.1),
    "weight_decay must be positive": (0.1, 0),
    "lr \\* weight_decay must be less than 1": (2, 0.5),
    "betas must lie": (0.1, 0.1, (1.0, 0.9)),
    "betas must lie in": (0.1, 0.1, (0.9, 1.0)),
    "betas must be two": (0.1, 0.1, (0.9,)),
    "lr": ("a", 0.1),
    "weight_decay": (0.1, float("nan")),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_settings(words: str) -> None:
    with refused(words):
        equilibrium(*BAD[words])
    with refused("fan_in"):
        equilibrium(0.1, 0.1).sigma_w(0)
