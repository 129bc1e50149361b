"""ALiBi with any number of heads, against the rule of its released code written out here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from wiring import wired

import kcalc as kc

L = kc.layers
T = 9
APART = np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
K = 0.35 + 0.65 * np.eye(T)


def released(heads: int) -> list[float]:
    """The recursion of Press et al.: of a power of 2, else with every other slope of twice that."""

    def by_power(count: int) -> list[float]:
        first = 2 ** -(2 ** -(math.log2(count) - 3))
        return [first * first**i for i in range(count)]

    near = 2 ** math.floor(math.log2(heads))
    if near == heads:
        return by_power(heads)
    return by_power(near) + released(2 * near)[0::2][: heads - near]


def network(heads: int | None, sigma: float = 1.5, **options: Any) -> kc.Network:
    steps: list[Any] = [("x", L.Input()), ("q", L.Affine(sigma_w=sigma), "x")]
    steps += [(name, L.Affine(), "x") for name in "kv"]
    steps += [("a", L.Attend(heads, alibi=True, **options), "q k v"), ("o", L.Affine(), "a")]
    return wired(*steps)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [6, 8, 12])
def test_values_are_those_of_drawn_heads(heads: int) -> None:
    rng, draws = np.random.default_rng(0), 6000
    G, H = np.linalg.cholesky(1.5**2 * K), np.linalg.cholesky(K)
    found = []
    for slope in released(heads):
        A = np.exp(G @ rng.standard_normal((draws, T, T)) @ H.T - slope * APART)
        A /= A.sum(axis=-1, keepdims=True)
        found.append(A @ K @ A.swapaxes(1, 2))
    every = np.concatenate(found)
    M, sizes = every.mean(axis=0), np.trace(every, axis1=1, axis2=2) / T
    norms, off = np.sqrt(np.diag(M)), ~np.eye(T, dtype=bool)
    given = {"tokens": T, "token_cosine": 0.35, "sampling": kc.Sampling(1600, 8, 1)}
    v = kc.node_values(network(heads), **given)["o"]
    error = math.hypot(v.q_error, sizes.std() / len(every) ** 0.5)
    assert abs(v.q - sizes.mean()) < 4.5 * error
    cosine = (M / np.outer(norms, norms))[off].mean()
    assert v.token_cosine is not None and v.token_cosine_error is not None
    assert abs(v.token_cosine - cosine) < 4.5 * v.token_cosine_error + 1e-3


def test_an_unknown_number_of_heads_is_an_assumption() -> None:
    given = {"tokens": 4, "sampling": kc.Sampling(1, 2)}
    for heads, told in ((None, True), (8, False)):
        notes = kc.node_values(network(heads), **given).assumptions
        assert any("heads=" in note.text for note in notes if note.node == "a") == told
