"""Random networks as PyTorch draws them against the kernels of the networks that were read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from thinning import mostly_slow

import kcalc as kc

torch = pytest.importorskip("torch")

from modern_zoo import Model, T, heads, image, layer_norm, silent, squeeze_excite, swiglu  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc.network.layers import Affine  # noqa: E402

L = kc.layers


WIDTH, DRAWS = 1024, 16
SIGMA = 1 / math.sqrt(3)  # of weights as PyTorch draws them


def as_drawn(network: kc.Network) -> kc.Network:
    return network.map_layers(
        lambda _, layer: (
            replace(layer, sigma_w=SIGMA, sigma_b=0) if isinstance(layer, Affine) else layer
        )
    )


def unbiased(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model.eval()


def dense_stack() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
            return x + swiglu(self, h)

    return nn.Sequential(nn.Linear(24, WIDTH), Block(), Block())


def gated_tokens() -> nn.Module:
    qkv = silent(nn.Linear(WIDTH, 3 * WIDTH), WIDTH)
    layers = {
        "emb": nn.Linear(24, WIDTH),
        "qkv": qkv,
        "proj": nn.Linear(WIDTH, WIDTH),
        "head": nn.Linear(WIDTH, WIDTH),
    }

    def forward(m: Any, x: Any) -> Any:
        x = m.emb(x)
        h = layer_norm(x)
        x = x + m.proj(heads(*m.qkv(h).split(WIDTH, 2), is_causal=True))
        return m.head(F.gelu(m.proj2(x)).mean(1))

    return Model(forward, **layers, proj2=nn.Linear(WIDTH, WIDTH))


def excited() -> nn.Module:
    parts = {
        "conv": image(3, WIDTH, 3, padding=1),
        "squeeze": image(WIDTH, WIDTH, 1),
        "open": image(WIDTH, WIDTH, 1),
    }
    return Model(
        lambda m, x: torch.flatten(squeeze_excite(m, x), 2).mean(2),
        **parts,
        out=image(WIDTH, WIDTH, 1),
    )


def mixed_tokens() -> nn.Module:
    matrix = nn.Parameter(torch.randn(7, T, generator=torch.Generator().manual_seed(3)))
    parts = {"emb": nn.Linear(24, WIDTH), "a": matrix, "head": nn.Linear(WIDTH, WIDTH)}
    return Model(
        lambda m, x: m.head(torch.tanh(torch.einsum("ts,bsc->btc", m.a, m.emb(x))).mean(1)), **parts
    )


RANDOM = {
    "gated tokens": (gated_tokens, (T, 24), (T,)),
    "squeeze and excitation": (excited, (3, 4, 4), (4, 4)),
    "mixed tokens": (mixed_tokens, (T, 24), (T,)),
}


def compared(draws: list[np.ndarray], expected: np.ndarray) -> None:
    """Cross moments (2, 2) of random networks within 4 standard errors."""
    found = np.array(draws)
    error = found.std(axis=0, ddof=1) / math.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - expected) < 4 * error), (
        found.mean(axis=0),
        expected,
        error,
    )
    # so that four standard errors say something
    assert np.all(error < 0.05 * np.abs(expected).max())


@pytest.mark.parametrize("name", mostly_slow(list(RANDOM)))
def test_random_networks_over_pairs_of_locations(name: str) -> None:
    """Width 1024, 16 draws by PyTorch, against the state over pairs of locations of the network
    that was read.
    """
    build, shape, locations = RANDOM[name]
    torch.manual_seed(0)
    x = torch.randn(2, *shape)
    x[1] = 0.5 * x[0] + 0.8 * x[1]
    found = kc.read(unbiased(build()), x)
    assert found.fidelity.level in ("exact", "pooling")
    last = x.numpy().astype(float)
    expected = kc.ntk(as_drawn(found.network), spatial="exact", image_shape=locations).nngp.matrix(
        last.transpose(0, 2, 3, 1) if len(locations) == 2 else last
    )
    with torch.no_grad():
        outputs = [unbiased(build())(x).double().numpy() for _ in range(DRAWS)]
    compared([y @ y.T / WIDTH for y in outputs], expected)


def test_random_gated_stack() -> None:
    """q and the cross moment of two pre-normalised SwiGLU blocks, width 1024, 16 draws
    by PyTorch.
    """
    torch.manual_seed(2)
    x = torch.randn(2, 24)
    x[1] = 0.4 * x[0] + 0.9 * x[1]
    x = x / x.square().mean(1, keepdim=True).sqrt()
    c = float((x[0] * x[1]).mean())
    found = kc.read(unbiased(dense_stack()), x)
    assert found.fidelity.level == "exact"
    network = as_drawn(found.network)
    q = float(kc.q_map(network)(1.0))
    expected = q * np.array([[1, float(kc.c_map(network)(c))], [float(kc.c_map(network)(c)), 1]])
    with torch.no_grad():
        outputs = [unbiased(dense_stack())(x).double().numpy() for _ in range(DRAWS)]
    compared([y @ y.T / WIDTH for y in outputs], expected)
