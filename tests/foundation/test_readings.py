"""Readings: what options such as ``tokens=`` ask for, and one line where a guest is missing."""

from __future__ import annotations

from typing import Any

import pytest

import kcalc as kc
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.guests import (
    ARCHITECTURES,
    RULES,
    Readings,
)


def two() -> Readings:
    """Two readings, whose places are those of standard modules of kcalc."""
    made = Readings()
    made.register("first", {"a": None, "word": "plain"}, [("foundation.formulas", "exact")])
    made.register("second", {"b": None}, [("foundation.formulas", "exact rounded")])
    return made


def test_a_question_without_an_answer_names_the_option() -> None:
    with pytest.raises(KcalcError, match="rounded.*a="):
        two().answering("rounded", a=1)


def test_an_option_belongs_to_one_reading() -> None:
    known = two()
    known.register("second", {"b": None}, [("foundation.formulas", "exact rounded")])  # the same
    with pytest.raises(KcalcError, match="first and third claim word="):
        known.register("third", {"word": 3}, [])
    with pytest.raises(KcalcError, match="named first"):
        known.register("first", {"c": 3}, [])
    assert list(known.known) == ["first", "second"]


def test_the_table_shows_every_registry() -> None:
    table = kc.wiring.table()
    for text in ("tokens=", "image_shape=", "node_values", "llama", "Attend"):
        assert text in table


def test_images_have_no_tokens() -> None:
    net = kc.chain(kc.layers.Input(2), kc.layers.Affine(4, kernel=3), kc.layers.Affine(1))
    asked: dict[str, Any] = {"spatial": "exact", "image_shape": (4,), "tokens": 4}
    for ask in (kc.c_map, kc.ntk):
        with pytest.raises(KcalcError, match=r"tokens=.*image_shape=\(tokens,\)"):
            ask(net, **asked)


def test_architectures_of_guests_are_found_by_name() -> None:
    assert {"bert", "llama", "vanilla"} <= set(dir(kc.architectures))
    assert kc.architectures.bert is ARCHITECTURES["bert"]
    assert ("arrays", "Attend") in RULES
    with pytest.raises(AttributeError, match="nonsense"):
        _ = kc.architectures.nonsense
    with pytest.raises(AttributeError, match="'kcalc.shaping' has no attribute 'nonsense'"):
        _ = kc.shaping.nonsense
