"""Several residual streams: those that train as one are found, the papers' are not."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stream_models import DEPTH, Several, Static  # noqa: E402
from torch import nn  # noqa: E402

import kcalc as kc  # noqa: E402

VECTORS, TOKENS = (2, 5, 32), torch.arange(10).reshape(2, 5)


def audited(model: nn.Module, inputs: Any = VECTORS) -> kc.Audit:
    return kc.audit(model, inputs, predict=False)


def mixed(by: Any) -> Static:
    """A model whose mixtures have other logits."""
    model = Static()
    with torch.no_grad():
        for res in model.h_res:
            res.copy_(by())
    return model


APART: dict[str, Any] = {
    "HC of its paper": (lambda: Several("HC"), VECTORS),
    "HC, static": (lambda: Several("HC", dynamic=False), VECTORS),
    "mHC of its paper": (lambda: Several(), VECTORS),
    "mHC of its paper, tokens": (lambda: Several(vocabulary=50), TOKENS),
    "mHC, alpha 0": (lambda: Several(alpha=0.0), VECTORS),
    "dynamic gates that differ": (lambda: Several(home=0.0), VECTORS),
    "homes": (lambda: Static(4.0), (6, 32)),
    "homes, softmaxes, folded": (lambda: Static(4.0, folded=True, softmax=True), (6, 32)),
    "equal at the start, no permutation": (lambda: Static(noise=0.5), (6, 32)),
}


@pytest.mark.parametrize("case", APART)
def test_streams_that_differ(case: str) -> None:
    torch.manual_seed(0)
    make, inputs = APART[case]
    found = audited(make(), inputs)
    assert not found.findings
    assert [block.number for block in found.blocks] == [0] * DEPTH


def test_remarks_on_gates() -> None:
    """Iterations that are too few, equal streams, and logits of variance sigma^2 n d."""
    torch.manual_seed(0)
    wide = audited(Several(alpha=1.0, std=0.2), (8, 16, 32))
    (remark,) = [r for r in wide.remarks if "logits of the stream gates" in r]
    assert float(remark.split("variance ")[1].split(" ")[0]) == pytest.approx(5.12, rel=0.25)
    assert not wide.findings
    torch.manual_seed(0)
    static = audited(Static(3.0, noise=1.0), (6, 32))
    assert any("sums of the weights" in r for r in static.remarks) and not static.findings
    assert any("equal at initialisation" in r for r in audited(Static(3.0), (6, 32)).remarks)
    assert not audited(Several("HC"), VECTORS).remarks


class Lists(nn.Module):
    """Streams in a list of tensors, mixed in loops."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        parts = (nn.RMSNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        self.branches = nn.ModuleList(nn.Sequential(*parts) for _ in range(depth))
        self.mix = nn.ParameterList(torch.rand(3, 3) for _ in range(depth))
        self.write = nn.ParameterList(torch.rand(3) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        streams = [x, 2 * x, 3 * x]
        for branch, mix, write in zip(self.branches, self.mix, self.write, strict=True):
            y = branch(sum(streams))
            made = [sum(row[j] * streams[j] for j in range(3)) for row in mix]
            streams = [write[i] * y + made[i] for i in range(3)]
        return sum(streams)


@pytest.mark.parametrize("depth", [1, 2])
def test_streams_in_separate_tensors_are_named(depth: int) -> None:
    remarks = audited(Lists(depth), (6, 16)).remarks
    told = [remark for remark in remarks if "3 residual streams are in separate tensors" in remark]
    assert len(told) == (depth > 1) and all("torch.stack" in remark for remark in told)
