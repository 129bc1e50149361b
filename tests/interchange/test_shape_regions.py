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
from torch_zoo.twin import Model  # noqa: E402

from kcalc.network import layers as L  # noqa: E402


class Reversed(torch.autograd.Function):
    """Sorts; its own backward pass reverses gradients."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sort(-1)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].flip(-1)


def stack(first: int, last: int) -> nn.Sequential:
    inner = [m for _ in range(3) for m in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(nn.Linear(first, 32), nn.ReLU(), *inner, nn.Linear(32, last))


def middle(between: Any) -> Model:
    """Two stacks around an operation of one's own."""
    return Model(lambda m, x: m.b(between(m.a(x))), a=stack(8, 32), b=stack(32, 4))


BETWEEN: dict[str, Any] = {
    "fourier": lambda h: torch.fft.fft(h, norm="ortho").real * 2**0.5,
    "an autograd function": Reversed.apply,
    "reshapes": lambda h: h.view(h.shape[0], 2, -1).sort(1)[0].view(h.shape[0], -1),
    "writes in place": lambda h: h.clone().index_fill_(1, torch.tensor([0, 3]), 0.0).cumsum(1),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_regions_are_shaped_and_the_list_of_the_rest_says_why(name: str) -> None:
    torch.manual_seed(0)
    model, x = middle(BETWEEN[name]), torch.randn(4, 8)
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
    assert "q is assumed to be 1 at this input of a region" in text and "heuristic" in repr(s)
    document = json.loads(json.dumps(s.to_dict()))
    assert list(document["regions"]) == list(map(str, s.regions))
    new = s.apply_to(model, generator=torch.Generator().manual_seed(1))
    assert opaque <= set(s.edits.left_alone) and not opaque & {edit.node for edit in s.edits}
    assert torch.isfinite(new(torch.randn(9, 8))).all()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


SHARED: dict[str, tuple[Any, str, str]] = {
    "b": (
        lambda m, h: (torch.tanh(m.b(h)) @ m.b.weight.sort(0)[0]).sort(-1)[0],
        "shares the parameter 'b.weight'",
        "b",
    ),
    "wide[0:6]": (  # one projection for two operations, as in DeepSeek
        lambda m, h: (y := m.wide(h))[:, 6:].sort(-1)[0] + m.b(torch.tanh(y[:, :6])),
        "part of 'wide.",
        "wide",
    ),
}


@pytest.mark.parametrize("node", SHARED)
def test_weights_that_are_also_read_elsewhere_are_not_drawn_anew(node: str) -> None:
    """One weight of a region is read by an operation that is left alone."""
    run, why, name = SHARED[node]
    layers = {name: nn.Linear(6, 6) for name in "abc"}
    model = Model(
        lambda m, x: m.c(torch.tanh(run(m, torch.tanh(m.a(x))))), wide=nn.Linear(6, 12), **layers
    )
    s = kc.shape(kc.read(model, (4, 6)), "tanh")
    assert why in s.left_alone[node]
    new = s.apply_to(model)
    kept, a, c = (getattr(new, n).weight for n in (name, "a", "c"))
    assert torch.equal(kept, getattr(model, name).weight)
    assert not torch.equal(a, model.a.weight) and not torch.equal(c, model.c.weight)


def test_a_bias_that_two_layers_share_is_not_drawn_for_each_of_them() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].bias = model[0].bias
    network = kc.read(model, (4, 6)).network
    zeros = kc.shape(network).apply_to(model)  # the same numbers for both
    assert not zeros[0].bias.any() and zeros[0].bias is zeros[2].bias
    noisy = kc.shape(network, method="eoc", sigma_b=0.3)
    with refused("'2'.*'0.bias'.*kc.shape"):
        noisy.apply_to(model)


def test_nothing_to_shape_is_one_error_with_the_reasons() -> None:
    with refused("region.*activations"):
        kc.shape(kc.read(Model(lambda m, x: m.a(x).sort(-1)[0], a=nn.Linear(6, 6)), (4, 6)))
    model = middle(BETWEEN["reshapes"])
    with refused("shaped.*'a.0'"):
        kc.shape(kc.read(model, (4, 8)), zeta=0.5)
    with refused("zeta"):
        kc.shape(kc.read(model, (4, 8)), method="tat", zeta=1.5)


def test_weights_over_tokens_and_what_only_they_read_are_left_alone() -> None:
    def run(m: Any, x: Any) -> Any:
        x = x + m.back(torch.relu(m.mix(m.norm(x).mT))).mT
        return x + m.down(torch.relu(m.up(x)))

    sizes = {"mix": (5, 8), "back": (8, 5), "up": (512, 512), "down": (512, 512)}
    linears = {name: nn.Linear(*size) for name, size in sizes.items()}
    mixer: Any = Model(run, norm=nn.LayerNorm(512), **linears)
    model = nn.Sequential(nn.Linear(6, 512), mixer, nn.Linear(512, 3))
    x = torch.randn(4, 5, 6)
    s = kc.shape(kc.read(model, x), "tanh")
    assert isinstance(s, kc.RegionalShaping) and len(s.regions) == 1
    assert {s.left_alone[node] for node in ("1.mix", "1.back")} == {
        "weights over tokens are not edited"
    }
    (relu,) = set(s.left_alone) - {"1.mix", "1.back"}
    assert s.left_alone[relu] == "it has no weights that could be redrawn"
    shaped: Any = s.apply_to(model)[1]
    assert torch.equal(shaped.mix.weight, mixer.mix.weight)
    assert torch.equal(shaped.back.bias, mixer.back.bias)
    assert not torch.equal(shaped.up.weight, mixer.up.weight)


@pytest.mark.parametrize("target", ["torch", "latex"])
def test_programs_of_a_model_shaped_in_parts_are_refused(target: str) -> None:
    model = middle(lambda h: h.sort(-1)[0])
    shaping = kc.shape(kc.read(model, torch.ones(2, 8)), "tanh")
    with refused(r"was left alone .* use \.apply_to\(model\)"):
        shaping.export(target)
    (region, *_) = shaping.regions.values()
    assert region.export("numpy") and json.loads(shaping.export("json")) == shaping.to_dict()


def test_what_a_model_shaped_in_regions_has_not() -> None:
    """Two regions around a ReLU after a sum, as in ResNet V1, which edits cannot rewrite."""

    def forward(m: Any, x: Any) -> Any:
        h = m.a(x).relu()
        return m.d((h + m.c(m.b(h).relu())).relu())

    torch.manual_seed(0)
    layers = {n: nn.Linear(16, 16) for n in "abcd"}
    s = kc.shape(kc.read(Model(forward, **layers), (4, 16)), "tanh", method="dks", zeta=1.2)
    assert "preactivated" not in str(s) and "assume_independent=True" in str(s)
    with pytest.raises(AttributeError, match=r"no \.network as a whole; use s\.regions"):
        _ = s.network
    with refused("pass one of its .networks"):
        kc.c_map(s)  # type: ignore[arg-type]


def test_regions_between_several_dependent_sums() -> None:
    """Every second ReLU after a sum reads the one before it."""

    def forward(m: Any, x: Any) -> Any:
        h = m.a(x).relu()
        for one, two in ((m.b, m.c), (m.d, m.e), (m.f, m.g)):
            h = (h + two(one(h).relu())).relu()
        return m.h(h)

    model = Model(forward, **{n: nn.Linear(6, 6) for n in "abcdefgh"})
    s = kc.shape(kc.read(model, (4, 6)), zeta=1.2)
    assert set(s.constants.by_node) == {"relu", *(f"relu_{n}" for n in (2, 4, 5, 6))}
    assert all("a sum with" in s.left_alone[node] for node in ("relu_3", "relu_7"))


def test_what_follows_the_activation_of_an_output_is_left_alone() -> None:
    def forward(m: Any, x: Any) -> Any:
        h = m.a(x).relu()
        return torch.cat([m.b(h).sigmoid(), m.c(h)], 1)

    model = Model(forward, **{n: nn.Linear(6, 6) for n in "abc"})
    s: Any = kc.shape(kc.read(model, x := torch.randn(4, 6)), zeta=1.2)
    assert s.network.outputs == ("b", "c") and set(s.left_alone) == {"sigmoid"}
    assert bool((s.apply_to(model)(x)[:, :6] > 0).all())


def test_selections_of_tokens_are_left_alone() -> None:
    model = Model(
        lambda m, x: m.c(m.b(torch.eye(5)[:3] @ m.a(x).relu()).relu()),
        **{n: nn.Linear(6, 6) for n in "abc"},
    )
    s = kc.shape(kc.read(model, (4, 5, 6)), zeta=1.2)
    assert s.left_alone == {"matmul": "selections of tokens are not edited"}


def test_sums_with_noise_end_regions_of_every_method() -> None:
    s = kc.shape(kc.read(middle(lambda h: h + torch.randn_like(h)), (4, 8)), method="nf")
    assert isinstance(s, kc.RegionalShaping) and "random numbers" in s.left_alone["add"]
    assert {"a.7", "b.7"} <= s.constants.by_node.keys()
