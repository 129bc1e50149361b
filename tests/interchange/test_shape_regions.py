"""Models with operations that were not read: regions are shaped in place, the rest stays."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kcalc.network import layers as L  # noqa: E402


def seed(number: int) -> Any:
    return torch.Generator().manual_seed(number)


class Reversed(torch.autograd.Function):
    """Sorts; its own backward pass reverses gradients."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sort(-1)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].flip(-1)


class Middle(nn.Module):
    """Two stacks around an operation of one's own."""

    def __init__(self, between: Any, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.between = between

        def stack(first: int, last: int) -> nn.Sequential:
            inner = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
            return nn.Sequential(nn.Linear(first, width), nn.ReLU(), *inner, nn.Linear(width, last))

        self.a, self.b = stack(8, width), stack(width, 4)

    def forward(self, x: Any) -> Any:
        return self.b(self.between(self.a(x)))


BETWEEN: dict[str, Any] = {
    "sorting": lambda h: h.sort(-1)[0],
    "fourier": lambda h: torch.fft.fft(h, norm="ortho").real * 2**0.5,
    "linear algebra": lambda h: h @ torch.linalg.inv(torch.eye(h.shape[1]) + 0.1 * h.T @ h),
    "an autograd function": Reversed.apply,
    "cumulative sums": lambda h: h.cumsum(1) / h.shape[1],
    "reshapes": lambda h: h.view(h.shape[0], 2, -1).sort(1)[0].view(h.shape[0], -1),
    "writes in place": lambda h: h.clone().index_fill_(1, torch.tensor([0, 3]), 0.0).cumsum(1),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_regions_are_shaped_and_the_list_of_the_rest_says_why(name: str) -> None:
    torch.manual_seed(0)
    model, x = Middle(BETWEEN[name]), torch.randn(4, 8)
    before = copy.deepcopy(model.state_dict())
    reading = kc.read(model, x)
    s = kc.shape(reading, "tanh", zeta=1.3)
    assert isinstance(s, kc.RegionalShaping) and s.heuristic
    first, second = s.regions.values()
    assert "a.8" in first.network and "b.0" in second.network
    assert all(max(found.values()) < 1e-12 for found in s.residuals.values())
    opaque = {n for n, layer, _ in reading.unmerged.steps() if isinstance(layer, L.Opaque)}
    assert opaque <= set(s.left_alone) and set(s.entries) <= set(s.left_alone)
    text, page = str(s), s._repr_html_()
    assert all(str(node) in text and str(node) in page for node in s.left_alone)
    assert "q at this input of a region is assumed to be 1" in text and "heuristic" in repr(s)
    document = json.loads(json.dumps(s.to_dict()))
    assert list(document["regions"]) == list(map(str, s.regions))
    new = s.apply_to(model, generator=seed(1))
    assert opaque <= set(s.edits.left_alone) and not opaque & {edit.node for edit in s.edits}
    assert torch.isfinite(new(torch.randn(9, 8))).all()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


class Shared(nn.Module):
    """One weight of a region read by an operation that is left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.b(torch.tanh(self.a(x))))
        return self.c(torch.tanh((h @ self.b.weight.sort(0)[0]).sort(-1)[0]))


def test_weights_that_are_also_read_elsewhere_are_not_drawn_anew() -> None:
    model = Shared()
    s = kc.shape(kc.read(model, (4, 6)), "tanh")
    assert "shares the parameter 'b.weight'" in s.left_alone["b"]
    new = s.apply_to(model)
    assert torch.equal(new.b.weight, model.b.weight)
    assert not torch.equal(new.a.weight, model.a.weight)
    assert not torch.equal(new.c.weight, model.c.weight)


def test_a_bias_that_two_layers_share_is_not_drawn_for_each_of_them() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.bias = self.a.bias

        def forward(self, x: Any) -> Any:
            return self.b(torch.tanh(self.a(x)))

    model = Twice()
    network = kc.read(model, (4, 6)).network
    zeros = kc.shape(network).apply_to(model)  # the same numbers for both
    assert not zeros.a.bias.any() and zeros.a.bias is zeros.b.bias
    noisy = kc.shape(network, method="eoc", sigma_b=0.3)
    with refused("'b'.*'a.bias'.*kc.shape"):
        noisy.apply_to(model)


def test_nothing_to_shape_is_one_error_with_the_reasons() -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return self.a(x).sort(-1)[0]

    with refused("region.*activations"):
        kc.shape(kc.read(Alone(), (4, 6)))
    model = Middle(BETWEEN["sorting"])
    with refused("shaped.*'a.0'"):
        kc.shape(kc.read(model, (4, 8)), zeta=0.5)
    with refused("zeta"):
        kc.shape(kc.read(model, (4, 8)), method="tat", zeta=1.5)


def test_weights_over_tokens_and_what_only_they_read_are_left_alone() -> None:
    class Mixer(nn.Module):
        def __init__(self, tokens: int, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.mix, self.back = nn.Linear(tokens, 8), nn.Linear(8, tokens)
            self.up, self.down = nn.Linear(width, 512), nn.Linear(512, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.back(torch.relu(self.mix(self.norm(x).mT))).mT
            return x + self.down(torch.relu(self.up(x)))

    model = nn.Sequential(nn.Linear(6, 512), Mixer(5, 512), nn.Linear(512, 3))
    x = torch.randn(4, 5, 6)
    s = kc.shape(kc.read(model, x), "tanh")
    assert isinstance(s, kc.RegionalShaping) and len(s.regions) == 1
    assert {s.left_alone[node] for node in ("1.mix", "1.back")} == {
        "weights over tokens are not edited"
    }
    (relu,) = set(s.left_alone) - {"1.mix", "1.back"}
    assert s.left_alone[relu] == "it has no weights that could be redrawn"
    shaped = s.apply_to(model)
    for name in ("1.mix.weight", "1.back.bias"):
        assert torch.equal(shaped.get_parameter(name), model.get_parameter(name))
    assert not torch.equal(shaped.get_parameter("1.up.weight"), model.get_parameter("1.up.weight"))
    assert torch.isfinite(shaped(torch.randn(7, 5, 6))).all()


@pytest.mark.parametrize("target", ["onnx", "keras", "flax", "jax", "torch", "numpy", "latex"])
def test_programs_of_a_model_shaped_in_parts_are_refused(target: str) -> None:
    model = Middle(lambda h: h.sort(-1)[0])
    shaping = kc.shape(kc.read(model, torch.ones(2, 8)), "tanh")
    with refused(r"was left alone .* use \.apply_to\(model\)"):
        shaping.export(target)
    (region, *_) = shaping.regions.values()
    assert region.export("numpy") and json.loads(shaping.export("json")) == shaping.to_dict()
