"""Statistics of routers against frozen values, enumeration and Monte Carlo."""

from __future__ import annotations

import math

import pytest

import kcalc as kc
from kcalc import KcalcError


def test_close_tokens() -> None:
    assert kc.moe_statistics(8, 2, 1.0, cosine=0.9).load_cv() == pytest.approx(1.4067670506)


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
