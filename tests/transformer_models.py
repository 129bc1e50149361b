"""Transformers written in PyTorch as their authors write them, small, and their weights drawn."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def drawn(model: nn.Module, sigma: float = 1.0, seed: int = 0) -> Any:
    """The model with weights of variance ``sigma^2 / fan_in``, tables of variance 1,
    biases of 0.
    """
    random = torch.Generator().manual_seed(seed)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                alone = id(parameter) in tables or name in ("token", "places")
                scale = 1.0 if alone else sigma / math.sqrt(parameter[0].numel())
                parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)
            elif name.endswith("bias"):
                parameter.zero_()
    return model.eval()


class CausalAttention(nn.Module):
    """Attention of nanoGPT: one layer for queries, keys and values, softmax written out under a
    stored mask.
    """

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.c_attn, self.c_proj = (
            heads,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.register_buffer(
            "mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for y in self.c_attn(x).split(c, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = F.softmax(scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")), dim=-1)
        return self.c_proj((scores @ v).transpose(1, 2).contiguous().view(b, t, c))


class GPT2(nn.Module):
    """Learned positions, pre-norm blocks, a readout tied to the embedding."""

    def __init__(
        self,
        blocks: int,
        width: int,
        heads: int,
        vocabulary: int,
        length: int,
        readout: bool = False,
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList()
        for _ in range(blocks):
            mlp = nn.Sequential(
                nn.Linear(width, 4 * width),
                nn.GELU(approximate="tanh"),
                nn.Linear(4 * width, width),
            )
            parts = {
                "ln_1": nn.LayerNorm(width),
                "attn": CausalAttention(width, heads, length),
                "ln_2": nn.LayerNorm(width),
                "mlp": mlp,
            }
            self.blocks.append(nn.ModuleDict(parts))
        self.ln_f, self.lm_head = (
            nn.LayerNorm(width),
            nn.Linear(width, vocabulary, bias=False) if readout else None,
        )
        if self.lm_head is not None:
            self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = x + block["attn"](block["ln_1"](x))
            x = x + block["mlp"](block["ln_2"](x))
        x = self.ln_f(x)
        return x if self.lm_head is None else self.lm_head(x)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def halves_turned(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


class GroupedAttention(nn.Module):
    """Attention of Llama and Qwen.

    Rotary embeddings, heads of queries that share keys, perhaps norms on queries and keys.
    """

    def __init__(self, width: int, heads: int, key_heads: int, base: float, normed: bool) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size, self.base = heads, key_heads, width // heads, base
        self.q_proj, self.o_proj = (
            nn.Linear(width, width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.k_proj, self.v_proj = (
            nn.Linear(width, key_heads * self.size, bias=False) for _ in range(2)
        )
        self.norms = (
            nn.ModuleList([RMSNorm(self.size), RMSNorm(self.size)])
            if normed
            else [nn.Identity(), nn.Identity()]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q = self.norms[0](self.q_proj(x).view(b, t, self.heads, self.size)).transpose(1, 2)
        k = self.norms[1](self.k_proj(x).view(b, t, self.key_heads, self.size)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.key_heads, self.size).transpose(1, 2)
        speeds = 1.0 / self.base ** (torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(t), speeds).repeat(1, 2)
        q, k = (y * angles.cos() + halves_turned(y) * angles.sin() for y in (q, k))
        k, v = (y.repeat_interleave(self.heads // self.key_heads, dim=1) for y in (k, v))
        return self.o_proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        )


class Llama(nn.Module):
    def __init__(
        self,
        blocks: int,
        width: int,
        heads: int,
        vocabulary: int,
        key_heads: int,
        base: float = 10000.0,
        normed: bool = False,
    ):
        super().__init__()
        self.embed, self.norm, self.layers = (
            nn.Embedding(vocabulary, width),
            RMSNorm(width),
            nn.ModuleList(),
        )
        for _ in range(blocks):
            parts = {
                "gate": (width, 2 * width),
                "up": (width, 2 * width),
                "down": (2 * width, width),
            }
            layers: dict[str, nn.Module] = {
                name: nn.Linear(*sizes, bias=False) for name, sizes in parts.items()
            }
            attention = GroupedAttention(width, heads, key_heads, base, normed)
            self.layers.append(
                nn.ModuleDict(
                    {**layers, "attn": attention, "n1": RMSNorm(width), "n2": RMSNorm(width)}
                )
            )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer["attn"](layer["n1"](x))
            h = layer["n2"](x)
            x = x + layer["down"](F.silu(layer["gate"](h)) * layer["up"](h))
        return self.norm(x)


class Bert(nn.Module):
    """Post-norm blocks of nn.MultiheadAttention.

    Positions count the ids that are no padding, as RoBERTa's do.
    """

    def __init__(
        self,
        blocks: int,
        width: int,
        heads: int,
        vocabulary: int,
        length: int,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        self.word, self.place, self.kind = (
            nn.Embedding(vocabulary, width),
            nn.Embedding(length, width),
            nn.Embedding(2, width),
        )
        self.norm, self.padding, self.layers = nn.LayerNorm(width), padding, nn.ModuleList()
        for _ in range(blocks):
            attention = nn.MultiheadAttention(width, heads, batch_first=True)
            mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.layers.append(
                nn.ModuleDict(
                    {
                        "attn": attention,
                        "n1": nn.LayerNorm(width),
                        "mlp": mlp,
                        "n2": nn.LayerNorm(width),
                    }
                )
            )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1])
        if self.padding is not None:
            seen = ids.ne(self.padding).int()
            places = (torch.cumsum(seen, dim=1) * seen).long() + self.padding
        x = self.norm(self.word(ids) + self.place(places) + self.kind(torch.zeros_like(ids)))
        for layer in self.layers:
            x = layer["n1"](x + layer["attn"](x, x, x, need_weights=False)[0])
            x = layer["n2"](x + layer["mlp"](x))
        return x


class T5(nn.Module):
    """An encoder with biases of scores by distance, and no positions."""

    @staticmethod
    def buckets(tokens: int) -> torch.Tensor:
        """As in the released code: 8 single distances each way, 8 wider buckets up to 128."""
        apart = torch.arange(tokens)[None] - torch.arange(tokens)[:, None]
        size = apart.abs()
        far = 8 + (torch.log(size.clamp(min=1) / 8) / math.log(128 / 8) * 8).long()
        near = torch.where(size < 8, size, far.clamp(max=15))
        return near + 16 * (apart > 0)

    def __init__(self, blocks: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.heads, self.embed, self.norm = heads, nn.Embedding(vocabulary, width), RMSNorm(width)
        self.near, self.layers = nn.Embedding(32, heads), nn.ModuleList()
        for _ in range(blocks):
            names = ("q", "k", "v", "o")
            parts: dict[str, nn.Module] = {
                name: nn.Linear(width, width, bias=False) for name in names
            }
            mlp = nn.Sequential(
                nn.Linear(width, 4 * width, bias=False),
                nn.ReLU(),
                nn.Linear(4 * width, width, bias=False),
            )
            self.layers.append(
                nn.ModuleDict({**parts, "mlp": mlp, "n1": RMSNorm(width), "n2": RMSNorm(width)})
            )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, t = self.embed(ids), ids.shape[1]
        bias = self.near(self.buckets(t)).permute(2, 0, 1)[None]
        for layer in self.layers:
            h = layer["n1"](x)
            q, k, v = (
                layer[name](h).view(*ids.shape, self.heads, -1).transpose(1, 2)
                for name in ("q", "k", "v")
            )
            weights = F.softmax(q @ k.transpose(2, 3) + bias, dim=-1)
            x = x + layer["o"]((weights @ v).transpose(1, 2).reshape(x.shape))
            x = x + layer["mlp"](layer["n2"](x))
        return self.norm(x)
