"""The usual sigma of a model, against which INIT-DEPTH-PLACE measures factors for depth."""

from __future__ import annotations

import math

from audit_models import (
    BLOCKS,
    IDS,
    Decoder,
)

from kcalc.lab.audit import audit


def test_a_known_class_with_scaled_blocks_gets_no_recipe_twice() -> None:
    class GPT2Like(Decoder):
        pass

    factor = math.sqrt(2 * BLOCKS)
    model = GPT2Like(sigma=lambda n: 0.02 / factor if "blocks" in n else 0.02)
    codes = [f.code for f in audit(model, IDS, predict=False).findings]
    assert codes == ["INIT-DEPTH-PLACE"]
