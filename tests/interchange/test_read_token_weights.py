"""Weights over tokens: Gaussian ones to kernel maps, the model's own numbers by positions."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refused

torch = pytest.importorskip("torch")

from forward_oracle import images, measured, redrawn  # noqa: E402

import kcalc as kc  # noqa: E402

nn = torch.nn
WIDTH, TOKENS = 512, 64


class Mixer(nn.Module):
    """Patches, then MLPs over tokens and over channels behind norms."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(32, WIDTH, 2, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * depth))
        self.tokens = nn.ModuleList(self.mlp(TOKENS, 2 * TOKENS, bias=False) for _ in range(depth))
        self.channels = nn.ModuleList(self.mlp(WIDTH, WIDTH, bias=True) for _ in range(depth))
        self.head = nn.Linear(WIDTH, WIDTH)
        names = [name for name, tensor in self.named_parameters() if "norms" in name]
        self.deviations = dict.fromkeys(names, 0.0)

    @staticmethod
    def mlp(width: int, inside: int, bias: bool) -> Any:
        first, last = nn.Linear(width, inside, bias=bias), nn.Linear(inside, width, bias=bias)
        return nn.Sequential(first, nn.GELU(), last)

    def forward(self, x: Any) -> Any:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for i, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            x = x + tokens(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * i + 1](x))
        return self.head(x).transpose(1, 2)


class Plain(Mixer):
    """Norms without gains, so that every parameter may be drawn anew."""

    def __init__(self) -> None:
        super().__init__()
        plain = [nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in self.norms]
        self.norms = nn.ModuleList(plain)


def test_q_and_cosines_of_a_mixer_are_near_those_of_its_forward_pass() -> None:
    """Uncorrelated tokens, for which Gaussian weights over tokens are right at many tokens.

    Standard errors of 8 draws are 1.2 % of q; the difference must stay below 5 %.
    """
    model = redrawn(Plain(), torch.Generator().manual_seed(0), exact=True)
    x = images((32, 16, 16), 0.6)
    r = kc.read(model, x)
    assert set(r.fidelity.counts) == {"exact", "pooling"}
    mixes = r.network.nodes_of(kc.layers.TokenMix)
    assert len(mixes) == 4 and all(r.network.layer(node).random for node in mixes)
    q, k = measured(model, (x,), 8)
    expected = float(kc.q_map(r.network)(1.0))
    assert q.error < 0.03 * q.mean and abs(expected / q.mean - 1) < 0.05
    cosine = float(kc.c_map(r.network)(0.6))
    assert abs(cosine - k.mean / q.mean) < 0.02
    told = [a for a in kc.c_map(r.network).assumptions if a.node in mixes]
    assert told and all(a.kind == "heuristic" for a in told)
    with refused("tangent.*kernels"):
        kc.ntk(r.network)(0.5)
