"""Streams, attention and roles from a run alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc.lab.audit import Audit, audit  # noqa: E402


def of(model: nn.Module, *inputs: Any) -> Audit:
    return audit(model.eval(), inputs, predict=False)


def roles(found: Audit) -> dict[str, set[str]]:
    """{parameter: its roles}."""
    return {row.name: set(row.role.split(", ")) for row in found.parameters}


def streams(found: Audit) -> list[list[str]]:
    """The weights that end the branches of every residual stream."""
    listed: dict[int, list[str]] = {}
    for block in found.blocks:
        listed.setdefault(block.number, []).append(f"{block.name}.weight")
    return list(listed.values())


class Residual(nn.Module):
    """A block of ResNet with batch norms, its shortcut projected or not."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(8, channels, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))
        self.short = nn.Conv2d(8, channels, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))
        return F.relu(y + (x if self.short is None else self.norms[2](self.short(x))))


def test_projected_shortcuts_go_on_with_the_stream() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), Residual(8, 1), Residual(16, 2), nn.Flatten(), nn.LazyLinear(4)
    )
    image = torch.randn(2, 3, 10, 10)
    model(image)
    found = of(model, image)
    assert streams(found) == [["1.two.weight", "2.two.weight"]]
    given = roles(found)
    assert given["2.short.weight"] == {"reads"}
    assert given["4.weight"] == {"reads", "readout"}


def test_sums_that_are_no_merges() -> None:
    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.full, self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(2, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.full(x) + self.up(self.down(x)), approximate="tanh")

    assert of(nn.Sequential(Lora(), nn.Linear(8, 8)), torch.randn(3, 8)).blocks == ()
