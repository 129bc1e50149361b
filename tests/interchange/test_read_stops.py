"""Stops of gradients, frozen weights and backward passes of their own in PyTorch models.

The truth is autograd on the models themselves: which weights get a gradient, and how large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

L = kc.layers
WIDTH = 128
Forward = Callable[[Any, Any], Any]


class Layers(nn.Module):
    """Four layers in the order that ``run`` says; ``prepare`` changes them first."""

    def __init__(self, run: Forward, prepare: Callable[[Any], Any] = lambda m: None) -> None:
        super().__init__()
        self.run = run
        self.a, self.b, self.d = (
            nn.Linear(32, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.o = nn.Linear(WIDTH, 4)
        for layer in (self.a, self.b, self.d, self.o):
            nn.init.normal_(layer.weight, std=1.4 / layer.in_features**0.5)
            nn.init.normal_(layer.bias, std=0.3)
        prepare(self)

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


class ClippedSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * (ctx.saved_tensors[0].abs() <= 1)


class Swish(torch.autograd.Function):
    """With its own derivative, written by hand as memory-saving implementations have it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grads[0] * s * (1 + x * (1 - s))


class Remembering(torch.autograd.Function):
    """As reversible layers do, the forward pass keeps no graph; the derivative is right."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        with torch.no_grad():
            return torch.tanh(x.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * (1 - torch.tanh(ctx.saved_tensors[0]) ** 2)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return -0.5 * grads[0]


class Smoothed(torch.autograd.Function):
    """The older form without ctx in forward; a slope that is neither constant nor a window."""

    @staticmethod
    def forward(x: Any) -> Any:
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] / (1 + ctx.saved_tensors[0] ** 2)


SIGN = ClippedSign.apply  # kept at import, as many models do
R = F.relu


def no_grad_beside(m: Any, x: Any) -> Any:
    h = R(m.a(x))
    with torch.no_grad():
        g = torch.tanh(m.b(h))
    return m.o(R(m.d(h)) + g)


def enabled_inside(m: Any, x: Any) -> Any:
    with torch.no_grad():
        h = m.a(x)
        with torch.enable_grad():
            h = m.b(R(h))
    return m.o(R(h))


def frozen(*names: str) -> Callable[[Any], Any]:
    return lambda m: [m.get_parameter(name).requires_grad_(False) for name in names]


def through_b(m: Any, x: Any) -> Any:
    return m.o(R(m.b(R(m.a(x)))))


def as_buffer(m: Any) -> None:
    weight = m.a.weight.detach().clone()
    del m.a.weight
    m.a.register_buffer("weight", weight)


def gated(m: Any, x: Any) -> Any:
    h = m.a(x)
    return m.o(h * torch.sigmoid(h).detach())


def scaled(m: Any, x: Any) -> Any:
    h = m.a(x)
    return m.o(R(0.5 * h + (h - 0.5 * h).detach()))


def straight(m: Any, x: Any) -> Any:
    h = m.a(x)
    return m.o(h + (torch.sign(h) - h).detach())


def straight_through_layers(m: Any, x: Any) -> Any:
    h = m.a(x)
    return m.o(R(h + (m.b(R(h)) - h).detach()))


def branch(m: Any, x: Any) -> Any:
    h = m.a(x)
    return m.o(R(h + m.b(R(h).detach())))


def behind_branch(m: Any, x: Any) -> Any:
    h = m.a(x)
    return m.o(R(h + m.b(R(h)).detach()))


def shortcut(m: Any, x: Any) -> Any:
    h = m.a(x)
    return m.o(R(h.detach() + m.b(R(h))))


def compared(m: Any, x: Any) -> Any:
    h = m.a(x)
    return m.o(torch.where(h.detach() > 0, h, 0.1 * h))


def recorded(m: Any, x: Any) -> Any:
    """Data-dependent code, which is recorded instead of exported."""
    h = R(m.a(x))
    if float(h.sum()) > -1e9:
        with torch.no_grad():
            h = m.b(h)
    return m.o(SIGN(m.d(R(h.data))))


CASES: dict[str, tuple[Forward, Callable[[Any], Any]]] = {
    name: (run, lambda m: None)
    for name, run in {
        "detach in the trunk": lambda m, x: m.o(R(m.d(R(m.b(R(m.a(x)).detach()))))),
        "data": lambda m, x: m.o(R(m.b(R(m.a(x)).data))),
        "detach in a branch": branch,
        "detach behind a branch": behind_branch,
        "detach of the shortcut": shortcut,
        "no_grad beside": no_grad_beside,
        "gradients on inside": enabled_inside,
        "detached weights": lambda m, x: m.o(R(F.linear(x, m.a.weight.detach(), m.a.bias))),
        "straight through": straight,
        "straight through layers": straight_through_layers,
        "a gate that is stopped": gated,
        "a scaled gradient": scaled,
        "clipped sign": lambda m, x: m.o(ClippedSign.apply(m.a(x))),
        "own derivative": lambda m, x: m.o(Swish.apply(m.a(x))),
        "own derivative without a graph": lambda m, x: m.o(Remembering.apply(m.a(x))),
        "checkpointed": lambda m, x: m.o(
            checkpoint(lambda h: R(m.b(R(h))), m.a(x), use_reentrant=True)
        ),
        "checkpointed from the input": lambda m, x: m.o(
            checkpoint(lambda h: R(m.b(R(m.a(h)))), x, use_reentrant=True)
        ),
        "a comparison of what is stopped": compared,
        "reversed": lambda m, x: m.o(R(Reversed.apply(m.a(x)))),
        "recorded": recorded,
    }.items()
} | {
    "a frozen first layer": (through_b, frozen("a.weight", "a.bias")),
    "biases alone": (through_b, frozen("a.weight", "b.weight", "o.bias")),
    "a buffer": (through_b, as_buffer),
    "pruned": (through_b, lambda m: prune.random_unstructured(m.b, "weight", 0.5)),
}


def squares(make: Callable[[], Any], x: Any, draws: int) -> dict[str, list[float]]:
    """{layer: the squared gradient of an output in the NTK parameterisation, by draw}."""
    found: dict[str, list[float]] = {}
    for seed in range(draws):
        torch.manual_seed(seed)
        model = make().eval()
        if (out := model(x)[0, 0]).requires_grad:
            out.backward()
        total = dict.fromkeys("abdo", 0.0)
        for name, parameter in model.named_parameters():
            layer, _, leaf = name.partition(".")
            variance = 0.09 if leaf == "bias" else 1.96 / parameter.shape[1]
            grad = parameter.grad
            total[layer] += 0.0 if grad is None else float((grad**2).sum()) * variance
        for layer, value in total.items():
            found.setdefault(layer, []).append(value)
    return found


def unit(count: int = 2) -> Any:
    x = torch.randn(count, 32, generator=torch.Generator().manual_seed(3))
    return x / x.square().mean(-1, keepdim=True).sqrt()


def nominal(network: kc.Network) -> kc.Network:
    """The network with the sigmas of the law of the weights, not those of one draw."""

    def changed(_: Any, layer: Any) -> Any:
        if not isinstance(layer, L.Affine):
            return layer
        return L.Affine(layer.features, sigma_w=1.4, sigma_b=0.3, trained=layer.trained)

    return network.map_layers(changed)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_autograd(name: str) -> None:
    run, prepare = CASES[name]
    draws, x = 16, unit()

    def make() -> Any:
        return Layers(run, prepare)

    truth = squares(make, x, draws)
    torch.manual_seed(0)
    reading = kc.read(make().eval(), x)
    assert not reading.network.nodes_of(L.Opaque)
    network = reading.network if name == "pruned" else nominal(reading.network)
    found = kc.gradients(network).weights
    named = {"linear": "a"}
    total = 0.0
    for node, value in found.items():
        drawn = np.array(truth[named.get(node, node)])
        total += value
        if not drawn.any():
            assert value == 0
        else:
            error = drawn.std(ddof=1) / draws**0.5
            assert abs(value - drawn.mean()) < 5 * error + 0.05 * value
    assert kc.ntk(network)(1.0) == pytest.approx(total, rel=1e-9)


def test_a_surrogate_is_left_alone_by_shaping() -> None:
    def run(m: Any, x: Any) -> Any:
        return m.o(R(m.d(R(m.b(ClippedSign.apply(m.a(x)))))))

    shaping = kc.shape(kc.read(Layers(run).eval(), unit()), "tanh", method="dks", zeta=1.5)
    assert "another function" in shaping.left_alone["ClippedSign"]
    assert shaping.constants.by_node.keys() == {"relu", "relu_2"}


@pytest.mark.parametrize(
    "prepare",
    [
        lambda m: parametrizations.spectral_norm(m.b),
        lambda m: parametrizations.weight_norm(m.b),
        lambda m: nn.utils.spectral_norm(m.b),
        lambda m: parametrizations.orthogonal(m.b),
    ],
    ids=["spectral", "weight", "spectral by hook", "orthogonal"],
)
def test_weights_made_of_parameters(prepare: Callable[[Any], Any]) -> None:
    model = Layers(through_b, prepare).eval()
    network = kc.read(model, unit()).network
    assert network.layer("b").trained == "indirectly"
    assert 0 < kc.c_map(network)(0.3) < 1
    found = kc.gradients(network)
    assert set(found.weights) == {"a", "o"}
    assert any(a.node == "b" and "normalisation" in a.text for a in found.assumptions)
    with refused("'b'.*trained=True"):
        kc.ntk(network)


def test_a_slope_that_is_not_known() -> None:
    network = kc.read(Layers(lambda m, x: m.o(Smoothed.apply(m.a(x)))).eval(), unit()).network
    assert 0 < kc.c_map(network)(0.3) < 1
    for ask in (kc.ntk, kc.gradients):
        with refused(r"(?s)'Smoothed'.*StopGradient\(\)"):
            ask(network)


def test_a_stop_inside_of_a_norm() -> None:
    def run(m: Any, x: Any) -> Any:
        h = m.a(x)
        return m.o(R(m.b(h / h.square().mean(-1, keepdim=True).sqrt().detach())))

    network = kc.read(Layers(run).eval(), unit()).network
    assert network.nodes_of(L.RMSNorm)
    assert 0 < kc.c_map(network)(0.3) < 1
    with refused("own_gradient"):
        kc.ntk(network)


def test_a_pooled_feature_map_that_is_stopped() -> None:
    """A mean over locations is no part of a norm here."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    head = nn.Linear(8, 4)

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = model, head

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x).mean((2, 3)).detach())

    found = kc.gradients(kc.read(Pooled().eval(), (2, 3, 8, 8)).network).weights
    assert found["body.0"] == 0
    assert found["head"] > 0


class Attention(nn.Module):
    def __init__(self, place: int, early: bool) -> None:
        super().__init__()
        self.place, self.early = place, early
        self.table, self.places = nn.Embedding(20, 32), nn.Parameter(torch.randn(1, 5, 32))
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32, bias=False) for _ in range(4))

    def heads(self, x: Any, place: int) -> Any:
        made = (self.q, self.k, self.v)[place](x)
        made = made.detach() if self.early and place == self.place else made
        made = made.view(*x.shape[:2], 4, 8).transpose(1, 2)
        return made if self.early or place != self.place else made.detach()

    def forward(self, ids: Any) -> Any:
        x = self.table(ids) + self.places
        out = F.scaled_dot_product_attention(*(self.heads(x, place) for place in range(3)))
        return self.o(out.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("early", [True, False], ids=["whole", "in heads"])
@pytest.mark.parametrize("place", range(3), ids=["queries", "keys", "values"])
def test_a_stop_in_attention(place: int, early: bool) -> None:
    network = kc.read(Attention(place, early).eval(), torch.arange(10).view(2, 5)).network
    assert network.nodes_of(L.Attend)
    found = kc.gradients(network, tokens=5).weights
    assert {n for n in "qkvo" if found[n] == 0} == {"qkv"[place]}
