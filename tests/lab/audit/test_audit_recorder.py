"""The recorder of a builder: laws, sigmas, places, what overwrote what."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kcalc.lab.audit import audit  # noqa: E402


class Many(nn.Module):
    """One parameter for every way to write one."""

    def __init__(self) -> None:
        super().__init__()
        self.xavier = nn.Parameter(torch.empty(6, 10))
        nn.init.xavier_normal_(self.xavier, gain=2.0)
        self.he = nn.Parameter(torch.empty(6, 10))
        nn.init.kaiming_normal_(self.he, mode="fan_out", nonlinearity="relu")
        self.cut = nn.Parameter(torch.empty(60, 100))
        nn.init.trunc_normal_(self.cut, std=0.5, a=-0.5, b=1.0)
        self.drawn = nn.Parameter(torch.randn(60, 100) / 8)
        self.halved = nn.Parameter(torch.empty(60, 100))
        nn.init.normal_(self.halved, std=0.02)
        self.halved.data.mul_(0.5)
        self.flat = nn.Parameter(torch.empty(60, 100).uniform_(-3, 3))
        self.ones = nn.Parameter(torch.ones(4))
        self.never = nn.Parameter(torch.empty(4))
        self.legacy = nn.Parameter(torch.Tensor(4, 4))
        self.table = nn.Embedding(50, 20, padding_idx=0)
        self.turned = nn.Parameter(torch.empty(10, 6))
        nn.init.kaiming_normal_(self.turned.T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.xavier


def laws() -> Any:
    return audit(Many, (torch.ones(2, 6),), predict=False).laws
