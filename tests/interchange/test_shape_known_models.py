"""Published architectures are shaped by ``kc.shape(reading)`` without options."""

from __future__ import annotations

from typing import Any

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from torch_zoo.twin import Model  # noqa: E402

from benchmarks.architectures import NAMED  # noqa: E402

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 60,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "moe_intermediate_size"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "n_routed_experts", "num_key_value_heads"), 4),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "num_experts_per_tok": 2, "intermediate_size": 64, "use_cache": False,
}  # fmt: skip


def shaped_names(shaping: Any) -> set[str]:
    return {k.activation.name for k in shaping.constants.by_node.values()}


@pytest.mark.slow
def test_a_transformer_is_shaped() -> None:
    transformers = pytest.importorskip("transformers")
    body = transformers.DeepseekV3Model(transformers.DeepseekV3Config(**SIZES))
    model = Model(lambda m, ids: m.body(ids).last_hidden_state, body=body)
    ids = torch.tensor([[5, 7, 9, 4, 8, 6], [9, 3, 4, 6, 7, 8]])
    s = kc.shape(kc.read(model.eval(), ids))
    assert isinstance(s, kc.RegionalShaping) and shaped_names(s) == {"swish"}
    assert all(max(found.values()) < 1e-9 for found in s.residuals.values())


OTHERS = "U-Net VAE Highway googlenet vit_b_16"


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS.split())
def test_architectures_of_the_table_are_shaped(name: str) -> None:
    entry = NAMED[name]
    if entry.library:
        pytest.importorskip(entry.library)
    s = kc.shape(kc.read(entry.model(), *entry.example()))
    assert shaped_names(s) - {"sigmoid", "hard_sigmoid", "softplus"}
