"""Transformers whose MLPs are mixtures of experts."""

from __future__ import annotations

import pytest

import kcalc as kc
from kcalc import KcalcError

SIZES = {"blocks": 2, "features": 64, "heads": 4, "hidden": 96, "vocabulary": 100}
ALIKE = {"causal": False, "rotary": None}


def test_profiles() -> None:
    for options in (ALIKE, {}):
        net = kc.architectures.llama(**SIZES, **options, experts=4, score="sigmoid")
        profile = kc.depth_profile(net, tokens=4)
        assert "heuristic" in {note.kind for note in profile.assumptions}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"experts": 4, "top_k": 5}, "lower top_k"),
    ],
)
def test_bad_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(KcalcError, match=words):
        kc.architectures.llama(1, 8, 2, **options)  # pyright: ignore[reportArgumentType]
