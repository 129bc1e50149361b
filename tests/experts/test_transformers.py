"""Transformers whose MLPs are mixtures of experts."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refusals

import kcalc as kc

SIZES = {"blocks": 2, "features": 64, "heads": 4, "hidden": 96, "vocabulary": 100}
ALIKE = {"causal": False, "rotary": None}


@pytest.mark.slow
def test_gradients_of_exchangeable_tokens_are_those_of_a_covariance() -> None:
    net = kc.architectures.llama(**{**SIZES, "blocks": 1}, **ALIKE, experts=4, shared_hidden=32)
    alike = kc.gradients(net, tokens=4, token_cosine=0.3)
    sampled = kc.gradients(net, tokens=0.7 * np.eye(4) + 0.3)
    for node in ("block_1.router", "block_1.expert.down", "block_1.shared.up", "embedding"):
        assert alike.weights[node] == pytest.approx(sampled.weights[node], rel=1e-3)
        assert alike.difference is not None and sampled.difference is not None
        assert alike.difference[node] == pytest.approx(sampled.difference[node], rel=1e-3)
    kernel = kc.ntk(net, tokens=0.7 * np.eye(4) + 0.3)
    exact = kc.ntk(net, tokens=4, token_cosine=0.3)(1.0)
    assert np.asarray(kernel.ntk)[0, 0, 0, 0] == pytest.approx(exact, rel=1e-3)


def test_profiles() -> None:
    for options in (ALIKE, {}):
        net = kc.architectures.llama(**SIZES, **options, experts=4, score="sigmoid")
        profile = kc.depth_profile(net, tokens=4)
        assert "heuristic" in {note.kind for note in profile.assumptions}


test_bad_options = refusals(
    [
        ({"experts": 4, "top_k": 5}, "lower top_k"),
        ({"experts": 0}, "experts"),
        ({"shared_hidden": 8}, "pass experts="),
        ({"experts": 4, "score": "top"}, "score"),
    ],
    lambda options: kc.architectures.llama(1, 8, 2, **options),
)
