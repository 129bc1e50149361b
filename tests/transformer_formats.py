"""One small transformer with known weights in every format that is read.

{format: what kc.read takes}.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from torch_zoo.twin import Twin

import kcalc as kc

os.environ.setdefault("KERAS_BACKEND", "jax")
L = kc.layers
V, T, D, H, S, WIDE = 23, 6, 16, 4, 2, 40
HEAD = D // H
EPSILON = 1e-5
IDS = (np.arange(2 * T).reshape(2, T) * 5) % V
Weights = dict[str, np.ndarray]


def weights() -> Weights:
    """Matrices (inputs, outputs).

    Of an embedding, positions, attention with H heads (S shared ones: ks, vs), an MLP, a readout.
    """
    random = np.random.default_rng(0)
    shapes = {"tok": (V, D), "pos": (T, D), "ks": (D, S * HEAD), "vs": (D, S * HEAD)}
    shapes |= dict.fromkeys("qkvo", (D, D)) | dict.fromkeys(("up", "gate"), (D, WIDE))
    scales = {"tok": 1.0, "pos": 0.5}
    return {
        name: (random.normal(size=shape) * scales.get(name, shape[0] ** -0.5)).astype(np.float32)
        for name, shape in {**shapes, "down": (WIDE, D), "out": (D, V)}.items()
    }


def angles() -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines (tokens, pairs) of rotary embeddings of base 10000."""
    found = np.arange(T)[:, None] * 10000.0 ** (-2 * np.arange(HEAD // 2) / HEAD)
    return np.cos(found).astype(np.float32), np.sin(found).astype(np.float32)


# -- by hand ---------------------------------------------------------------------------------------


def _affine(w: np.ndarray) -> L.Affine:
    return L.Affine(w.shape[1], bias=False, sigma_w=_size(w) * math.sqrt(w.shape[0]))


def _size(w: np.ndarray) -> float:
    return float(np.sqrt(np.square(w.astype(float)).mean()))


def network(kind: str, w: Weights) -> kc.Network:
    """The network of a kind: "gpt" with learned positions and LayerNorm, "llama" with rotary,
    shared heads and a gate.
    """
    llama = kind == "llama"
    norm = L.RMSNorm() if llama else L.LayerNorm()
    more: dict[str, Any] = {"key_heads": S, "rotary": 10000.0} if llama else {}
    a = {name: _affine(w[name]) for name in w}
    t = Twin()
    x = t.line(t(L.Input()), L.Embedding(D, V, _size(w["tok"])))
    if not llama:
        x = t(L.Positions("learned", _size(w["pos"]), T), x)
    h = t(norm, x)
    reads = (t(a[name], h) for name in (("q", "ks", "vs") if llama else "qkv"))
    x = t(L.Sum(), x, t.line(t(L.Attend(H, HEAD, True, **more), *reads), a["o"]))
    h = t(norm, x)
    up = t(a["up"], h)
    if llama:
        hidden = t(L.Product(), t.line(h, a["gate"], L.Nonlinear("swish")), up)
    else:
        hidden = t(L.Nonlinear("gelu"), up)
    t.line(t(L.Sum(), x, t(a["down"], hidden)), norm, a["out"])
    return t.network()


# -- JAX -------------------------------------------------------------------------------------------


def jax_gpt(p: Any, ids: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def norm(x: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + EPSILON)

    x = p["tok"][ids] + p["pos"]
    h = norm(x)
    q, k, v = ((h @ p[name]).reshape(*ids.shape, H, HEAD) for name in "qkv")
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
    x = x + mixed @ p["o"]
    x = x + jax.nn.gelu(norm(x) @ p["up"], approximate=False) @ p["down"]
    return norm(x) @ p["out"]


# -- PyTorch and ONNX ------------------------------------------------------------------------------


def built(w: Weights, written_out: bool = False) -> Any:
    """A "llama" in PyTorch, its attention by the library's function or written out."""
    import torch
    from torch import nn
    from torch.nn import functional

    def turned(x: Any) -> Any:
        cosines, sines = map(torch.from_numpy, angles())
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cosines - b * sines, b * cosines + a * sines], dim=-1)

    def norm(x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok = nn.Embedding(V, D)
            self.tok.weight.data = torch.from_numpy(w["tok"])
            for name in ("q", "ks", "vs", "o", "up", "gate", "down", "out"):
                made = nn.Linear(*w[name].shape, bias=False)
                made.weight.data = torch.from_numpy(w[name].T.copy())
                setattr(self, name, made)

        def attend(self, h: Any) -> Any:
            q, k, v = (
                f(h).reshape(len(h), T, -1, HEAD).transpose(1, 2)
                for f in (self.q, self.ks, self.vs)
            )
            q, k = turned(q), turned(k)
            k, v = (x.repeat_interleave(H // S, dim=1) for x in (k, v))
            if written_out:
                mask = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
                scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD)
                made = scores.masked_fill(mask, float("-inf")).softmax(dim=-1) @ v
            else:
                made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o(made.transpose(1, 2).reshape(h.shape))

        def forward(self, ids: Any) -> Any:
            x = self.tok(ids)
            x = x + self.attend(norm(x))
            h = norm(x)
            return self.out(norm(x + self.down(functional.silu(self.gate(h)) * self.up(h))))

    return Model()


def exported(model: Any) -> Any:
    """A PyTorch model as ONNX."""
    import onnx
    import torch

    file = io.BytesIO()
    torch.onnx.export(model.eval(), (torch.from_numpy(IDS),), file, dynamo=False, opset_version=17)
    return onnx.load_from_string(file.getvalue())


class Graph:
    """An ONNX model put together node by node."""

    def __init__(self, w: Weights) -> None:
        self.w, self.nodes, self.held = w, list[Any](), dict[str, np.ndarray]()

    def hold(self, name: str, array: np.ndarray) -> str:
        """A constant."""
        self.held[name] = array
        return name

    def add(self, op: str, reads: str, out: str, **attributes: Any) -> str:
        """A node with one output; weights by their names."""
        from onnx import helper

        self.held |= {name: self.w[name] for name in reads.split() if name in self.w}
        self.nodes.append(helper.make_node(op, reads.split(), [out], **attributes))
        return out

    def norm(self, x: str, out: str) -> str:
        """LayerNormalization or RMSNormalization."""
        self.hold("ones", np.ones(D, np.float32))
        kind = "RMS" if "gate" in self.w else "Layer"
        return self.add(f"{kind}Normalization", f"{x} ones", out, epsilon=EPSILON)

    def projected(self, names: str = "q k v") -> list[str]:
        return [self.add("MatMul", f"h1 {name}", f"h{name}") for name in names.split()]

    def model(self) -> Any:
        """The model that emits "logits"."""
        from onnx import TensorProto, checker, helper, numpy_helper

        held = [numpy_helper.from_array(array, name) for name, array in self.held.items()]
        entry = helper.make_tensor_value_info("ids", TensorProto.INT64, [2, T])
        end = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [2, T, V])
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph(self.nodes, "g", [entry], [end], held)
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        checker.check_model(made)
        return made


def onnx_model(kind: str, attention: Callable[[Graph], str], w: Weights) -> Any:
    """The same transformer of operators.

    ``attention`` adds those from the normalised "h1" to the joined heads.
    """
    llama = kind == "llama"
    g = Graph(w if llama else {name: array for name, array in w.items() if name != "gate"})
    x = g.add("Gather", "tok ids", "embedded")
    x = x if llama else g.add("Add", f"{x} pos", "placed")
    g.norm(x, "h1")
    x = g.add("Add", f"{x} {g.add('MatMul', f'{attention(g)} o', 'mixed')}", "x1")
    g.norm(x, "h2")
    hidden = g.add("MatMul", "h2 up", "raised")
    if llama:
        gate = g.add("MatMul", "h2 gate", "gated")
        silu = g.add("Mul", f"{gate} {g.add('Sigmoid', gate, 'open')}", "silu")
        hidden = g.add("Mul", f"{silu} {hidden}", "hidden")
    else:
        hidden = g.add("Gelu", hidden, "hidden")
    x = g.add("Add", f"{x} {g.add('MatMul', f'{hidden} down', 'lowered')}", "x2")
    g.add("MatMul", f"{g.norm(x, 'h3')} out", "logits")
    return g.model()


def _turned_heads(g: Graph) -> str:
    for name, array in zip(("cos", "sin"), angles(), strict=True):
        g.hold(name, array)
    g.hold("places", np.tile(np.arange(T), (2, 1)))
    q, k, v = g.projected("q ks vs")
    q, k = (
        g.add("RotaryEmbedding", f"{x} cos sin places", f"{x}_turned", num_heads=n)
        for x, n in ((q, H), (k, S))
    )
    return g.add("Attention", f"{q} {k} {v}", "heads", q_num_heads=H, kv_num_heads=S, is_causal=1)


def _written_heads(g: Graph) -> str:
    """As exporters of PyTorch write them, with 0 for rows of infinities (there are none)."""
    held = {
        "mask": np.where(np.tril(np.ones((T, T))), 0, -np.inf),
        "nothing": 0,
        "scale": HEAD**-0.5,
    }
    for name, array in held.items():
        g.hold(name, np.asarray(array, np.float32))
    g.hold("split", np.array([2, T, H, HEAD]))
    g.hold("joined", np.array([2, T, D]))
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    for x, order in zip(g.projected(), orders, strict=True):
        g.add("Transpose", g.add("Reshape", f"{x} split", f"{x}2"), f"{x}3", perm=order)
    g.add("Mul", f"{g.add('MatMul', 'hq3 hk3', 'products')} scale", "scores")
    g.add("Softmax", g.add("Add", "scores mask", "masked"), "a", axis=-1)
    g.add("Where", f"{g.add('IsNaN', 'a', 'n')} nothing a", "a2")
    g.add("Transpose", g.add("MatMul", "a2 hv3", "read"), "turned", perm=[0, 2, 1, 3])
    return g.add("Reshape", "turned joined", "heads")


RUNTIME = {"domain": "com.microsoft", "num_heads": H, "unidirectional": 1}


def _packed_heads(g: Graph) -> str:
    g.hold("qkv", np.concatenate([g.w[name] for name in "qkv"], axis=1))
    return g.add("Attention", "h1 qkv", "heads", **RUNTIME)


def _microsoft_heads(g: Graph) -> str:
    return g.add("MultiHeadAttention", " ".join(g.projected()), "heads", **RUNTIME)


OPERATORS = {
    ("gpt", "onnx, written out"): _written_heads,
    ("llama", "onnx Attention"): _turned_heads,
    ("gpt", "onnx Runtime Attention"): _packed_heads,
    ("gpt", "onnx Runtime MultiHeadAttention"): _microsoft_heads,
}
FORMATS: dict[tuple[str, str], Callable[[Weights], tuple[Any, ...]]] = {
    ("gpt", "jax"): lambda w: (jax_gpt, w, IDS),
    ("llama", "onnx of torch"): lambda w: (exported(built(w)),),
    ("llama", "onnx of torch, written out"): lambda w: (exported(built(w, True)),),
} | {
    case: lambda w, kind=case[0], heads=heads: (onnx_model(kind, heads, w),)
    for case, heads in OPERATORS.items()
}
