"""Streams, attention and roles from a run alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from audit_models import BLOCKS, Decoder, Translator, encoder_writers  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from transformer_models import GPT2, T5, Bert, Llama, ViT  # noqa: E402

from kcalc.lab.audit import Audit, audit  # noqa: E402

IDS = torch.arange(12).reshape(2, 6)


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


ROLES: dict[str, tuple[Any, Any, int, dict[str, set[str]]]] = {
    "fused queries, a tied readout": (
        lambda: Decoder(), IDS, 2 * BLOCKS,
        {"tokens.weight": {"embedding", "readout", "reads"}, "places.weight": {"positions"},
         "blocks.0.attention.qkv.weight": {"reads", "query", "key", "value"},
         "blocks.1.attention.proj.weight": {"output", "writes"},
         "blocks.0.mlp.0.weight": {"reads"}, "blocks.3.mlp.2.weight": {"writes"},
         "norm.weight": {"gain"}, "blocks.0.mlp.0.bias": {"bias"}},
    ),
    "written-out norms and a gate": (
        lambda: Decoder(True), IDS, 2 * BLOCKS,
        {"blocks.0.mlp.w1.weight": {"reads"}, "blocks.0.mlp.w3.weight": {"reads"},
         "blocks.0.mlp.w2.weight": {"writes"}, "blocks.0.norm1.weight": {"gain"}},
    ),
    "rotary embeddings and shared key heads": (
        lambda: Llama(2, 48, 4, 50, 2), IDS, 4, {},
    ),
    "norms behind the sums": (lambda: Bert(2, 48, 4, 50, 6), IDS, 4, {}),
    "softmax written out": (lambda: GPT2(2, 48, 4, 50, 6), IDS, 4, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", ROLES.values(), ids=ROLES.keys())
def test_roles(case: tuple[Any, Any, int, dict[str, set[str]]]) -> None:
    build, inputs, merges, expected = case
    found = of(build(), inputs)
    assert len(found.blocks) == merges
    ((*writers,),) = streams(found)
    assert sum(block.score_variance is not None for block in found.blocks) == merges // 2
    given = roles(found)
    # every branch ends with one weight, and no weight ends two
    assert {n for n, own in given.items() if "writes" in own} == set(writers)
    assert len(set(writers)) == merges
    for name, own in expected.items():
        assert given[name] == own, name


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


def test_encoders_and_images() -> None:
    images = of(ViT(2, 48, 4, 8, 4), torch.randn(2, 3, 8, 8))
    assert len(images.blocks) == 4
    encoder = of(T5(2, 48, 4, 50), IDS)
    assert len(encoder.blocks) == 4


def test_an_encoder_scaled_for_its_depth_is_no_fault_of_the_decoder() -> None:
    assert not audit(lambda: Translator(encoder_writers), tuple(IDS.shape)).findings
