"""Edits where parameters matter: gains of norms, parameters read elsewhere."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from refusals import refused

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.interchange.apply import edits_of  # noqa: E402
from kcalc.interchange.torch_model.apply import scaled_edits  # noqa: E402
from kcalc.network import layers as L  # noqa: E402

N = 8


class Normed(nn.Module):
    def __init__(self, norm: Any, bias: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(N, N) for _ in range(3))
        self.norm = norm(N)
        nn.init.constant_(self.norm.weight, 2.0)
        nn.init.constant_(self.norm.bias, bias)

    def forward(self, x: Any) -> Any:
        return self.c(F.relu(self.b(F.relu(self.norm(self.a(x))))))


def shaped(net: Any, x: Any, activation: Any) -> Any:
    return kc.shape(kc.read(net.eval(), x), activation, method="dks", zeta=1.5)


@pytest.mark.parametrize(
    ("norm", "bias", "activation", "weights"),
    [(nn.LayerNorm, 0.1, "tanh", "orthogonal_delta"), (nn.BatchNorm1d, 0.0, None, "keep")],
)
def test_the_one_gain_of_a_norm_is_part_of_the_activation(
    norm: Any, bias: float, activation: Any, weights: str
) -> None:
    """The activation that was read is f(2 z + h); z is what the norm makes, or what it read."""
    net, x = Normed(norm, bias), torch.randn(5, N)
    s = shaped(net, x, activation)
    made = s.apply_to(net, x, weights=weights)
    k = s.constants.by_node["relu"]
    f = torch.tanh if activation else lambda v: torch.relu(2 * v + bias)
    z = made.a(x)
    z = F.layer_norm(z, (N,)) if norm is nn.LayerNorm else z
    seen = []
    made.b.register_forward_pre_hook(lambda _, args: seen.extend(args))
    made(x)
    expected = k.gamma * (f(k.alpha * z + k.beta) + k.delta)
    assert torch.allclose(seen[0], expected, atol=1e-5)


def test_the_gain_of_a_removed_norm_before_an_activation_that_stays() -> None:
    net, x = Normed(nn.LayerNorm, 0.1), torch.randn(5, N)
    reading = kc.read(net, x)
    bare = reading.unmerged.without(reading.unmerged.nodes_of(L.LayerNorm))
    edits = edits_of(reading, SimpleNamespace(network=bare))
    made = kc.apply_edits(net, edits, weights="keep")
    act = torch.relu(2 * net.a(x) + 0.1)
    torch.testing.assert_close(made(x), net.c(torch.relu(net.b(act))))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(N, N), nn.BatchNorm1d(N), nn.ReLU(), nn.Linear(N, N))
        self.last = nn.Linear(N, N)

    def forward(self, x: Any) -> Any:
        y = self.last(torch.tanh(self.layers(x)))
        return (y, self.layers[1].weight.abs().mean()) if self.training else y


def test_a_norm_whose_parameters_are_read_elsewhere_stays() -> None:
    net, x = Listed(), torch.randn(4, N)
    s = shaped(net, x, "tanh")
    (why,) = (why for why in s.left_alone.values() if "elsewhere" in why)
    assert "weight" in why
    assert s.apply_to(net, x).train()(x) is not None


def test_what_is_drawn_for_embeddings_and_transposed_convolutions() -> None:
    ids = nn.Sequential(nn.Embedding(9, N, 0), nn.Linear(N, N), nn.Tanh(), nn.Linear(N, N))
    table = shaped(ids, torch.arange(10).reshape(2, 5) % 9, None).apply_to(ids)[0].weight
    assert not table[0].any() and 0.5 < table[1:].std() < 1.5
    turned = nn.ConvTranspose2d(N, 6, 2, stride=2, groups=2)
    image = nn.Sequential(nn.Conv2d(2, N, 3, padding=1), nn.Tanh(), turned, nn.Tanh())
    s = shaped(image.append(nn.Conv2d(6, 4, 1)), torch.randn(2, 2, 4, 4), None)
    assert "tap" not in str(s.edits)
    for group in s.apply_to(image)[2].weight.flatten(2).chunk(2):
        for block in group.unbind(-1):
            assert torch.allclose(block.T @ block, torch.eye(3), atol=1e-5)


def even(m: Any, x: Any) -> Any:
    return m.conv(x[:, None, None].expand(-1, 2, 4, 8)).relu().mean((2, 3))


LAST = "last.weight sigma_w, last.bias sigma_b"
# model, the edits of its first layer (None: left alone)
MODELS: dict[str, tuple[Any, str | None]] = {
    "biases that are added": (lambda m, x: m.a(x) + m.gain, "a.weight sigma_w, gain sigma_b"),
    "biases that are computed": (lambda m, x: F.linear(x, m.a.weight, 2 * m.gain), None),
    "computed and added": (lambda m, x: m.a(x) + 2 * m.gain, None),
    "computed zeros": (lambda m, x: F.linear(x, m.a.weight, 2 * m.zero), "a.weight sigma_w"),
    "a computed table": (lambda m, x: F.embedding(x.long().abs(), 2 * m.a.weight), None),
    "gains of a norm": (
        lambda m, x: m.norm(m.a(x)),
        "a.weight sigma_w, norm.weight weight, norm.bias bias",
    ),
    "gains without a norm": (lambda m, x: F.layer_norm(m.a(x), (N,), m.gain), "a.weight sigma_w"),
    "an even kernel": (even, "conv.weight tap, conv.bias sigma_b"),
}


def model_with(run: Any) -> Any:
    parts = {"a": nn.Linear(N, N, bias=False), "norm": nn.LayerNorm(N), "last": nn.Linear(N, 2)}
    model: Any = Model(run, **parts, conv=nn.Conv2d(2, N, 2))
    model.gain, model.zero = nn.Parameter(torch.arange(1.0, N + 1)), nn.Parameter(torch.zeros(N))
    for tensor in model.norm.parameters():
        nn.init.normal_(tensor)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_which_parameters_are_set(name: str) -> None:
    run, first = MODELS[name]
    model = model_with(lambda m, x: m.last(torch.relu(run(m, x))))
    reading = kc.read(model, torch.randn(3, N))
    network = reading.network.map_layers(
        lambda _, layer: replace(layer, sigma_w=1, sigma_b=0, standardised=True), L.Affine
    )
    edits = edits_of(reading, SimpleNamespace(network=network))
    set_ = {w.parameter: edit.what for edit in edits for w in edit.weights}
    rows = [part.split() for part in f"{first}, {LAST}".removeprefix("None, ").split(", ")]
    assert set_.keys() == {name for name, _ in rows}
    left = [node for node in edits.left_alone if "norm (" not in node]  # a norm that does not run
    assert bool(left) == (first is None or name == "gains without a norm")
    assert all(word in set_[name] for name, word in rows)
    made = kc.apply_edits(model, edits)
    rows = made.last.weight
    assert not rows.mean(1).abs().max() > 1e-6 and not made.last.bias.any()
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(2))
    assert made.gain.any() == ("gain" not in set_)


def test_layers_that_are_scaled() -> None:
    x, added = torch.randn(3, N), model_with(lambda m, x: m.last(torch.relu(m.a(x) + m.gain)))
    made = kc.apply_edits(added, scaled_edits(kc.read(added, x), {"a": 3.0}))
    torch.testing.assert_close(made(x), added.last(3 * torch.relu(added.a(x) + added.gain)))
    computed = model_with(lambda m, x: m.last(F.linear(x, m.a.weight, 2 * m.gain)))
    for words, model, node in (
        ("not a dense layer", added, "relu"),
        ("computes the bias of node 'linear'", computed, "linear"),
        ("share the weight", model_with(lambda m, x: m.last(m.a(m.a(x).relu()))), "a"),
    ):
        with refused(words):
            scaled_edits(kc.read(model, x), {node: 2.0})
