"""The usual sigma of a model, against which INIT-DEPTH-PLACE measures factors for depth."""

from __future__ import annotations

import math
from typing import Any

from audit_models import (
    BLOCKS,
    IDS,
    WIDTH,
    Decoder,
)

from kcalc.lab.audit import audit


def found(model: Any) -> list[tuple[str, set[str]]]:
    findings = audit(model, IDS, predict=False).findings
    kept = [f for f in findings if f.code == "INIT-DEPTH-PLACE"]
    return [(f.severity, {n.split(".", 2)[2] for n in f.parameters}) for f in kept]


def test_sigmas_by_fans_are_no_factors_for_depth() -> None:
    """Tables of sigma 1 and matrices of sigma width^-1/2, with width = 2 depth."""
    tables = ("tokens.weight", "places.weight")

    def sigma(name: str) -> float:
        return 1.0 if name.endswith(tables) else WIDTH**-0.5

    assert found(lambda: Decoder(True, sigma, blocks=WIDTH // 2)) == []
    assert found(lambda: Decoder(False, sigma, blocks=WIDTH // 2)) == []


def test_a_known_class_with_scaled_blocks_gets_no_recipe_twice() -> None:
    class GPT2Like(Decoder):
        pass

    factor = math.sqrt(2 * BLOCKS)
    model = GPT2Like(sigma=lambda n: 0.02 / factor if "blocks" in n else 0.02)
    codes = [f.code for f in audit(model, IDS, predict=False).findings]
    assert codes == ["INIT-DEPTH-PLACE"]
