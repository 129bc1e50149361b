"""The usual sigma of a model, against which INIT-DEPTH-PLACE measures factors for depth."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from audit_models import (
    BLOCKS,
    IDS,
    WIDTH,
    Decoder,
    scaled,
)
from torch import nn
from transformer_models import RMSNorm

from kcalc.lab.audit import audit


def test_a_known_class_with_scaled_blocks_gets_no_recipe_twice() -> None:
    class GPT2Like(Decoder):
        pass

    factor = math.sqrt(2 * BLOCKS)
    model = GPT2Like(sigma=lambda n: 0.02 / factor if "blocks" in n else 0.02)
    codes = [f.code for f in audit(model, IDS, predict=False).findings]
    assert codes == ["INIT-DEPTH-PLACE"]

    normed = GPT2Like()
    for block in normed.blocks:
        block.attention.proj = nn.Sequential(block.attention.proj, RMSNorm(WIDTH))
        block.mlp.append(RMSNorm(WIDTH))
    assert audit(normed, IDS, predict=False).findings == ()

    class Configured(Decoder):
        config = SimpleNamespace(vocab_size=64, max_position_embeddings=16, initializer_range=0.05)
        main_input_name = "input_ids"

        def forward(self, input_ids: Any) -> Any:
            return super().forward(input_ids)

    def drawn(name: str) -> float:
        return 2.5 * scaled("proj.weight", "mlp.2.weight")(name)

    assert audit(Configured(sigma=drawn), predict=False, recipe="gpt2").findings == ()
    sigmas = {"qkv": (2 / 128) ** 0.5, "proj": 32**-0.5 / 32**0.25, "mlp": 80**-0.5 / 32**0.25}
    wang = Decoder(sigma=lambda name: next((s for n, s in sigmas.items() if n in name), 0.02))
    assert not any(
        "RECIPE" in f.code for f in audit(wang, IDS, recipe="deepnorm", predict=False).findings
    )
