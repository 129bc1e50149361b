"""Audits of models that a plain deep copy would run with the layers of the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kcalc import KcalcError  # noqa: E402
from kcalc.lab.audit import audit  # noqa: E402

shared: Any = None


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
