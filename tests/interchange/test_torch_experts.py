"""Mixtures of experts of PyTorch modules, and of transformers, are read as Route layers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import kcalc as kc  # noqa: E402

L = kc.layers


class Perceptron(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, hidden), nn.Linear(hidden, 32)

    def forward(self, x: Any) -> Any:
        return self.down(torch.tanh(self.up(x)))


class Mixture(nn.Module):
    """The usual loop over experts, with the options of a router."""

    def __init__(self, k: int = 2, widths: tuple[int, ...] = (48,) * 4, **options: Any) -> None:
        super().__init__()
        self.k, self.options = k, options
        self.gate = nn.Linear(32, len(widths), bias=False)
        self.experts = nn.ModuleList([Perceptron(hidden) for hidden in widths])
        if "shared" in options:
            self.shared = Perceptron(40)

    def forward(self, x: Any) -> Any:
        flat, options = x.reshape(-1, 32), self.options
        logits = self.gate(flat)
        scores = logits.sigmoid() if options.get("sigmoid") else logits.softmax(-1)
        weights, chosen = scores.topk(self.k)
        if options.get("normalise", True):
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)
            token, slot = (found[: options.get("capacity")] for found in (token, slot))
            out.index_add_(0, token, weights[token, slot, None] * expert(flat[token]))
        out = options.get("scale", 1) * out.reshape(x.shape)
        return out + self.shared(x) if "shared" in options else out


def model(mixture: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), mixture, nn.Linear(32, 3)).eval()


@pytest.mark.parametrize(
    ("options", "route"),
    [
        ({}, L.Route(2)),
        ({"normalise": False, "k": 3}, L.Route(3, normalise=False)),
        ({"sigmoid": True, "scale": 2.5, "shared": 1}, L.Route(2, "sigmoid", True, 2.5)),
        ({"k": 1, "normalise": False}, L.Route(1, normalise=False)),
        ({"widths": (24,) * 3, "k": 3}, L.Route(3)),
    ],
)
def test_loops_over_experts(options: dict[str, Any], route: Any) -> None:
    network = kc.read(model(Mixture(**options)), (8, 32)).network
    assert network.layer("1") == route if "shared" not in options else True
    (node,) = network.nodes_of(L.Route)
    assert network.layer(node) == route
    assert 0 < kc.c_map(network)(0.5) < 1
    logits, expert = network.parents(node)
    assert network.features[logits] == len(options.get("widths", (48,) * 4))
    assert network.layer(expert).sigma_w == pytest.approx(3**-0.5, rel=0.1)  # nn.Linear


def ties() -> nn.Module:
    mixture = Mixture()
    nn.init.zeros_(mixture.gate.weight)
    return mixture


def biased() -> nn.Module:
    mixture = Mixture()
    for expert in mixture.experts:
        nn.init.constant_(expert.down.bias, 0.5)  # pyright: ignore
    return mixture


@pytest.mark.parametrize(
    ("mixture", "words"),
    [
        (lambda: Mixture(capacity=3), "capacity limits"),
        (lambda: Mixture(widths=(48, 48, 24, 48)), "different widths"),
        (ties, "tie"),
        (biased, "do not have mean 0"),
    ],
)
def test_mixtures_without_a_rule(mixture: Any, words: str) -> None:
    network = kc.read(model(mixture()), (8, 32)).network
    (node,) = network.nodes_of(L.Opaque)
    assert words in network.layer(node).reason
    with pytest.raises(kc.KcalcError, match=words):
        kc.c_map(network)


def test_shaping_leaves_mixtures_alone() -> None:
    parts = [nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), Mixture(), nn.Linear(32, 3)]
    own = nn.Sequential(*parts).eval()
    shaped = kc.shape(kc.read(own, (8, 32)), zeta=1.5)
    assert {"3", "3.experts.0.tanh"} <= set(shaped.left_alone)
    assert "only one expert of a mixture is read" in shaped.left_alone["3"]
    shaped.apply_to(own)(torch.randn(8, 32))


SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
}
DEEPSEEK = {
    "n_routed_experts": 8, "moe_intermediate_size": 48, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 0, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "routed_scaling_factor": 2.5,
}  # fmt: skip
QWEN = {"num_experts": 6, "moe_intermediate_size": 48}
FAMILIES = {
    "Mixtral": ({"num_local_experts": 4}, L.Route(2)),
    "Qwen2Moe": ({**QWEN, "shared_expert_intermediate_size": 48}, L.Route(2, normalise=False)),
    "Qwen3Moe": ({**QWEN, "norm_topk_prob": True, "head_dim": 16}, L.Route(2)),
    "DeepseekV3": (DEEPSEEK, L.Route(2, "sigmoid", True, 2.5)),
    "GptOss": ({"num_local_experts": 4, "head_dim": 16}, L.Route(2)),
}


def built(name: str, options: dict[str, Any]) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**SIZES, **options)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers(name: str) -> None:
    options, route = FAMILIES[name]
    found = kc.read(built(name, options), torch.randint(0, 64, (2, 6)))
    network = found.network
    assert network.layer("model.layers.0.mlp") == route
    if name in ("Mixtral", "Qwen2Moe", "Qwen3Moe"):
        assert not network.nodes_of(L.Opaque)
        assert "model.layers.0.mlp" in kc.node_values(network, tokens=4, token_cosine=0.2)
    texts = [note.text for note in found.notes if note.node == "model.layers.0.mlp"]
    assert ("correction biases are 0" in " ".join(texts)) == (name == "DeepseekV3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [({"n_group": 4, "topk_group": 2}, "groups of experts"), ({}, "correction biases")],
)
def test_deepseek_after_training_or_with_groups(options: dict[str, Any], words: str) -> None:
    own = built("DeepseekV3", {**DEEPSEEK, **options})
    if not options:
        own.model.layers[0].mlp.gate.e_score_correction_bias[0] = 0.1
    network = kc.read(own, torch.randint(0, 64, (2, 6))).network
    reasons = [network.layer(node).reason for node in network.nodes_of(L.Opaque)]
    assert any(words in reason for reason in reasons)
