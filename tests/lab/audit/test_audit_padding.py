"""Ids for padding: not in examples that are made up, and without effect in those of the user."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from audit_models import IDS, Decoder, Gated, RMSNorm  # noqa: E402
from torch import nn  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.lab.audit import audit  # noqa: E402


class Padded(nn.Module):
    """Llama's blocks without positions; rows of padding are zero."""

    def __init__(self, padding: Any = 5, count: int = 40) -> None:
        super().__init__()
        self.tokens = nn.Embedding(count, 16, padding_idx=padding)
        self.norms = nn.ModuleList(RMSNorm(16) for _ in range(5))
        self.mlps = nn.ModuleList(Gated(16, 32) for _ in range(4))
        self.head = nn.Linear(16, 24, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for norm, mlp in zip(self.norms, self.mlps, strict=False):
            x = x + mlp(norm(x))
        return self.head(self.norms[-1](x))


def padded_ids(*shape: int, padding: int = 5) -> torch.Tensor:
    found = torch.randint(6, 40, shape, generator=torch.Generator().manual_seed(0))
    found[:, :2] = padding
    return found


def test_zero_rows_before_norms_are_no_finding_and_do_not_stop_the_prediction() -> None:
    found = audit(Padded, (padded_ids(4, 16),))
    assert found.findings == () and found.remarks == ()
    assert all(block.predicted is not None for block in found.blocks)
    plain = audit(Padded, (padded_ids(4, 16, padding=7),))
    assert found.predicted_logits == pytest.approx(plain.predicted_logits, rel=0.05)
    only = torch.full((4, 16), 5)
    assert any("nothing is predicted" in remark for remark in audit(Padded, (only,)).remarks)


CONFIGURED = [
    (SimpleNamespace(pad_token_id=3), {3, 5}),
    (SimpleNamespace(pad_token_id=-1), {5}),
    (SimpleNamespace(pad_token_id=None, text_config=SimpleNamespace(pad_token_id=7)), {5, 7}),
    (SimpleNamespace(pad_token_id=1000), {5, 1000}),
    (SimpleNamespace(pad_token_id=[1, 2]), {5}),
    ({"pad_token_id": 9}, {5, 9}),
    (None, {5}),
]


def made_up(model: Any, shape: tuple[int, int]) -> set[int]:
    """The ids on which an audit runs a model, of which it was told the shape."""
    seen = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    audit(model, shape, predict=False)
    assert tuple(seen[0].shape) == shape
    return set(seen[0].unique().tolist())


@pytest.mark.parametrize(("config", "ids"), CONFIGURED)
def test_made_up_ids_avoid_padding(config: Any, ids: set[int]) -> None:
    model = Padded()
    model.config = config
    for outer in (model, nn.Sequential(model)):
        assert made_up(outer, (8, 200)) == set(range(40)) - ids


def test_several_tables_and_small_vocabularies() -> None:
    model = Padded(padding=-1)
    model.types = nn.Embedding(2, 16, padding_idx=0)
    assert made_up(model, (8, 200)) == set(range(40)) - {39, 0}
    small = Padded(padding=0, count=2)
    small.more = nn.Embedding(4, 16, padding_idx=1)
    assert made_up(small, (4, 8)) == {0, 1}


def test_a_reader_that_fails_does_not_end_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (KeyError("k_proj"), RecursionError("deep"), RuntimeError("shape")):

        def read(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(kc.interchange, "read", read)
        found = audit(Decoder, IDS)
        (remark,) = [r for r in found.remarks if "nothing is predicted" in r]
        assert type(error).__name__ in remark
        assert found.blocks and all(block.predicted is None for block in found.blocks)


class Wrapped(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            *(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()) for _ in range(count)),
            nn.Linear(8, 8),
        )
        self.head = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def test_a_new_backbone_is_one_change(tmp_path: Any) -> None:
    path = tmp_path / "init.lock"
    audit(lambda: nn.Sequential(nn.Linear(8, 12)), (16, 8), predict=False).lock(path)
    changes = audit(Wrapped, (16, 8), predict=False).changes(path)
    texts = {change.message for change in changes}
    assert texts == {
        "backbone (14 parameters) is new",
        "head (2 parameters) is new",
        "0 (2 parameters) was removed",
    }
