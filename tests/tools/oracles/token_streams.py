"""Monte Carlo for squared gradients of two residual streams over tokens, with attention.

A PyTorch module with freshly drawn weights, two streams and three sub-layers (attention, an MLP,
attention). Squared gradients of a random combination of the outputs are averaged over draws at two
widths and extrapolated in 1 / width. Nothing of kcalc is used.

Run ``python tests/tools/oracles/token_streams.py`` to write token_streams.json (minutes).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILE = Path(__file__).parents[2] / "oracles" / "token_streams.json"
TOKENS, COSINE, DRAWS, REPEATS = 3, 0.3, 600, 4
MIXING = ((0.8, 0.3), (0.1, 0.9))
READ = ((0.9, 0.2), (0.3, 0.8), (0.7, 0.4))
WRITE = ((1.2, 0.7), (0.8, 1.1), (1.0, 0.6))
READOUT = (0.6, 0.5)


def normed(x: Any) -> Any:
    return x / x.square().mean(-1, keepdim=True).sqrt()


def attention(x: Any, draw: Any) -> Any:
    width = x.shape[-1]
    heads, size = width // 4, width // 2
    q = (x @ draw(width, heads * size)) * (1.1 / width**0.5)
    k = (x @ draw(width, heads * size)) / width**0.5
    v = (x @ draw(width, width)) * (1.3 / width**0.5)
    q, k, v = (t.view(TOKENS, heads, -1).transpose(0, 1) for t in (q, k, v))
    return ((q @ k.transpose(-1, -2) / size**0.5).softmax(-1) @ v).transpose(0, 1).reshape(x.shape)


def measured(width: int, draw: Any) -> dict[str, float]:
    """{"stream number, sub-layer": squared gradient, "..., mean": of the sum over tokens}."""
    covariance = (1 - COSINE) * torch.eye(TOKENS).double() + COSINE
    rows = torch.linalg.qr(draw(width, TOKENS))[0].T * width**0.5
    x = (torch.linalg.cholesky(covariance) @ rows).requires_grad_()
    levels = [(x * 1, x * 1)]
    for i in range(3):
        a, b = levels[-1]
        read = normed(READ[i][0] * a + READ[i][1] * b)
        made = attention(read, draw) if i != 1 else (read @ draw(width, width)).relu() / width**0.5
        made = made @ draw(width, width) * (1.2 / width**0.5)
        levels.append(
            tuple(MIXING[j][0] * a + MIXING[j][1] * b + WRITE[i][j] * made for j in (0, 1))
        )
    out = READOUT[0] * levels[-1][0] + READOUT[1] * levels[-1][1]
    found: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        loss = (out * draw(TOKENS, width)).sum() / width**0.5
        flat = torch.autograd.grad(
            loss, [s for level in levels[:3] for s in level], retain_graph=True
        )
        for i in range(3):
            pair = flat[2 * i : 2 * i + 2]
            for name, g in (("s0", pair[0]), ("s1", pair[1]), ("both", pair[0] + pair[1])):
                one, mean = g.square().sum(), g.sum(0).square().sum()
                found.setdefault(f"{name}_{i}", []).append(float(one) / TOKENS)
                found.setdefault(f"{name}_{i} mean", []).append(float(mean) / TOKENS)
    return {name: float(np.mean(values)) for name, values in found.items()}


def averaged(width: int, seed: int) -> dict[str, tuple[float, float]]:
    """{name: (mean, standard error)} over draws of the weights and inputs."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    runs = [measured(width, draw) for _ in range(DRAWS)]
    columns = {name: np.array([run[name] for run in runs]) for name in runs[0]}
    return {n: (float(v.mean()), float(v.std(ddof=1) / DRAWS**0.5)) for n, v in columns.items()}


if __name__ == "__main__":
    narrow, wide = averaged(24, 1), averaged(48, 2)
    limits = {
        name: [2 * wide[name][0] - narrow[name][0], np.hypot(2 * wide[name][1], narrow[name][1])]
        for name in wide
    }
    FILE.write_text(json.dumps({n: [round(v, 6) for v in p] for n, p in limits.items()}, indent=1))
