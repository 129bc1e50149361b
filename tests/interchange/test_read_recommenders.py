"""Models that read ids or parts of their inputs, against their own forward passes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


import kcalc as kc  # noqa: E402

nn = torch.nn


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
