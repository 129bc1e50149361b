"""Statistics of routers against frozen values, enumeration and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit, softmax

import kcalc as kc
from kcalc import KcalcError

# (E, k, v): S_2 softmax, S_2 sigmoid, S_2 softmax over all experts, R_2, overlap and W at 1/2;
# computed twice with other code, by another order of integration
FROZEN = {
    (8, 2, 1.0): (
        0.553763041186, 0.503918658067, 0.187413694872, 0.2041506661, 0.463585215983, 0.2662534304
    ),
    (64, 6, 1.0): (
        0.198941859808, 0.167093479859, 0.027692055278, 0.1431720319, 0.308379054886, 0.0657042444
    ),
    (256, 8, 1.6384): (
        0.160127974256, 0.125050941222, 0.013064716977, 0.1184273373, 0.19761041415, 0.034200342
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", FROZEN, ids=str)
def test_cross_moments(case: tuple[int, int, float]) -> None:
    found = kc.moe_statistics(*case, cosine=0.5)
    assert found.cross == pytest.approx(FROZEN[case][5], abs=1e-9)


def test_close_tokens() -> None:
    assert kc.moe_statistics(8, 2, 1.0, cosine=0.9).load_cv() == pytest.approx(1.4067670506)


def weights_of(logits: np.ndarray, k: int, score: str, normalise: bool) -> np.ndarray:
    """Weights by the definition, 0 for experts that are not selected."""
    chosen = logits >= np.sort(logits, axis=-1)[..., -k][..., None]
    scores = expit(logits) if score == "sigmoid" else softmax(logits, axis=-1)
    kept = np.where(chosen, scores, 0)
    return kept / kept.sum(-1, keepdims=True) if normalise else kept


@pytest.mark.slow
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("cosine", [0.6, -0.7])
def test_sampled_weights(score: str, normalise: bool, cosine: float) -> None:
    """S_2, W and overlap of six experts, three selected, from 2e5 draws."""
    E, k, v, draws = 6, 3, 2.0, 200_000
    rng = np.random.default_rng(5)
    covariance = v * np.array([[1, cosine], [cosine, 1]])
    one, two = np.moveaxis(rng.multivariate_normal([0, 0], covariance, (draws, E)), -1, 0)
    w, w2 = (weights_of(logits, k, score, normalise) for logits in (one, two))
    found = kc.moe_statistics(E, k, v, cosine, score, normalise)
    for exact, samples in (
        (found.second, (w**2).sum(1)),
        (found.cross, (w * w2).sum(1)),
        (found.overlap, ((w > 0) & (w2 > 0)).sum(1) / k),
    ):
        assert abs(samples.mean() - exact) < 4 * samples.std() / math.sqrt(draws)


def test_a_single_expert_of_weight_one_does_not_train_its_router() -> None:
    found = kc.moe_statistics(8, 1, 1.0, 0.5)
    assert found.second == pytest.approx(1) and found.router == pytest.approx(0, abs=1e-12)
    assert found.cross == pytest.approx(found.overlap, abs=1e-9)
    assert kc.moe_statistics(8, 1, 1.0, normalise=False).router > 0.01


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((4, 5, 1.0), "top_k = 5"),
        ((4, 0, 1.0), "top_k"),
        ((4, 2, 0.0), "variance"),
        ((4, 2, math.inf), "variance"),
        ((4, 2, 300.0), "variance 300"),
        ((4, 2, 1.0, 0.999), "cosine"),
        ((4, 2, 1.0, 0.5, "relu"), "score"),
        ((4, 2, 1.0, 0.5, "softmax", 1), "normalise"),
        ((4.5, 2, 1.0), "num_experts"),
    ],
)
def test_bad_arguments(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(KcalcError, match=words):
        kc.moe_statistics(*arguments)  # pyright: ignore[reportArgumentType]
    with pytest.raises(KcalcError, match="tokens"):
        kc.moe_statistics(4, 2, 1.0).load_cv(0)


def test_loads_of_tokens_with_a_negative_cosine() -> None:
    found = kc.moe_statistics(8, 2, 1.0, -0.5)
    assert found.load_cv(2) > found.load_cv(3) > 0
    for tokens in (None, 4):
        with pytest.raises(KcalcError, match="at most 3 tokens"):
            found.load_cv(tokens)
