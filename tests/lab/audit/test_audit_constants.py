"""Constants count by their values: LayerScale, ReZero, gates, gains."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from modern_zoo import Model
from refusals import refused
from torch import nn

from kcalc.lab.audit import audit


class Gated(nn.Module):
    """A residual block with LayerScale, a gate of a negative bias, and ReZero."""

    def __init__(self, scale: float = 1e-5, gate: float = -2.0, zero: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.full((8,), scale))
        self.gate = nn.Parameter(torch.full((8,), gate))
        self.alpha = nn.Parameter(torch.tensor(zero))
        self.head = nn.Linear(8, 12)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.scale * self.down(self.up(x).relu())
        y = torch.sigmoid(self.gate + y) * y
        return self.head(x + (1 + self.alpha) * y)


def audited(*sizes: float, module: bool = False, **options: Any) -> Any:
    given = Gated(*sizes) if module else lambda: Gated(*sizes)
    return audit(given, (16, 8), predict=False, **options)


def found(recipe: Any, *sizes: float, module: bool = False) -> dict[str, str]:
    """{parameter: message} of INIT-RECIPE."""
    result = audited(*sizes, module=module, recipe=recipe)
    kinds = [f for f in result.findings if f.code == "INIT-RECIPE"]
    return {name: f"{f.message}; {f.fix}" for f in kinds for name in f.parameters}


@pytest.mark.parametrize("module", [False, True])
def test_a_recipe_gives_the_values_of_constants(module: bool) -> None:
    recipe = {"scale": 1e-5, "gate": -2, "alpha": "zeros", "head.weight": 0}
    assert found(recipe, module=module) == {}
    off = found(recipe, 1.0, 2.0, 1.0, module=module)
    assert set(off) == {"scale", "gate", "alpha"}
    assert "fill it with 1e-05" in off["scale"] and "the value 1," in off["scale"]
    assert not any("draw" in text for text in off.values())


def test_a_negative_number_is_no_standard_deviation() -> None:
    with refused("up.weight"):
        found({"up.weight": -0.1})
    with refused("finite"):
        found({"scale": float("nan")})


@pytest.mark.parametrize("module", [False, True])
def test_locks_hold_the_values_of_constants(tmp_path: Path, module: bool) -> None:
    def changed(*sizes: float) -> set[str]:
        changes = audited(*sizes, module=module).changes(path)
        return {name for change in changes for name in change.parameters}

    path = tmp_path / "init.lock"
    audited(module=module).lock(path)
    assert audited(module=module).changes(path) == ()
    assert changed(1.0, 2.0, 1.0) == {"scale", "gate", "alpha"}
    assert changed(1.005e-5) == set()


LOCKED: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"shape": [1, 16]}, r"has the shape \(16, 1\) instead of \(1, 16\)"),
    "law": ({"law": "normal"}, "is kaiming_uniform instead of normal"),
    "sigma": ({"sigma": 0.25}, r"has sigma 0\.5774 instead of 0\.25"),
    "none": ({"sigma": None}, "^$"),
    "mean": ({"mean": 3.0}, "has the mean 0 instead of 3"),
    "no mean": ({"mean": None}, "^$"),
    "text": ({"sigma": "0.1"}, "is not the lock file"),
    "number": ({"shape": 16}, "is not the lock file"),
}


@pytest.mark.parametrize(("entry", "words"), LOCKED.values(), ids=LOCKED)
def test_entries_of_a_lock(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    found, path = audit(lambda: nn.Linear(1, 16), (4, 1), predict=False), tmp_path / "init.lock"
    whole = json.loads(found.lock(path).read_text())
    whole["parameters"]["weight"] |= entry
    path.write_text(json.dumps(whole))
    if words.startswith("is not"):
        with refused(words):
            found.changes(path)
        return
    assert re.search(words, " ".join(change.message for change in found.changes(path)))


def test_a_single_entry_that_was_drawn_may_be_drawn_anew(tmp_path: Path) -> None:
    path = tmp_path / "init.lock"
    torch.manual_seed(0)
    audit(nn.Linear(32, 1), (4, 32), predict=False).lock(path)
    assert audit(nn.Linear(32, 1), (4, 32), predict=False).changes(path) == ()

    size = 1 / (1.02 + 6.5 * (0.1 / 4 / 384) ** 0.5)  # 6.5 standard errors below 1

    def written() -> Any:
        model = nn.Sequential(nn.Linear(32, 12), nn.Linear(12, 4))
        model[0].weight.data.normal_().numpy()[...] = size * (-1.0) ** np.arange(32)
        model[1].weight.data.uniform_()
        return model

    sigmas = [r.sigma for r in audit(written, (4, 32), predict=False).parameters if r.fan_in]
    assert sigmas == pytest.approx([size, 12**-0.5], rel=1e-6)


def test_a_new_backbone_is_one_change(tmp_path: Any) -> None:
    def wrapped() -> Any:
        blocks = [m for _ in range(3) for m in (nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())]
        backbone = nn.Sequential(*blocks, nn.Linear(8, 8))
        return Model(lambda m, x: m.head(m.backbone(x)), backbone=backbone, head=nn.Linear(8, 12))

    path = tmp_path / "init.lock"
    audit(lambda: nn.Sequential(nn.Linear(8, 12)), (16, 8), predict=False).lock(path)
    changes = audit(wrapped, (16, 8), predict=False).changes(path)
    texts = {change.message for change in changes}
    assert texts == {
        "backbone (14 parameters) is new",
        "head (2 parameters) is new",
        "0 (2 parameters) was removed",
    }
