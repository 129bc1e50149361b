"""Wide random modules of several streams, extrapolated in 1/width, against the kernel calculus."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

torch = pytest.importorskip("torch")

import kcalc as kc  # noqa: E402

L = kc.layers
DEPTH, WRITE = 12, [1.2, 1.0, 0.9, 0.7]
H = kc.sinkhorn(6 * np.eye(4) - 3, 1000)


def read(layer: int) -> np.ndarray:
    """The read vector of a sub-layer with home stream ``layer`` mod 4."""
    return expit(np.where(np.arange(4) == layer % 4, 3, -3))


class Streams(torch.nn.Module):
    """Twelve sub-layers of an MLP after an RMSNorm, around four streams."""

    def __init__(self, width: int) -> None:
        super().__init__()
        made = [torch.nn.Linear(width, width, bias=False) for _ in range(2 * DEPTH)]
        self.layers = torch.nn.ModuleList(made)
        for i, layer in enumerate(self.layers):
            torch.nn.init.normal_(layer.weight, std=((1 + i % 2) / width) ** 0.5)

    def forward(self, streams: Any) -> Any:
        mixing = torch.tensor(H, dtype=streams.dtype)
        write = torch.tensor(WRITE, dtype=streams.dtype)
        for layer in range(DEPTH):
            x = torch.einsum("j,jbc->bc", torch.tensor(read(layer), dtype=streams.dtype), streams)
            x = torch.nn.functional.rms_norm(x, x.shape[-1:])
            x = self.layers[2 * layer + 1](torch.relu(self.layers[2 * layer](x)))
            streams = torch.einsum("ij,jbc->ibc", mixing, streams) + write[:, None, None] * x
        return streams


def measured(width: int, seed: int) -> np.ndarray:
    """q of the streams, c of their mean, and squared gradients at the start, of one draw."""
    torch.manual_seed(seed)
    first, second = torch.randn(2, width)
    first = first / first.square().mean().sqrt()
    second = second - first * (first @ second) / width
    second = second / second.square().mean().sqrt()
    inputs = torch.stack([first, 0.5 * first + 0.75**0.5 * second])
    streams = inputs.expand(4, 2, width).clone().requires_grad_()
    out = Streams(width)(streams)
    mean = out.mean(0)
    signs = torch.randint(0, 2, (width,)).to(mean) * 2 - 1
    (gradient,) = torch.autograd.grad(mean[0] @ signs, streams)
    c = torch.nn.functional.cosine_similarity(mean[0], mean[1], dim=0)
    q = out[:, 0].square().mean(-1)
    found = [*q.tolist(), c.item(), *(gradient[:, 0].square().sum(-1) / width).tolist()]
    return np.array(found)


def scores(width: int, draws: int) -> np.ndarray:
    """Deviations from kcalc's values in standard errors, extrapolated in 1/width."""
    made = kc.chain(L.RMSNorm(), L.Affine(), L.Nonlinear("relu"), L.Affine(sigma_w=2**0.5))
    net = kc.architectures.hyper_connected(made, 4, DEPTH, H, read, WRITE)
    profile = kc.depth_profile(net, 0.5)
    assert profile.stream_q is not None and profile.stream_gradient is not None
    expected = np.array([*profile.stream_q[-1], profile.c[-1], *profile.stream_gradient[0]])
    one, two = (
        np.array([measured(n, seed + 1000 * k) for seed in range(draws)])
        for k, n in enumerate((width, 2 * width))
    )
    limit = 2 * two.mean(0) - one.mean(0)
    error = np.sqrt((4 * two.var(0, ddof=1) + one.var(0, ddof=1)) / draws)
    return (limit - expected) / error


def test_wide_modules() -> None:
    assert np.abs(scores(128, 20)).max() < 4
