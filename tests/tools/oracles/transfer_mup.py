"""Settings of the ``mup`` package at several widths, for tests of ``kcalc.transfer``.

In an environment with ``pip install mup torch``:

    python tests/tools/oracles/transfer_mup.py > tests/oracles/transfer_mup.json

For every model, width and parameter: the standard deviation of initial weights, the multiplier, and
learning rate and weight decay of MuSGD and MuAdam for rate 1 and decay 1, all relative to width 64.
Attention divides scores by the channels of a head by hand, which mup leaves to its users.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096)
BASE = 64


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        examples, tokens, width = x.shape
        head = width // self.heads

        def split(part: torch.Tensor) -> torch.Tensor:
            return part.view(examples, tokens, self.heads, head).transpose(1, 2)

        y = self.norm1(x)
        q, k, v = split(self.q(y)), split(self.k(y)), split(self.v(y))
        read = torch.softmax(q @ k.transpose(2, 3) / head, -1) @ v
        x = x + self.o(read.transpose(1, 2).reshape(examples, tokens, width))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width: int, readout: type, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, width), nn.Embedding(8, width)
        self.block, self.norm = Block(width), nn.LayerNorm(width)
        if tied and readout is not nn.Linear:
            self.head = readout(self.tokens.weight, bias=False)
        else:
            self.head = readout(width, 20, bias=False)
            if tied:
                self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.block(x)))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.one, self.two = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(torch.relu(self.depthwise(self.one(self.norm(x)))))


class ResNet(nn.Module):
    def __init__(self, width: int, readout: type) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.block = Residual(width)
        self.head = readout(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.block(self.stem(x))).mean((2, 3)))


def mlp(width: int, readout: type) -> nn.Module:
    hidden = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), *hidden, readout(width, 10))


class Decoder(nn.Module):
    """Two transposed convolutions; mup reads the axes of their weights as those of a convolution."""

    def __init__(self, width: int, readout: type) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.up = nn.ConvTranspose2d(width, width, 2, 2)
        self.last = nn.ConvTranspose2d(width, 3, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.up(torch.relu(self.stem(x)))))


MODELS = {
    "mlp": (mlp, (torch.zeros(2, 16),)),
    "resnet": (ResNet, (torch.zeros(2, 3, 6, 6),)),
    "transformer": (Transformer, (torch.zeros(2, 8, dtype=torch.long),)),
}


def main() -> None:
    import mup

    rows = []
    cases = {name: (make, mup.MuReadout) for name, (make, _) in MODELS.items()}
    cases["decoder"] = (Decoder, nn.Linear)
    cases["tied"] = (lambda n, r: Transformer(n, r, tied=True), mup.MuSharedReadout)
    for name, (make, readout) in cases.items():
        spreads: dict[str, float] = {}
        for width in WIDTHS:
            torch.manual_seed(0)
            model, base = make(width, readout), make(BASE, readout)
            delta = make(2 * BASE, readout)
            mup.set_base_shapes(model, base, delta=delta)
            rates = {}
            for rule, optimizer in (("sgd", mup.MuSGD), ("adamw", mup.MuAdamW)):
                made = optimizer(model.parameters(), lr=1.0, weight_decay=1.0)
                groups = [(id(p), g) for g in made.param_groups for p in g["params"]]
                rates[rule] = {i: (g["lr"], g["weight_decay"]) for i, g in groups}
            for key, parameter in model.named_parameters():
                std = float(parameter.detach().double().var(unbiased=False)) ** 0.5
                spreads.setdefault(key, std)
                last = "head" if name != "mlp" else "6"
                head = key == f"{last}.weight" or (name == "tied" and key == "tokens.weight")
                rows.append(
                    {
                        "model": name,
                        "width": width,
                        "parameter": key,
                        "numbers": parameter.numel(),
                        "init_std": std / spreads[key] if spreads[key] else None,
                        "multiplier": BASE / width if head else 1.0,
                        "sgd": rates["sgd"][id(parameter)],
                        "adamw": rates["adamw"][id(parameter)],
                    }
                )
    print("[")
    print(",\n".join(json.dumps(row) for row in rows))
    print("]")
    print(f"{len(rows)} rows", file=sys.stderr)


if __name__ == "__main__":
    main()
