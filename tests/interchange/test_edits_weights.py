"""Edits where parameters matter: gains of norms, parameters read elsewhere, joint projections."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


N = 8


class Joint(nn.Module):
    """Attention with queries, keys and values of one layer."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(N, 3 * N), nn.Linear(N, N), heads
        self.up, self.down = nn.Linear(N, 4 * N), nn.Linear(4 * N, N)

    def forward(self, x: Any) -> Any:
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(found)
        return x + self.down(F.relu(self.up(x)))


class Module(Joint):
    """The same with PyTorch's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(N, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(F.relu(self.up(x)))
