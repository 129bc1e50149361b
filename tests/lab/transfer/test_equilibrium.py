"""The stationary size of weights under AdamW, beside Monte Carlo and closed forms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from refusals import refused

import kcalc as kc


@pytest.mark.parametrize(
    ("lr", "decay", "betas"),
    [(0.05, 0.4, (0.9, 0.999)), (0.02, 2.0, (0.5, 0.99)), (0.1, 5, (0, 0))],
)
def test_stationary_variance_of_independent_gradients(
    lr: float, decay: float, betas: tuple[float, float]
) -> None:
    """Weights by AdamW's recursion with a constant denominator, over 14 half-lives."""
    found = kc.equilibrium(lr, decay, betas)
    steps, count, b = int(14 * found.steps) + 50, 4000, betas[0]
    draws, w, m = np.random.default_rng(1), np.zeros(count), np.zeros(count)
    for _ in range(steps):
        m = b * m + (1 - b) * draws.standard_normal(count)
        w = (1 - lr * decay) * w - lr * m
    measured = float(np.mean(w**2))
    error = measured * math.sqrt(2 / count)
    assert abs(measured - found.rms**2) < 4 * error


def test_the_number_of_the_second_derivation() -> None:
    found = kc.equilibrium(0.01, 0.1)
    assert found.rms == pytest.approx(0.222610239164, abs=1e-12)
    # lost * weight -> 0: the continuous limit lr / (2 decay)
    assert kc.equilibrium(1e-9, 0.5).rms ** 2 == pytest.approx(1e-9, rel=1e-7)
    assert found.sigma_w(400) == pytest.approx(20 * found.rms)
    (note,) = found.assumptions
    assert note.kind == "heuristic"


@pytest.mark.parametrize(("decay", "power"), [(1, -1), (0.5, -0.75), (0, -0.5)])
def test_decays_and_the_width(decay: float, power: float) -> None:
    """Rate 1/n: with decay=1 the decay grows as n and weights shrink as 1/n."""
    sizes = []
    for width in (64, 4096):
        rule = kc.transfer(kc.architectures.vanilla(3), base=64, to=width, decay=decay)[
            "affine_2.weight"
        ]
        sizes.append(kc.equilibrium(1e-3 * rule.learning_rate, 0.1 * rule.weight_decay).rms)
    assert math.log(sizes[1] / sizes[0]) / math.log(64) == pytest.approx(power, abs=1e-3)


def test_maps_of_the_stationary_weights() -> None:
    sigma = kc.equilibrium(0.01, 0.1).sigma_w(64)
    net = kc.chain(kc.layers.Input(64), kc.layers.Affine(sigma_w=sigma))
    assert float(kc.q_map(net)(1.0)) == pytest.approx(64 * 0.222610239164**2, rel=1e-9)


BAD = {
    "lr must be positive": (0, 0.1),
    "weight_decay must be positive": (0.1, 0),
    "lr \\* weight_decay must be less than 1": (2, 0.5),
    "betas must lie": (0.1, 0.1, (1.0, 0.9)),
    "betas must be two": (0.1, 0.1, (0.9,)),
    "lr": ("a", 0.1),
    "weight_decay": (0.1, float("nan")),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_settings(words: str) -> None:
    with refused(words):
        kc.equilibrium(*BAD[words])
    with refused("fan_in"):
        kc.equilibrium(0.1, 0.1).sigma_w(0)


def test_all_extremes_are_finite() -> None:
    for lr, decay in itertools.product((1e-12, 1e-3, 0.9), (1e-12, 1e-3, 1.0)):
        assert 0 < kc.equilibrium(lr, decay).rms < math.inf
