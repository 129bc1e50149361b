"""PyTorch models edited by shapings: they compute exactly what was analysed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_zoo import ResNetV2  # noqa: E402

from kcalc.activations import names  # noqa: E402
from kcalc.interchange.apply import apply_to  # noqa: E402
from kcalc.interchange.read import read  # noqa: E402
from kcalc.interchange.torch_model.activation import torch_function  # noqa: E402
from kcalc.network.layers import BatchNorm  # noqa: E402


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = ResNetV2((1, 1), 4, 10)
    s = kc.shape(read(model, (2, 3, 33, 33)), "tanh", "dks")
    return model, s, apply_to(model, s, generator=torch.Generator().manual_seed(0))


def test_edits_are_listed(made: Any) -> None:
    model, s, new = made
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert not s.edits.left_alone
    assert {edit.node for edit in s.edits.only("norm")} == set(norms)
    assert not any(name.startswith(tuple(norms)) for name in new.state_dict())
    (bias,) = (edit for edit in s.edits["blocks.0.conv1"] if edit.kind == "bias")
    assert "zeros" in bias.what and bias.weights[0].added
    assert "0.707107, 0.707107" in s.edits["blocks.0.add"][0].what
    phis = s.edits.only("activation")
    assert len(phis) == 7 and all("relu -> " in edit.what and edit.where for edit in phis)
    assert type(new).__name__ == "ResNetV2" and isinstance(new, ResNetV2)
    assert not s.network.nodes_of(BatchNorm)


def test_parameters_keep_names_and_shapes(made: Any) -> None:
    old, now = (dict(model.named_parameters()) for model in (made[0], made[2]))
    assert all(now[n].shape == old[n].shape and now[n].requires_grad for n in now.keys() & old)
    assert now.keys() - old == {
        f"blocks.{i}.{layer}.bias" for i in (0, 1) for layer in ("conv1", "conv2")
    }
    assert not any(value.any() for name, value in now.items() if name.endswith("bias"))


def test_weights_are_orthogonal_on_the_central_tap(made: Any) -> None:
    block = made[2].blocks[0]
    weight, tall = block.conv2.weight.detach(), block.conv3.weight.detach()[:, :, 0, 0]
    centre = weight[:, :, 1, 1]
    assert torch.allclose(centre @ centre.T, torch.eye(4), atol=1e-5)
    assert float(weight.square().sum()) == pytest.approx(float(centre.square().sum()))
    assert torch.allclose(tall.T @ tall, 4 * torch.eye(4), atol=1e-5)


@pytest.mark.parametrize("name", names())
def test_activations_are_kcalcs(name: str) -> None:
    x = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    if name in ("exp", "cube", "hermite4", "relu5", "relu4"):
        x = x / 10
    phi = kc.activation(name)
    for each in (phi, phi.transformed(0.7312345678901234, 0.3, 1.7, -0.2)):
        want = np.asarray(each(x.numpy()))
        got = torch_function(each)(x).numpy()
        assert np.abs(got - want).max() <= 4e-14 * max(1.0, np.abs(want).max())


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.a, self.b = (nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for a, b in zip(self.a, self.b, strict=True):
            h = a(torch.tanh(x))
            x = x + (h + b(torch.tanh(h)))
        return x


def test_sums_within_sums_of_several_blocks_and_options() -> None:
    """Labels like add_2 are those that a graph gives by itself."""
    model = Nested()
    shaped = kc.shape(kc.read(model, (2, 8)).network.normalised(), "tanh")
    drawn, kept = shaped.apply_to(model), shaped.apply_to(model, weights="keep")
    assert drawn(torch.randn(3, 8)).shape == (3, 8)
    assert torch.equal(kept.stem.weight, model.stem.weight)
    assert not torch.equal(drawn.stem.weight, model.stem.weight)
    with refused("foo"):
        shaped.apply_to(model, foo=1)
    with refused("apply_to"):
        shaped.apply_to(Nested())


def test_gains_that_changed_since_the_reading_are_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.LeakyReLU(), nn.Linear(16, 4))
    x = torch.randn(4, 8)
    s = kc.shape(kc.read(model, x), zeta=1.2)
    with torch.no_grad():
        model[0].weight.mul_(3)  # redrawn, so that its values do not matter
        s.apply_to(model)
        for part in (model[1].bias, model[1].weight):
            part.add_(0.5)
            with refused("'1."):
                s.apply_to(model)
            part.sub_(0.5)
        model[1].weight.fill_(1.5)
        made = s.apply_to(model, x)
        assert float(made[:3](x).square().mean()) == pytest.approx(1, abs=0.5)


def test_layers_replaced_since_the_reading_are_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    s = kc.shape(kc.read(model, (4, 8)), "tanh", zeta=1.5)
    model[2] = nn.Linear(16, 5)
    with refused(r"'2.weight' has shape \(5, 16\)"):
        s.apply_to(model)
    model[2], model[0].bias = nn.Linear(16, 4), None
    with refused("no parameter '0.bias'"):
        s.apply_to(model)


def test_standardised_weights_are_standardised_when_they_are_drawn() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        for weight in (model[0].weight, model[2].weight):
            weight -= weight.mean(1, keepdim=True)
            weight /= weight.norm(dim=1, keepdim=True)
    new: Any = kc.shape(kc.read(model, (4, 8)), method="nf").apply_to(model)
    rows = new[2].weight.detach()
    assert float(rows.mean(1).abs().max()) < 1e-6 and not torch.equal(rows, model[2].weight)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(4))


def test_the_gain_of_a_removed_norm_before_an_activation_that_stays() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4))
    nn.init.constant_(model[1].weight, 1.5)
    nn.init.constant_(model[1].bias, 0.2)
    x = torch.randn(4, 8)
    reading = read(model, x)
    changed = SimpleNamespace(
        network=reading.unmerged.without(reading.unmerged.nodes_of(kc.layers.LayerNorm))
    )
    made = apply_to(model, changed, weights="keep")
    torch.testing.assert_close(made(x), model[3](torch.tanh(1.5 * model[0](x) + 0.2)))


def test_modules_that_several_modules_share() -> None:
    """Exporters run models with shared modules through proxies."""
    act, x = nn.GELU(), torch.randn(4, 3)
    inner = nn.Sequential(nn.Linear(6, 6), act, nn.Linear(6, 6))
    model = nn.Sequential(nn.Linear(3, 6), act, inner, act, nn.Linear(6, 2))
    s = kc.shape(kc.read(model, x))
    made: Any = s.apply_to(model, x)
    assert not s.left_alone and len(s.edits.only("activation")) == 3 and made[1] is made[2][1]
    k = next(iter(s.constants.by_node.values()))

    def phi(x: Any) -> Any:
        return k.gamma * (act(k.alpha * x + k.beta) + k.delta)

    first, last = made[2][0], made[2][2]
    wanted = made[4](phi(last(phi(first(phi(made[0](x)))))))
    torch.testing.assert_close(made(x), wanted)
