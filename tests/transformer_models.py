"""Transformers written in PyTorch as their authors write them, small, and their weights drawn."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch_zoo.twin import Model


def drawn(model: nn.Module) -> Any:
    """The model with weights of variance 1 / fan-in, tables of variance 1, biases of 0."""
    random = torch.Generator().manual_seed(0)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                scale = 1.0 if id(parameter) in tables else parameter[0].numel() ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)
            elif name.endswith("bias"):
                parameter.zero_()
    return model.eval()


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def linears(width: int, **outputs: int) -> dict[str, nn.Module]:
    return {name: nn.Linear(width, out, bias=False) for name, out in outputs.items()}


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Halves of channels turned by angles that grow from token to token."""
    speeds = 1.0 / 10000.0 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = torch.outer(torch.arange(x.shape[-2]), speeds).repeat(1, 2)
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-b, a], dim=-1) * angles.sin()


def qwen3(blocks: int, width: int, heads: int, vocabulary: int) -> nn.Module:
    """Rotary embeddings, norms on queries and keys, gates, as in Llama and Qwen."""

    def block(m: Any, x: Any) -> Any:
        h = m.n1(x)
        q, k, v = (f(h).view(*h.shape[:2], heads, -1) for f in (m.q, m.k, m.v))
        q, k, v = (y.transpose(1, 2) for y in (m.qn(q), m.kn(k), v))
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + m.o(y.transpose(1, 2).reshape(x.shape))
        h = m.n2(x)
        return x + m.down(F.silu(m.gate(h)) * m.up(h))

    def made() -> nn.Module:
        parts = linears(width, q=width, k=width, v=width, o=width, gate=2 * width, up=2 * width)
        sizes = {"qn": width // heads, "kn": width // heads, "n1": width, "n2": width}
        norms = {name: RMSNorm(size) for name, size in sizes.items()}
        return Model(block, **parts, **norms, **linears(2 * width, down=width))

    layers = (made() for _ in range(blocks))
    return nn.Sequential(nn.Embedding(vocabulary, width), *layers, RMSNorm(width))


def bert(blocks: int, width: int, heads: int, vocabulary: int, length: int) -> nn.Module:
    """Post-norm blocks of nn.MultiheadAttention, behind tables of words, places and kinds."""

    def embedded(m: Any, ids: Any) -> Any:
        places = torch.arange(ids.shape[1])
        return m.norm(m.word(ids) + m.place(places) + m.kind(torch.zeros_like(ids)))

    def block(m: Any, x: Any) -> Any:
        x = m.n1(x + m.attn(x, x, x, need_weights=False)[0])
        return m.n2(x + m.mlp(x))

    def made() -> nn.Module:
        mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        attn = nn.MultiheadAttention(width, heads, batch_first=True)
        return Model(block, attn=attn, mlp=mlp, n1=nn.LayerNorm(width), n2=nn.LayerNorm(width))

    rows = {"word": vocabulary, "place": length, "kind": 2}
    tables = {name: nn.Embedding(count, width) for name, count in rows.items()}
    first = Model(embedded, norm=nn.LayerNorm(width), **tables)
    return nn.Sequential(first, *(made() for _ in range(blocks)))


def buckets(tokens: int) -> torch.Tensor:
    """As in the released code of T5: 8 single distances each way, 8 wider buckets up to 128."""
    apart = torch.arange(tokens)[None] - torch.arange(tokens)[:, None]
    size = apart.abs()
    far = 8 + (torch.log(size.clamp(min=1) / 8) / math.log(128 / 8) * 8).long()
    return torch.where(size < 8, size, far.clamp(max=15)) + 16 * (apart > 0)


def t5(blocks: int, width: int, heads: int, vocabulary: int) -> nn.Module:
    """An encoder with biases of scores by distance, and no positions."""

    def run(m: Any, ids: Any) -> Any:
        x = m.embed(ids)
        bias = m.near(buckets(ids.shape[1])).permute(2, 0, 1)[None]
        for layer in m.layers:
            h = layer.n1(x)
            q, k, v = (
                f(h).view(*ids.shape, heads, -1).transpose(1, 2)
                for f in (layer.q, layer.k, layer.v)
            )
            weights = F.softmax(q @ k.transpose(2, 3) + bias, dim=-1)
            x = x + layer.o((weights @ v).transpose(1, 2).reshape(x.shape))
            x = x + layer.down(F.relu(layer.up(layer.n2(x))))
        return m.norm(x)

    def made() -> nn.Module:
        parts = linears(width, q=width, k=width, v=width, o=width, up=4 * width)
        norms = {"n1": RMSNorm(width), "n2": RMSNorm(width)}
        return Model(run, **parts, **norms, **linears(4 * width, down=width))

    layers = nn.ModuleList(made() for _ in range(blocks))
    tables = {"embed": nn.Embedding(vocabulary, width), "near": nn.Embedding(32, heads)}
    return Model(run, layers=layers, norm=RMSNorm(width), **tables)
