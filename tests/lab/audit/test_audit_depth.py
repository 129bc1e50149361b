"""The usual sigma of a model, against which INIT-DEPTH-PLACE measures factors for depth."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from audit_models import (
    BLOCKS,
    IDS,
    VOCABULARY,
    WIDTH,
    Decoder,
    findings,
    nothing,
    scaled,
)
from torch import nn
from transformer_models import RMSNorm

FANS = {"qkv": (32, 96), "proj": (32, 32), "mlp.0": (32, 128), "mlp.2": (128, 32)}
LAST = ("proj", "mlp.2")  # of their branches
NAME: Any = re.compile(r"(?:blocks\.(\d)\.(?:attention\.)?)?(.+)\.weight")  # block, layer


def olmo(layer: str, block: int) -> float:
    return (FANS.get(layer, (32,))[0] * (2 * block if layer in LAST else 1)) ** -0.5


def fixup(layer: str, block: int) -> float:
    if layer in (*LAST, "head"):
        return 0.0
    return (2 / 32) ** 0.5 * (2 * BLOCKS) ** -0.5 if block else 0.02


def t_fixup(layer: str, block: int) -> float:
    return 0.67 * BLOCKS**-0.25 * (2 / sum(FANS[layer])) ** 0.5 if block and layer != "qkv" else 1


def nf_net(layer: str, block: int) -> float:
    return FANS[layer][0] ** -0.5 if block else 0.02 if layer == "places" else 0.01


@pytest.mark.parametrize("rule", [olmo, fixup, t_fixup, nf_net])
@pytest.mark.parametrize("wrong", ["", "blocks.2.mlp.0.weight"])
def test_recipes_are_their_formulas(rule: Callable[[str, int], float], wrong: str) -> None:
    def sigma(name: str) -> float:
        block, layer = NAME.fullmatch(name).groups()
        return (1.5 if name == wrong else 1) * rule(layer, int(block) + 1 if block else 0)

    model = Decoder(sigma=sigma)
    if wrong:  # with a readout of its own
        model.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(model.head.weight, 0.0, sigma("head.weight"))
    found = findings(model, IDS, recipe=rule.__name__.replace("_", "-"))
    assert [f.parameters for f in found if f.code == "INIT-RECIPE"] == [(wrong,)] * bool(wrong)


@pytest.mark.parametrize(
    ("draw", "law"),
    [
        (nn.init.xavier_normal_, "xavier"),
        (lambda w: nn.init.kaiming_uniform_(w, nonlinearity="relu"), "he"),
        (nothing, "torch"),
        (nn.init.zeros_, "zeros"),
    ],
)
def test_laws_by_name_are_those_of_initialisers(draw: Any, law: str) -> None:
    def build() -> Any:
        model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 16))
        draw(model[2].weight)
        return model

    def off(name: str) -> list[str]:
        found = findings(build, (4, 8), recipe={"2.weight": name})
        return [f.code for f in found if "RECIPE" in f.code]

    laws = "xavier", "he", "torch", "zeros"
    assert [name for name in laws if not off(name)] == [law]


def test_a_known_class_with_scaled_blocks_gets_no_recipe_twice() -> None:
    class GPT2Like(Decoder):
        pass

    factor = math.sqrt(2 * BLOCKS)
    model = GPT2Like(sigma=lambda n: 0.02 / factor if "blocks" in n else 0.02)
    codes = [f.code for f in findings(model, IDS)]
    assert codes == ["INIT-DEPTH-PLACE"]

    normed = GPT2Like()
    for block in normed.blocks:
        block.attention.proj = nn.Sequential(block.attention.proj, RMSNorm(WIDTH))
        block.mlp.append(RMSNorm(WIDTH))
    assert findings(normed, IDS) == ()

    class Configured(Decoder):
        config = SimpleNamespace(vocab_size=64, max_position_embeddings=16, initializer_range=0.05)
        main_input_name = "input_ids"

        def forward(self, input_ids: Any) -> Any:
            return super().forward(input_ids)

    def drawn(name: str) -> float:
        return 2.5 * scaled("proj.weight", "mlp.2.weight")(name)

    assert findings(Configured(sigma=drawn), None, recipe="gpt2") == ()
    sigmas = {"qkv": (2 / 128) ** 0.5, "proj": 32**-0.5 / 32**0.25, "mlp": 80**-0.5 / 32**0.25}
    wang = Decoder(sigma=lambda name: next((s for n, s in sigmas.items() if n in name), 0.02))
    assert not any("RECIPE" in f.code for f in findings(wang, IDS, recipe="deepnorm"))


def test_a_scale_by_the_block_that_readers_have() -> None:
    def sigma(name: str) -> float:
        return 0.02 * (2 * (int(name[7]) + 1)) ** -0.5 if "mlp.0" in name else 0.02

    (finding,) = findings(Decoder(sigma=sigma), IDS)
    assert finding.code == "INIT-DEPTH-PLACE" and "(2(l+1))^-1/2 in block l" in finding.fix
