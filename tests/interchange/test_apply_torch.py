"""PyTorch models edited by shapings: they compute exactly what was analysed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_zoo import ResNetV2  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

from kcalc.activations import names  # noqa: E402
from kcalc.interchange.apply import apply_to  # noqa: E402
from kcalc.interchange.read import read  # noqa: E402
from kcalc.interchange.torch_model.activation import torch_function  # noqa: E402


def test_a_residual_network_is_edited() -> None:
    torch.manual_seed(0)
    model: Any = ResNetV2((1, 1), 4, 10)
    s: Any = kc.shape(read(model, (2, 3, 33, 33)), "tanh", "dks")
    new: Any = apply_to(model, s, generator=torch.Generator().manual_seed(0))
    assert type(new).__name__ == "ResNetV2" and isinstance(new, ResNetV2)
    # the list of edits
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert not s.edits.left_alone
    assert {edit.node for edit in s.edits.only("norm")} == set(norms)
    assert not any(name.startswith(tuple(norms)) for name in new.state_dict())
    (bias,) = (edit for edit in s.edits["blocks.0.conv1"] if edit.kind == "bias")
    assert "zeros" in bias.what and bias.weights[0].added
    assert "0.707107, 0.707107" in s.edits["blocks.0.add"][0].what
    phis = s.edits.only("activation")
    assert len(phis) == 7 and all("relu -> " in edit.what and edit.where for edit in phis)
    # names and shapes of parameters
    old, now = (dict(net.named_parameters()) for net in (model, new))
    assert all(now[n].shape == old[n].shape and now[n].requires_grad for n in now.keys() & old)
    assert now.keys() - old == {
        f"blocks.{i}.{layer}.bias" for i in (0, 1) for layer in ("conv1", "conv2")
    }
    assert not any(value.any() for name, value in now.items() if name.endswith("bias"))
    # orthogonal weights on the central tap
    block = new.blocks[0]
    weight, tall = block.conv2.weight.detach(), block.conv3.weight.detach()[:, :, 0, 0]
    centre = weight[:, :, 1, 1]
    assert torch.allclose(centre @ centre.T, torch.eye(4), atol=1e-5)
    assert weight.count_nonzero() == centre.count_nonzero()
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
    def run(m: Any, x: Any) -> Any:
        h = m.a(x)
        h = h + m.g * torch.tanh(m.b(h))
        h = h + (1 + m.v) * torch.tanh(m.b(h))
        return m.c(nn.functional.leaky_relu(m.norm(h)))

    layers = {name: nn.Linear(16, 16) for name in "abc"}
    model: Any = Model(run, norm=nn.LayerNorm(16), **layers)
    model.g, model.v = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(16))
    x = torch.randn(4, 16)
    s = kc.shape(kc.read(model, x), zeta=1.2)
    with torch.no_grad():
        model.a.weight.mul_(3)  # redrawn, so that its values do not matter
        s.apply_to(model)
        for name in ("g", "v", "norm.bias", "norm.weight"):
            part = model.get_parameter(name)
            part.add_(0.5)
            with refused(f"'{name}'"):
                s.apply_to(model)
            part.sub_(0.5)
        model.norm.weight.fill_(1.5)
        s.apply_to(model, x)


def test_modules_that_several_modules_share() -> None:
    """Exporters run models with shared modules through proxies."""
    act, x = nn.GELU(), torch.randn(4, 3)
    inner = nn.Sequential(nn.Linear(6, 6), act, nn.Linear(6, 6))
    model = nn.Sequential(nn.Linear(3, 6), act, inner, act, nn.Linear(6, 2))
    s = kc.shape(kc.read(model, x))
    made: Any = s.apply_to(model, x)
    assert not s.left_alone and len(s.edits.only("activation")) == 3 and made[1] is made[2][1]
    phi = torch_function(next(iter(s.constants.by_node.values())).transformed)
    wanted = made[4](phi(made[2][2](phi(made[2][0](phi(made[0](x)))))))
    torch.testing.assert_close(made(x), wanted)
