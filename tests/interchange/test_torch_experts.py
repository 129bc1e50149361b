"""Mixtures of experts of PyTorch modules, and of transformers, are read as Route layers."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.interchange.torch_model.apply import scaled_edits  # noqa: E402

L = kc.layers


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights that those of :func:`model` do not repeat, whatever ran before."""
    torch.manual_seed(5)


def perceptron(hidden: int, act: Any = torch.tanh, pair: bool = False) -> nn.Module:
    """``pair``: whether it returns a number too."""
    parts = {"up": nn.Linear(32, hidden), "down": nn.Linear(hidden, 32)}

    def forward(m: Any, x: Any) -> Any:
        y = m.down(act(m.up(x)))
        return (y, 1.0) if pair else y

    return Model(forward, **parts)


class Mixture(nn.Module):
    """The usual loop over experts, with the options of a router."""

    def __init__(self, k: int = 2, widths: tuple[int, ...] = (48,) * 4, **options: Any) -> None:
        super().__init__()
        self.k, self.options = k, options
        self.gate = nn.Linear(32, len(widths), bias=False)
        self.experts = nn.ModuleList(perceptron(width, pair="pair" in options) for width in widths)
        if "shared" in options:
            self.shared = perceptron(40)

    def forward(self, x: Any) -> Any:
        flat, options = x.reshape(-1, 32), self.options
        logits = self.gate(flat)
        scores = logits.sigmoid() if "sigmoid" in options else logits.softmax(-1)
        weights, chosen = scores.topk(self.k)
        if options.get("normalise", True):
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            places = torch.where(chosen == i)
            token, slot = (found[: options.get("capacity")] for found in places)
            made = expert(flat[token])
            made = made[0] if "pair" in options else made
            out.index_add_(0, token, weights[token, slot, None] * made)
        out = options.get("scale", 1) * out.reshape(x.shape)
        return out + self.shared(x) if "shared" in options else out


def read(mixture: nn.Module) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), mixture, nn.Linear(32, 3))
    return kc.read(model.eval(), (8, 32)).network


@pytest.mark.parametrize(
    ("options", "route"),
    [
        ({"pair": 1}, L.Route(2)),
        ({"sigmoid": 1, "scale": 2.5, "shared": 1}, L.Route(2, "sigmoid", True, 2.5)),
        ({"normalise": False, "k": 3}, L.Route(3, normalise=False)),
        ({"k": 1, "normalise": False}, L.Route(1, normalise=False)),
        ({"widths": (24,) * 3, "k": 3}, L.Route(3)),
    ],
)
def test_loops_over_experts(options: dict[str, Any], route: Any) -> None:
    network = read(Mixture(**options))
    (node,) = network.nodes_of(L.Route)
    assert network.layer(node) == route and (node == "1" or "shared" in options)
    assert 0 < kc.c_map(network)(0.5) < 1
    logits, expert = network.parents(node)
    assert network.features[logits] == len(options.get("widths", (48,) * 4))
    assert network.layer(expert).sigma_w == pytest.approx(3**-0.5, rel=0.1)  # nn.Linear


class Noisy(Mixture):
    """Noise in the logits and dropout in the experts, only in training."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(e, nn.Dropout(0.1)) for e in self.experts)
        self.gate.register_forward_hook(
            lambda m, _, out: out + torch.randn_like(out) if m.training else out
        )


def test_mixtures_are_recognised_in_evaluation_mode() -> None:
    mixture = Noisy()
    mixture.experts[1].eval()
    model = nn.Sequential(mixture, nn.Linear(32, 3))
    modes = [module.training for module in model.modules()]
    network = kc.read(model, (8, 32)).network
    assert [network.layer(node) for node in network.nodes_of(L.Route)] == [L.Route(2)]
    assert [module.training for module in model.modules()] == modes


def filled(name: str, value: float) -> nn.Module:
    """A mixture with the same number everywhere in some parameters."""
    mixture = Mixture()
    for key, parameter in mixture.named_parameters():
        if key.endswith(name):
            nn.init.constant_(parameter, value)
    return mixture


def routed(**attributes: Any) -> nn.Module:
    mixture = Mixture()
    for name, value in attributes.items():
        setattr(mixture.gate, name, value)
    return mixture


@pytest.mark.parametrize(
    ("mixture", "words"),
    [
        (lambda: routed(bias_of_load=nn.Parameter(torch.ones(4))), "correction biases.* are not 0"),
        (lambda: routed(n_group=2, topk_group=1), "use a single group"),
        (lambda: Mixture(capacity=3), "capacity limits"),
        (lambda: Mixture(widths=(48, 48, 24, 48)), "different widths"),
        (lambda: filled("gate.weight", 0.0), "tie"),
        (lambda: filled("down.bias", 0.5), "do not have mean 0"),
    ],
)
def test_mixtures_without_a_rule(mixture: Any, words: str) -> None:
    network = read(mixture())
    (node,) = network.nodes_of(L.Opaque)
    assert re.search(words, network.layer(node).reason)
    with pytest.raises(kc.KcalcError, match=words):
        kc.c_map(network)


class Sharing(Mixture):
    """Two shared experts with a gate, a part that returns one number, and no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.share = (nn.Linear(32, n) for n in (32, 32, 1))
        self.loss = Model(lambda m, x: x.mean())
        self.gate.register_buffer("correction_bias", torch.zeros(4))
        for name, parameter in self.named_parameters():
            nn.init.zeros_(parameter) if name.endswith("bias") else None

    def forward(self, x: Any) -> Any:
        return super().forward(x) + self.share(x).sigmoid() * (self.one(x) + self.two(x))


def test_several_shared_experts() -> None:
    network = read(Sharing())
    routes = {*network.nodes_of(L.Route)}
    assert {*map(network.layer, routes)} == {L.Route(2), L.Route(1, "sigmoid", False)}
    assert routes in map(set, map(network.parents, network.nodes_of(L.Sum)))
    assert any("biases are 0" in note.text for note in network.notes)


class Inline(nn.Module):
    """A residual block that contains the router and both layers of each expert."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 4, bias=False)
        self.up = nn.ModuleList(nn.Linear(32, 48) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(48, 32) for _ in range(4))

    def forward(self, x: Any) -> Any:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = x
        for k, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            out = out + (weights * (chosen == k)).sum(-1, keepdim=True) * down(up(x).relu())
        return out


def test_experts_in_a_block_are_not_read() -> None:
    network = read(Inline())
    assert [network.layer(node).reason != "" for node in network.nodes_of(L.Opaque)] == [True]
    model = Model(lambda m, x: m.last(m.block(m.first(x))), block=Inline(), **ends())
    remarks = kc.audit(model, (8, 32)).remarks
    assert any("selects 2 of the 4 outputs of block.gate.weight" in remark for remark in remarks)
    known = Model(lambda m, x: m.last(m.block(m.first(x))), block=Mixture(), **ends())
    assert not any(" outputs of " in remark for remark in kc.audit(known, (8, 32)).remarks)


def ends() -> dict[str, nn.Module]:
    return {"first": nn.Linear(32, 32), "last": nn.Linear(32, 3)}


def shaped_act(k: Any, act: Any, x: Any) -> Any:
    """An activation with the constants of a shaping."""
    return k.gamma * (act(k.alpha * x + k.beta) + k.delta)


def behind(mixture: nn.Module) -> Any:
    return nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), mixture).eval()


def test_experts_in_a_list_are_shaped_in_place() -> None:
    own = behind(Mixture(shared=1))
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


class Batched(Mixture):
    """The experts' weights are stacked and their code is not called."""

    def forward(self, x: Any) -> Any:
        weights, chosen = self.gate(x).softmax(-1).topk(self.k)
        table = torch.zeros(len(x), 4).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
        names = "up.weight", "up.bias", "down.weight", "down.bias"
        up, first, down, last = (
            torch.stack([expert.get_parameter(name) for expert in self.experts]) for name in names
        )
        inner = torch.tanh(torch.einsum("ehc,tc->teh", up, x) + first)
        return torch.einsum("te,tec->tc", table, torch.einsum("ech,teh->tec", down, inner) + last)


def test_experts_without_an_effect_are_left_alone() -> None:
    mixture = Mixture()
    mixture.experts = nn.ModuleList(
        perceptron(24, partial(nn.functional.leaky_relu, negative_slope=slope))
        for slope in (0.1, 0.2, 0.1, 0.1)
    )
    network = read(mixture)
    (node,) = network.nodes_of(L.Opaque)
    assert "different widths or layers" in network.layer(node).reason
    s = kc.shape(kc.read(behind(Batched()), (8, 32)), zeta=1.5)
    assert "would have no effect" in s.left_alone["3.experts.0.tanh"]
    assert not any(call.place[0].startswith("3") for edit in s.edits for call in edit.calls)


class Experts(nn.Module):
    """Stacked weights and a method, as in transformers."""

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        up, down = torch.randn(4, 48, 32) / 32**0.5, torch.randn(4, 32, 24) / 4
        self.gate_up_proj, self.down_proj = map(nn.Parameter, map(self.turned, (up, down)))

    def turned(self, weight: Any) -> Any:
        return weight.mT.contiguous() if self.is_transposed else weight

    def _apply_gate(self, h: Any) -> Any:
        gate, up = h.chunk(2, -1)
        return torch.relu(gate) * up

    def forward(self, x: Any) -> Any:
        inner = self._apply_gate(x @ self.turned(self.gate_up_proj).mT)
        return inner @ self.turned(self.down_proj).mT


class Stacked(nn.Module):
    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(32, 4, bias=False), Experts(is_transposed)

    def forward(self, x: Any) -> Any:
        return mixed(self.gate(x), self.experts(x))


def mixed(logits: Any, every: Any) -> Any:
    """The sum of the two experts of every token with the largest logits."""
    weights, chosen = logits.softmax(-1).topk(2)
    weights = weights / weights.sum(-1, keepdim=True)
    index = torch.arange(len(logits))
    return sum(weights[:, j, None] * every[chosen[:, j], index] for j in range(2))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_stacked_experts_of_ones_own(is_transposed: bool) -> None:
    own = nn.Sequential(nn.Linear(32, 32), Stacked(is_transposed))
    reading = kc.read(own, (8, 32))
    s: Any = kc.shape(reading, zeta=2.5)
    part, x = s.apply_to(own)[1], torch.randn(64, 32)
    (k,) = (k for node, k in s.constants.by_node.items() if "experts" in node)
    ups, downs = (
        part.experts.turned(w.detach()) for w in (part.experts.gate_up_proj, part.experts.down_proj)
    )
    for w, many in ((ups[:, :24].mT, 1), (ups[:, 24:].mT, 1), (downs, 32 / 24)):
        gram = many * torch.eye(24).expand(4, 24, 24)  # orthogonal, sigma_w = 1
        torch.testing.assert_close(w.mT @ w, gram, rtol=1e-4, atol=1e-4)
    assert (downs[0] - downs[1]).abs().max() > 0.1
    gates, ups = (x @ w.mT for w in ups.chunk(2, 1))
    every = (shaped_act(k, torch.relu, gates) * ups) @ downs.mT
    torch.testing.assert_close(part(x), mixed(part.gate(x), every), rtol=1e-4, atol=1e-4)
    gaussian = s.apply_to(own, weights="gaussian_delta")[1].experts.down_proj
    assert float(gaussian.detach().square().mean()) == pytest.approx(1 / 24, rel=0.1)
    (route,) = reading.network.nodes_of(L.Route)
    _, last = reading.network.parents(route)
    doubled = kc.apply_edits(own, scaled_edits(reading, {last: 2.0}))[1]
    torch.testing.assert_close(doubled(x), 2 * own[1](x))


@pytest.mark.slow
def test_stacked_experts_of_transformers_are_shaped_in_place() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48,
    }  # fmt: skip
    config = transformers.Qwen2MoeConfig(**sizes)
    own, ids = transformers.Qwen2MoeForCausalLM(config).eval(), torch.randint(0, 64, (2, 6))
    s: Any = kc.shape(kc.read(own, ids), zeta=2.5)
    shaped = s.apply_to(own, weights="gaussian_delta")
    mixture, before = shaped.model.layers[0].mlp, own.model.layers[0].mlp
    silu, path = nn.functional.silu, "model.layers.0.mlp"
    inner, outer = (
        partial(shaped_act, s.constants[f"{path}.{part}.act_fn.silu"], silu)
        for part in ("experts", "shared_expert")
    )

    def every(mixture: Any) -> Any:
        """Every expert's output, from the parameters alone."""
        a, b = (x @ mixture.experts.gate_up_proj.detach().mT).chunk(2, -1)
        return (inner(a) * b) @ mixture.experts.down_proj.detach().mT

    x = torch.randn(256, 64)
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    with torch.no_grad():
        _, weights, chosen = mixture.gate(x)
        index, outputs = torch.arange(len(x)), every(mixture)
        out = sum(w[:, None] * outputs[c, index] for w, c in zip(weights.T, chosen.T, strict=True))
        p = mixture.shared_expert
        shared = p.down_proj(outer(p.gate_proj(x)) * p.up_proj(x))
        out = out + torch.sigmoid(mixture.shared_expert_gate(x)) * shared
        for experts_implementation in ("eager", "grouped_mm", "batched_mm"):
            shaped.set_experts_implementation(experts_implementation)
            found = mixture(x[None])[0]
            torch.testing.assert_close(found, out, rtol=2e-3, atol=2e-3)
    # the router is the user's
    assert torch.equal(mixture.gate.weight, before.gate.weight)
    # Monte Carlo: q of an expert is 1, over experts and draws
    generator, means = torch.Generator().manual_seed(3), []
    for _ in range(30):
        drawn = s.apply_to(own, weights="gaussian_delta", generator=generator)
        means += every(drawn.model.layers[0].mlp).square().mean((1, 2)).tolist()
    mean = torch.tensor(means)
    assert abs(mean.mean() - 1) < 4 * mean.std() / len(mean) ** 0.5
