"""Models that read ids or parts of their inputs, against their own forward passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from forward_oracle import WIDTH, images, measured, redrawn  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.interchange.apply import apply_to  # noqa: E402

nn = torch.nn
IDS = torch.tensor([[5, 7, 9], [5, 3, 9]])  # columns 0 and 2 are equal, column 1 is not


class Recommender(nn.Module):
    """Three tables of different widths, dense features, and an MLP."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        widths = (WIDTH, WIDTH // 2, WIDTH // 4)
        self.tables = nn.ModuleList(nn.Embedding(20, width) for width in widths)
        self.first = nn.Linear(sum(widths) + 64, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.deviations = {f"tables.{i}.weight": 0.5 + i / 2 for i in range(3)}

    def columns(self, ids: Any) -> Any:
        if self.how == "unbind":
            return ids.unbind(1)
        if self.how == "real":
            return ids.long().unbind(1)
        if self.how == "kept axis":
            return ids.split(1, 1)
        return [ids[:, i] for i in range(3)]

    def forward(self, ids: Any, dense: Any) -> Any:
        looked = [t(c).flatten(1) for t, c in zip(self.tables, self.columns(ids), strict=True)]
        return self.last(torch.tanh(self.first(torch.cat([*looked, dense], 1))))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_ids(mode: str) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(20, WIDTH, mode=mode)
            self.last = nn.Linear(WIDTH, WIDTH)

        def forward(self, ids: Any) -> Any:
            return self.last(torch.tanh(self.table(ids)))

    model = Bags()
    model.deviations = {"table.weight": 0.7}
    r = kc.read(redrawn(model, torch.Generator().manual_seed(0), exact=True), IDS)
    assert [n.level for n in r.notes] == ["approximate"]  # ids of a bag might be equal
    q, k = measured(model, (IDS,))
    expected = float(kc.q_map(r.network)(1.0))
    assert q.deviation(expected) < 3.5
    assert k.deviation(expected * float(kc.c_map(r.network)(2 / 3))) < 3.5
    r = kc.read(model, IDS)  # whose weights are others by now
    with torch.no_grad():
        same = SimpleNamespace(network=r.network)
        kept = apply_to(model, same, weights="keep")
        torch.testing.assert_close(kept(IDS), model(IDS))
    table = kc.shape(r, activation="tanh").apply_to(model).state_dict()["table.weight"]
    assert float(table.square().mean()) == pytest.approx(3 if mode == "mean" else 1 / 3, rel=0.1)


def test_bags_of_unequal_sizes_are_not_read() -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(20, 8)

        def forward(self, ids: Any, starts: Any) -> Any:
            return self.table(ids, starts)

    r = kc.read(Bags(), torch.arange(6), torch.tensor([0, 2]))
    assert r.fidelity.level == "not read"
    assert "all examples have the same number of ids" in r.notes[0].text


@pytest.mark.parametrize("how", ["select", "unbind", "kept axis"])
def test_shaped_recommenders(how: str) -> None:
    model, dense = Recommender(how), images((64,), 0.4)
    r = kc.read(model, IDS, dense)
    with torch.no_grad():
        kept = apply_to(model, SimpleNamespace(network=r.network), weights="keep")
        torch.testing.assert_close(kept(IDS, dense), model(IDS, dense))
        y = kc.shape(r, activation="tanh").apply_to(model)(IDS, dense)
    assert abs(float(y.square().mean()) - 1) < 0.4  # 512 channels, one draw of a few weights
