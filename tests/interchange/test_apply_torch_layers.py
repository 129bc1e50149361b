"""The network of a PyTorch model, unchanged and with the model's own weights, given back.

It computes what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.interchange.read import read
from kcalc.network import layers as L

torch = pytest.importorskip("torch")
from test_read_torch_operators import Fn  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc.interchange.torch_model.apply import apply_torch  # noqa: E402

FLAT, ROWS, IMAGE = (2, 6), (2, 4, 6), (2, 3, 6, 8)


def conv(m: Any, x: Any, **options: Any) -> Any:
    return F.conv2d(x, m.k, **{"padding": 1} | options)


def row(m: Any, x: Any) -> Any:
    """A convolution over all locations one after the other."""
    return F.conv1d(x.flatten(2), m.u[:4, :3].reshape(4, 3, 1))


MODELS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "uneven padding": (lambda m, x: F.conv2d(F.pad(x, (1, 2, 0, 1)), m.k).tanh(), IMAGE),
    "reflected": (lambda m, x: F.conv2d(F.pad(x, (1, 2, 1, 1), mode="reflect"), m.k).tanh(), IMAGE),
    "wrapped": (lambda m, x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), m.k).tanh(), IMAGE),
    "replicated twice": (
        lambda m, x: F.conv2d(
            F.pad(F.pad(x, (1, 1, 1, 1), mode="replicate"), (0, 1, 0, 0), mode="replicate"), m.k
        ).tanh(),
        IMAGE,
    ),
    "mean of padded": (
        lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 3, 2, 1, count_include_pad=False),
        IMAGE,
    ),
    "mean that counts zeros": (lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 3, 2, 1), IMAGE),
    "mean that counts zeros, one window more": (
        lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 3, 2, 1, ceil_mode=True),
        IMAGE,
    ),
    "uneven maximum": (lambda m, x: F.max_pool2d(conv(m, x).tanh(), 3, 2, ceil_mode=True), IMAGE),
    "windows": (lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 2), IMAGE),
    "upsampled": (lambda m, x: F.interpolate(conv(m, x).tanh(), scale_factor=2), IMAGE),
    "product": (lambda m, x: F.linear(x, m.w).tanh() * F.linear(x, m.u[:5]), FLAT),
    "odd rows": (lambda m, x: F.linear(x, m.u[::2]).tanh() * F.linear(x, m.u[1::2]), FLAT),
    "flattened": (lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 2).flatten(1).tanh(), IMAGE),
    "gated": (lambda m, x: F.glu(x @ m.u, -1), ROWS),
    "a join": (lambda m, x: torch.cat([(x @ m.u).tanh(), F.linear(x, m.w)], -1).sin(), ROWS),
    "a shortcut": (lambda m, x: x + 0.5 * (x @ m.u).tanh(), ROWS),
    "an image added to its mean": (
        lambda m, x: (lambda h: h + h.mean((2, 3), keepdim=True))(conv(m, x).tanh()),
        IMAGE,
    ),
    "branches": (
        lambda m, x: F.leaky_relu(F.linear(x, m.u[:3]), 0.2) + F.elu(F.linear(x, m.u[3:])),
        FLAT,
    ),
    "clamped": (lambda m, x: torch.clamp(x @ m.u, -1.0, 2.0).tanh(), FLAT),
    "hard shrink": (lambda m, x: F.hardshrink(x @ m.u, 0.3), FLAT),
    "threshold": (lambda m, x: F.threshold(x @ m.u, 0.1, -1.0), FLAT),
    "dense along locations": (
        lambda m, x: (
            F.linear(
                (x @ m.u).tanh().mT, m.k[:, :, 0, 0] @ m.k[0, :, 0].mT @ m.k[:, 0, 0].mT, m.b[:4]
            )
        ).mT.tanh(),
        ROWS,
    ),
    "a whole mean": (lambda m, x: conv(m, x).tanh().mean((2, 3)), IMAGE),
    "tokens": (lambda m, x: F.layer_norm(x @ m.u, (6,)).tanh(), ROWS),
    # -- locations in another order or number of axes
    "an image as a row": (
        lambda m, x: F.conv1d(conv(m, x).tanh().flatten(2), m.k[:, :, 0].mT.reshape(3, 4, 3)),
        IMAGE,
    ),
    "an image handed on as rows": (lambda m, x: conv(m, x).tanh().flatten(2).mT, IMAGE),
    "an image of other rows": (
        lambda m, x: F.conv2d(
            conv(m, x).tanh().reshape(2, 4, 8, 6), m.k.reshape(3, 4, 3, 3)[..., :2]
        ),
        IMAGE,
    ),
    "an image handed on with other rows": (
        lambda m, x: conv(m, x).tanh().reshape(2, 4, 8, 6),
        IMAGE,
    ),
    "a row plus an image": (
        lambda m, x: (conv(m, x).tanh() + row(m, x).reshape(2, 4, 6, 8)).sin(),
        IMAGE,
    ),
    "an image plus a row": (lambda m, x: (conv(m, x).flatten(2).tanh() + row(m, x)).sin(), IMAGE),
    "a row beside an image": (
        lambda m, x: torch.cat([conv(m, x).tanh(), row(m, x).reshape(2, 4, 6, 8)], 1).sin(),
        IMAGE,
    ),
    "channels in the middle": (
        lambda m, x: (x @ m.u).tanh().reshape(2, 2, 2, 6).permute(0, 1, 3, 2),
        ROWS,
    ),
    "channels at the end, flattened": (lambda m, x: (x @ m.u).tanh().flatten(1).sin(), ROWS),
    "an image without channels": (
        lambda m, x: F.conv2d(x.unsqueeze(1), m.k[:, :1]).tanh(),
        (2, 6, 8),
    ),
    "squeeze and excitation": (
        lambda m, x: (
            lambda h: h * F.linear(h.mean((2, 3)), m.u[:4, :4]).sigmoid()[..., None, None]
        )(conv(m, x).tanh()),
        IMAGE,
    ),
    "windows of one location": (lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 1).sin(), IMAGE),
    "a buffer as weights": (lambda m, x: F.linear(x, m.c).tanh(), FLAT),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_unchanged_network_computes_what_the_model_computes(name: str) -> None:
    function, shape = MODELS[name]
    module = Fn(function).double().eval()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reading = read(module, x)
    assert reading.fidelity.counts.get("not read", 0) == 0, [str(note) for note in reading.notes]
    again = apply_torch(module, reading, SimpleNamespace(network=reading.network), weights="keep")
    assert isinstance(again, nn.Module)
    with torch.no_grad():
        assert again(x).numpy() == pytest.approx(module(x).numpy(), rel=1e-9, abs=1e-9)


def given(name: str) -> tuple[Any, Any, Any]:
    """(module, reading, its network's steps) of a model of the table."""
    function, shape = MODELS[name]
    module = Fn(function).double().eval()
    reading = read(module, torch.ones(shape, dtype=torch.float64))
    return module, reading, list(reading.network.steps())


def changed(
    steps: list[Any], kind: type[Any], layer: Callable[[Any], Any], outputs: Any = None
) -> Any:
    """A shaping of a network whose first layer of a kind is another."""
    place = next(i for i, step in enumerate(steps) if isinstance(step[1], kind))
    node, old, parents = steps[place]
    return SimpleNamespace(
        network=kc.Network.from_steps(
            [*steps[:place], (node, layer(old), parents), *steps[place + 1 :]], outputs
        )
    )


def test_networks_that_the_parameters_do_not_fit_are_refused_by_name() -> None:
    module, reading, steps = given("a whole mean")
    wider = changed(steps, L.Affine, lambda old: replace(old, features=7))
    with refused(
        r"'conv2d'.*\(4.*3.*3.*3\).*\(7.*3.*3.*3\)",
    ):
        apply_torch(module, reading, wider, weights="keep")
    assert apply_torch(module, reading, wider)(torch.ones(IMAGE, dtype=torch.float64)).shape == (
        2,
        7,
    )
    module, reading, steps = given("gated")
    wide = [
        (node, replace(layer, features=4) if isinstance(layer, L.Affine) else layer, parents)
        for node, layer, parents in steps
    ]
    with refused(r"'u'.*\(4.*6\)"):
        apply_torch(module, reading, SimpleNamespace(network=kc.Network.from_steps(wide)))
    module, reading, steps = given("a shortcut")
    half = changed(steps, L.Sum, lambda _: L.Sum((1, sp.Symbol("w"))))
    with refused("symbol.*substitute"):
        apply_torch(module, reading, half)
    module, reading, steps = given("dense along locations")
    with refused("another.*several"):
        apply_torch(
            module, reading, changed(steps, L.TokenMix, lambda _: L.TokenMix(torch.eye(3).tolist()))
        )
    with refused("PyTorch.*model"):
        apply_torch(module, replace(reading, trace=None), SimpleNamespace(network=reading.network))


def test_other_outputs_than_the_model_has() -> None:
    """Values inside the network may be outputs too.

    They have the shapes of the model's operations.
    """
    module, reading, steps = given("a whole mean")
    inner = next(node for node, layer, _ in steps if isinstance(layer, L.Nonlinear))
    network = kc.Network.from_steps(steps, [inner, reading.network.outputs[0]])
    x = torch.randn(IMAGE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    image, mean = apply_torch(module, reading, SimpleNamespace(network=network), weights="keep")(x)
    assert torch.allclose(image, conv(module, x).tanh()) and torch.allclose(mean, module(x))


class Named(nn.Module):
    """Two activations whose paths are one Python name."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.b = nn.Linear(6, 6)
        self.a_1 = nn.Sigmoid()
        self.none = nn.Parameter(torch.zeros(0))

    def forward(self, x: Any) -> Any:
        return self.a_1(self.b(self.a(x)))


def test_names_that_fall_together(monkeypatch: pytest.MonkeyPatch) -> None:
    # as in PyTorch before 2.4
    monkeypatch.delattr("torch.fx.graph_module._USER_PRESERVED_ATTRIBUTES_KEY", raising=False)
    module = Named().double()
    x = torch.randn(FLAT, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reading = read(module, x)
    again = apply_torch(module, reading, SimpleNamespace(network=reading.network), weights="keep")
    assert torch.allclose(again(x), module(x)) and again.kcalc_nodes


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], str]] = {
    "rows of channels": (
        lambda m, x: conv(m, x).tanh().flatten(1, 2).sin(),
        IMAGE,
        "merges channels with some locations",
    ),
    "an elementwise function across a transpose": (
        lambda m, x: (x @ m.u).tanh().reshape(2, 2, 2, 6).transpose(1, 2).sin(),
        ROWS,
        "exchanges the axes of locations",
    ),
    "one bias for two": (
        lambda m, x: F.linear(F.linear(x, m.u, m.b).tanh(), m.k.reshape(6, 18)[:, :6], m.b),
        FLAT,
        "two layers want the parameter 'b'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_built_anew_is_refused_by_name(name: str) -> None:
    function, shape, words = REFUSED[name]
    module = Fn(function).double().eval()
    reading = read(module, torch.ones(shape, dtype=torch.float64))
    with refused(words):
        apply_torch(module, reading, SimpleNamespace(network=reading.network))


TURNED: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "an input": (lambda m, x: conv(m, x.mT).tanh(), IMAGE),
    "a vector of an image": (
        lambda m, x: F.linear(F.avg_pool2d(conv(m, x).tanh(), 2).mT.flatten(1), m.u.repeat(1, 8)),
        IMAGE,
    ),
}


@pytest.mark.parametrize("name", TURNED)
def test_locations_change_places_as_in_the_model(name: str) -> None:
    function, shape = TURNED[name]
    module, x = Fn(function).double().eval(), torch.randn(shape, dtype=torch.float64)
    reading = read(module, x)
    new = apply_torch(module, reading, SimpleNamespace(network=reading.network), weights="keep")
    assert torch.allclose(new(x), module(x), rtol=0, atol=1e-14)
