"""Today's networks in PyTorch, each with the network that it is, written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import nn
from torch.nn import functional as F

import kcalc as kc
from kcalc.network.layers import Affine, TokenMix

L = kc.layers
T, D = 5, 16
DENSE, IMAGE, TOKENS = (2, D), (2, 3, 6, 6), (2, T, D)


class Model(nn.Module):
    """A function of submodules and an input."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self, *inputs)


def silent(layer: nn.Linear, rows: int | None = None, bias: bool = True) -> nn.Linear:
    """A layer whose first rows are 0."""
    with torch.no_grad():
        layer.weight[:rows] = 0
        if bias and layer.bias is not None:
            layer.bias[:rows] = 0
    return layer


def heads(q: Any, k: Any, v: Any, count: int = 4, **options: Any) -> torch.Tensor:
    """Attention in several heads."""
    q, k, v = (x.view(*x.shape[:2], count, -1).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


def by_hand(q: Any, k: Any, v: Any, count: int = 4) -> torch.Tensor:
    """Causal attention written out."""
    size = q.shape[1]
    q, k, v = (x.view(*x.shape[:2], count, -1).transpose(1, 2) for x in (q, k, v))
    scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(torch.tril(torch.ones(size, size)) == 0, float("-inf"))
    return (
        (F.dropout(F.softmax(scores, -1), 0.0) @ v)
        .transpose(1, 2)
        .contiguous()
        .view(v.shape[0], size, -1)
    )


def layer_norm(x: Any) -> Any:
    m = x.mean(-1, keepdim=True)
    return (x - m) / torch.sqrt(((x - m) ** 2).mean(-1, keepdim=True) + 1e-5)


def swiglu(m: Any, x: Any) -> Any:
    a, b = m.up(x).chunk(2, dim=-1)
    return m.down(F.silu(a) * b)


def swiglu_apart(m: Any, x: Any) -> Any:
    return m.down(F.silu(m.gate(x)) * m.up(x))


def squeeze_excite(m: Any, x: Any) -> Any:
    h = m.conv(x)
    return m.out(h * torch.sigmoid(m.open(F.relu(m.squeeze(F.adaptive_avg_pool2d(h, 1))))))


def convnext(m: Any, x: Any) -> Any:
    x = m.stem(x)
    h = m.gamma * m.down(F.gelu(m.up(m.norm(m.depthwise(x).permute(0, 2, 3, 1)))))
    return x + h.permute(0, 3, 1, 2)


def gpt(attend: Callable[..., Any]) -> Callable[..., Any]:
    def forward(m: Any, x: Any) -> Any:
        x = x + m.proj(attend(*m.qkv(m.ln(x)).split(D, dim=2)))
        return x + m.down(F.gelu(m.up(m.ln2(x))))

    return forward


def gpt_block(attend: Callable[..., Any] = heads, rows: int = D, **options: Any) -> Model:
    qkv = silent(nn.Linear(D, 3 * D), rows, **options) if rows else nn.Linear(D, 3 * D)
    parts = {"ln": nn.LayerNorm(D), "qkv": qkv, "proj": nn.Linear(D, D), "ln2": nn.LayerNorm(D)}
    return Model(gpt(attend), **parts, up=nn.Linear(D, 4 * D), down=nn.Linear(4 * D, D))


def mixer(m: Any, x: Any) -> Any:
    x = m.emb(x)
    x = x + m.t2(F.gelu(m.t1(m.norm(x).transpose(1, 2)))).transpose(1, 2)
    return x + m.c2(F.gelu(m.c1(m.norm2(x))))


def steps(*rows: tuple[Any, ...]) -> kc.Network:
    return kc.Network.from_steps(rows, [rows[-1][0]])


def gated(
    width: int, activation: str, image: tuple[int, ...] | None = None, both: bool = False
) -> kc.Network:
    """Input, two branches of which one or both go through an activation, their product, Affine."""
    first = [
        ("a", Affine(width), ("x",)),
        ("f", L.Nonlinear(activation), ("a",)),
        ("b", Affine(width), ("x",)),
    ]
    second = [("g", L.Nonlinear(activation), ("b",))] if both else []
    end = second[-1][0] if both else "b"
    return steps(
        ("x", L.Input(D, image), ()),
        *first,
        *second,
        ("p", L.Product(), ("f", end)),
        ("y", Affine(D), ("p",)),
    )


def glu_twin() -> kc.Network:
    gate = [
        ("v", Affine(32), ("x",)),
        ("a", Affine(32), ("x",)),
        ("f", L.Nonlinear("sigmoid"), ("a",)),
    ]
    return steps(
        ("x", L.Input(D), ()), *gate, ("p", L.Product(), ("v", "f")), ("y", Affine(D), ("p",))
    )


def gpt_twin(matrix: np.ndarray) -> kc.Network:
    head = [
        ("x", L.Input(D, (T,)), ()),
        ("ln", L.LayerNorm(), ("x",)),
        ("v", Affine(D), ("ln",)),
        ("m", TokenMix(matrix), ("v",)),
    ]
    tail = [
        ("l2", L.LayerNorm(), ("s",)),
        ("u", Affine(4 * D), ("l2",)),
        ("g", L.Nonlinear("gelu"), ("u",)),
        ("d", Affine(D), ("g",)),
    ]
    return steps(
        *head,
        ("o", Affine(D), ("m",)),
        ("s", L.Sum(), ("x", "o")),
        *tail,
        ("y", L.Sum(), ("s", "d")),
    )


def se_twin() -> kc.Network:
    gate = [
        ("pool", L.Pool("mean"), ("c",)),
        ("s", Affine(4), ("pool",)),
        ("r", L.Nonlinear("relu"), ("s",)),
        ("o", Affine(D), ("r",)),
        ("g", L.Nonlinear("sigmoid"), ("o",)),
    ]
    head = [("x", L.Input(3, (6, 6)), ()), ("c", Affine(D, kernel=3), ("x",))]
    return steps(*head, *gate, ("p", L.Product(), ("c", "g")), ("y", Affine(D), ("p",)))


def convnext_twin() -> kc.Network:
    branch = [
        ("d", Affine(D, kernel=7, groups=D), ("s",)),
        ("n", L.LayerNorm(), ("d",)),
        ("u", Affine(4 * D), ("n",)),
        ("g", L.Nonlinear("gelu"), ("u",)),
        ("w", Affine(D), ("g",)),
    ]
    head = [("x", L.Input(3, (6, 6)), ()), ("s", Affine(D, kernel=2, stride=2), ("x",))]
    return steps(*head, *branch, ("y", L.Sum((1, 0.01)), ("s", "w")))


def mixer_twin(model: Any) -> kc.Network:
    t1, t2 = (TokenMix(layer.weight.detach().numpy(), True) for layer in (model.t1, model.t2))
    tokens = [
        ("n", L.LayerNorm(), ("e",)),
        ("t1", t1, ("n",)),
        ("g", L.Nonlinear("gelu"), ("t1",)),
        ("t2", t2, ("g",)),
    ]
    channels = [
        ("n2", L.LayerNorm(), ("s",)),
        ("u", Affine(8), ("n2",)),
        ("h", L.Nonlinear("gelu"), ("u",)),
        ("d", Affine(D), ("h",)),
    ]
    head = [("x", L.Input(D, (T,)), ()), ("e", Affine(D), ("x",))]
    return steps(*head, *tokens, ("s", L.Sum(), ("e", "t2")), *channels, ("y", L.Sum(), ("s", "d")))


CAUSAL = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
UNIFORM = np.full((T, T), 1 / T)


def mixer_model() -> Model:
    tokens = {"t1": nn.Linear(T, 7, bias=False), "t2": nn.Linear(7, T, bias=False)}
    return Model(
        mixer,
        emb=nn.Linear(D, D),
        norm=nn.LayerNorm(D),
        **tokens,
        norm2=nn.LayerNorm(D),
        c1=nn.Linear(D, 8),
        c2=nn.Linear(8, D),
    )


def chained(shape: tuple[int, ...], *layers: Any) -> kc.Network:
    return kc.chain(L.Input(shape[-1], shape[1:-1] or None), *layers)


def norm_model(function: Callable[..., Any]) -> Model:
    parts = {
        "a": nn.Linear(D, D),
        "b": nn.Linear(D, D),
        "gain": nn.Parameter(torch.ones(D)),
        "shift": nn.Parameter(torch.zeros(D)),
    }
    return Model(lambda m, x: m.b(function(m, m.a(x))), **parts)


NORMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "rms": (
        lambda m, x: m.gain * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        [L.RMSNorm()],
    ),
    "rms in single precision": (
        lambda m, x: (
            m.gain
            * (lambda h: h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6))(
                x.float()
            ).type_as(x)
        ),
        [L.RMSNorm()],
    ),
    "rms by length": (
        lambda m, x: x * math.sqrt(D) / x.norm(dim=-1, keepdim=True).clamp(min=1e-12),
        [L.RMSNorm()],
    ),
    "unit length": (
        lambda m, x: x / x.norm(dim=-1, keepdim=True),
        [L.RMSNorm(), L.Scale(1 / math.sqrt(D))],
    ),
    "layer": (lambda m, x: m.gain * layer_norm(x) + m.shift, [L.LayerNorm()]),
    "layer, var": (
        lambda m, x: (
            (x - x.mean(-1, keepdim=True))
            * (x.var(-1, unbiased=False, keepdim=True) + 1e-6).rsqrt()
        ),
        [L.LayerNorm()],
    ),
    "layer, unbiased": (
        lambda m, x: (
            m.gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + m.shift
        ),
        [L.LayerNorm(), L.Scale(math.sqrt((D - 1) / D))],
    ),
    "nn.RMSNorm": (lambda m, x: F.rms_norm(x, (D,), m.gain), [L.RMSNorm()]),
    "DyT": (
        lambda m, x: m.gain * torch.tanh(0.5 * x) + m.shift,
        [L.Nonlinear(sp.tanh(sp.Symbol("x", real=True) / 2))],
    ),
}

linear, image = nn.Linear, nn.Conv2d
ZOO: dict[str, Callable[[], tuple[Any, tuple[int, ...], kc.Network]]] = {
    "swiglu": lambda: (
        Model(swiglu, up=linear(D, 64), down=linear(32, D)),
        DENSE,
        gated(32, "swish"),
    ),
    "swiglu on tokens": lambda: (
        Model(swiglu, up=linear(D, 64), down=linear(32, D)),
        TOKENS,
        gated(32, "swish", (T,)),
    ),
    "swiglu apart": lambda: (
        Model(swiglu_apart, gate=linear(D, 32), up=linear(D, 32), down=linear(32, D)),
        DENSE,
        gated(32, "swish"),
    ),
    "glu": lambda: (
        Model(lambda m, x: m.down(F.glu(m.up(x))), up=linear(D, 64), down=linear(32, D)),
        DENSE,
        glu_twin(),
    ),
    "split behind the activation": lambda: (
        Model(
            lambda m, x: m.down(math.prod(F.gelu(m.up(x)).split(32, -1), start=1)),
            up=linear(D, 64),
            down=linear(32, D),
        ),
        DENSE,
        gated(32, "gelu", both=True),
    ),
    "every second channel": lambda: (
        Model(
            lambda m, x: (lambda h: m.down(F.silu(h[..., ::2]) * h[..., 1::2]))(m.up(x)),
            up=linear(D, 64),
            down=linear(32, D),
        ),
        DENSE,
        gated(32, "swish"),
    ),
    "squeeze and excitation": lambda: (
        Model(
            squeeze_excite,
            conv=image(3, D, 3, padding=1),
            squeeze=image(D, 4, 1),
            open=image(4, D, 1),
            out=image(D, D, 1),
        ),
        IMAGE,
        se_twin(),
    ),
    "convnext": lambda: (
        Model(
            convnext,
            stem=image(3, D, 2, 2),
            depthwise=image(D, D, 7, padding=3, groups=D),
            norm=nn.LayerNorm(D),
            up=linear(D, 4 * D),
            down=linear(4 * D, D),
            gamma=nn.Parameter(1e-2 * torch.ones(D)),
        ),
        IMAGE,
        convnext_twin(),
    ),
    "gpt": lambda: (gpt_block(lambda *x: heads(*x, is_causal=True)), TOKENS, gpt_twin(CAUSAL)),
    "gpt by hand": lambda: (gpt_block(by_hand), TOKENS, gpt_twin(CAUSAL)),
    "encoder": lambda: (gpt_block(), TOKENS, gpt_twin(UNIFORM)),
    "mixer": lambda: (lambda model: (model, TOKENS, mixer_twin(model)))(mixer_model()),
    **{
        f"{name} norm": lambda entry=entry: (
            norm_model(entry[0]),
            DENSE,
            chained(DENSE, Affine(D), *entry[1], Affine(D)),
        )
        for name, entry in NORMS.items()
    },
}
