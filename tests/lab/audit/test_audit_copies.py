"""Audits of models that a plain deep copy would run with the layers of the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kcalc import KcalcError
from kcalc.lab.audit import audit

shared: Any = None


def parts() -> Any:
    return nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 5))


class ByName(nn.Module):
    """Runs its layers by a global name."""

    def __init__(self) -> None:
        super().__init__()
        global shared
        self.inner, shared = parts(), self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shared.inner(x)


def by_closure() -> Any:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return inner(x)

    inner = parts()
    return Own()


@pytest.mark.parametrize("build", [ByName, by_closure])
def test_copies_that_run_the_original_cannot_be_audited(build: Callable[[], Any]) -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KcalcError, match=r"(layer|inner\.1|inner\.0|norm)\.weight.*self"):
        audit(model, (16, 8), predict=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
