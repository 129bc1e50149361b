"""``python -m benchmarks.heads [--share S] [--output FILE]``: deviations by number of heads.

Kernel maps of attention hold for many heads. This benchmark draws many pre-norm transformers with H
heads of a fixed key width in PyTorch, and compares their mean q, token cosine, cosine of two inputs
and gradients with kcalc's maps at that key width. Deviations of order 1/H are expected, so a power
of H is fitted. Takes six minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import kcalc as kc
from kcalc.verification.statistics import Power, fitted

from .__main__ import say
from .book import Table, write

HERE = Path(__file__).resolve().parent
L = kc.layers
KEY_WIDTH, TOKENS, PAIRS, BLOCKS, INPUTS = 8, 16, 4, 4, 64
TOKEN_COSINE, COSINE, SCORES = 0.2, 0.5, 2.0  # SCORES: sigma of queries times sigma of keys
DRAWS = {2: 20_000, 4: 20_000, 8: 16_000, 16: 10_000, 32: 5_000}
NUMBERS = 1 << 21  # bytes of weights drawn at once
FITTED = 4  # fewest heads in fits of powers; below, the next order is visible
QUANTITIES = ("q", "token cosine", "c", "gradient, mean mode", "gradient, difference mode")


def network(heads: int, wide: bool | None) -> kc.Network:
    """The transformer as a kcalc network, with attention at its key width (``wide=False``)."""
    n, below = heads * KEY_WIDTH, "embedding"
    steps: list[Any] = [("x", L.Input(INPUTS), ()), (below, L.Affine(n, bias=False), ("x",))]
    for b in range(BLOCKS):
        reads = [f"{b} {name}" for name in ("queries", "keys", "values")]
        sigmas = (math.sqrt(SCORES), math.sqrt(SCORES), 1.0)
        steps += [
            (f"{b} norm", L.RMSNorm(), (below,)),
            *(
                (name, L.Affine(n, bias=False, sigma_w=sigma), (f"{b} norm",))
                for name, sigma in zip(reads, sigmas, strict=True)
            ),
            (f"{b} heads", L.Attend(heads=heads, key_width=KEY_WIDTH, wide=wide), tuple(reads)),
            (f"{b} out", L.Affine(n, bias=False), (f"{b} heads",)),
            (f"{b} sum", L.Sum(), (below, f"{b} out")),
            (f"{b} second norm", L.RMSNorm(), (f"{b} sum",)),
            (f"{b} up", L.Affine(2 * n, bias=False), (f"{b} second norm",)),
            (f"{b} phi", L.Nonlinear("tanh"), (f"{b} up",)),
            (f"{b} down", L.Affine(n, bias=False), (f"{b} phi",)),
            (f"{b} end", L.Sum(), (f"{b} sum", f"{b} down")),
        ]  # fmt: skip
        below = f"{b} end"
    return kc.Network.from_steps(steps)


def predicted(seed: int = 0) -> np.ndarray:
    """The five quantities for infinitely many heads of this key width, with sampled gradients."""
    net, last = network(4, False), f"{BLOCKS - 1} end"
    here = kc.node_values(net, c=COSINE, tokens=TOKENS, token_cosine=TOKEN_COSINE)[last]
    sampling = kc.Sampling(draws=6000, chains=6, seed=seed)
    back = kc.gradients(
        network(4, None), tokens=TOKENS, token_cosine=TOKEN_COSINE, sampling=sampling
    )
    modes = (back.mean, back.difference)
    return np.array(
        [here.q1, here.token_cosine1, here.c, *(m["embedding"] / m[last] for m in modes)]
    )


def inputs() -> torch.Tensor:
    """A pair of sequences with exactly the assumed covariance, (2, tokens, INPUTS)."""
    own = TOKEN_COSINE + (1 - TOKEN_COSINE) * np.eye(TOKENS)
    gram = np.kron(np.array([[1, COSINE], [COSINE, 1]]), own)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((INPUTS, INPUTS)))[0]
    rows = np.linalg.cholesky(gram) @ basis[: 2 * TOKENS] * math.sqrt(INPUTS)
    return torch.tensor(rows.reshape(2, TOKENS, INPUTS), dtype=torch.float32)


def drawn(x: torch.Tensor, heads: int, count: int) -> np.ndarray:
    """q, p, r and the two gradient modes of ``count`` networks, (count, 5).

    p is the covariance of two tokens of a sequence, and r the covariance of corresponding tokens of
    two sequences. Each network reads PAIRS randomly rotated pairs of sequences.
    """
    n = heads * KEY_WIDTH

    def weights(rows: int, columns: int, sigma: float = 1.0) -> torch.Tensor:
        return torch.randn(count, rows, columns) * (sigma / math.sqrt(rows))

    def split(y: torch.Tensor) -> torch.Tensor:
        return y.view(count, 2 * PAIRS, TOKENS, heads, KEY_WIDTH).transpose(2, 3)

    turns = torch.linalg.qr(torch.randn(PAIRS, INPUTS, INPUTS))[0]
    read = torch.einsum("stf,pfg->pstg", x, turns).reshape(-1, INPUTS)
    start = (read @ weights(INPUTS, n)).requires_grad_()
    h, score = start, math.sqrt(SCORES)
    for _ in range(BLOCKS):
        r = h * h.square().mean(-1, keepdim=True).rsqrt()
        q, k, v = (split(r @ weights(n, n, s)) for s in (score, score, 1.0))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(KEY_WIDTH), dim=-1) @ v
        h = h + mixed.transpose(2, 3).reshape(count, -1, n) @ weights(n, n)
        r = h * h.square().mean(-1, keepdim=True).rsqrt()
        h = h + torch.tanh(r @ weights(n, 2 * n)) @ weights(2 * n, n)
    seed = torch.randn_like(h) / math.sqrt(n)
    (back,) = torch.autograd.grad((h * seed).sum(), start)
    y, g = (part.detach().view(count, PAIRS, 2, TOKENS, n) for part in (h, back))
    size, whole = y.square().sum((-1, -2)) / n, y.sum(-2).square().sum(-1) / n
    across = (y[:, :, 0] * y[:, :, 1]).sum((-1, -2)) / (n * TOKENS)
    mean = g.sum(-2).square().sum(-1) / TOKENS
    rest = (g.square().sum((-1, -2)) - mean) / (TOKENS - 1)
    pairs = (whole - size) / (TOKENS * (TOKENS - 1))
    parts = (size / TOKENS, pairs, across, mean, rest)
    return np.stack([p.reshape(count, -1).mean(1).double().numpy() for p in parts], axis=1)


def batches(heads: int, draws: int) -> Iterator[np.ndarray]:
    """Draw networks in batches."""
    most = max(1, NUMBERS // (8 * BLOCKS * (heads * KEY_WIDTH) ** 2))
    x = inputs()
    for start in range(0, draws, most):
        yield drawn(x, heads, min(most, draws - start))


class Measured(NamedTuple):
    """The mean quantities for one number of heads, and their standard errors."""

    means: np.ndarray
    errors: np.ndarray


def measured(heads: int, draws: int) -> Measured:
    """The five quantities; cosines are ratios of means."""
    rows = np.concatenate(list(batches(heads, draws)))
    q, p, r, mean, rest = rows.mean(axis=0)
    linear = rows.copy()
    linear[:, 1], linear[:, 2] = (
        (rows[:, k] - m / q * rows[:, 0]) / q for k, m in ((1, p), (2, r))
    )
    return Measured(
        np.array([q, p / q, r / q, mean, rest]),
        linear.std(axis=0, ddof=1) / math.sqrt(len(rows)),
    )


def powers(found: dict[int, Measured], truth: np.ndarray) -> list[Power]:
    """The fitted power of H for the deviation of each quantity."""
    kept = {heads: m for heads, m in found.items() if heads >= FITTED}
    return [
        fitted(
            list(kept),
            [abs(m.means[k] - truth[k]) for m in kept.values()],
            [m.errors[k] for m in kept.values()],
        )
        for k in range(len(QUANTITIES))
    ]


def page(found: dict[int, Measured], truth: np.ndarray, draws: dict[int, int]) -> str:
    """The whole text."""
    rows = []
    for k, (name, power) in enumerate(zip(QUANTITIES, powers(found, truth), strict=True)):
        off = (
            f"{m.means[k] / truth[k] - 1:+.2%} ({m.errors[k] / truth[k]:.2%})"
            for m in found.values()
        )
        rows.append((name, f"{truth[k]:.5g}", *off, str(power)))
    table = Table(
        f"This page compares pre-norm transformers of {BLOCKS} blocks (attention and a tanh MLP) "
        f"with kcalc's maps. There are {TOKENS} tokens with cosine {TOKEN_COSINE}, two inputs "
        f"with cosine {COSINE}, scores with variance {SCORES**2:g}, and heads with {KEY_WIDTH} "
        "channels. The maps use this key width. The table shows the relative deviations of the "
        "means over networks from the maps, with standard errors, and the fitted power of the "
        f"number of heads H, for H = {FITTED} and more. The numbers of networks are "
        + ", ".join(f"{count} for H = {heads}" for heads, count in draws.items()) + ".",
        ("quantity after the last block", "map", *(f"H = {h}" for h in found), "power of H"),
        rows,
    )  # fmt: skip
    return "\n\n".join(["# Deviations fall with the number of heads", table.markdown()])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the networks to draw")
    parser.add_argument("--output", type=Path, default=HERE / "HEADS.md")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    draws = {heads: max(100, int(count * options.share)) for heads, count in DRAWS.items()}
    truth, found = predicted(), {}
    say(f"maps: {truth}")
    for heads, count in draws.items():
        start = time.process_time()
        found[heads] = measured(heads, count)
        off, error = found[heads].means / truth - 1, found[heads].errors / truth
        say(f"H = {heads}: {off}, errors {error} ({time.process_time() - start:.0f} s)")
    write(page(found, truth, draws) + "\n", options.output)


if __name__ == "__main__":
    main()
