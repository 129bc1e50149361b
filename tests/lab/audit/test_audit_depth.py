"""The usual sigma of a model, against which INIT-DEPTH-PLACE measures factors for depth."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from audit_models import (  # noqa: E402
    BLOCKS,
    GATED_READERS,
    GATED_WRITERS,
    IDS,
    WIDTH,
    WRITERS,
    Decoder,
    scaled,
)
from torch import nn  # noqa: E402

from kcalc.lab.audit import audit  # noqa: E402

READERS = ("qkv.weight", "mlp.0.weight")


def found(model: Any) -> list[tuple[str, set[str]]]:
    findings = audit(model, IDS, predict=False).findings
    kept = [f for f in findings if f.code == "INIT-DEPTH-PLACE"]
    return [(f.severity, {n.split(".", 2)[2] for n in f.parameters}) for f in kept]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("gated", [False, True])
def test_readers_of_a_finished_model(gated: bool, seed: int) -> None:
    torch.manual_seed(seed)
    readers, writers = (GATED_READERS, GATED_WRITERS) if gated else (READERS, WRITERS)
    ((severity, names),) = found(Decoder(gated, scaled(*readers)))
    assert severity == "error" and len(names) == len(readers)
    assert found(Decoder(gated, scaled(*writers))) == []


def test_some_readers() -> None:
    most = ("qkv.weight", "w1.weight")
    assert found(lambda: Decoder(True, scaled(*most)))[0][0] == "error"


def test_sigmas_by_fans_are_no_factors_for_depth() -> None:
    """Tables of sigma 1 and matrices of sigma width^-1/2, with width = 2 depth."""
    tables = ("tokens.weight", "places.weight")

    def sigma(name: str) -> float:
        return 1.0 if name.endswith(tables) else WIDTH**-0.5

    assert found(lambda: Decoder(True, sigma, blocks=WIDTH // 2)) == []
    assert found(lambda: Decoder(False, sigma, blocks=WIDTH // 2)) == []


def test_lecuns_law_in_each_matrix() -> None:
    def build() -> Any:
        model = Decoder(True)
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "blocks" in name:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        return model

    assert found(build) == []


def test_a_known_class_with_scaled_blocks_gets_no_recipe_twice() -> None:
    class GPT2Like(Decoder):
        pass

    factor = math.sqrt(2 * BLOCKS)
    model = GPT2Like(sigma=lambda n: 0.02 / factor if "blocks" in n else 0.02)
    codes = [f.code for f in audit(model, IDS, predict=False).findings]
    assert codes == ["INIT-DEPTH-PLACE"]
