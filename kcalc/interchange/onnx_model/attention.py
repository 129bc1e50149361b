"""Read transformer operators: embeddings, fused attention and rotary embeddings.

Each operator is expanded into several operations of a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ..trace import Attend, Copies, Join, Part, Pointwise, Reshape, Transpose
from .graph_values import Array, Made, Node, Value, constant, rule
from .linear import dense
from .reasons import CACHED, CAPPED, reason_for

# swaps (examples, tokens, heads, channels) and (examples, heads, tokens, channels)
HEADS_OUTSIDE = (
    0,
    2,
    1,
    3,
)


@rule("Attention")
def attention(node: Node) -> Made:
    """Read Attention from the ONNX standard.

    Queries, keys and values have their heads on axis 1, or merged with the channels on the last
    axis.
    """
    parts = [node.value(i) for i in range(3)]
    if (
        any(value.op is None or value.rank not in (3, 4) for value in parts)
        or len({value.rank for value in parts}) > 1
    ):
        return None
    what, _ = reason_for(node)
    if node.optional(4) is not None or node.optional(5) is not None or node.optional(6) is not None:
        return node.unread(what, CACHED)
    if node.real("softcap", 0.0) != 0:
        return node.unread(what, CAPPED)
    flat = parts[0].rank == 3
    if flat:
        counts = [node.whole("q_num_heads"), *(node.whole("kv_num_heads"),) * 2]
        parts = [
            _split(node.at(name), value, count)
            for name, value, count in zip("qkv", parts, counts, strict=True)
        ]
    scale = node.real("scale", parts[0].shape[-1] ** -0.5)
    made = _attended(node, parts, node.optional(3), scale, bool(node.whole("is_causal")))
    return _joined(node, made) if flat else made


@rule("Attention", domain="com.microsoft")
def packed_attention(node: Node) -> Made:
    """Read Attention from ONNX Runtime, in which one matrix produces queries, keys and values."""
    x, weight, bias = node.value(0), node.value(1), node.optional(2)
    what, reason = reason_for(node)
    if (
        x.rank != 3
        or x.op is None
        or weight.array is None
        or weight.rank != 2
        or (bias is not None and bias.array is None)
    ):
        return None
    if any(value is not None for value in node.inputs[3:]) or node.whole("do_rotary"):
        return node.unread(what, CACHED)
    heads, total = node.whole("num_heads"), weight.shape[1]
    sizes = node.wholes("qkv_hidden_sizes") or (total // 3,) * 3
    if sum(sizes) != total or len(sizes) != 3 or weight.shape[0] != x.shape[2]:
        raise node.fail(
            f"its weights of shape {weight.shape} cannot produce queries, keys and values of sizes "
            f"{sizes[:8]}"
        )
    made = dense(node.at("qkv"), x, weight, bias)
    ends = [sum(sizes[: i + 1]) for i in range(3)]
    parts = []
    for name, size, end in zip("qkv", sizes, ends, strict=True):
        span = {"what": what, "reason": reason, "axis": 2, "places": range(end - size, end)}
        cut = node.at(name).emit(Part, (*x.shape[:2], size), (made,), **span)
        parts.append(_split(node.at(name), cut, heads))
    scale = node.real("scale", 0.0) or parts[0].shape[-1] ** -0.5
    return _joined(
        node,
        _attended(node, parts, None, scale, bool(node.whole("unidirectional"))),
    )


@rule("MultiHeadAttention", domain="com.microsoft")
def heads_attention(node: Node) -> Made:
    """Read MultiHeadAttention from ONNX Runtime.

    Queries, keys and values have shape (examples, tokens, channels). Biases, masks and caches are
    not supported.
    """
    if len(node.inputs) < 3 or any(
        value is None or value.op is None or value.rank != 3 for value in node.inputs[:3]
    ):
        return None
    if any(value is not None for i, value in enumerate(node.inputs[3:]) if i != 2):
        return node.unread(reason_for(node)[0], CACHED)
    heads = node.whole("num_heads")
    parts = [_split(node.at(name), node.value(i), heads) for i, name in enumerate("qkv")]
    scale = node.real("scale", 0.0) or parts[0].shape[-1] ** -0.5
    made = _attended(node, parts, node.optional(5), scale, bool(node.whole("unidirectional")))
    return _joined(node, made)


def _split(node: Node, x: Value, heads: int) -> Value:
    """Reshape (examples, tokens, channels) to (examples, heads, tokens, channels per head)."""
    if heads < 1 or x.shape[2] % heads:
        raise node.fail(f"{x.shape[2]} channels cannot be split into {heads} equal heads")
    shape = (*x.shape[:2], heads, x.shape[2] // heads)
    split = node.at("split").emit(Reshape, shape, (x,))
    return node.at("heads").emit(
        Transpose,
        [shape[a] for a in HEADS_OUTSIDE],
        (split,),
        order=HEADS_OUTSIDE,
    )


def _joined(node: Node, x: Value) -> Value:
    """Reverse :func:`_split`."""
    turned = node.at("tokens").emit(
        Transpose,
        [x.shape[a] for a in HEADS_OUTSIDE],
        (x,),
        order=HEADS_OUTSIDE,
    )
    return node.at("join").emit(Reshape, (*turned.shape[:2], prod(turned.shape[2:])), (turned,))


def _attended(
    node: Node,
    parts: Sequence[Value],
    mask: Value | None,
    scale: float,
    causal: bool,
) -> Value:
    """Return softmax(scale q k^T + mask) v for all heads; heads may share keys and values."""
    queries, *pair = parts
    what, reason = reason_for(node)
    heads, shared = queries.shape[1], pair[0].shape[1]
    if (
        heads % shared
        or pair[1].shape[1] != shared
        or queries.shape[3] != pair[0].shape[3]
        or pair[0].shape[2] != pair[1].shape[2]
    ):
        raise node.fail(
            f"queries, keys and values of shapes {', '.join(str(value.shape) for value in parts)} "
            f"do not fit together"
        )
    if shared != heads:
        told = {"what": what, "reason": reason, "axis": 1, "count": heads // shared, "each": True}
        pair = [
            node.at("shared").emit(Copies, _with(v.shape, 1, heads), (v,), **told) for v in pair
        ]
    reads = (queries, *pair) if mask is None else (queries, *pair, _added(mask))
    shape = (*queries.shape[:3], pair[1].shape[3])
    fields = {"what": what, "reason": reason, "scale": float(scale), "causal": causal}
    return node.emit(Attend, shape, reads, **fields)


def _with(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _added(mask: Value) -> Value:
    """Convert a mask to values that are added to the scores."""
    if mask.array is None or mask.array.dtype != bool:
        return mask
    return constant(np.where(mask.numbers, 0.0, -np.inf).astype(np.float32))


@rule("RotaryEmbedding")
def rotated(node: Node) -> Made:
    """Read RotaryEmbedding with constant angles, which rotate pairs of channels."""
    x, cosines, sines = node.value(0), node.value(1), node.value(2)
    if x.op is None or x.rank not in (3, 4):
        return None
    if cosines.array is None or sines.array is None:
        return node.unread("rotary embedding", "its angles depend on the input")
    places, interleaved = node.optional(3), bool(node.whole("interleaved"))
    if places is not None and places.array is None:
        return node.unread("rotary embedding", "the positions of the tokens depend on the input")
    angles = [value.numbers for value in (cosines, sines)]
    if places is not None:
        if not ((places.numbers >= 0) & (places.numbers < len(angles[0]))).all():
            raise node.fail(
                f"its positions are not all in the range of its {len(angles[0])} angles"
            )
        angles = [array[places.numbers] for array in angles]
    flat = x.rank == 3
    heads = _split(node, x, node.whole("num_heads")) if flat else x
    width = node.whole("rotary_embedding_dim") or heads.shape[3]
    tokens = heads.shape[2]
    if (
        width % 2
        or width > heads.shape[3]
        or any(a.shape[-1] != width // 2 or a.shape[-2] != tokens for a in angles)
    ):
        raise node.fail(
            f"its angles of shape {angles[0].shape} do not fit {width} channels of {tokens} tokens"
        )
    made = _turned(
        node,
        heads,
        [a.reshape(-1, 1, tokens, width // 2) for a in angles],
        width,
        interleaved,
    )
    return _joined(node, made) if flat else made


def _turned(
    node: Node,
    x: Value,
    angles: list[Array],
    width: int,
    interleaved: bool,
) -> Value:
    """Rotate pairs (a, b) of channels to (cos a - sin b, sin a + cos b); keep other channels."""
    told = {"what": "slice", "reason": "it takes some of the channels"}

    def cut(name: str, start: int, stop: int, step: int = 1) -> Value:
        places = range(start, stop, step)
        shape = (*x.shape[:3], len(places))
        return node.at(name).emit(Part, shape, (x,), axis=3, places=places, **told)

    half = width // 2
    first = cut("first", 0, width, 2) if interleaved else cut("first", 0, half)
    second = cut("second", 1, width, 2) if interleaved else cut("second", half, width)
    cosine, sine = (replace(constant(array), maker=node) for array in angles)
    made = [
        node.at(name).emit(
            Pointwise,
            first.shape,
            (first, second, cosine, sine),
            function=function,
            label="rotation",
        )
        for name, function in (
            ("cos", lambda a, b, c, s: c * a - s * b),
            ("sin", lambda a, b, c, s: s * a + c * b),
        )
    ]
    if interleaved:
        wide = [node.at("pair").emit(Reshape, (*first.shape, 1), (value,)) for value in made]
        pairs = node.at("pairs").emit(Join, (*first.shape, 2), wide, axis=4)
        turned = node.at("turned").emit(Reshape, (*x.shape[:3], width), (pairs,))
        made = [turned]
    if width < x.shape[3]:
        made.append(cut("rest", width, x.shape[3]))
    return made[0] if len(made) == 1 else node.emit(Join, x.shape, made, axis=3)
