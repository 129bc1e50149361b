"""Models with operations that were not read: regions are shaped in place, the rest stays."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc.interchange.apply import apply_to  # noqa: E402
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


def around(model: Any, x: Any) -> Any:
    """The regions that shaping finds, as they are, with the model's own weights."""
    reading = kc.read(model, x)
    left = dict(kc.shape(reading, "tanh").left_alone)
    return SimpleNamespace(networks=reading.cut([*left]), left_alone=left)


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


def test_q_at_the_ends_of_regions_is_the_predicted_one() -> None:
    """Width 512, six draws; the operation between keeps q, so that all predictions are 1."""
    model = Middle(lambda h: h.sort(-1)[0], width=512)
    s = kc.shape(kc.read(model, (4, 8)), "tanh", zeta=1.5)
    x = torch.randn(64, 8, generator=seed(0))
    x = x / x.square().mean(1, keepdim=True).sqrt()
    ends, rows = ("a.8", "b.7"), []
    for draw in range(6):
        new = s.apply_to(model, generator=seed(draw))
        rows.append([float(value.square().mean()) for value in inside(new, ends, x)])
    predicted = [
        kc.q_values(shaping.network)[end]
        for shaping, end in zip(s.regions.values(), ends, strict=True)
    ]
    assert predicted == pytest.approx([1.0, 1.0])
    assert np.mean(rows, 0) == pytest.approx(predicted, rel=0.1)


def inside(model: Any, names: tuple[str, ...], *xs: Any) -> list[Any]:
    """What some modules of a model return, in the order of their calls."""
    found: list[Any] = []
    handles = [
        model.get_submodule(name).register_forward_hook(lambda _, args, value: found.append(value))
        for name in names
    ]
    with torch.no_grad():
        model(*xs)
    for handle in handles:
        handle.remove()
    return found


def test_q_of_the_model_at_the_entry_of_a_region_is_measured() -> None:
    model, x = Middle(lambda h: 3 * h.sort(-1)[0]), torch.randn(16, 8, generator=seed(0))
    given = kc.shape(kc.read(model, x), "tanh")
    ((node, q),) = given.entries.items()
    with torch.no_grad():
        assert q == pytest.approx(9 * float(model.a(x).square().mean()), rel=1e-5)
    assert any(a.node == node and f"q = {q:.4g}" in a.text for a in given.assumptions)
    assert set(kc.shape(kc.read(model, (4, 8)), "tanh").entries.values()) == {None}


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


class Block(nn.Sequential):
    def __init__(self, i: int, o: int) -> None:
        super().__init__(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())


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


def test_a_model_that_is_read_whole_gives_a_shaping_without_batch_norm() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    s = kc.shape(kc.read(model, (4, 6)), "tanh")
    assert isinstance(s, kc.Shaping) and "1: BatchNorm removed" in s.changes
    assert s.apply_to(model)(torch.randn(3, 6)).shape == (3, 2)


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


def test_rows_of_all_tokens_and_a_class_token_behind_attention() -> None:
    class Rows(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            out = torch.addmm(self.bias, input.reshape(-1, self.in_features), self.weight.T)
            return out.view(*input.shape[:-1], self.out_features)

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.o = (Rows(width, width) for _ in range(4))
            self.up, self.down = Rows(width, 2 * width), Rows(2 * width, width)

        def heads(self, x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(2, (4, -1)).transpose(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            parts = (self.heads(part(y)) for part in (self.q, self.k, self.v))
            read = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
            x = x + self.o(read)
            return x + self.down(F.gelu(self.up(self.second(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.token = nn.Linear(6, 32), nn.Parameter(torch.randn(1, 1, 32))
            self.blocks, self.norm = nn.Sequential(Block(32), Block(32)), nn.LayerNorm(32)
            self.head = nn.Linear(32, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.stem(x)], 1)
            return self.head(self.norm(self.blocks(x))[:, 0])

    model, x = Model(), torch.randn(2, 5, 6)
    reading = kc.read(model, x)
    s = kc.shape(reading, "tanh")
    assert isinstance(s, kc.RegionalShaping)
    assert "selections of tokens are not edited" in s.left_alone.values()
    shaped = s.apply_to(model)
    assert shaped(torch.randn(3, 5, 6)).shape == (3, 3)
    for name in ("up", "down", "o"):
        new, old = (m.get_parameter(f"blocks.0.{name}.weight") for m in (shaped, model))
        assert not torch.equal(new, old)
    same = SimpleNamespace(networks=reading.cut([*s.left_alone]), left_alone=s.left_alone)
    kept = apply_to(model, same, weights="keep")
    other = torch.randn(4, 5, 6)
    assert torch.allclose(kept(other), model(other), atol=1e-5)


def test_two_heads_side_by_side_are_left_alone() -> None:
    class Fields(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = Middle(nn.ReLU()), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            color, density = self.last(F.relu(self.inner(x))).split([3, 1], -1)
            return torch.cat([color.sigmoid(), F.softplus(density)], -1)

    model = Fields()
    s = kc.shape(kc.read(model, (4, 8)))
    assert {k.activation.name for k in s.constants.by_node.values()} == {"relu"}
    out = s.apply_to(model)(torch.randn(16, 8)).detach()
    assert out[:, :3].min() > 0 and out[:, :3].max() < 1 and out[:, 3].min() > 0
