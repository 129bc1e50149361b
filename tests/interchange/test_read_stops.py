"""Stops of gradients, frozen weights and backward passes of their own in PyTorch models.

The truth is autograd on the models themselves: which weights get a gradient, and how large.
"""

from __future__ import annotations

import sys
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
from torch_zoo.twin import Model  # noqa: E402

L = kc.layers
WIDTH = 128
Forward = Callable[[Any, Any], Any]


class Layers(nn.Module):
    """Four layers in the order that ``run`` says; ``prepare`` changes them first."""

    def __init__(self, run: Forward, prepare: Callable[[Any], Any] = lambda m: None) -> None:
        super().__init__()
        self.run = run
        self.a, self.o = nn.Linear(32, WIDTH), nn.Linear(WIDTH, 4)
        self.b, self.d = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        for layer in (self.a, self.b, self.d, self.o):
            nn.init.normal_(layer.weight, std=1.4 / layer.in_features**0.5)
            nn.init.normal_(layer.bias, std=0.3)
        prepare(self)

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def own(name: str, function: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Any:
    """A function of one array with its own derivative."""

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return function(x)

    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * slope(ctx.saved_tensors[0])

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), methods)


ClippedSign = own("ClippedSign", torch.sign, lambda x: x.abs() <= 1)
# as reversible layers do, the forward pass keeps no graph; the derivative is right
Remembering = own("Remembering", lambda x: torch.tanh(x.detach()), lambda x: 1 - torch.tanh(x) ** 2)
Reversed = own("Reversed", lambda x: x.view_as(x), lambda x: -0.5)


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


class Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        made = torch.tanh(x)
        ctx.mark_non_differentiable(made)
        return made


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return [torch.tanh(x), x > 0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise ValueError


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return x + y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 3 * grads[0], None


class Added(torch.autograd.Function):
    """Two arrays and a number, with the right derivative."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, scale: float) -> Any:
        ctx.scale = scale
        return scale * (x + y)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.scale * grads[0], ctx.scale * grads[0], None


SIGN = ClippedSign.apply  # kept at import, as many models do
R = F.relu


def first(function: Forward) -> Forward:
    """A function of the model and its first layer, then the last layer."""
    return lambda m, x: m.o(function(m, m.a(x)))


def enabled_inside(m: Any, x: Any) -> Any:
    with torch.no_grad():
        h = m.a(x)
        with torch.enable_grad():
            h = m.b(R(h))
    return m.o(R(h))


def frozen(*names: str) -> Callable[[Any], Any]:
    return lambda m: [m.get_parameter(name).requires_grad_(False) for name in names]


def as_buffer(m: Any) -> None:
    weight = m.a.weight.detach().clone()
    del m.a.weight
    m.a.register_buffer("weight", weight)


def recorded(m: Any, h: Any) -> Any:
    """Data-dependent code, which is recorded instead of exported."""
    h = R(h)
    if float(h.sum()) > -1e9:
        with torch.no_grad():
            h = m.b(h)
    return SIGN(m.d(R(h.data)))


through_b = first(lambda m, h: R(m.b(R(h))))
CASES: dict[str, tuple[Callable[..., Any], ...]] = {  # what runs, and what changes it first
    name: (first(function),)
    for name, function in {
        "detach in the trunk": lambda m, h: R(m.d(R(m.b(R(h).detach())))),
        "detach behind a branch": lambda m, h: R(h + m.b(R(h)).detach()),
        "detach of the shortcut": lambda m, h: R(h.detach() + m.b(R(h))),
        "straight through": lambda m, h: h + (torch.sign(h) - h).detach(),
        "a gate that is stopped": lambda m, h: h * torch.sigmoid(h).detach(),
        "a scaled gradient": lambda m, h: R(0.5 * h + (h - 0.5 * h).detach()),
        "clipped sign": lambda m, h: ClippedSign.apply(h),
        "own sum": lambda m, h: R(Added.apply(h, m.b(R(h)), 0.5)),
        "own derivative without a graph": lambda m, h: Remembering.apply(h),
        "a comparison of what is stopped": lambda m, h: torch.where(h.detach() > 0, h, 0.1 * h),
        "reversed": lambda m, h: R(Reversed.apply(h)),
        "recorded": recorded,
    }.items()
} | {
    "gradients on inside": (enabled_inside,),
    "detached weights": (lambda m, x: m.o(R(F.linear(x, m.a.weight.detach(), m.a.bias))),),
    "checkpointed from the input": (
        lambda m, x: m.o(checkpoint(lambda h: R(m.b(R(m.a(h)))), x, use_reentrant=True)),
    ),
    "a frozen first layer": (through_b, frozen("a.weight", "a.bias")),
    "biases alone": (through_b, frozen("a.weight", "b.weight", "o.bias")),
    "a buffer": (through_b, as_buffer),
    "pruned": (through_b, lambda m: prune.random_unstructured(m.b, "weight", 0.5)),
}


def squares(make: Callable[[], Any], x: Any, draws: int) -> list[dict[str, float]]:
    """{layer: the squared gradient of an output in the NTK parameterisation}, by draw."""
    found = []
    for seed in range(draws):
        torch.manual_seed(seed)
        model = make()
        if (out := model(x)[0, 0]).requires_grad:
            out.backward()
        total = dict.fromkeys("abdo", 0.0)
        for name, parameter in model.named_parameters():
            layer, _, leaf = name.partition(".")
            variance = 0.09 if leaf == "bias" else 1.96 / parameter.shape[1]
            if parameter.grad is not None:
                total[layer] += float((parameter.grad**2).sum()) * variance
        found.append(total)
    return found


def unit() -> Any:
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(3))
    return x / x.square().mean(-1, keepdim=True).sqrt()


def read(run: Forward, *prepare: Callable[[Any], Any]) -> Any:
    return kc.read(Layers(run, *prepare).eval(), unit()).network


def nominal(network: kc.Network) -> kc.Network:
    """The network with the sigmas of the law of the weights, not those of one draw."""

    def changed(_: Any, layer: Any) -> Any:
        if not isinstance(layer, L.Affine):
            return layer
        return L.Affine(layer.features, sigma_w=1.4, sigma_b=0.3, trained=layer.trained)

    return network.map_layers(changed)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_autograd(name: str) -> None:
    draws, x = 16, unit()
    truth = squares(lambda: Layers(*CASES[name]).eval(), x, draws)
    torch.manual_seed(0)
    network = read(*CASES[name])
    assert not network.nodes_of(L.Opaque)
    network = network if name == "pruned" else nominal(network)
    found = kc.gradients(network).weights
    for node, value in found.items():
        drawn = np.array([total["a" if node == "linear" else node] for total in truth])
        if not drawn.any():
            assert value == 0
        else:
            error = drawn.std(ddof=1) / draws**0.5
            assert abs(value - drawn.mean()) < 5 * error + 0.05 * value
    assert kc.ntk(network)(1.0) == pytest.approx(sum(found.values()), rel=1e-9)


def test_a_surrogate_is_left_alone_by_shaping() -> None:
    run = first(lambda m, h: R(m.d(R(m.b(ClippedSign.apply(h))))))
    shaping = kc.shape(kc.read(Layers(run).eval(), unit()), "tanh", method="dks", zeta=1.5)
    assert "another function" in shaping.left_alone["ClippedSign"]
    assert shaping.constants.by_node.keys() == {"relu", "relu_2"}


@pytest.mark.parametrize(
    "prepare",
    [
        lambda m: parametrizations.weight_norm(m.b),
        lambda m: nn.utils.spectral_norm(m.b),
    ],
    ids=["weight", "spectral by hook"],
)
def test_weights_made_of_parameters(prepare: Callable[[Any], Any]) -> None:
    network = read(through_b, prepare)
    assert network.layer("b").trained == "indirectly"
    assert 0 < kc.c_map(network)(0.3) < 1
    found = kc.gradients(network)
    assert set(found.weights) == {"a", "o"}
    assert any(a.node == "b" and "normalisation" in a.text for a in found.assumptions)
    with refused("'b'.*trained=True"):
        kc.ntk(network)


UNKNOWN = {
    "Smoothed": lambda m, h: Smoothed.apply(h),
    "Blocked": lambda m, h: Blocked.apply(h),
    "Failing": lambda m, h: Failing.apply(h)[0],
    "Tripled": lambda m, h: Tripled.apply(h, m.b(R(h))) + Tripled.apply(h, m.d(R(h))),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_slope_that_is_not_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "Smoothed":  # as in a notebook
        monkeypatch.setattr(Smoothed, "__module__", "__main__")
        monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    network = read(first(UNKNOWN[name]))
    assert not network.nodes_of(L.Opaque)
    for ask in (kc.ntk, kc.gradients):
        with refused(rf"(?s)'{name}'.*StopGradient\(\)"):
            ask(network)


def test_a_stop_inside_of_a_norm() -> None:
    norm = first(lambda m, h: R(m.b(h / h.square().mean(-1, keepdim=True).sqrt().detach())))
    network = read(norm)
    assert network.nodes_of(L.RMSNorm)
    assert 0 < kc.c_map(network)(0.3) < 1
    with refused("own_gradient"):
        kc.ntk(network)


def test_a_pooled_feature_map_that_is_stopped() -> None:
    """A mean over locations is no part of a norm here."""
    model = Model(
        lambda m, x: m.head(m.body(x).mean((2, 3)).detach()),
        body=nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()),
        head=nn.Linear(8, 4),
    )
    found = kc.gradients(kc.read(model.eval(), (2, 3, 8, 8)).network).weights
    assert found["body.0"] == 0
    assert found["head"] > 0
