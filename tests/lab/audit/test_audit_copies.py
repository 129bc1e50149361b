"""Audits of models that a plain deep copy would run with the layers of the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc import KcalcError  # noqa: E402
from kcalc.lab.audit import audit  # noqa: E402

WIDTH = 16
shared: Any = None


class Block(nn.Module):
    """A dead branch after a norm; ``closed``: run by a lambda over its layers, as in minGPT."""

    def __init__(self, closed: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleDict({"up": nn.Linear(WIDTH, 32), "down": nn.Linear(32, WIDTH)})
        for parameter in self.mlp.parameters():
            nn.init.zeros_(parameter)
        m = self.mlp
        self.mlpf = (lambda x: m["down"](F.gelu(m["up"](x)))) if closed else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + (
            self.mlp["down"](F.gelu(self.mlp["up"](y))) if self.mlpf is None else self.mlpf(y)
        )


class Net(nn.Module):
    def __init__(self, closed: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, WIDTH), nn.Linear(WIDTH, 32)
        self.blocks = nn.Sequential(*(Block(closed) for _ in range(3)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.table(ids)))


@pytest.mark.parametrize("module", [False, True])
def test_closures_over_layers_change_no_finding(module: bool) -> None:
    found = []
    for closed in (False, True):
        torch.manual_seed(0)
        model = Net(closed)
        before = {name: p.clone() for name, p in model.named_parameters()}
        result = audit(
            model if module else lambda closed=closed: Net(closed), (4, 8), predict=False
        )
        found.append(([str(f) for f in result.findings], result.remarks))
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert found[0] == found[1]
    assert "GRAD-DEAD" in found[0][0][0]


class ByName(nn.Module):
    """Runs its layers by a global name."""

    def __init__(self) -> None:
        super().__init__()
        global shared
        self.norm, self.layer, shared = nn.BatchNorm1d(8), nn.Linear(8, 5), self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shared.layer(shared.norm(x))


def by_class() -> Any:
    layer = nn.Linear(8, 5)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = layer, nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return layer(self.norm(x))

    return Model()


def by_property() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inner = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 5))
            self.inner = inner
            type(self).run = property(lambda _: inner)  # pyright: ignore

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.run(x)  # pyright: ignore

    return Model()


@pytest.mark.parametrize("build", [ByName, by_class, by_property])
def test_copies_that_run_the_original_cannot_be_audited(build: Callable[[], Any]) -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KcalcError, match=r"(layer|inner\.1|inner\.0|norm)\.weight.*self"):
        audit(model, (16, 8), predict=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
