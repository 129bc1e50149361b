"""Models that read ids or parts of their inputs, against their own forward passes."""

from __future__ import annotations

from typing import Any

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


def test_columns_of_an_array_of_floats_are_ids_only_if_a_table_reads_them() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    tables = {"one": nn.Embedding(9, 8), "two": nn.Embedding(9, 8), "out": nn.Linear(16, 4)}

    def joined(m: Any, x: Any) -> Any:
        i = x.long()
        return m.out(torch.cat([m.one(i[:, 0]), m.two(i[:, 1])], 1))

    found = kc.read(Model(joined, **tables), x)
    assert found.fidelity.level == "exact"
    assert len(found.network.nodes_of(kc.layers.Embedding)) == len(found.network.inputs) == 2
    beside = Model(
        lambda m, x: m.one(x.long()[:, 0]) + m.last(x[:, 1:]),
        one=nn.Embedding(9, 8),
        last=nn.Linear(1, 8),
    )
    assert kc.read(beside, x).fidelity.level == "exact"
    whole = Model(lambda m, x: m.out(x.long().float()), out=nn.Linear(2, 4))
    assert kc.read(whole, x).fidelity.level == "not read"
