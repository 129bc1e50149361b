"""Read pooling over windows and over whole axes, and upsampling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import sympy as sp

from ..trace import Copies, NotRead, Pass, Pointwise, Pooling, Repeat, Shuffle
from .calls import Call, rule
from .graph_values import PaddedTensor, TensorRef
from .linear import spread

RESIZED = (
    "upsample_nearest",
    "_upsample_nearest_exact",
    "upsample_linear",
    "upsample_bilinear",
    "upsample_bicubic",
    "upsample_trilinear",
)


def _rank(call: Call) -> int:
    found = re.search(r"(\d)d", call.kind)
    return int(found.group(1)) if found else 2


@rule(
    *(
        f"{kind}_pool{n}d{more}"
        for kind in ("max", "avg")
        for n in "123"
        for more in ("", "_with_indices")
    )
)
def windowed(call: Call) -> Any:
    """Read max_pool and avg_pool over 1, 2 or 3 axes."""
    rank, kind = _rank(call), "max" if "max" in call.kind else "mean"
    source = call.operand
    if (
        any(size != 1 for size in spread(call["dilation"], rank, 1))
        or call["divisor_override"] is not None
    ):
        return call.unread(
            f"{kind} pooling", "kcalc has no rule for dilated windows or divisor_override"
        )
    window = spread(call["kernel_size"], rank, 1)
    stride = spread(call["stride"], rank, 0) if call["stride"] not in (None, [], ()) else window
    padding = spread(call["padding"], rank, 0)
    if isinstance(source, PaddedTensor):
        return call.unread(f"{kind} pooling of a padded array", "use the padding of the pooling")
    if len(source.shape) != rank + 2:
        return call.unread(
            f"{kind} pooling of one example", "pass example inputs with a batch axis first"
        )
    axes = tuple(range(len(source.shape) - rank, len(source.shape)))
    pads = []
    for axis, k, s, p in zip(axes, window, stride, padding, strict=True):
        used = (call.shape[axis] - 1) * s + k - source.shape[axis] - p
        pads.append((p, max(used, p)))
    counts = kind == "mean" and any(padding) and call["count_include_pad"] is not False
    reads = [call.read(source)]
    fields = {"window": window, "stride": stride, "padding": tuple(pads), "counts_zeros": counts}
    out = call.emit(Pooling, reads, kind=kind, axes=axes, **fields)
    return (out, None) if call.several else out


@rule(
    *(
        f"{start}adaptive_{kind}_pool{n}d"
        for start in ("", "_")
        for kind in ("max", "avg")
        for n in "123"
    )
)
def adaptive(call: Call) -> Any:
    """Read adaptive pooling, whose windows may have different sizes."""
    kind, rank = ("max" if "max" in call.kind else "mean"), _rank(call)
    source = call.operand
    many = call.several
    axes = tuple(range(len(source.shape) - rank, len(source.shape)))
    before, after = [source.shape[a] for a in axes], [call.shape[a] for a in axes]
    reads = [call.read(source)]
    if all(n == 1 for n in after):  # even for one location, because other images have more
        out = call.emit(Pooling, reads, kind=kind, axes=axes)
    elif before == after:
        out = call.emit(Pass, reads)
    elif all(n % m == 0 for n, m in zip(before, after, strict=True)):
        window = tuple(n // m for n, m in zip(before, after, strict=True))
        out = call.emit(
            Pooling,
            reads,
            kind=kind,
            axes=axes,
            window=window,
            stride=window,
            padding=((0, 0),) * rank,
        )
    else:
        copies = all(m % n == 0 for n, m in zip(before, after, strict=True))
        out = call.emit(Repeat, reads, kind="nearest" if copies else f"adaptive {kind}")
    return (out, None) if many else out


@rule("mean", "sum", "amax", "amin")
def over_axes(call: Call) -> Any:
    """Read mean, sum and max over whole axes."""
    source = call.operand
    dims = call["dim"]
    if dims is None or dims == [] or not isinstance(source, TensorRef):
        return call.unread(f"{call.spoken} over all axes", "it mixes the examples of a batch")
    axes = call.axes
    if 0 in axes and isinstance(call.walker.ops.get(source.name), NotRead):
        # this axis may not be the batch, as after torch.stack
        return call.unread(f"{call.spoken} over axis 0", "it reads an array that was not read")
    if 0 in axes:
        return call.unread(f"{call.spoken} over the examples", "it mixes the examples of a batch")
    if call.kind in ("min", "amin"):
        reason = "kcalc reads only maximum and mean pooling; take the maximum of -x and negate it"
        return call.unread(f"minimum over axes {axes}", reason)
    reads = [call.read(source)]
    if call.kind in ("mean", "sum"):
        pooled = call.emit(Pooling, reads, kind="mean", axes=axes, told=call.kind)
        count = prod(source.shape[a] for a in axes)
        if call.kind == "mean" or count == 1:
            return pooled
        fields = {"function": lambda x: sp.Integer(count) * x, "label": "sum"}
        return call.emit(Pointwise, [pooled.name], wish=f"{pooled.name}.count", **fields)
    out = call.emit(Pooling, reads, kind="max", axes=axes)
    return (out, None) if call.several else out


@rule(*(f"{mode}{n}d" for n in "123" for mode in RESIZED))
def upsample(call: Call) -> Any:
    """Read nearest and linear resizing."""
    source = call.operand
    sizes = list(zip(call.shape[2:], source.shape[2:], strict=True))
    what = call.kind.removeprefix("upsample_").strip("_").rstrip("123d") + " resizing"
    if "cubic" in call.kind or "_aa" in call.kind:
        reason = "kcalc reads only nearest and linear resizing without antialiasing"
        return call.unread(what, reason)
    if "exact" in call.kind and any(n % m for n, m in sizes):
        reason = "its factors are not integers; use mode 'nearest', which kcalc reads"
        return call.unread(what, reason)
    kind = "nearest" if "nearest" in call.kind else "linear"
    kind = "corners" if call["align_corners"] else kind
    return call.emit(Repeat, [call.read(source)], kind=kind)


@rule("pixel_shuffle", "pixel_unshuffle")
def shuffled(call: Call) -> Any:
    """Read pixel shuffle and unshuffle."""
    back = "unshuffle" in call.kind
    source = call.operand
    factor = int(call["downscale_factor"] if back else call["upscale_factor"])
    reads = [call.read(source)]
    return call.emit(Shuffle, reads, factor=(factor, factor), back=back)


@rule("expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile")
def expanded(call: Call) -> Any:
    """Read broadcasting and repetition of locations."""
    source: Any = call.operand
    before: Sequence[int] = (1,) * (len(call.shape) - len(source.shape)) + tuple(source.shape)
    changed = [axis for axis, (a, b) in enumerate(zip(before, call.shape, strict=True)) if a != b]
    reads = [call.read(source)]
    if not changed and len(before) == len(source.shape):
        return call.emit(Pass, reads)
    single = all(before[axis] == 1 for axis in changed)
    if (
        single
        and len(before) == len(source.shape)
        and all(axis > 1 for axis in changed)
        and len(call.shape) > 2
    ):
        return call.emit(Repeat, reads)
    reason = "it repeats channels or examples, so they are no longer independent"
    if (
        len(before) == len(source.shape)
        and len(changed) == 1
        and changed[0] > 0
        and isinstance(source, TensorRef)
    ):
        (axis,) = changed
        told = {
            "axis": axis,
            "count": call.shape[axis] // before[axis],
            "each": call.kind == "repeat_interleave",
        }
        return call.emit(Copies, reads, what=call.spoken, reason=reason, **told)
    return call.unread(call.spoken, reason)
