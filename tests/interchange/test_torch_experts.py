"""Mixtures of experts of PyTorch modules, and of transformers, are read as Route layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import kcalc as kc  # noqa: E402

L = kc.layers


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights that those of :func:`model` do not repeat, whatever ran before."""
    torch.manual_seed(5)


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


def shaped_act(k: Any, act: Any, x: Any) -> Any:
    """An activation with the constants of a shaping."""
    return k.gamma * (act(k.alpha * x + k.beta) + k.delta)


def test_experts_in_a_list_are_shaped_in_place(tmp_path: Path) -> None:
    own = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), Mixture(shared=1)).eval()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    s: Any = kc.shape(kc.read(own, (8, 32)), zeta=1.5)
    assert set(s.left_alone) == {"3", "3.linear", "3.add"}
    assert "router" in s.left_alone["3"] and "S_2" in s.left_alone["3"]
    shaped: Any = s.apply_to(own)
    assert type(shaped) is nn.Sequential and isinstance(shaped[3], Mixture)
    state = shaped.state_dict()
    assert [*state] == [*before] and torch.equal(state["3.gate.weight"], before["3.gate.weight"])
    x = torch.randn(64, 32)
    weights, chosen = shaped[3].gate(x).softmax(-1).topk(2)
    weights = weights / weights.sum(-1, keepdim=True)

    def explicit(name: str, x: Any) -> Any:
        up, down = state[f"3.{name}.up.weight"], state[f"3.{name}.down.weight"]
        node = "3.experts.0.tanh" if name.startswith("experts") else f"3.{name}.tanh"
        return shaped_act(s.constants[node], torch.tanh, x @ up.T) @ down.T

    every = torch.stack([explicit(f"experts.{i}", x) for i in range(4)])
    out = sum(weights[:, j, None] * every[chosen[:, j], torch.arange(64)] for j in range(2))
    torch.testing.assert_close(shaped[3](x), out + explicit("shared", x), rtol=1e-4, atol=1e-4)
    ups = [state[f"3.experts.{i}.up.weight"] for i in range(4)]
    assert all((a - b).abs().max() > 0.1 for i, a in enumerate(ups) for b in ups[:i])
    for up in ups:  # orthogonal columns, sigma_w = 1
        torch.testing.assert_close(up.T @ up, 1.5 * torch.eye(32), rtol=1e-4, atol=1e-4)
    s.edits.save(tmp_path / "edits.json")
    again = kc.apply_edits(own, kc.load_edits(tmp_path / "edits.json"), weights="keep")
    assert not torch.equal(again.state_dict()["3.experts.2.up.weight"], ups[2])
    torch.testing.assert_close(loaded(again, state)(x), shaped(x))


def loaded(model: Any, state: Any) -> Any:
    model.load_state_dict(state)
    return model


class Unlike(nn.Module):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self.up, self.down, self.slope = nn.Linear(32, 24), nn.Linear(24, 32), slope

    def forward(self, x: Any) -> Any:
        return self.down(nn.functional.leaky_relu(self.up(x), self.slope))


class Batched(Mixture):
    """The experts' weights are stacked and their code is not called."""

    def forward(self, x: Any) -> Any:
        weights, chosen = self.gate(x).softmax(-1).topk(self.k)
        table = torch.zeros(len(x), 4).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
        parts: Any = [*self.experts]
        ups, downs = (torch.stack([getattr(p, n).weight for p in parts]) for n in ("up", "down"))
        more = [torch.stack([getattr(p, n).bias for p in parts]) for n in ("up", "down")]
        inner = torch.tanh(torch.einsum("ehc,tc->teh", ups, x) + more[0])
        return torch.einsum(
            "te,tec->tc", table, torch.einsum("ech,teh->tec", downs, inner) + more[1]
        )


def test_experts_without_an_effect_are_left_alone() -> None:
    mixture = Mixture()
    mixture.experts = nn.ModuleList([Unlike(slope) for slope in (0.1, 0.2, 0.1, 0.1)])
    network = kc.read(model(mixture), (8, 32)).network
    (node,) = network.nodes_of(L.Opaque)
    assert "different widths or layers" in network.layer(node).reason
    own = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), Batched()).eval()
    s = kc.shape(kc.read(own, (8, 32)), zeta=1.5)
    assert "would have no effect" in s.left_alone["3.experts.0.tanh"]
    assert not any(call.place[0].startswith("3") for edit in s.edits for call in edit.calls)


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


def explicit_mixture(mixture: Any, parts: Any, x: Any) -> tuple[Any, Any]:
    """(output, every expert's output) of stacked experts, from their parameters alone."""
    experts = mixture.experts
    with torch.no_grad():
        _, weights, chosen = getattr(mixture, "router" if parts["turned"] else "gate")(x)
        up, down = experts.gate_up_proj, experts.down_proj
        up, down = (w.transpose(1, 2) if parts["turned"] else w for w in (up, down))
        every = [parts["gated"](x @ up[i].T) @ down[i].T for i in range(len(up))]
        index = torch.arange(len(x))
        chosen_outputs = [torch.stack(every)[chosen[:, j], index] for j in range(chosen.shape[1])]
        out = sum(w[:, None] * y for w, y in zip(weights.T, chosen_outputs, strict=True))
    return out, torch.stack(every)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Mixtral", "Qwen2Moe", "GptOss"])
def test_stacked_experts_are_shaped_in_place(name: str) -> None:
    own = built(name, FAMILIES[name][0])
    ids = torch.randint(0, 64, (2, 6))
    s: Any = kc.shape(kc.read(own, ids), zeta=1.5 if name == "GptOss" else 2.5)
    shaped = s.apply_to(own, weights="gaussian_delta")
    assert isinstance(shaped, type(own)) and [*shaped.state_dict()] == [*own.state_dict()]
    mixture, before = shaped.model.layers[0].mlp, own.model.layers[0].mlp
    path, turned = "model.layers.0.mlp.experts", name == "GptOss"
    if turned:
        k, h = (s.constants[f"{path}.{end}"] for end in ("mul_2", "add"))
        glu = lambda g: g.clamp(max=7) * torch.sigmoid(1.702 * g.clamp(max=7))  # noqa: E731
        one = lambda u: u.clamp(-7, 7) + 1  # noqa: E731
        gated = lambda z: shaped_act(k, glu, z[:, ::2]) * shaped_act(h, one, z[:, 1::2])  # noqa: E731
    else:
        k, silu = s.constants[f"{path}.act_fn.silu"], nn.functional.silu
        gated = lambda z: shaped_act(k, silu, z.chunk(2, -1)[0]) * z.chunk(2, -1)[1]  # noqa: E731
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(2))
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    out, _ = explicit_mixture(mixture, {"turned": turned, "gated": gated}, x)
    with torch.no_grad():
        if name == "Qwen2Moe":  # a shared expert times the sigmoid of a gate
            p = mixture.shared_expert
            k = s.constants["model.layers.0.mlp.shared_expert.act_fn.silu"]
            inner = shaped_act(k, nn.functional.silu, x @ p.gate_proj.weight.T)
            shared = (inner * (x @ p.up_proj.weight.T)) @ p.down_proj.weight.T
            out = out + torch.sigmoid(mixture.shared_expert_gate(x)) * shared
        found = mixture(x[None])
        for experts_implementation in ("eager", "grouped_mm", "batched_mm"):
            shaped.set_experts_implementation(experts_implementation)
            found = mixture(x[None])
            found = (found[0] if isinstance(found, tuple) else found)[0]
            torch.testing.assert_close(found, out, rtol=2e-3, atol=2e-3)
        assert (before(x[None])[0] - found).abs().max() > 0.1
    # the router is the user's, the experts are drawn apart
    router = "router" if turned else "gate"
    assert torch.equal(getattr(mixture, router).weight, getattr(before, router).weight)
    rows = mixture.experts.gate_up_proj
    assert (rows[0] - rows[1]).abs().max() > 0.1
    # Monte Carlo: q of an expert is 1, over experts and draws
    generator, means = torch.Generator().manual_seed(3), []
    for _ in range(0 if turned else 30):  # the last layer of GPT-OSS is not in a region
        drawn = s.apply_to(own, weights="gaussian_delta", generator=generator)
        part = {"turned": turned, "gated": gated}
        _, every = explicit_mixture(drawn.model.layers[0].mlp, part, x[:64])
        means += every.square().mean((1, 2)).tolist()
    mean = torch.tensor(means)
    if means:
        z = (mean.mean() - 1) / (mean.std() / len(mean) ** 0.5)
        assert abs(z) < 4
    # training
    shaped.train()
    loss = shaped(input_ids=ids, labels=ids).loss
    loss.backward()
    assert mixture.experts.gate_up_proj.grad.abs().max() > 0


@pytest.mark.slow
def test_sums_and_branches_of_a_mixtral_model() -> None:
    """DKS gives the residual sums weights; "edge" multiplies the last layers of branches."""
    own, ids = built("Mixtral", FAMILIES["Mixtral"][0]), torch.randint(0, 64, (2, 6))
    reading = kc.read(own, ids)
    s: Any = kc.shape(reading, zeta=2.5)
    assert not [node for node in s.left_alone if "add" in node]
    layer, seen = s.apply_to(own).model.layers[0], []
    first = lambda found: found[0] if isinstance(found, tuple) else found  # noqa: E731
    for part in (layer.input_layernorm, layer.post_attention_layernorm):
        part.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for part in (layer.self_attn, layer.mlp, layer):
        part.register_forward_hook(lambda *given: seen.append(first(given[-1])))
    with torch.no_grad():
        x, turned = torch.randn(2, 6, 64), own.model.rotary_emb(torch.zeros(()), ids[:, :6])
        layer(x, position_embeddings=turned)
    x, attended, middle, mixed, out = seen
    torch.testing.assert_close(middle, (x + attended) / 2**0.5)
    torch.testing.assert_close(out, (middle + mixed) / 2**0.5)

    edge: Any = kc.shape(reading, method="edge", tokens=6, gradient_difference=1.5)
    sums = [node for node in reading.network if str(node).startswith("model.layers.0.add")]
    (_, attention), (_, mixture) = (edge.weights[node] for node in sums)
    new, old = (model.model.layers[0] for model in (edge.apply_to(own), own))
    torch.testing.assert_close(new.self_attn.o_proj.weight, attention * old.self_attn.o_proj.weight)
    torch.testing.assert_close(first(new.mlp(x)), mixture * first(old.mlp(x)), rtol=1e-4, atol=1e-5)
