"""Reports of transformers are shaped to the edge; the numbers of a page as plain data."""

from __future__ import annotations

import json

import pytest

import kcalc as kc

A = kc.architectures


@pytest.mark.slow
def test_the_page_of_a_transformer_has_a_shaping() -> None:
    page = kc.report(A.transformer_stack(1, 8, 2), tokens=4)
    found = json.loads(json.dumps(page.to_dict()))
    assert "shaping" not in page.refused
    assert found["shaping"]["method"] == "edge" and found["shaping"]["options"]["tokens"] == 4
    assert [row["method"] for row in found["methods"]] == ["edge"]


@pytest.mark.slow
def test_the_numbers_of_a_page_are_those_of_the_results() -> None:
    net = A.vanilla(2, "tanh")
    found = json.loads(json.dumps(kc.report(net).to_dict()))
    assert found["shaping"] == json.loads(json.dumps(kc.shape(net).to_dict()))
    assert found["local_slopes"] and found["refused"] == {}
