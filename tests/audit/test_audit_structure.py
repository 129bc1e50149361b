"""Streams, attention and roles from a run alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from audit_models import BLOCKS, Decoder, Translator, encoder_writers  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from transformer_models import GPT2, T5, Bert, Llama, ViT  # noqa: E402

from kcalc.audit import audit  # noqa: E402
from kcalc.audit.program import run_recorded  # noqa: E402
from kcalc.audit.structure import Structure, structure_of  # noqa: E402

IDS = torch.arange(12).reshape(2, 6)


def of(model: nn.Module, *inputs: Any) -> Structure:
    program = run_recorded(model.eval(), lambda: model(*inputs), inputs)
    return structure_of(program, dict(model.named_parameters()))


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
    build, inputs, merges, roles = case
    found = of(build(), inputs)
    assert len(found.merges) == merges
    assert len(found.streams()) == 1
    assert len(found.attention) == merges // 2
    assert all(len(merge.writers) == 1 for merge in found.merges)
    for name, expected in roles.items():
        assert set(found.roles[name]) == expected, name


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
    assert [[m.writers[0].parameters for m in s] for s in found.streams()] == [
        [("1.two.weight",), ("2.two.weight",)]
    ]
    assert all(merge.normed for merge in found.merges)
    assert set(found.roles["2.short.weight"]) == {"reads"}
    assert set(found.roles["4.weight"]) == {"reads", "readout"}


class Experts(nn.Module):
    """Stacked experts in a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Parameter(torch.randn(shape)) for shape in ((3, 8, 16), (3, 16, 8))
        )
        self.router, self.norm = nn.Linear(8, 3), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        share = self.router(y).softmax(-1)
        every = torch.bmm(F.gelu(torch.bmm(y.expand(3, *y.shape), self.up)), self.down)
        return x + (every * share.T[..., None]).sum(0)


def test_stacked_experts() -> None:
    found = of(nn.Sequential(nn.Linear(8, 8), Experts(), nn.Linear(8, 2)), torch.randn(5, 8))
    roles = {name: set(given) for name, given in found.roles.items()}
    assert roles["1.up"] == {"reads"}
    assert roles["1.down"] == {"writes"}
    assert roles["1.router.weight"] == {"reads"}
    used = {c.parameters[0]: c for c in found.contractions}
    assert (used["1.up"].fan_in, used["1.up"].fan_out) == (8, 16)
    assert used["1.up"].axes["1.up"] == (1,)


def test_sums_that_are_no_merges() -> None:
    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.full, self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(2, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.full(x) + self.up(self.down(x)), approximate="tanh")

    assert of(nn.Sequential(Lora(), nn.Linear(8, 8)), torch.randn(3, 8)).merges == []


def test_encoders_and_images() -> None:
    images = of(ViT(2, 48, 4, 8, 4), torch.randn(2, 3, 8, 8))
    assert len(images.merges) == 4
    encoder = of(T5(2, 48, 4, 50), IDS)
    assert len(encoder.merges) == 4


def test_the_branches_of_a_decoder_are_without_the_layers_of_its_encoder() -> None:
    encoder, decoder = of(Translator(encoder_writers), IDS).streams()
    assert (len(encoder), len(decoder)) == (2 * BLOCKS, 3 * BLOCKS)
    inside = {n for merge in decoder for c in merge.inside for n in c.parameters}
    assert len(inside) == 10 * BLOCKS
    assert all(name.startswith("decoder.") for name in inside)


def test_an_encoder_scaled_for_its_depth_is_no_fault_of_the_decoder() -> None:
    assert not audit(lambda: Translator(encoder_writers), tuple(IDS.shape)).findings
