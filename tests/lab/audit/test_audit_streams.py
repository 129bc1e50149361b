"""Several residual streams: those that train as one are found, the papers' are not."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from modern_zoo import Model  # noqa: E402
from stream_models import DEPTH, Several, Static  # noqa: E402
from torch import nn  # noqa: E402

import kcalc as kc  # noqa: E402

VECTORS, TOKENS, ROWS = (2, 5, 32), torch.arange(10).reshape(2, 5), (6, 32)


def audited(model: nn.Module, inputs: Any = VECTORS) -> kc.Audit:
    return kc.audit(model, inputs, predict=False)


APART: dict[str, Any] = {
    "HC of its paper": (Several, {"kind": "HC"}, VECTORS),
    "HC, static": (Several, {"kind": "HC", "dynamic": False}, VECTORS),
    "mHC of its paper": (Several, {}, VECTORS),
    "mHC of its paper, tokens": (Several, {"vocabulary": 50}, TOKENS),
    "mHC, alpha 0": (Several, {"alpha": 0.0}, VECTORS),
    "dynamic gates that differ": (Several, {"home": 0.0}, VECTORS),
    "homes": (Static, {"home": 4.0}, ROWS),
    "homes, softmaxes, folded": (Static, {"home": 4.0, "folded": True, "softmax": True}, ROWS),
    "equal at the start, no permutation": (Static, {"noise": 0.5}, ROWS),
}


@pytest.mark.parametrize(("make", "options", "inputs"), APART.values(), ids=APART.keys())
def test_streams_that_differ(make: Any, options: Any, inputs: Any) -> None:
    torch.manual_seed(0)
    found = audited(make(**options), inputs)
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
    static = audited(Static(3.0, noise=1.0), ROWS)
    assert any("sums of the weights" in r for r in static.remarks) and not static.findings
    assert any("equal at initialisation" in r for r in audited(Static(3.0), ROWS).remarks)
    assert not audited(Several("HC")).remarks


def written(streams: list[Any], y: Any, mix: Any) -> list[Any]:
    """Mixed streams, to each of which a result is added."""
    return [y + sum(w * s for w, s in zip(row, streams, strict=True)) for row in mix]


class Lists(nn.Module):
    """Streams in a list of tensors, mixed in loops; every branch reads most from its home."""

    def __init__(self, home: float = 0.0, *, start: Any = (1, 1, 1), depth: int = 2) -> None:
        super().__init__()
        self.start = start
        self.branches = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
            for _ in range(depth)
        )
        self.read = nn.ParameterList(1 + home * torch.eye(3)[i % 3] for i in range(depth))
        self.mix = nn.ParameterList(0.1 + 0.7 * torch.eye(3) for _ in range(depth))
        self.write = nn.ParameterList(torch.ones(3) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        streams = [weight * x for weight in self.start]
        parts = (self.branches, self.read, self.mix, self.write)
        for branch, read, mix, write in zip(*parts, strict=True):
            y = branch(sum(read[j] * streams[j] for j in range(3)))
            made = [sum(row[j] * streams[j] for j in range(3)) for row in mix]
            streams = [write[i] * y + made[i] for i in range(3)]
        return sum(streams)


def pair() -> Any:
    """Two streams; equal small matrices of logits mix them in every sub-layer."""

    def forward(m: Any, x: Any) -> Any:
        streams = [1 * x, 1 * x]
        for i, (branch, logits) in enumerate(zip(m.branches, m.mix, strict=True)):
            streams = written(streams, branch(streams[i].relu()), logits.softmax(-1))
        return sum(streams)

    branches = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
    mix = nn.ParameterList(6 * torch.eye(2) - 3 for _ in range(2))
    return Model(forward, branches=branches, mix=mix)


class Homes(Lists):
    """Every branch reads one stream only."""

    def forward(self, x: Any) -> Any:
        streams = [x.clone() for _ in range(3)]
        for i, (branch, mix) in enumerate(zip(self.branches, self.mix, strict=True)):
            y = branch(streams[i % 2])
            streams = written(streams, y, mix)
        return sum(streams)


class Unlike(Lists):
    """Streams that start as different functions of the input."""

    def forward(self, x: Any) -> Any:
        streams, mix = [x, x.sin(), x.exp()], self.mix[0]
        for branch in self.branches:
            streams = written(streams, branch(sum(streams)), mix)
        return sum(streams)


LISTS: dict[str, tuple[Any, str | None]] = {
    "copies": (Lists, "1, 2, 3"),
    "clones": (Homes, "1, 3"),
    "homes": (lambda: Lists(4.0, depth=4), None),
    "multiples": (lambda: Lists(start=(1, 2, 2)), "2, 3"),
    "different functions": (Unlike, None),
    "one sub-layer": (lambda: Lists(depth=1), None),
    "a pair": (pair, None),
}


@pytest.mark.parametrize(("make", "alike"), LISTS.values(), ids=LISTS.keys())
def test_streams_in_separate_tensors(make: Any, alike: str | None) -> None:
    torch.manual_seed(0)
    found = audited(make(), (6, 16))
    told = [f for f in found.findings if f.code == "STREAM-ALIKE"]
    assert "INIT-COPY" not in {finding.code for finding in found.findings}
    assert [f"streams {alike}." in finding.message for finding in told] == [True] * bool(alike)
    named = any("3 residual streams are in separate tensors" in r for r in found.remarks)
    assert named == (make is Unlike)
