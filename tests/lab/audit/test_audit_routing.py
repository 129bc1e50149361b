"""Routers that send most tokens to few experts, and routers that do not learn."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.lab.audit import audit  # noqa: E402


class Experts(nn.Module):
    """``k`` of 8 experts; weights are shares of the selected ones."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k, self.router = k, nn.Linear(32, 8, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 32)) for _ in range(8)]
        )

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 32)
        weights, chosen = self.router(flat).softmax(-1).topk(self.k)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)
            out.index_add_(0, token, weights[token, slot, None] * expert(flat[token]))
        return out.reshape(x.shape)


class Model(nn.Module):
    def __init__(self, common: float, k: int = 2) -> None:
        super().__init__()
        self.embedding, self.mixture = nn.Embedding(256, 32), Experts(k)
        self.norm, self.readout, self.common = nn.LayerNorm(32), nn.Linear(32, 64), common

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids) + self.common
        return self.readout(self.norm(x + self.mixture(x)))


def found(common: float, k: int = 2) -> Any:
    torch.manual_seed(0)
    ids = torch.randint(0, 256, (4, 32))
    return audit(Model(common, k), ids, predict=False)


def test_the_load_follows_from_the_cosine_of_tokens() -> None:
    fine = found(0.0)
    assert not fine.findings
    assert any("2 of 8 experts" in remark for remark in fine.remarks)
    (finding,) = found(3.0).findings
    assert finding.code == "MOE-LOAD" and finding.parameters == ("mixture.router.weight",)
    cosine = float(finding.message.partition("cosine of ")[2].partition(",")[0])
    assert cosine == pytest.approx(0.9, abs=0.02)  # 9 of 10 of the mean square is common
    told = float(finding.message.partition("variation of ")[2].partition(" ")[0])
    assert told == pytest.approx(kc.moe_statistics(8, 2, 1.0, cosine).load_cv(), abs=0.01)


def test_a_router_of_one_expert_of_weight_one() -> None:
    codes = {finding.code for finding in found(0.0, k=1).findings}
    assert codes & {"MOE-ONE", "GRAD-DEAD"}
