"""Models that read ids or parts of their inputs, against their own forward passes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


from torch_zoo.twin import Model  # noqa: E402

import kcalc as kc  # noqa: E402

nn = torch.nn


def test_bags_of_unequal_sizes_are_not_read() -> None:
    bags = Model(lambda m, ids, starts: m.table(ids, starts), table=nn.EmbeddingBag(20, 8))
    r = kc.read(bags, torch.arange(6), torch.tensor([0, 2]))
    assert r.fidelity.level == "not read"
    assert "all examples have the same number of ids" in r.notes[0].text
