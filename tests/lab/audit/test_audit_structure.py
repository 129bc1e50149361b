"""Streams, attention and roles from a run alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from audit_models import token_mixture
from modern_zoo import Model
from torch import nn
from torch.nn import functional as F

import kcalc as kc
from kcalc.lab.audit import Audit, audit


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


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint16])
def test_numbers_that_are_not_floats_are_predicted_from_their_mean_square(dtype: Any) -> None:
    def build() -> nn.Module:
        hidden, last = nn.Linear(32, 64), nn.Linear(64, 10)
        return Model(lambda m, x: m.last(F.relu(m.hidden(x.float()))), hidden=hidden, last=last)

    x = torch.randint(2 if dtype == torch.bool else 20, (4, 32))
    expected = kc.audit(build, x[:2].float()).predicted_logits
    assert kc.audit(build, x[:2].to(dtype)).predicted_logits == pytest.approx(expected)


def dot_product(form: str) -> Any:
    """Attention to six tokens, with scores in a form of their own."""

    def forward(m: Any, x: torch.Tensor) -> Any:
        q, k, v = m.q(x), m.k(x), m.v(x)
        if form == "a bias that depends on data":
            w = (q @ k.mT / 4 + q @ m.places.mT).softmax(-1)
        elif form == "divided behind positions":
            w = ((q @ k.mT + m.places @ m.places.mT) / 4).softmax(-1)
        elif form == "in baddbmm":
            w = torch.baddbmm(m.places @ m.places.mT, q, k.mT, alpha=0.25).softmax(-1)
        elif form == "clipped":
            w = (16 * (q @ k.mT).tanh()).softmax(-1)
        else:
            w = F.layer_norm(q @ k.mT, (6,)).softmax(-1)
        y = x + m.out((w[..., None] * v[:, None]).sum(2) if "bias" in form else w @ v)
        return y, (w * w).sum(-1), w.log()

    layers = {name: nn.Linear(16, 16) for name in ("q", "k", "v", "out")}
    return Model(forward, places=nn.Parameter(torch.randn(6, 16)), **layers)


@pytest.mark.parametrize(
    ("form", "scores"),
    [
        ("a bias that depends on data", lambda q, k: q @ k.mT / 4),
        ("divided behind positions", lambda q, k: q @ k.mT / 4),
        ("in baddbmm", None),
        ("clipped", lambda q, k: 16 * (q @ k.mT).tanh()),
        ("after a norm", None),
    ],
)
def test_scores_of_attention(form: str, scores: Any) -> None:
    """The variance over keys of the scores without their bias, if they are known."""
    model, x = dot_product(form), torch.randn(4, 6, 16)
    for layer in (model.q, model.k):
        layer.weight.data *= 4
    found = of(model, x)
    expected = None if scores is None else scores(model.q(x), model.k(x)).var(-1, correction=0)
    variance = 0.0 if expected is None else expected.mean().item()
    assert (found.blocks[0].score_variance or 0.0) == pytest.approx(variance, rel=1e-4)
    roles = {row.name: row.role for row in found.parameters}
    assert ("query" in roles["q.weight"]) == ("key" in roles["k.weight"]) == ("norm" not in form)
    assert ("output" in roles["out.weight"]) == ("data" not in form and "norm" not in form)
    assert [f.code for f in found.findings] == ["ATT-FROZEN"] * (variance > math.log(6))


def halved(model: Any, x: torch.Tensor) -> torch.Tensor:
    """ReLUs in place on half of a hidden layer; the other half is the stream."""
    y = model.first(x)
    y[:, :8] = model.inner(y[:, :8].clone()).relu()
    return model.last(y)


def in_parts(model: Any, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x)
    left, right = y[:, :8], y[:, 8:]
    left.relu_()
    return model.last(right + model.inner(right.view(1, 4, 8))[0])


@pytest.mark.parametrize(("forward", "size"), [(halved, 16), (in_parts, 8)])
def test_writes_to_a_part_of_a_tensor(forward: Any, size: int) -> None:
    """Only values that share the part change: ``right`` is the stream that ``inner`` reads."""
    layers = {"first": nn.Linear(4, 16), "inner": nn.Linear(8, 8), "last": nn.Linear(size, 3)}
    torch.manual_seed(0)
    found = of(Model(forward, **layers), torch.randn(4, 4))
    rows = {row.name: (row.role, row.fan_in) for row in found.parameters if row.fan_in}
    merged = forward is in_parts
    assert rows["last.weight"] == ("reads, readout" if merged else "readout", size)
    assert [block.name for block in found.blocks] == ["inner"] * merged


def test_views_that_no_operation_made() -> None:
    """A tied readout by another view of the table, and sizes from a tensor outside of the run."""

    def forward(m: Any, ids: torch.Tensor) -> torch.Tensor:
        x, y = m.layer(m.table(ids)).split(m.sizes.tolist(), -1)
        return (x * y) @ m.view

    def build() -> nn.Module:
        table, layer = nn.Embedding(30, 8), nn.Linear(8, 16)
        view, sizes = table.weight.detach().t(), torch.tensor([8, 8])
        return Model(forward, table=table, layer=layer, view=view, sizes=sizes)

    found = audit(build, torch.arange(20).reshape(4, 5), predict=False)
    assert found.findings == () and found.parameters[0].fan_in == 8
    assert set(found.parameters[0].role.split(", ")) == {"embedding", "readout"}


def test_operations_in_place_do_not_change_the_tables() -> None:
    """A value counts as it was before a later operation overwrote it, and so does its gradient."""
    tables, x = [], torch.randn(8, 16)
    for in_place in (False, True):

        def forward(m: Any, x: torch.Tensor, in_place: bool = in_place) -> torch.Tensor:
            x = m.embed(x)
            for block in m.blocks:
                y = block(x)
                x = x.add_(y) if in_place else x + y
            return m.head(x)

        torch.manual_seed(0)
        blocks = nn.ModuleList(
            nn.Sequential(nn.Tanh(), nn.Linear(16, 16), nn.ReLU(in_place), nn.Linear(16, 16))
            for _ in range(3)
        )
        model = Model(forward, embed=nn.Linear(16, 16), blocks=blocks, head=nn.Linear(16, 3))
        found = of(model, x)
        rows = [(row.stream, row.branch, row.gradient) for row in found.blocks]
        tables.append([*sum(rows, ()), *(row.emits for row in found.parameters if row.emits)])
        first = model.embed(x).square().mean().sqrt().item()
        assert found.parameters[0].emits == pytest.approx(first, rel=1e-5)
    assert len(tables[0]) == 3 * 3 + 8 and tables[0] == pytest.approx(tables[1], rel=1e-5)


def test_a_branch_that_all_tokens_share_makes_no_streams() -> None:
    """Six tokens, to each of which a function of their mean is added."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.last(x + m.second(F.relu(m.first(x.mean(1))))[:, None])

    layers = {"first": nn.Linear(12, 12), "second": nn.Linear(12, 12), "last": nn.Linear(12, 3)}
    found = of(Model(forward, **layers), torch.randn(4, 6, 12))
    assert [block.name for block in found.blocks] == ["second"] and not found.findings
    assert not any("streams" in remark for remark in found.remarks)


def test_features_of_inference_mode_have_fans() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            features = m.frozen(x)
        return m.last(features.clone())

    frozen, last = nn.Linear(6, 9).requires_grad_(False), nn.Linear(9, 3)
    found = of(Model(forward, frozen=frozen, last=last), torch.randn(4, 6))
    assert [row.fan_in for row in found.parameters if "weight" in row.name] == [6, 9]
    assert found.findings == ()
