"""The network of a PyTorch model, unchanged and with the model's own weights, given back: it computes what the model computes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kcalc.interchange.read import read

torch = pytest.importorskip("torch")
from test_read_torch_operators import Fn  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc.interchange.torch_model.apply import apply_torch  # noqa: E402

FLAT, ROWS, IMAGE = (2, 6), (2, 4, 6), (2, 3, 6, 8)


def conv(m: Any, x: Any, **options: Any) -> Any:
    return F.conv2d(x, m.k, **{"padding": 1} | options)


MODELS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "uneven padding": (lambda m, x: F.conv2d(F.pad(x, (1, 2, 0, 1)), m.k).tanh(), IMAGE),
    "reflected": (lambda m, x: F.conv2d(F.pad(x, (1, 2, 1, 1), mode="reflect"), m.k).tanh(), IMAGE),
    "wrapped": (lambda m, x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), m.k).tanh(), IMAGE),
    "replicated twice": (
        lambda m, x: F.conv2d(F.pad(F.pad(x, (1, 1, 1, 1), mode="replicate"), (0, 1, 0, 0), mode="replicate"), m.k).tanh(),
        IMAGE,
    ),
    "mean of padded": (lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 3, 2, 1, count_include_pad=False), IMAGE),
    "uneven maximum": (lambda m, x: F.max_pool2d(conv(m, x).tanh(), 3, 2, ceil_mode=True), IMAGE),
    "windows": (lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 2), IMAGE),
    "upsampled": (lambda m, x: F.interpolate(conv(m, x).tanh(), scale_factor=2), IMAGE),
    "product": (lambda m, x: F.linear(x, m.w).tanh() * F.linear(x, m.u[:5]), FLAT),
    "odd rows": (lambda m, x: F.linear(x, m.u[::2]).tanh() * F.linear(x, m.u[1::2]), FLAT),
    "flattened": (lambda m, x: F.avg_pool2d(conv(m, x).tanh(), 2).flatten(1).tanh(), IMAGE),
    "gated": (lambda m, x: F.glu(x @ m.u, -1), ROWS),
    "a join": (lambda m, x: torch.cat([(x @ m.u).tanh(), F.linear(x, m.w)], -1).sin(), ROWS),
    "a shortcut": (lambda m, x: x + 0.5 * (x @ m.u).tanh(), ROWS),
    "an image added to its mean": (lambda m, x: (lambda h: h + h.mean((2, 3), keepdim=True))(conv(m, x).tanh()), IMAGE),
    "branches": (lambda m, x: F.leaky_relu(F.linear(x, m.u[:3]), 0.2) + F.elu(F.linear(x, m.u[3:])), FLAT),
    "clamped": (lambda m, x: torch.clamp(x @ m.u, -1.0, 2.0).tanh(), FLAT),
    "hard shrink": (lambda m, x: F.hardshrink(x @ m.u, 0.3), FLAT),
    "threshold": (lambda m, x: F.threshold(x @ m.u, 0.1, -1.0), FLAT),
    "dense along locations": (
        lambda m, x: (F.linear((x @ m.u).tanh().mT, m.k[:, :, 0, 0] @ m.k[0, :, 0].mT @ m.k[:, 0, 0].mT, m.b[:4])).mT.tanh(),
        ROWS,
    ),
    "a whole mean": (lambda m, x: conv(m, x).tanh().mean((2, 3)), IMAGE),
    "tokens": (lambda m, x: F.layer_norm(x @ m.u, (6,)).tanh(), ROWS),
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
