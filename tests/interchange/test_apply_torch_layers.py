"""Functions of PyTorch edited, against runs in which the calls are changed as they happen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.interchange.apply import apply_to, edits_of
from kcalc.interchange.read import read
from kcalc.network import layers as L

torch = pytest.importorskip("torch")
from test_read_torch_operators import Fn  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

FLAT, ROWS, IMAGE = (2, 6), (2, 4, 6), (2, 3, 6, 8)


def conv(m: Any, x: Any) -> Any:
    return F.conv2d(x, m.k, padding=1)


def row(m: Any, x: Any) -> Any:
    """A convolution over all locations one after the other."""
    return F.conv1d(x.flatten(2), m.u[:4, :3].reshape(4, 3, 1))


def mixed(h: Any, m: Any) -> Any:
    """A dense layer along locations."""
    return F.linear(h.mT, m.k[:, :, 0, 0] @ m.k[0, :, 0].mT @ m.k[:, 0, 0].mT, m.b[:4]).mT.tanh()


def padded(*widths: int, mode: str = "constant") -> Callable[[Any, Any], Any]:
    return lambda m, x: F.conv2d(F.pad(x, widths, mode), m.k).tanh()


OF_IMAGES: dict[str, Callable[[Any, Any], Any]] = {
    "mean that counts zeros": lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 3, 2, 1),
    "mean that counts zeros, one window more": (
        lambda m, x, f=lambda h: F.avg_pool2d(h, 3, 2, 1, ceil_mode=True): f(conv(m, x).tanh())
    ),
    "uneven padding": padded(1, 2, 0, 1),
    "reflected": padded(1, 2, 1, 1, mode="reflect"),
    "windows of one location": lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 1).sin(),
    "replicated twice": lambda m, x: F.conv2d(
        F.pad(F.pad(x, (1, 1, 1, 1), "replicate"), (0, 1, 0, 0), "replicate"), m.k
    ).tanh(),
    "flattened": lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 2).flatten(1).tanh(),
    "an input": lambda m, x: conv(m, x.mT).tanh(),
    "a row plus an image": lambda m, x: (conv(m, x).tanh() + row(m, x).reshape(2, 4, 6, 8)).sin(),
}
OF_TOKENS: dict[str, Callable[[Any, Any], Any]] = {
    "gated": lambda m, x: F.glu(x @ m.u, -1),
    "a shortcut": lambda m, x: x + 0.5 * (x @ m.u).tanh(),
    "dense along locations": lambda m, x: mixed((x @ m.u).tanh(), m),
    "tokens": lambda m, x: F.layer_norm(x @ m.u, (6,)).tanh(),
    "channels in the middle": lambda m, x: (x @ m.u).tanh().reshape(2, 2, 2, 6).permute(0, 1, 3, 2),
    "an elementwise function across a transpose": lambda m, x: (
        (x @ m.u).tanh().reshape(2, 2, 2, 6).transpose(1, 2).sin()
    ),
}
OF_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda m, x: F.linear(x, m.w).tanh() * F.linear(x, m.u[:5]),
    "branches": lambda m, x: F.leaky_relu(F.linear(x, m.u[:3]), 0.2) + F.elu(F.linear(x, m.u[3:])),
    "clamped": lambda m, x: torch.clamp(x @ m.u, -1.0, 2.0).tanh(),
    "hard shrink": lambda m, x: F.hardshrink(x @ m.u, 0.3),
    "a buffer as weights": lambda m, x: F.linear(x, m.c).tanh(),
}
MODELS: dict[str, Any] = {
    name: (function, shape)
    for shape, functions in ((FLAT, OF_ROWS), (ROWS, OF_TOKENS), (IMAGE, OF_IMAGES))
    for name, function in functions.items()
}
MODELS["an image without channels"] = (
    lambda m, x: F.conv2d(x.unsqueeze(1), m.k[:, :1]).tanh(),
    (2, 6, 8),
)

PHIS = ("tanh", "sin", "sigmoid", "leaky_relu", "elu", "clamp", "hardshrink")
NUMBERS = {"input_scale": 0.7, "input_shift": 0.2, "output_scale": 1.3, "output_shift": -0.4}
HIDDEN = {"gated": "glu_3"}  # no call of the model makes it
FACTORS = {"a shortcut": 0.5}  # that an activation has behind its call
COMPOSED = ("clamped", "an elementwise function across a transpose")  # one activation of two calls


class Changed(TorchFunctionMode):
    """Calls of activations with transformed inputs and outputs, and their number.

    ``each``: the calls that make up one activation; ``factor``: what its output has behind them.
    """

    def __init__(self, each: int, factor: float) -> None:
        super().__init__()
        self.each, self.factor, self.count = each, factor, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "").strip("_") not in PHIS:
            return func(*args, **(kwargs or {}))
        first, self.count = self.count % self.each == 0, self.count + 1
        x, *rest = args
        y = func(0.7 * x + 0.2 if first else x, *rest, **(kwargs or {}))
        return 1.3 * (y - 0.4 / self.factor) if self.count % self.each == 0 else y


def given(name: str) -> tuple[Any, Any, Any]:
    """(module, input, reading) of a model of the table."""
    function, shape = MODELS[name]
    module = Fn(function).double().eval()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return module, x, read(module, x)


@pytest.mark.parametrize("name", MODELS)
def test_changed_activations_are_those_of_a_run_that_changes_every_call(name: str) -> None:
    module, x, reading = given(name)
    assert reading.fidelity.counts.get("not read", 0) == 0, [str(note) for note in reading.notes]
    phis = reading.network.map_layers(
        lambda _, layer: L.Nonlinear(layer.activation.transformed(**NUMBERS)), L.Nonlinear
    )
    edits = edits_of(reading, SimpleNamespace(network=phis))
    left = {node for node, why in edits.left_alone.items() if "computes its weights" not in why}
    assert left == {*filter(None, [HIDDEN.get(name)])}
    new = kc.apply_edits(module, edits, weights="keep")
    with torch.no_grad():
        before = module(x)
        with Changed(1 + (name in COMPOSED), FACTORS.get(name, 1.0)) as changed:
            expected = module(x)
        found = new(x)
        same = edits_of(reading, SimpleNamespace(network=reading.network))
        assert torch.equal(kc.apply_edits(module, same, weights="keep")(x), before)
        assert kc.apply_edits(module, same)(x).shape == before.shape
    assert changed.count // changed.each == len(edits.only("activation"))
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert not changed.count or float((found - before).abs().max()) > 1e-3


def written(m: Any, x: Any) -> Any:
    y = 1 * m.first(x)
    y[:] = y + m.branch(torch.tanh(y))
    return m.last(y)


def unsteady(m: Any, x: Any) -> Any:
    scale = m.first.weight.mean() if m.training else torch.ones(()).exp()
    return m.last(torch.relu(scale * m.first(x)))


def halves(m: Any, x: Any) -> Any:
    one, two = m.first(x).relu().chunk(2, -1)
    return m.end(one) + m.end_2(two)


def moved(layer: Any) -> Any:
    return L.Nonlinear(layer.activation.transformed(**NUMBERS))


def moved_phi(phi: Any, x: Any) -> Any:
    return 1.3 * (phi(0.7 * x + 0.2) - 0.4)


TANH, WEIGHTS = L.Nonlinear("tanh"), L.Sum((0.6, 0.8))
# model, {node or type: its new layer}, the new function or why it stays
PLANS: dict[str, tuple[Any, Any, Any]] = {
    "another activation": (
        lambda m, x: m.last(torch.relu(m.first(x))),
        {L.Nonlinear: TANH},
        lambda m, x: m.last(torch.tanh(m.first(x))),
    ),
    "a sum in a write": (
        written,
        {L.Sum: WEIGHTS},
        lambda m, x: m.last(0.6 * (y := m.first(x)) + 0.8 * m.branch(torch.tanh(y))),
    ),
    "a sum of halves": (
        lambda m, x: m.end((y := m.first(x).chunk(2, -1))[0] + y[1]),
        {L.Sum: WEIGHTS},
        lambda m, x: m.end(0.6 * (y := m.first(x).chunk(2, -1))[0] + 0.8 * y[1]),
    ),
    "a sum before a cast": (  # an exporter adds a check, which reads the sum too
        lambda m, x: m.last(((y := m.first(x)) + m.branch(torch.tanh(y))).to(torch.float32)),
        {L.Sum: WEIGHTS},
        lambda m, x: m.last(0.6 * (y := m.first(x)) + 0.8 * m.branch(torch.tanh(y))),
    ),
    "a factor": (
        lambda m, x: 3 * m.last(m.first(x)),
        {L.Scale: L.Scale(0.5)},
        lambda m, x: m.last(m.first(x)) / 2,
    ),
    "a constant": (
        lambda m, x: m.last(torch.relu(m.first(x) * torch.full((16,), 2.0).exp())),
        {L.Nonlinear: moved},
        lambda m, x: m.last(moved_phi(lambda y: torch.relu(y * 2.71828**2), m.first(x))),
    ),
    "read twice": (
        lambda m, x: m.last(torch.relu((y := m.first(x)) + y.clone())),
        {L.Nonlinear: moved},
        lambda m, x: m.last(moved_phi(lambda y: torch.relu(2 * y), m.first(x))),
    ),
    "read elsewhere": (
        lambda m, x: m.last(torch.relu(y := torch.tanh(m.first(x))) + m.branch(y)),
        {L.Nonlinear: moved},
        "elsewhere",
    ),
    "an output": (lambda m, x: (torch.relu(y := 2 * m.first(x)), y), {L.Nonlinear: moved}, "else"),
    "another value in training": (unsteady, {L.Nonlinear: moved}, "`scale`.*in training"),
    "a gain of 0": (
        lambda m, x: m.last((y := m.first(x)) + m.gain * m.branch(y.relu())),
        {L.Sum: WEIGHTS},
        "by 0",
    ),
    "one half": (halves, {"relu[0:8]": TANH}, "together with nodes that need different edits"),
    "several results": (
        lambda m, x: m.last(torch.native_layer_norm(m.first(x), (16,), None, None, 1e-5)[0]),
        None,
        "no single call",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_planned_edits(name: str) -> None:
    function, changes, expected = PLANS[name]
    parts = {"first": nn.Linear(8, 16), "branch": nn.Linear(16, 16), "last": nn.Linear(16, 4)}
    model: Any = Model(function, **parts, end=nn.Linear(8, 4), end_2=nn.Linear(8, 4)).eval()
    model.gain, x = nn.Parameter(torch.zeros(())), torch.randn(3, 8)
    reading = kc.read(model, x)

    def changed(node: Any, layer: Any) -> Any:
        new = changes.get(node, changes.get(type(layer), layer))
        return new(layer) if callable(new) else new

    network = reading.network.map_layers(changed) if changes else reading.network
    network = network if changes else network.without_normalization()
    edits = edits_of(reading, SimpleNamespace(network=network))
    made = kc.apply_edits(model, edits, weights="keep")
    if isinstance(expected, str):
        (why,) = set(edits.left_alone.values())
        assert re.search(expected, why) and not any(edit.calls for edit in edits)
        return
    torch.testing.assert_close(made(x), expected(model, x), rtol=1e-5, atol=1e-5)
    assert not edits.left_alone and not torch.allclose(made(x), model(x))


def test_networks_that_the_model_does_not_fit_are_refused_by_name() -> None:
    module, _, reading = given("a shortcut")
    half = reading.network.map_layers(lambda *_: L.Sum((1, sp.Symbol("w"))), L.Sum)
    with refused("symbols.*subs"):
        apply_to(module, SimpleNamespace(network=half))
    module, _, reading = given("dense along locations")
    mixing = reading.network.map_layers(lambda *_: L.TokenMix(torch.eye(3).tolist()), L.TokenMix)
    with refused("TokenMix.*leave everything else as it was read"):
        apply_to(module, SimpleNamespace(network=mixing))
    with refused("does not contain the operations.*read the model again"):
        edits_of(replace(reading, trace=None), SimpleNamespace(network=reading.network))
