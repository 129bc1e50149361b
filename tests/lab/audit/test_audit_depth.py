"""The usual sigma of a model, against which INIT-DEPTH-PLACE measures factors for depth."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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


class Untied(Decoder):
    """The small language model with a readout of its own."""

    def __init__(self, sigma: Any) -> None:
        super().__init__(sigma=sigma)
        self.head = nn.Linear(WIDTH, self.tokens.num_embeddings, bias=False)
        nn.init.normal_(self.head.weight, 0.0, sigma("head.weight"))


LAST = ("proj.weight", "mlp.2.weight")


def olmo(name: str) -> float:
    doubled = 2 * (int(name.split(".")[1]) + 1) if name.endswith(LAST) else 1
    return float(doubled * (4 * WIDTH if "mlp.2" in name else WIDTH)) ** -0.5


def t_fixup(name: str) -> float:
    """Of an encoder, for matrices of 32 x 32 and 32 x 128."""
    return 0.67 * BLOCKS**-0.25 * (80 if "mlp" in name else 32) ** -0.5


def fixup(name: str) -> float:
    """He's sigma by the root of the number of branches, two in a block."""
    last = (*LAST, "head.weight")
    return 0.0 if name.endswith(last) else (2 / WIDTH) ** 0.5 * (2 * BLOCKS) ** -0.5


@pytest.mark.parametrize("sigma", [olmo, t_fixup, fixup])
def test_recipes_of_a_depth(sigma: Any) -> None:
    torch.manual_seed(0)
    for known in (olmo, t_fixup, fixup):
        recipe = known.__name__.replace("_", "-")
        codes = {f.code for f in audit(Untied(sigma), IDS, predict=False, recipe=recipe).findings}
        assert ("INIT-RECIPE" in codes) == (known is not sigma)


def test_a_scale_by_the_block_that_readers_have() -> None:
    def sigma(name: str) -> float:
        return 0.02 * (2 * (int(name[7]) + 1)) ** -0.5 if "mlp.0" in name else 0.02

    torch.manual_seed(0)
    (finding,) = audit(Decoder(sigma=sigma), IDS, predict=False).findings
    assert finding.code == "INIT-DEPTH-PLACE" and "(2(l+1))^-1/2 in block l" in finding.fix
