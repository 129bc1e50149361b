"""PyTorch models edited by shapings: they compute exactly what was analysed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_zoo import ZOO, ResNetV2  # noqa: E402

from kcalc.activations import names  # noqa: E402
from kcalc.interchange.apply import apply_to  # noqa: E402
from kcalc.interchange.read import read  # noqa: E402
from kcalc.interchange.torch_model.activation import torch_function  # noqa: E402
from kcalc.network.layers import BatchNorm  # noqa: E402

HEURISTIC = ("resnet_v1_basic", "mobilenet")  # q and c of their networks are no exact ones


def seed(number: int) -> Any:
    return torch.Generator().manual_seed(number)


def shaped(
    name: str, dtype: Any = None, phi: str | None = "tanh", times: int = 1
) -> tuple[Any, Any, Any, Any]:
    """(model, examples, reading, shaping) of a zoo entry, its activations made ``phi``.

    ``times``: how often it has its channels.
    """
    torch.manual_seed(0)
    model, examples, _ = ZOO[name]()
    model, examples = widened(model, examples, times)
    model = model.to(dtype or torch.float64)
    reading = read(model, *examples, sigmas=False)
    net = reading.network.without_normalization().normalised()
    return model, examples, reading, kc.shape(net, phi, "dks", assume_independent=name in HEURISTIC)


def widened(model: Any, examples: Any, times: int) -> tuple[Any, Any]:
    """A model with ``times`` as many channels everywhere, in its inputs too, and such examples."""
    widths = ("in_features", "out_features", "in_channels", "out_channels", "num_features")
    for module in model.modules() if times > 1 else ():
        for width in widths:
            if hasattr(module, width):
                setattr(module, width, times * getattr(module, width))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.ndim:
                both = min(tensor.ndim, 2)
                many = tensor.detach().repeat(*(times,) * both, *(1,) * (tensor.ndim - both))
                kept = name in module._parameters
                setattr(module, name, nn.Parameter(many) if kept else many)

    def more(given: Any) -> Any:
        if isinstance(given, dict):
            return {name: more(value) for name, value in given.items()}
        if isinstance(given, torch.Tensor):
            return given.repeat(1, times, *(1,) * (given.ndim - 2))
        return (given[0], times * given[1], *given[2:])

    return model, tuple(map(more, examples))


def inputs(examples: Any, dtype: Any) -> list[Any]:
    """Random inputs of the shapes of the examples, one by one."""
    flat = [
        tensor
        for e in examples
        for tensor in (list(e.values()) if isinstance(e, dict) else [torch.zeros(e)])
    ]
    return [torch.randn(tensor.shape, dtype=dtype, generator=seed(5)) for tensor in flat]


def given(examples: Any, xs: list[Any]) -> list[Any]:
    """Arrays in the dictionaries in which the examples have them."""
    rest = iter(xs)
    return [
        {name: next(rest) for name in e} if isinstance(e, dict) else next(rest) for e in examples
    ]


# -- q and c values of every node ------------------------------------------------------------------


def values(new: Any, network: kc.Network, *xs: Any) -> dict[Any, Any]:
    """What the modules return that are nodes of a network, and its outputs."""
    out: dict[Any, Any] = {}
    handles = [
        module.register_forward_hook(lambda _, args, value, name=name: out.update({name: value}))
        for name, module in new.named_modules()
        if name in network
    ]
    with torch.no_grad():
        found = leaves(new(*xs))
    for handle in handles:
        handle.remove()
    return out | dict(zip(network.outputs, found, strict=True))


def leaves(found: Any) -> list[Any]:
    """The tensors that a model returns."""
    return torch.utils._pytree.tree_leaves(found)


# -- what the new model is -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = ResNetV2((1, 1), 4, 10)
    s = kc.shape(read(model, (2, 3, 33, 33)), "tanh", "dks")
    return model, s, apply_to(model, s, generator=seed(0))


def test_edits_are_listed(made: Any) -> None:
    model, s, new = made
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert not s.edits.left_alone
    assert {edit.node for edit in s.edits.only("norm")} == set(norms)
    kept = {**dict(new.named_parameters()), **dict(new.named_buffers())}
    assert not any(name.startswith(norm) for name in kept for norm in norms)
    (bias,) = (edit for edit in s.edits["blocks.0.conv1"] if edit.kind == "bias")
    assert "zeros" in bias.what and bias.weights[0].added
    assert "0.707107, 0.707107" in s.edits["blocks.0.add"][0].what
    phis = s.edits.only("activation")
    assert len(phis) == 7 and all("relu -> " in edit.what and edit.where for edit in phis)
    assert type(new).__name__ == "ResNetV2" and isinstance(new, ResNetV2)
    assert not s.network.nodes_of(BatchNorm)


def test_parameters_keep_names_and_shapes(made: Any) -> None:
    model, _, new = made
    old, now = dict(model.named_parameters()), dict(new.named_parameters())
    assert all(
        now[name].shape == old[name].shape and now[name].requires_grad
        for name in now
        if name in old
    )
    assert set(now) - set(old) == {
        "blocks.0.conv1.bias",
        "blocks.0.conv2.bias",
        "blocks.1.conv1.bias",
        "blocks.1.conv2.bias",
    }
    assert all(not now[name].detach().any() for name in now if name.endswith("bias"))


def test_weights_are_orthogonal_on_the_central_tap(made: Any) -> None:
    weight = dict(made[2].named_parameters())["blocks.0.conv2.weight"].detach()
    centre = weight[:, :, 1, 1]
    assert torch.allclose(centre @ centre.T, torch.eye(4), atol=1e-5)
    assert float(weight.square().sum()) == pytest.approx(float(centre.square().sum()))
    tall = dict(made[2].named_parameters())["blocks.0.conv3.weight"].detach()[:, :, 0, 0]
    assert torch.allclose(tall.T @ tall, 4 * torch.eye(4), atol=1e-5)


# -- activations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_activations_are_kcalcs(name: str) -> None:
    x = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    if name in ("exp", "cube", "hermite4", "relu5", "relu4"):
        x = x / 10
    for phi in (
        kc.activation(name),
        kc.activation(name).transformed(0.7312345678901234, 0.3, 1.7, -0.2),
    ):
        want = np.asarray(phi(x.numpy()))
        got = torch_function(phi)(x).numpy()
        assert np.abs(got - want).max() <= 4e-14 * max(1.0, np.abs(want).max())


# -- errors ----------------------------------------------------------------------------------------


def test_sums_within_sums_of_several_blocks_and_options() -> None:
    """Labels like add_2 are those that a graph gives by itself."""

    class Nested(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Linear(8, 8)
            self.a = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
            self.b = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for a, b in zip(self.a, self.b, strict=True):
                h = a(torch.tanh(x))
                x = x + (h + b(torch.tanh(h)))
            return x

    model = Nested()
    network = kc.read(model, (2, 8)).network.normalised()
    shaped = kc.shape(network, "tanh")
    assert shaped.apply_to(model)(torch.randn(3, 8)).shape == (3, 8)
    kept = shaped.apply_to(model, weights="keep")
    assert torch.equal(kept.stem.weight, model.stem.weight)
    assert not torch.equal(shaped.apply_to(model).stem.weight, model.stem.weight)
    with refused("foo"):
        shaped.apply_to(model, foo=1)
    with refused("apply_to"):
        shaped.apply_to(Nested())
