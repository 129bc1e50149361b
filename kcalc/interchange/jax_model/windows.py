"""Read sums, means and maxima over axes and windows, and random masks."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from ..trace import Drop, Op, Pointwise, Pooling
from .jaxpr_values import DroppedOut, KnownArray, Padded, Ref, Value, WindowSum, made_shape
from .moving import inserted, lifted, location_axes
from .pointwise import select
from .reader import JaxReader, rule

# {reduction: (label, name in messages)}; JAX computes a mean as a sum and a division
TOLD = {"sum": ("mean", "sum or mean"), "max": ("max", ""), "min": ("min", "minimum")}
AGREE = 5.0  # allowed deviation of the kept fraction from its expectation, in standard deviations


@rule("reduce_sum", "reduce_max", "reduce_min")
def _reduce(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref, axes = values[0], sorted(int(a) for a in eqn.params["axes"])
    assert isinstance(ref, Ref)
    if not axes:
        return [ref]
    kind = eqn.primitive.name.partition("_")[2]
    ref = reader.spread(ref)
    if kind == "min":
        ref = _applied(reader, ref, lambda x: -x, "neg")
    bases = tuple(sorted(ref.order[a] for a in axes))
    before = reader.ops[ref.name].shape
    shape = [size for b, size in enumerate(before) if b not in bases]
    label, told = TOLD[kind]
    fields = {"kind": "mean" if kind == "sum" else "max", "axes": bases, "told": told}
    name = reader.add(Pooling, label, shape, [ref.name], **fields)
    out = ref.without(axes, name)
    if kind == "sum":
        count = sp.Integer(prod(before[b] for b in bases))
        return [_applied(reader, out, lambda x: x * count, "sum")]
    return [_applied(reader, out, lambda x: -x, "neg") if kind == "min" else out]


def _applied(reader: JaxReader, ref: Ref, function: Any, label: str) -> Ref:
    return reader.over(ref, Pointwise, reader.wish(label), function=function, label=label)


@rule("reduce_window_max", "reduce_window_sum")
def _window(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref, params = values[0], dict(eqn.params)
    assert isinstance(ref, Ref)
    if any(d != 1 for d in (*params["base_dilation"], *params["window_dilation"])):
        return reader.not_read(
            "dilated pooling", "its windows have gaps, and kcalc has no rule for this"
        )
    ref = reader.spread(ref)
    busy = [
        a
        for a, k in enumerate(params["window_dimensions"])
        if k != 1 or params["window_strides"][a] != 1 or tuple(params["padding"][a]) != (0, 0)
    ]
    if not busy:
        return [ref]
    ref, extra = lifted(reader, ref, busy)
    kept = [a for a in range(len(eqn.invars[0].aval.shape)) if a not in extra]
    found = _pooled(reader, eqn, ref, kept, busy)
    if found is None:
        return reader.not_read(
            "pooling over channels or examples",
            "its windows also cover channels or examples",
        )
    return [inserted(reader, found, extra)]


def _pooled(reader: JaxReader, eqn: Any, ref: Ref, kept: list[int], busy: list[int]) -> Ref | None:
    """Read pooling of ``ref``, whose windows move along the axes ``busy`` of the equation.

    ``kept``: for each axis of ``ref``, the corresponding axis of the equation.
    """
    params, sizes = eqn.params, made_shape(eqn)
    back = {b: a for a, b in zip(kept, ref.order, strict=True)}
    places = {a: b for b, a in back.items()}
    axes = location_axes(reader, len(ref.shape), {places[a] for a in busy})
    if axes is None or back[0] in busy:
        return None
    kind = "max" if eqn.primitive.name.endswith("max") else "mean"
    window = tuple(int(params["window_dimensions"][back[b]]) for b in axes)
    stride = tuple(int(params["window_strides"][back[b]]) for b in axes)
    pads = tuple((int(low), int(high)) for low, high in (params["padding"][back[b]] for b in axes))
    name, pads = _unpadded(reader, ref.name, axes, pads, -np.inf if kind == "max" else None)
    pooled = replace(ref, shape=tuple(sizes[a] for a in kept))
    shape = reader.base_shape(pooled)
    label = reader.wish("max_pool" if kind == "max" else "mean_pool")
    fields = {"kind": kind, "axes": axes, "window": window, "stride": stride, "padding": pads}
    if kind == "mean" and any(pad != (0, 0) for pad in pads):
        pooling = Pooling(name=label, shape=shape, reads=(name,), source=reader.source, **fields)  # type: ignore[arg-type]
        made = reader.put(WindowSum, f"{label}.sum", shape, [name], pooling=pooling)
        return replace(pooled, name=made)
    out = replace(pooled, name=reader.put(Pooling, label, shape, [name], **fields))
    count = sp.Integer(prod(window))
    return out if kind == "max" else _applied(reader, out, lambda x: x * count, "window_sum")


def _unpadded(
    reader: JaxReader, name: str, axes: tuple[int, ...], pads: Any, value: float | None
) -> tuple[str, Any]:
    op = reader.ops[name]
    if value is None or not isinstance(op, Padded) or op.value != value or op.mode != "zeros":
        return name, pads
    if any(p != (0, 0) for a, p in enumerate(op.pads) if a not in axes):
        return name, pads
    return op.reads[0], tuple(
        (low + op.pads[a][0], high + op.pads[a][1])
        for (low, high), a in zip(pads, axes, strict=True)
    )


@rule("div")
def _divide(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    first, second = values
    if (
        isinstance(first, Ref)
        and isinstance(second, KnownArray)
        and isinstance(reader.ops[first.name], WindowSum)
    ):
        found = _window_mean(reader, first, second)
        if found is not None:
            return [found]
    return _masked_or(reader, eqn, values)


def _window_mean(reader: JaxReader, ref: Ref, counts: KnownArray) -> Ref | None:
    """Read sums over padded windows, divided by the window size or the number of entries."""
    op: Any = reader.ops[ref.name]
    pooling, before = op.pooling, reader.ops[op.reads[0]].shape
    wanted = np.ones(())
    for axis, k, s, (low, high) in zip(
        pooling.axes, pooling.window, pooling.stride, pooling.padding, strict=True
    ):
        starts = np.arange((before[axis] + low + high - k) // s + 1) * s - low
        inside = np.minimum(starts + k, before[axis]) - np.maximum(starts, 0)
        wanted = wanted[..., None] * inside
    full = [1] * len(op.shape)
    for axis, size in zip(sorted(pooling.axes), wanted.shape, strict=True):
        full[axis] = size
    given = np.asarray(counts.array, dtype=np.float64)
    mine = np.broadcast_to(given, ref.shape).transpose(
        [ref.order.index(b) for b in range(len(ref.order))]
    )
    counts_zeros = bool((mine == prod(pooling.window)).all())
    if not counts_zeros and not np.array_equal(
        mine, np.broadcast_to(wanted.reshape(full), op.shape)
    ):
        return None
    fields = {
        name: getattr(pooling, name) for name in ("kind", "axes", "window", "stride", "padding")
    }
    fields["counts_zeros"] = counts_zeros
    return reader.over(ref, Pooling, pooling.name, op.reads[0], **fields)


# -- random masks ----------------------------------------------------------------------------------


@rule("mul")
def _multiply(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    mask = next((v for v in values if isinstance(v, KnownArray) and v.random), None)
    ref = next((v for v in values if isinstance(v, Ref)), None)
    if mask is not None and ref is not None:
        array = mask.compact().astype(np.float64)
        sizes = np.unique(array)
        # a single number other than 0 and 1 may be a random factor
        alike = len(sizes) == 1 and (array.size > 1 or sizes[0] in (0, 1))
        if sizes[0] >= 0 and (alike or (len(sizes) == 2 and sizes[0] == 0)):
            return [_dropped(reader, ref, array != 0, float(sizes[-1]) or 1.0)]
        return reader.not_read(
            "random numbers",
            "it multiplies a feature map by random numbers that are not a dropout mask",
        )
    return _masked_or(reader, eqn, values)


@rule("select_n")
def _select(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    which, cases = values[0], values[1:]
    if isinstance(which, KnownArray) and which.random and len(cases) == 2:
        return _random_choice(reader, eqn, which, values)
    if isinstance(which, KnownArray) and which.number is not None:
        return [cases[int(which.number)]]
    return [reader.pointwise(eqn, values, select, "where")]


def _random_choice(
    reader: JaxReader, eqn: Any, which: KnownArray, values: list[Value]
) -> list[Value]:
    for kept, other in ((1, 0), (0, 1)):
        chosen, constant = values[1 + kept], values[1 + other]
        if (
            isinstance(chosen, Ref)
            and isinstance(constant, KnownArray)
            and constant.number is not None
            and constant.number == 0
        ):
            return [_dropped(reader, chosen, which.compact().astype(bool) == bool(kept), 1.0)]
    return reader.not_read("random choice", "it chooses between feature maps at random")


def _dropped(reader: JaxReader, ref: Ref, kept: np.ndarray, scale: float) -> Ref:
    """Read a product of a feature map and an array that is ``scale`` where ``kept``, else 0.

    The product is dropout if ``scale``, or an earlier factor, is 1 / (fraction kept).
    """
    mean, count = float(np.mean(kept)), int(kept.size)
    before = reader.ops[ref.name]
    if scale != 1 and _agrees(1 / scale, mean, count):
        return _drop(reader, ref, ref.name, 1 / scale)
    factor = _factor(before)
    if scale == 1 and factor is not None and factor > 1 and _agrees(1 / factor, mean, count):
        return _drop(reader, ref, before.reads[0], 1 / factor)
    return reader.over(ref, DroppedOut, reader.wish("mask"), kept=mean, count=count)


def _agrees(keep: float, mean: float, count: int) -> bool:
    return 0 < keep <= 1 and abs(mean - keep) <= AGREE * (keep * (1 - keep) / count) ** 0.5 + 1e-9


def _drop(reader: JaxReader, ref: Ref, source: str, keep: float) -> Ref:
    rate = round(1 - float(str(np.float32(keep))), 7)
    return reader.over(replace(ref, name=source), Drop, reader.wish("dropout"), rate=rate)


def _factor(op: Op) -> float | None:
    """Return c if an operation multiplies its input by the number c, else None."""
    if not isinstance(op, Pointwise) or len(op.reads) != 1 or op.label not in ("mul", "div"):
        return None
    found = op.function(sp.Integer(1))
    return (
        float(found)
        if getattr(found, "is_number", False) and op.function(sp.Integer(2)) == 2 * found
        else None
    )


def _masked_or(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    """Read an elementwise function, or dropout if it rescales a randomly masked array."""
    ref = next((v for v in values if isinstance(v, Ref)), None)
    (made,) = reader.elementwise(eqn, values)
    masked = reader.ops[ref.name] if ref is not None else None
    if (
        isinstance(masked, DroppedOut)
        and isinstance(made, Ref)
        and isinstance(values[0], Ref) != isinstance(values[1], Ref)
    ):
        factor = _factor(reader.ops[made.name])
        if factor is not None and factor >= 1 and _agrees(1 / factor, masked.kept, masked.count):
            del reader.ops[made.name]
            return [_drop(reader, made, masked.reads[0], 1 / factor)]
    return [made]
