"""Ids for padding: not in examples that are made up, and without effect in those of the user."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kcalc.lab.audit import audit  # noqa: E402


class Wrapped(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            *(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()) for _ in range(count)),
            nn.Linear(8, 8),
        )
        self.head = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def test_a_new_backbone_is_one_change(tmp_path: Any) -> None:
    path = tmp_path / "init.lock"
    audit(lambda: nn.Sequential(nn.Linear(8, 12)), (16, 8), predict=False).lock(path)
    changes = audit(Wrapped, (16, 8), predict=False).changes(path)
    texts = {change.message for change in changes}
    assert texts == {
        "backbone (14 parameters) is new",
        "head (2 parameters) is new",
        "0 (2 parameters) was removed",
    }
