"""Read primitives that rearrange array entries.

The primitives are reshapes, transposes, broadcasts, slices, padding and concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ..trace import Held, Join, Part, Pointwise, Pooling, Prefixed, Reshape
from .jaxpr_values import PADDINGS, KnownArray, Padded, Ref, Value, made_shape
from .known import constants_of
from .linear import sliced_linear
from .pointwise import inner_jaxpr
from .reader import JaxReader, inverse, rule
from .stops import trained

# maximum number of entries for recognising padding; float32 represents such integers exactly
ENTRIES = 2**24


@rule("transpose")
def _transpose(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref, turn = values[0], eqn.params["permutation"]
    assert isinstance(ref, Ref)
    return [ref.turned(turn)]


@rule("reshape")
def _reshape(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref, shape = values[0], made_shape(eqn)
    assert isinstance(ref, Ref)
    before = [k for k in ref.shape if k != 1]
    if before == [k for k in shape if k != 1] and ref.shape != shape:
        return [_ones(reader, ref, shape)]
    return [ref if ref.shape == shape else reader.reshaped(ref, shape)]


def _ones(reader: JaxReader, ref: Ref, shape: tuple[int, ...]) -> Ref:
    """Read a reshape that only adds or drops axes of size 1."""
    gone = [a for a, size in enumerate(ref.shape) if size == 1]
    ref = dropped(reader, ref, gone) if gone else ref
    return inserted(reader, ref, [a for a, size in enumerate(shape) if size == 1])


def dropped(reader: JaxReader, ref: Ref, axes: list[int]) -> Ref:
    """Return the array without some axes of size 1."""
    bases = {ref.order[a] for a in axes}
    if bases == set(reader.expanded.get(ref.name, ())):
        name = reader.ops[ref.name].reads[0]
    else:
        shape = [size for b, size in enumerate(reader.ops[ref.name].shape) if b not in bases]
        name = reader.add(Reshape, "squeeze", shape, [ref.name])
    return ref.without(axes, name)


def lifted(reader: JaxReader, ref: Ref, busy: Sequence[int]) -> tuple[Ref, list[int]]:
    """Undo the insertion of axes of size 1.

    Returns: the array, and the inserted axes as axes of ``ref``. If an inserted axis is in
    ``busy``, the axes along which the next operation acts, nothing changes.
    """
    bases = reader.expanded.get(ref.name, ())
    axes = [a for a, b in enumerate(ref.order) if b in bases]
    return (dropped(reader, ref, axes), axes) if axes and not set(axes) & set(busy) else (ref, [])


def inserted(reader: JaxReader, ref: Ref, axes: list[int]) -> Ref:
    """Insert axes of size 1; ``axes`` are their positions in the result."""
    if not axes:
        return ref
    total = len(ref.shape) + len(axes)
    old = iter(range(len(ref.shape)))
    tokens: list[Any] = [("new", a) if a in axes else ref.order[next(old)] for a in range(total)]
    base: list[Any] = list(range(len(ref.shape)))
    for place, token in enumerate(tokens):
        if isinstance(token, tuple):
            base.insert(0 if place == 0 else base.index(tokens[place - 1]) + 1, token)
    before = reader.ops[ref.name].shape
    name = reader.add(
        Reshape,
        "expand",
        [1 if isinstance(t, tuple) else before[t] for t in base],
        [ref.name],
    )
    reader.expanded[name] = tuple(b for b, t in enumerate(base) if isinstance(t, tuple))
    sizes = iter(ref.shape)
    return Ref(
        name,
        tuple(base.index(t) for t in tokens),
        tuple(1 if isinstance(t, tuple) else next(sizes) for t in tokens),
    )


@rule("squeeze")
def _squeeze(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref = values[0]
    assert isinstance(ref, Ref)
    axes = [a % len(ref.shape) for a in eqn.params["dimensions"]]
    return [dropped(reader, ref, axes) if axes else ref]


@rule("expand_dims")
def _expand(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref = values[0]
    assert isinstance(ref, Ref)
    return [inserted(reader, ref, [int(a) for a in eqn.params["dimensions"]])]


@rule("broadcast_in_dim")
def _broadcast(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref = values[0]
    shape = made_shape(eqn)
    places = tuple(eqn.params["broadcast_dimensions"])
    assert isinstance(ref, Ref)
    return [
        replace(
            inserted(reader, ref, [a for a in range(len(shape)) if a not in places]), shape=shape
        )
    ]


@rule("concatenate")
def _concatenate(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    if any(isinstance(v, KnownArray) for v in values):
        return _prefixed(reader, eqn, values)
    refs = [reader.spread(v) for v in values if isinstance(v, Ref)]
    order = refs[0].order
    names = [reader.aligned(ref, order) for ref in refs]
    axis = order[eqn.params["dimension"]]
    shape = list(reader.ops[names[0]].shape)
    shape[axis] = sum(reader.ops[name].shape[axis] for name in names)
    made = reader.add(Join, "concat", shape, names, axis=axis)
    return [Ref(made, order, tuple(shape[b] for b in order))]


def _prefixed(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    """Read concatenation with arrays that depend on no input, such as class tokens."""
    what = "concatenation with a constant"
    reason = "it concatenates an array and a feature map, and kcalc has no rule for this"
    (ref, *others), axis = [v for v in values if isinstance(v, Ref)], eqn.params["dimension"]
    behind = values[0] is ref
    if others or not (behind or values[-1] is ref):
        return reader.not_read(what, reason)
    arrays = [np.asarray(v.array) for v in values if isinstance(v, KnownArray)]
    ref = reader.spread(ref)
    value = np.concatenate(arrays, axis).transpose(inverse(ref.order))
    shape = [
        n + (value.shape[b] if b == ref.order[axis] else 0)
        for b, n in enumerate(reader.ops[ref.name].shape)
    ]
    fields = {
        "what": what,
        "reason": reason,
        "axis": ref.order[axis],
        "value": value,
        "behind": behind,
        "trained": trained("concatenate", (v for v in values if isinstance(v, KnownArray))),
    }
    made = reader.add(Prefixed, what.replace(" ", "_"), shape, [ref.name], **fields)
    return [Ref(made, ref.order, made_shape(eqn))]


@rule("pad")
def _pad(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref, value = values
    config = [tuple(int(k) for k in triple) for triple in eqn.params["padding_config"]]
    if (
        not isinstance(ref, Ref)
        or not isinstance(value, KnownArray)
        or any(low < 0 or high < 0 or inner for low, high, inner in config)
    ):
        return reader.not_read(
            "padding",
            "it crops or dilates a feature map, or pads it with values that depend on the input",
        )
    if all(low == high == 0 for low, high, _ in config):
        return [ref]
    pads = tuple((low, high) for low, high, _ in config)
    return [_padded(reader, ref, pads, float(np.asarray(value.array)), "zeros")]


Pads = tuple[tuple[int, int], ...]


def _padded(reader: JaxReader, ref: Ref, around: Pads, value: float, mode: str) -> Ref:
    ref = reader.spread(ref)
    pads = tuple(around[a] for a in inverse(ref.order))
    shape = [size + sum(pad) for size, pad in zip(reader.ops[ref.name].shape, pads, strict=True)]
    fields = {"pads": pads, "value": value, "mode": mode}
    made = reader.add(Padded, "pad", shape, [ref.name], **fields)
    return Ref(made, ref.order, tuple(shape[b] for b in ref.order))


@rule("_pad")
def _numpy_pad(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    """Read jnp.pad.

    Modes other than circular, reflect and replicate are read equation by equation.
    """
    inner, ref, shape = inner_jaxpr(eqn), values[0], made_shape(eqn)
    alone = all(isinstance(v, KnownArray) for v in values[1:])
    if alone and isinstance(ref, Ref) and len(ref.shape) == len(shape):
        found = _around(reader, inner, ref, shape)
        if found is not None:
            return [found]
    return reader.run(inner.jaxpr, constants_of(inner), values)


def _around(reader: JaxReader, inner: Any, ref: Ref, shape: tuple[int, ...]) -> Ref | None:
    """Call a function on an array of entry indices to recognise the padding that it applies.

    Returns None for constant padding and for modes that PADDINGS does not name.
    """
    from jax.core import eval_jaxpr

    totals = [after - before for before, after in zip(ref.shape, shape, strict=True)]
    ways = np.prod([float(total + 1) for total in totals])
    if not any(totals) or min(totals) < 0 or ways * np.prod(shape) > ENTRIES:
        return None
    entries = np.arange(np.prod(ref.shape)).reshape(ref.shape)
    first, *rest = (v.aval for v in inner.jaxpr.invars)
    given = [entries.astype(first.dtype), *(np.full(v.shape, -1, v.dtype) for v in rest)]
    found = np.asarray(eval_jaxpr(inner.jaxpr, inner.consts, *given)[0])
    for lows in product(*(range(total + 1) for total in totals)):
        pads = tuple((low, total - low) for low, total in zip(lows, totals, strict=True))
        for mode, name in PADDINGS.items():
            wanted: Any = np.pad(entries, pads, mode=name)  # type: ignore[call-overload]
            if np.array_equal(found, wanted):
                return _padded(reader, ref, pads, 0.0, mode)
    return None


@rule("slice")
def _slice(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    params = eqn.params
    steps = params["strides"] or (1,) * len(params["start_indices"])
    spans = tuple(zip(params["start_indices"], params["limit_indices"], steps, strict=True))
    found = sliced(reader, values[0], spans)
    return [found] if found is not None else _no_slice(reader, eqn, values, spans)


@rule("dynamic_slice")
def _dynamic_slice(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref, starts = values[0], values[1:]
    if isinstance(ref, Ref) and all(isinstance(s, KnownArray) for s in starts):
        first = [int(np.asarray(s.array)) for s in starts if isinstance(s, KnownArray)]
        sizes = eqn.params["slice_sizes"]
        first = [min(max(s, 0), n - k) for s, n, k in zip(first, ref.shape, sizes, strict=True)]
        spans = tuple((s, s + k, 1) for s, k in zip(first, sizes, strict=True))
        found = sliced(reader, ref, spans)
        return [found] if found is not None else _no_slice(reader, eqn, values, spans)
    return _no_slice(reader, eqn, values)


@rule("split")
def _split(reader: JaxReader, eqn: Any, values: list[Value]) -> list[Value]:
    ref, axis, out, start = values[0], eqn.params["axis"], [], 0
    for size in map(int, eqn.params["sizes"]):
        spans = tuple(
            (start, start + size, 1) if a == axis else (0, n, 1) for a, n in enumerate(ref.shape)
        )
        found = sliced(reader, ref, spans)
        if found is None:
            return _no_slice(reader, eqn, values)
        out.append(found)
        start += size
    return out


def _no_slice(
    reader: JaxReader, eqn: Any, values: list[Value], spans: Sequence[Any] | None = None
) -> list[Value]:
    reason = (
        "it takes some of the channels or locations; kcalc reads this only if it can slice the "
        "weights instead"
    )
    ref, sizes = values[0], [v.aval.shape for v in eqn.outvars]
    if not isinstance(ref, Ref) or (spans is None and eqn.primitive.name != "split"):
        return reader.not_read("slice", reason)
    if eqn.primitive.name == "split":
        axis = eqn.params["axis"]
        ends = np.cumsum([shape[eqn.params["axis"]] for shape in sizes]).tolist()
        cuts = [(axis, start, stop, 1) for start, stop in zip([0, *ends], ends, strict=False)]
    else:
        whole = [(0, n, 1) for n in ref.shape]
        pairs = enumerate(zip(spans or whole, whole, strict=True))
        cuts = [(a, *map(int, span)) for a, (span, every) in pairs if span != every]
        if len(cuts) != 1:
            return reader.not_read("slice", reason)
    ref = reader.spread(ref)
    return [part_of(reader, ref, axis, range(*cut), reason) for axis, *cut in cuts]


def part_of(reader: JaxReader, ref: Ref, axis: int, places: Sequence[int], reason: str) -> Ref:
    """Return the entries at the indices ``places`` along an axis of an array."""
    base, shape = list(reader.ops[ref.name].shape), list(ref.shape)
    base[ref.order[axis]] = shape[axis] = len(places)
    fields = {"what": "slice", "reason": reason, "axis": ref.order[axis], "places": places}
    return Ref(reader.add(Part, "slice", base, [ref.name], **fields), ref.order, tuple(shape))


def sliced(reader: JaxReader, ref: Value, spans: tuple[tuple[int, int, int], ...]) -> Ref | None:
    """Read a slice that subsamples locations or takes channels that one layer produces.

    Returns None for other slices.
    """
    assert isinstance(ref, Ref)
    cut = {
        ref.order[a]: span
        for a, (span, n) in enumerate(zip(spans, ref.shape, strict=True))
        if span != (0, n, 1)
    }
    shape = tuple(len(range(*span)) for span in spans)
    if not cut:
        return ref
    ref = reader.spread(ref)
    before = reader.ops[ref.name].shape
    if all(
        start == 0 and step > 1 and len(range(0, stop, step)) == -(-before[b] // step)
        for b, (start, stop, step) in cut.items()
    ):
        axes = location_axes(reader, len(before), set(cut))
        if axes is None or 0 in cut:
            return None
        stride = tuple(cut[b][2] if b in cut else 1 for b in axes)
        made = tuple(len(range(*cut[b])) if b in cut else size for b, size in enumerate(before))
        name = reader.add(
            Pooling,
            "subsample",
            made,
            [ref.name],
            kind="mean",
            axes=axes,
            window=(1,) * len(axes),
            stride=stride,
        )
        return Ref(name, ref.order, shape)
    if len(cut) == 1:
        (axis, (start, stop, step)) = next(iter(cut.items()))
        name = _cut(reader, ref.name, axis, start, stop) if step == 1 else None
        return None if name is None else Ref(name, ref.order, shape)
    return None


def location_axes(reader: JaxReader, rank: int, moved: set[int]) -> tuple[int, ...] | None:
    """Return the spatial axes, given the axes along which an operation acts.

    All axes except the example axis and the channel axis are spatial.
    """
    still = [a for a in range(1, rank) if a not in moved]
    habit = reader.channel_axis % rank
    if not still:
        return None
    channels = habit if habit in still else still[-1 if reader.channel_axis < 0 else 0]
    return tuple(a for a in range(1, rank) if a != channels)


def _cut(reader: JaxReader, name: str, axis: int, start: int, stop: int) -> str | None:
    """Take entries from ``start`` to ``stop`` along an axis by slicing weights.

    The sliced weights belong to a Linear, or to the layers before an elementwise function.
    """
    key = (name, axis, start, stop)
    if key not in reader.cuts:
        made = _new_cut(reader, name, axis, start, stop)
        if made is None:
            return None
        reader.cuts[key] = made
    return reader.cuts[key]


def _new_cut(reader: JaxReader, name: str, axis: int, start: int, stop: int) -> str | None:
    op = reader.ops[name]
    if name in reader.recipes:
        return (
            sliced_linear(reader, name, start, stop)
            if reader.recipes[name].op.out_axis == axis
            else None
        )
    if isinstance(op, Held):
        value = op.value[(*(slice(None),) * axis, slice(start, stop))]
        part = f"{op.parameter}[{start}:{stop}]" if op.parameter else None
        return reader.put(
            Held, f"{op.name}[{start}:{stop}]", value.shape, [], value=value, parameter=part
        )
    if not isinstance(op, Pointwise) or any(
        len(reader.ops[r].shape) != len(op.shape) for r in op.reads
    ):
        return None
    reads = [
        _cut(reader, r, axis, start, stop) if reader.ops[r].shape[axis] != 1 else r
        for r in op.reads
    ]
    if any(r is None for r in reads):
        return None
    shape = [stop - start if a == axis else size for a, size in enumerate(op.shape)]
    return reader.put(
        Pointwise,
        op.name,
        shape,
        [r for r in reads if r is not None],
        function=op.function,
        label=op.label,
    )
