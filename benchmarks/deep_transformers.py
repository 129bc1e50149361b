"""Depth profiles of real transformers compared with predictions.

``python -m benchmarks.deep_transformers`` draws pre-norm transformers (48 blocks, 768 channels, 12
heads) in PyTorch and float32. It runs sequences of 64 independent tokens through all of them, and
backpropagates through some. For some blocks it prints the predictions of ``kc.depth_profile``, the
deviation of the mean over networks in per cent, and z, the deviation divided by its standard error.
Weights are drawn block by block and not stored.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

import kcalc as kc

COLUMNS = ("q", "token_cosine", "gradient_mean", "gradient_difference")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deep_transformers")
    sizes = {"blocks": 48, "width": 768, "heads": 12, "tokens": 64, "sequences": 2}
    for name, value in (sizes | {"draws": 13, "backward": 13, "seed": 0}).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


class Drawn:
    """A network that draws the weights of a block again, from the same seed, whenever the block
    runs.
    """

    def __init__(self, options: argparse.Namespace, draw: int) -> None:
        self.options, self.draw = options, draw

    def weights(self, block: int) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(
            (self.options.seed * 10_000 + self.draw) * 1000 + block
        )
        width = self.options.width
        sizes = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
        for reads, emits in sizes:
            yield torch.randn(reads, emits, generator=generator) / reads**0.5

    def block(self, x: torch.Tensor, number: int) -> torch.Tensor:
        """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""
        queries, keys, values, output, up, down = self.weights(number)
        shape = (*x.shape[:2], self.options.heads, -1)
        normed = layer_norm(x, x.shape[-1:])
        heads = [(normed @ w).reshape(shape).transpose(1, 2) for w in (queries, keys, values)]
        read = scaled_dot_product_attention(*heads).transpose(1, 2).reshape(x.shape)
        x = x + read @ output
        return x + gelu(layer_norm(x, x.shape[-1:]) @ up) @ down

    def streams(self) -> list[torch.Tensor]:
        """The stream before the first block and after each block."""
        generator = torch.Generator().manual_seed(self.draw)
        options = self.options
        x = torch.randn(options.sequences, options.tokens, options.width, generator=generator)
        out = [x]
        with torch.no_grad():
            for number in range(options.blocks):
                out.append(self.block(out[-1], number))
        return out

    def gradients(self, streams: list[torch.Tensor]) -> list[torch.Tensor]:
        """Gradients of a random sum over the channels of one token, at the same places."""
        last = streams[-1].clone().requires_grad_()
        signs = torch.zeros_like(last)
        generator = torch.Generator().manual_seed(10**6 + self.draw)
        drawn = torch.randn(last[:, 0].shape, generator=generator)
        signs[:, 0] = drawn.sign() / last.shape[-1] ** 0.5
        (g,) = torch.autograd.grad(layer_norm(last, last.shape[-1:]), last, signs)
        out = [g]
        for number in reversed(range(self.options.blocks)):
            x = streams[number].clone().requires_grad_()
            (g,) = torch.autograd.grad(self.block(x, number), x, g)
            out.append(g)
        return out[::-1]


def sizes(x: torch.Tensor) -> tuple[float, float]:
    """(Squared norm of the gradient at one token, squared norm of the sum over tokens), averaged
    over sequences.
    """
    own = (x.double() ** 2).sum(dim=(1, 2))
    return float(own.mean()), float((x.double().sum(dim=1) ** 2).sum(dim=1).mean())


def measured(options: argparse.Namespace, draw: int) -> dict[str, np.ndarray]:
    """The four quantities of one network, each of shape (blocks + 1,)."""
    net, count, width = Drawn(options, draw), options.tokens, options.width
    streams = net.streams()
    own, total = np.array([sizes(x) for x in streams]).T
    q = own / (count * width)
    found = {"q": q, "token_cosine": (total / own - 1) / (count - 1)}
    if draw < options.backward:
        own, total = np.array([sizes(g) for g in net.gradients(streams)]).T
        found["gradient_mean"] = total
        found["gradient_difference"] = (count * own - total) / (count - 1)
    return found


def report(options: argparse.Namespace, draws: list[dict[str, np.ndarray]]) -> str:
    """The table for some blocks."""
    net = kc.architectures.transformer_stack(options.blocks, options.width, options.heads)
    profile: Any = kc.depth_profile(net, tokens=options.tokens)
    rows = sorted({0, 1, 2, *range(0, options.blocks + 1, max(1, options.blocks // 8))})
    lines = ["| block | " + " | ".join(f"{name} | % | z" for name in COLUMNS) + " |"]
    lines.append("|---" * (1 + 3 * len(COLUMNS)) + "|")
    worst = dict.fromkeys(COLUMNS, (0.0, 0.0))
    for row in rows:
        cells = [str(row)]
        for name in COLUMNS:
            values = np.array([found[name][row] for found in draws if name in found])
            expected = getattr(profile, name)[row]
            error = values.std(ddof=1) / len(values) ** 0.5
            off = values.mean() - expected
            share = 100 * off / expected if expected else 0.0
            z = off / error if error > 1e-9 * abs(expected) else 0.0
            worst[name] = max(worst[name][0], abs(share)), max(worst[name][1], abs(z))
            cells += [f"{expected:.5g}", f"{share:+.2f}", f"{z:+.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"{name}: at most {a:.2f} % off, |z| <= {b:.1f}" for name, (a, b) in worst.items()]
    return "\n".join(lines)


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    start, draws = time.perf_counter(), []
    for draw in range(options.draws):
        draws.append(measured(options, draw))
        print(f"network {draw + 1}: {time.perf_counter() - start:.0f} s", flush=True)
        if draw >= 2:
            print(report(options, draws), flush=True)


if __name__ == "__main__":
    main()
