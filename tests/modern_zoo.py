"""Today's networks in PyTorch, each with the network that it is, written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import nn
from torch.nn import functional as F
from torch_zoo.twin import Model, Twin

import kcalc as kc
from kcalc.network.layers import Affine, TokenMix

L = kc.layers
T, D = 5, 16
DENSE, IMAGE, TOKENS = (2, D), (2, 3, 6, 6), (2, T, D)
CAUSAL = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
UNIFORM = np.full((T, T), 1 / T)
linear, image = nn.Linear, nn.Conv2d
GELU = L.Nonlinear("gelu")


def silent(layer: nn.Linear, rows: int | None = None, bias: bool = True) -> nn.Linear:
    """A layer whose first rows are 0."""
    with torch.no_grad():
        layer.weight[:rows] = 0
        if bias:
            layer.bias[:rows] = 0
    return layer


def heads(q: Any, k: Any, v: Any, **options: Any) -> torch.Tensor:
    """Attention in four heads."""
    q, k, v = (x.view(*x.shape[:2], 4, -1).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


def by_hand(q: Any, k: Any, v: Any) -> torch.Tensor:
    """Causal attention written out."""
    q, k, v = (x.view(*x.shape[:2], 4, -1).transpose(1, 2) for x in (q, k, v))
    scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
    heads = F.dropout(F.softmax(scores, -1), 0.0) @ v
    return heads.transpose(1, 2).contiguous().view(-1, T, D)


# -- gates -----------------------------------------------------------------------------------------


def swiglu(m: Any, x: Any) -> Any:
    a, b = m.up(x).chunk(2, dim=-1)
    return m.down(F.silu(a) * b)


def alternating(m: Any, x: Any) -> Any:
    h = m.up(x)
    return m.down(F.silu(h[..., ::2]) * h[..., 1::2])


def gated(
    function: Callable[..., Any],
    activation: str = "swish",
    bent: tuple[int, int] = (1, 0),
) -> Any:
    """A model with a gate; two branches, one or both of them bent, and their product."""
    model = Model(function, up=linear(D, 64), down=linear(32, D))
    t, phi = Twin(), L.Nonlinear(activation)
    x = t(L.Input(D))
    branches = [t.line(x, Affine(32), *[phi] * count) for count in bent]
    t.line(t(L.Product(), *branches), Affine(D))
    return model, DENSE, t.network()


def squeeze_excite() -> Any:
    def run(m: Any, x: Any) -> Any:
        h = m.conv(x)
        return m.out(h * torch.sigmoid(m.open(F.relu(m.squeeze(F.adaptive_avg_pool2d(h, 1))))))

    parts = {"conv": image(3, D, 3, padding=1), "squeeze": image(D, 4, 1), "open": image(4, D, 1)}
    t = Twin()
    c = t.line(t(L.Input(3, (6, 6))), Affine(D, 3))
    gate = L.Pool("mean"), Affine(4), L.Nonlinear("relu"), Affine(D), L.Nonlinear("sigmoid")
    t.line(t(L.Product(), c, t.line(c, *gate)), Affine(D))
    return Model(run, **parts, out=image(D, D, 1)), IMAGE, t.network()


# -- blocks ----------------------------------------------------------------------------------------


def mlp(norm: str = "norm", width: int = 4 * D) -> dict[str, nn.Module]:
    return {norm: nn.LayerNorm(D), "up": linear(D, width), "down": linear(width, D)}


def mlp_twin(t: Twin, x: str, width: int = 4 * D) -> kc.Network:
    """The network that ends in a residual MLP."""
    t(L.Sum(), x, t.line(x, L.LayerNorm(), Affine(width), GELU, Affine(D)))
    return t.network()


def convnext() -> Any:
    def run(m: Any, x: Any) -> Any:
        x = m.stem(x)
        h = m.gamma * m.down(F.gelu(m.up(m.norm(m.depthwise(x).permute(0, 2, 3, 1)))))
        return x + h.permute(0, 3, 1, 2)

    convs = {"stem": image(3, D, 2, 2), "depthwise": image(D, D, 7, padding=3, groups=D)}
    t = Twin()
    s = t.line(t(L.Input(3, (6, 6))), Affine(D, 2, 2))
    branch = Affine(D, 7, groups=D), L.LayerNorm(), Affine(4 * D), GELU, Affine(D)
    t(L.Sum((1, 0.01)), s, t.line(s, *branch))
    return (
        Model(run, **convs, **mlp(), gamma=nn.Parameter(1e-2 * torch.ones(D))),
        IMAGE,
        t.network(),
    )


def gpt(attend: Callable[..., Any], matrix: np.ndarray) -> Any:
    """A block whose queries are 0."""

    def run(m: Any, x: Any) -> Any:
        x = x + m.proj(attend(*m.qkv(m.ln(x)).split(D, dim=2)))
        return x + m.down(F.gelu(m.up(m.ln2(x))))

    parts = {"ln": nn.LayerNorm(D), "qkv": silent(linear(D, 3 * D), D), "proj": linear(D, D)}
    t = Twin()
    x = t(L.Input(D, (T,)))
    mixed = t.line(x, L.LayerNorm(), Affine(D), TokenMix(matrix), Affine(D))
    return Model(run, **parts, **mlp("ln2")), TOKENS, mlp_twin(t, t(L.Sum(), x, mixed))


def mixer() -> Any:
    def run(m: Any, x: Any) -> Any:
        x = m.emb(x)
        x = x + m.t2(F.gelu(m.t1(m.norm(x).transpose(1, 2)))).transpose(1, 2)
        return x + m.down(F.gelu(m.up(m.norm2(x))))

    tokens = {"t1": linear(T, 7, bias=False), "t2": linear(7, T, bias=False)}
    model = Model(run, emb=linear(D, D), norm=nn.LayerNorm(D), **tokens, **mlp("norm2", 8))
    t1, t2 = (TokenMix(layer.weight.detach().numpy(), True) for layer in tokens.values())
    t = Twin()
    e = t.line(t(L.Input(D, (T,))), Affine(D))
    return model, TOKENS, mlp_twin(t, t(L.Sum(), e, t.line(e, L.LayerNorm(), t1, GELU, t2)), 8)


# -- normalisation ---------------------------------------------------------------------------------


def norm_model(function: Callable[..., Any]) -> Model:
    """Something between two layers, with gains and shifts."""
    gains = {"gain": nn.Parameter(torch.ones(D)), "shift": nn.Parameter(torch.zeros(D))}
    return Model(lambda m, x: m.b(function(m, m.a(x))), a=linear(D, D), b=linear(D, D), **gains)


def rms(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def centred(x: Any) -> Any:
    return x - x.mean(-1, keepdim=True)


def layer_norm(x: Any) -> Any:
    x = centred(x)
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-5)


def normed(function: Callable[..., Any], *layers: Any) -> Any:
    network = kc.chain(L.Input(D), Affine(D), *layers, Affine(D))
    return norm_model(function), DENSE, network


NORMS: dict[str, tuple[Any, ...]] = {
    "rms in single precision": (lambda m, x: m.gain * rms(x.float()).type_as(x), L.RMSNorm()),
    "rms by length": (
        lambda m, x: x * math.sqrt(D) / x.norm(dim=-1, keepdim=True).clamp(min=1e-12),
        L.RMSNorm(),
    ),
    "unit length": (
        lambda m, x: x / x.norm(dim=-1, keepdim=True),
        L.RMSNorm(),
        L.Scale(1 / math.sqrt(D)),
    ),
    "layer": (lambda m, x: m.gain * layer_norm(x) + m.shift, L.LayerNorm()),
    "layer, unbiased": (
        lambda m, x: m.gain * centred(x) / (x.std(-1, keepdim=True) + 1e-6) + m.shift,
        L.LayerNorm(),
        L.Scale(math.sqrt((D - 1) / D)),
    ),
    "nn.RMSNorm": (lambda m, x: F.rms_norm(x, (D,), m.gain), L.RMSNorm()),
    "DyT": (
        lambda m, x: m.gain * torch.tanh(0.5 * x) + m.shift,
        L.Nonlinear(sp.tanh(sp.Symbol("x", real=True) / 2)),
    ),
}
ZOO: dict[str, Callable[[], tuple[Any, tuple[int, ...], kc.Network]]] = {
    "swiglu": partial(gated, swiglu),
    "glu": partial(gated, lambda m, x: m.down(F.glu(m.up(x))), "sigmoid", bent=(0, 1)),
    "split behind the activation": partial(
        gated, lambda m, x: m.down(math.prod(F.gelu(m.up(x)).split(32, -1))), "gelu", bent=(1, 1)
    ),
    "every second channel": partial(gated, alternating),
    "squeeze and excitation": squeeze_excite,
    "convnext": convnext,
    "gpt": partial(gpt, lambda *x: heads(*x, is_causal=True), CAUSAL),
    "gpt by hand": partial(gpt, by_hand, CAUSAL),
    "encoder": partial(gpt, heads, UNIFORM),
    "mixer": mixer,
    **{f"{name} norm": partial(normed, *entry) for name, entry in NORMS.items()},
}
