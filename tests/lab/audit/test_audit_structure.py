"""Streams, attention and roles from a run alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from audit_models import token_mixture  # noqa: E402
from modern_zoo import Model  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.lab.audit import Audit, audit  # noqa: E402


def of(model: nn.Module, *inputs: Any) -> Audit:
    return audit(model.eval(), inputs, predict=False)


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
    assert [(block.number, block.name) for block in found.blocks] == [(0, "1.two"), (0, "2.two")]
    roles = {row.name: set(row.role.split(", ")) for row in found.parameters}
    assert roles["2.short.weight"] == {"reads"}
    assert roles["4.weight"] == {"reads", "readout"}


def test_sums_that_are_no_merges() -> None:
    lora = Model(
        lambda m, x: F.gelu(m.full(x) + m.up(m.down(x)), approximate="tanh"),
        full=nn.Linear(8, 8), down=nn.Linear(8, 2), up=nn.Linear(2, 8),
    )  # fmt: skip
    assert of(nn.Sequential(lora, nn.Linear(8, 8)), torch.randn(3, 8)).blocks == ()
    mixture = of(token_mixture(0.0), torch.randint(256, (2, 8)))
    assert len(mixture.blocks) == 1
    assert any(r.startswith("mixture.router.weight selects 2 of 8") for r in mixture.remarks)


def test_dropout_and_noise_of_training_are_left_out() -> None:
    def noise(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out + torch.randn_like(out) if module.training else out

    def noisy() -> nn.Module:
        model = token_mixture(3.0, 1)
        model.mixture.router.register_forward_hook(noise)
        model.readout.register_forward_hook(noise)
        for expert in model.mixture.experts:
            expert.append(nn.Dropout(0.1))
        return model

    found = kc.audit(noisy, torch.randint(256, (2, 8)))
    assert {"MOE-LOAD", "MOE-ONE"} <= {finding.code for finding in found.findings}
    assert not any("could not read" in r or "cannot read" in r for r in found.remarks)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint16])
def test_numbers_that_are_not_floats_are_predicted_from_their_mean_square(dtype: Any) -> None:
    def build() -> nn.Module:
        hidden, last = nn.Linear(32, 64), nn.Linear(64, 10)
        return Model(lambda m, x: m.last(F.relu(m.hidden(x.float()))), hidden=hidden, last=last)

    x = torch.randint(2 if dtype == torch.bool else 20, (4, 32))
    expected = kc.audit(build, x[:2].float()).predicted_logits
    assert kc.audit(build, x[:2].to(dtype)).predicted_logits == pytest.approx(expected)
