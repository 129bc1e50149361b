"""Published architectures are shaped by ``kc.shape(reading)`` without options."""

from __future__ import annotations

from typing import Any

import pytest

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

from benchmarks.architectures import NAMED  # noqa: E402

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 60}
GROUPED = {"num_key_value_heads": 2, "intermediate_size": 64}
LATENT = {
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "moe_intermediate_size"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "n_routed_experts", "num_key_value_heads"), 4),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "num_experts_per_tok": 2,
    "intermediate_size": 64,
}
TEXTS: dict[str, tuple[dict[str, Any], str]] = {
    "Gemma2": (GROUPED | {"head_dim": 8}, "gelu_tanh"),
    "DeepseekV3": (LATENT, "swish"),
    "Phi3": (GROUPED | {"pad_token_id": 0}, "swish"),
    "Llama": (GROUPED, "swish"),
    "Bert": ({"intermediate_size": 64}, "gelu"),
}


def hidden(name: str, options: dict[str, Any]) -> Model:
    """A model of the transformers library as a function of ids."""
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, f"{name}Config")(**SMALL, **options)
    made.use_cache = False
    body = getattr(transformers, f"{name}Model")(made)
    return Model(lambda m, ids: m.body(ids).last_hidden_state, body=body)


def shaped_names(shaping: Any) -> set[str]:
    return {k.activation.name for k in shaping.constants.by_node.values()}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_transformers_are_shaped(name: str) -> None:
    options, activation = TEXTS[name]
    ids = torch.tensor([[5, 7, 9, 4, 8, 6], [9, 3, 4, 6, 7, 8]])
    s = kc.shape(kc.read(hidden(name, options).eval(), ids))
    assert isinstance(s, kc.RegionalShaping) and shaped_names(s) == {activation}
    assert all(max(found.values()) < 1e-9 for found in s.residuals.values())


OTHERS = "U-Net VAE FiLM WaveNet Highway googlenet mobilenet_v3_large vit_b_16 convnext_tiny"


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS.split())
def test_architectures_of_the_table_are_shaped(name: str) -> None:
    entry = NAMED[name]
    if entry.library:
        pytest.importorskip(entry.library)
    s = kc.shape(kc.read(entry.model(), *entry.example()))
    assert shaped_names(s) - {"sigmoid", "hard_sigmoid", "softplus"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ecaresnet26t", "cait_xxs24_224", "levit_128s"])
def test_architectures_of_timm_are_shaped(name: str) -> None:
    timm = pytest.importorskip("timm")
    size = 64 if name == "ecaresnet26t" else 224
    model = timm.create_model(name, pretrained=False).eval()
    s = kc.shape(kc.read(model, torch.randn(2, 3, size, size)))
    assert isinstance(s, kc.RegionalShaping) and s.regions and s.left_alone


# -- layers that are read in parts -----------------------------------------------------------------


def test_a_layer_one_of_whose_parts_stays_is_left_alone_and_the_reason_says_so() -> None:
    """One projection, a part of which goes into an operation that is not read, as in DeepSeek."""

    def run(m: Any, x: Any) -> Any:
        one, two = m.both(x).split([16, 8], -1)
        return m.head(torch.relu(m.up(torch.relu(one)))) + two.sort(-1)[0][:, :3]

    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    model, x = Model(run, both=nn.Linear(8, 24), up=nn.Linear(16, 16), head=head), torch.randn(4, 8)
    s = kc.shape(kc.read(model, x))
    assert isinstance(s, kc.RegionalShaping)
    why = s.left_alone["both[0:16]"]
    assert "part of" in why and "'both." in why and "up" not in s.left_alone
    copy = s.apply_to(model)
    assert torch.equal(copy.get_parameter("both.weight"), model.both.weight)
    assert not torch.equal(copy.get_parameter("up.weight"), model.up.weight)
    assert torch.isfinite(copy(x)).all()
