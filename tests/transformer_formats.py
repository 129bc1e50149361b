"""One small transformer with known weights in every format that is read.

{format: what kc.read takes}.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kcalc as kc

os.environ.setdefault("KERAS_BACKEND", "jax")
L = kc.layers
V, T, D, H, S, WIDE = 23, 6, 16, 4, 2, 40
HEAD = D // H
EPSILON = 1e-5
IDS = (np.arange(2 * T).reshape(2, T) * 5) % V
Weights = dict[str, np.ndarray]


def weights(seed: int = 0) -> Weights:
    """Matrices (inputs, outputs).

    Of an embedding, positions, attention with H heads (S shared ones: ks, vs), an MLP, a readout.
    """
    random = np.random.default_rng(seed)
    shapes = {
        "tok": (V, D),
        "pos": (T, D),
        "q": (D, D),
        "k": (D, D),
        "v": (D, D),
        "ks": (D, S * HEAD),
        "vs": (D, S * HEAD),
        "o": (D, D),
        "up": (D, WIDE),
        "gate": (D, WIDE),
        "down": (WIDE, D),
        "out": (D, V),
    }
    scales = {"tok": 1.0, "pos": 0.5}
    return {
        name: (random.normal(size=shape) * scales.get(name, shape[0] ** -0.5)).astype(np.float32)
        for name, shape in shapes.items()
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
    llama, norm = kind == "llama", L.RMSNorm if kind == "llama" else L.LayerNorm
    keys, values = ("ks", "vs") if llama else ("k", "v")
    attend = (
        L.Attend(H, HEAD, True, key_heads=S, rotary=10000.0) if llama else L.Attend(H, HEAD, True)
    )
    steps: list[Any] = [
        ("ids", L.Input(), ()),
        ("tok", L.Embedding(D, V, _size(w["tok"])), ("ids",)),
    ]
    if not llama:
        steps.append(("pos", L.Positions("learned", _size(w["pos"]), T), ("tok",)))
    x = steps[-1][0]
    steps += [
        ("n1", norm(), (x,)),
        *((name, _affine(w[name]), ("n1",)) for name in ("q", keys, values)),
        ("att", attend, ("q", keys, values)),
        ("o", _affine(w["o"]), ("att",)),
        ("x1", L.Sum(), (x, "o")),
        ("n2", norm(), ("x1",)),
        ("up", _affine(w["up"]), ("n2",)),
    ]
    if llama:
        steps += [
            ("gate", _affine(w["gate"]), ("n2",)),
            ("phi", L.Nonlinear("swish"), ("gate",)),
            ("hidden", L.Product(), ("phi", "up")),
        ]
    else:
        steps.append(("hidden", L.Nonlinear("gelu"), ("up",)))
    steps += [
        ("down", _affine(w["down"]), ("hidden",)),
        ("x2", L.Sum(), ("x1", "down")),
        ("n3", norm(), ("x2",)),
    ]
    return kc.Network.from_steps([*steps, ("out", _affine(w["out"]), ("n3",))], ["out"])


# -- JAX -------------------------------------------------------------------------------------------


def equinox_gpt(w: Weights) -> Any:
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)

    class Gpt(eqx.Module):
        tok: Any
        pos: Any
        n1: Any
        n2: Any
        n3: Any
        mha: Any
        up: Any
        down: Any
        out: Any

        def __init__(self) -> None:
            self.tok, self.pos = (
                eqx.nn.Embedding(weight=jnp.asarray(w["tok"])),
                jnp.asarray(w["pos"]),
            )
            self.n1, self.n2, self.n3 = (eqx.nn.LayerNorm(D, eps=EPSILON) for _ in range(3))
            names = {"query_proj": "q", "key_proj": "k", "value_proj": "v", "output_proj": "o"}
            mha = eqx.nn.MultiheadAttention(H, D, key=key)
            for long, name in names.items():
                mha = eqx.tree_at(
                    lambda m, long=long: getattr(m, long).weight, mha, jnp.asarray(w[name].T)
                )
            self.mha = mha
            self.up, self.down, self.out = (
                eqx.tree_at(
                    lambda m: m.weight,
                    eqx.nn.Linear(*w[name].shape, use_bias=False, key=key),
                    jnp.asarray(w[name].T),
                )
                for name in ("up", "down", "out")
            )

        def __call__(self, ids: Any) -> Any:
            x = jax.vmap(self.tok)(ids) + self.pos
            h = jax.vmap(self.n1)(x)
            x = x + self.mha(h, h, h, mask=jnp.tril(jnp.ones((T, T), bool)))
            hidden = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.n2)(x)), approximate=False)
            x = x + jax.vmap(self.down)(hidden)
            return jax.vmap(self.out)(jax.vmap(self.n3)(x))

    return Gpt()


# -- PyTorch and ONNX ------------------------------------------------------------------------------


@dataclass
class Built:
    """A PyTorch model of a kind, its attention by the library's function or written out."""

    kind: str
    written_out: bool = False

    def __call__(self, w: Weights) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        llama, written_out = self.kind == "llama", self.written_out

        def linear(name: str) -> Any:
            made = nn.Linear(*w[name].shape, bias=False)
            made.weight.data = torch.from_numpy(w[name].T.copy())
            return made

        def turned(x: Any) -> Any:
            cosines, sines = map(torch.from_numpy, angles())
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * cosines - b * sines, b * cosines + a * sines], dim=-1)

        class Rms(nn.Module):
            def forward(self, x: Any) -> Any:
                return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tok, self.pos = nn.Embedding(V, D), nn.Parameter(torch.from_numpy(w["pos"]))
                self.tok.weight.data = torch.from_numpy(w["tok"])
                self.n1, self.n2, self.n3 = (
                    Rms() if llama else nn.LayerNorm(D, eps=EPSILON) for _ in range(3)
                )
                names = {"k": "ks", "v": "vs"} if llama else {}
                for name in ("q", "k", "v", "o", "up", "gate", "down", "out"):
                    setattr(self, name, linear(names.get(name, name)))

            def attend(self, h: Any) -> Any:
                count, heads = h.shape[0], {"q": H, "k": S if llama else H, "v": S if llama else H}
                q, k, v = (
                    getattr(self, n)(h).reshape(count, T, m, HEAD).transpose(1, 2)
                    for n, m in heads.items()
                )
                if llama:
                    q, k = turned(q), turned(k)
                    k, v = (x.repeat_interleave(H // S, dim=1) for x in (k, v))
                if written_out:
                    mask = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
                    scores = (q @ k.transpose(-1, -2) / math.sqrt(HEAD)).masked_fill(
                        mask, float("-inf")
                    )
                    made = scores.softmax(dim=-1) @ v
                else:
                    made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                return self.o(made.transpose(1, 2).reshape(count, T, D))

            def forward(self, ids: Any) -> Any:
                x = self.tok(ids) if llama else self.tok(ids) + self.pos
                x = x + self.attend(self.n1(x))
                h = self.n2(x)
                hidden = (
                    functional.silu(self.gate(h)) * self.up(h)
                    if llama
                    else functional.gelu(self.up(h))
                )
                x = x + self.down(hidden)
                return self.out(self.n3(x))

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

    def add(self, op: str, reads: str, out: str, domain: str = "", **attributes: Any) -> str:
        """A node with one output; weights by their names."""
        from onnx import helper

        for name in reads.split():
            if name in self.w:
                self.held[name] = self.w[name]
        names = ["" if name == "-" else name for name in reads.split()]
        self.nodes.append(helper.make_node(op, names, [out], domain=domain, **attributes))
        return out

    def norm(self, x: str, out: str) -> str:
        """LayerNormalization or RMSNormalization."""
        self.hold("ones", np.ones(D, np.float32))
        return self.add(
            "RMSNormalization" if "gate" in self.w else "LayerNormalization",
            f"{x} ones",
            out,
            epsilon=EPSILON,
        )

    def model(self, opset: int = 23) -> Any:
        """The model that emits "logits"."""
        from onnx import TensorProto, checker, helper, numpy_helper

        held = [numpy_helper.from_array(array, name) for name, array in self.held.items()]
        entry = helper.make_tensor_value_info("ids", TensorProto.INT64, [2, T])
        end = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [2, T, V])
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_model(
            helper.make_graph(self.nodes, "g", [entry], [end], held),
            opset_imports=opsets,
            ir_version=10,
        )
        checker.check_model(made)
        return made


def onnx_model(kind: str, attention: Callable[[Graph], str]) -> Callable[[Weights], Any]:
    """The same transformer of operators.

    ``attention`` adds those from the normalised "h1" to the joined heads.
    """

    def made(w: Weights) -> Any:
        w = w if kind == "llama" else {name: array for name, array in w.items() if name != "gate"}
        g = Graph(w)
        x = g.add("Gather", "tok ids", "embedded")
        x = x if kind == "llama" else g.add("Add", f"{x} pos", "placed")
        g.norm(x, "h1")
        x = g.add("Add", f"{x} {g.add('MatMul', f'{attention(g)} o', 'mixed')}", "x1")
        g.norm(x, "h2")
        hidden = g.add("MatMul", "h2 up", "raised")
        if kind == "llama":
            gate = g.add("MatMul", "h2 gate", "gated")
            silu = g.add("Mul", f"{gate} {g.add('Sigmoid', gate, 'open')}", "silu")
            hidden = g.add("Mul", f"{silu} {hidden}", "hidden")
        else:
            hidden = g.add("Gelu", hidden, "hidden")
        x = g.add("Add", f"{x} {g.add('MatMul', f'{hidden} down', 'lowered')}", "x2")
        g.add("MatMul", f"{g.norm(x, 'h3')} out", "logits")
        return g.model()

    return made


def _masked_heads(g: Graph) -> str:
    q, k, v = (g.add("MatMul", f"h1 {name}", f"h{name}") for name in "qkv")
    mask = g.hold("mask", np.tril(np.ones((T, T), bool)))
    return g.add("Attention", f"{q} {k} {v} {mask}", "heads", q_num_heads=H, kv_num_heads=H)


def _turned_heads(g: Graph) -> str:
    cosines, sines = (
        g.hold(name, array) for name, array in zip(("cos", "sin"), angles(), strict=True)
    )
    places = g.hold("places", np.tile(np.arange(T), (2, 1)))
    q, k, v = (g.add("MatMul", f"h1 {name}", f"h{name}") for name in ("q", "ks", "vs"))
    q, k = (
        g.add("RotaryEmbedding", f"{x} {cosines} {sines} {places}", f"{x}_turned", num_heads=n)
        for x, n in ((q, H), (k, S))
    )
    return g.add("Attention", f"{q} {k} {v}", "heads", q_num_heads=H, kv_num_heads=S, is_causal=1)


def _packed_heads(g: Graph) -> str:
    g.hold("qkv", np.concatenate([g.w[name] for name in "qkv"], axis=1))
    return g.add("Attention", "h1 qkv", "heads", "com.microsoft", num_heads=H, unidirectional=1)


def _microsoft_heads(g: Graph) -> str:
    q, k, v = (g.add("MatMul", f"h1 {name}", f"h{name}") for name in "qkv")
    return g.add(
        "MultiHeadAttention",
        f"{q} {k} {v}",
        "heads",
        "com.microsoft",
        num_heads=H,
        unidirectional=1,
    )


FORMATS: dict[tuple[str, str], Callable[[Weights], tuple[Any, ...]]] = {
    ("gpt", "equinox"): lambda w: (equinox_gpt(w), IDS[0]),
    ("gpt", "torch"): lambda w: (Built("gpt")(w), _tensor(IDS)),
    ("llama", "torch"): lambda w: (Built("llama")(w), _tensor(IDS)),
    ("gpt", "onnx of torch"): lambda w: (exported(Built("gpt")(w)),),
    ("gpt", "onnx of torch, written out"): lambda w: (exported(Built("gpt", True)(w)),),
    ("llama", "onnx of torch"): lambda w: (exported(Built("llama")(w)),),
    ("gpt", "onnx Attention with a mask"): lambda w: (onnx_model("gpt", _masked_heads)(w),),
    ("llama", "onnx Attention"): lambda w: (onnx_model("llama", _turned_heads)(w),),
    ("gpt", "onnx Runtime Attention"): lambda w: (onnx_model("gpt", _packed_heads)(w),),
    ("gpt", "onnx Runtime MultiHeadAttention"): lambda w: (onnx_model("gpt", _microsoft_heads)(w),),
}  # fmt: skip


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)
