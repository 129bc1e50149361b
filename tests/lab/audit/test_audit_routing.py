"""Routers that send most tokens to few experts, and routers that do not learn."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from audit_models import TokenMixture  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.lab.audit import audit  # noqa: E402


def found(common: float, k: int = 2) -> Any:
    torch.manual_seed(0)
    ids = torch.randint(0, 256, (4, 32))
    return audit(TokenMixture(common, k), ids, predict=False)


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
    assert "MOE-ONE" in codes
