"""Ids for padding: not in examples that are made up, and without effect in those of the user."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from modern_zoo import Model  # noqa: E402
from torch import nn  # noqa: E402

from kcalc.lab.audit import audit  # noqa: E402


def test_a_new_backbone_is_one_change(tmp_path: Any) -> None:
    def wrapped() -> Any:
        blocks = [m for _ in range(3) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())]
        backbone = nn.Sequential(*blocks, nn.Linear(8, 8))
        return Model(lambda m, x: m.head(m.backbone(x)), backbone=backbone, head=nn.Linear(8, 12))

    path = tmp_path / "init.lock"
    audit(lambda: nn.Sequential(nn.Linear(8, 12)), (16, 8), predict=False).lock(path)
    changes = audit(wrapped, (16, 8), predict=False).changes(path)
    texts = {change.message for change in changes}
    assert texts == {
        "backbone (14 parameters) is new",
        "head (2 parameters) is new",
        "0 (2 parameters) was removed",
    }
