"""Convert traced pooling to a layer."""

from __future__ import annotations

from dataclasses import replace

from ..network.layers import Identity, Layer, Pool
from .geometry import extent, reached_pads, same_pads, windows
from .trace import Pooling

COUNTED = "its means at the border include zeros from the padding; they are read as if they did not"


def operation(op: Pooling) -> str:
    """Return the name of the model's operation: "mean", "maximum" or "sum"."""
    return op.told or {"max": "maximum"}.get(op.kind, op.kind)


def pool_layer(
    op: Pooling, before: tuple[int, ...], axis: int | None
) -> tuple[Layer | None, str, str]:
    """Return (layer, level of fidelity, note) for pooling an array of shape ``before``.

    ``axis``: the channel axis of the array. The level is "" if the layer is exact.
    """
    locations = [i for i in range(1, len(before)) if i != axis]
    if axis is None or axis in op.axes or 0 in op.axes:
        does = "averages" if operation(op) == "mean" else f"takes the {operation(op)} over"
        return (
            None,
            "not read",
            f"it {does} channels or examples of an array of shape {before}, which no layer does",
        )
    if op.window is None:
        if sorted(op.axes) != locations:
            return None, "not read", f"it pools over only some of the location axes of {before}"
        return Pool(op.kind), "", ""
    window, stride = op.window, op.stride or op.window
    pads = op.padding or ((0, 0),) * len(window)
    if all(k == 1 for k in window) and all(s == 1 for s in stride):
        return Identity(), "", ""
    sizes = [before[i] for i in op.axes]
    pads = reached_pads(pads, sizes, window, stride)
    if sorted(op.axes) != locations:
        return None, "not read", f"its windows run only along axes {op.axes} of {before}"
    pool = Pool(op.kind, extent(window), None if stride == window else extent(stride))
    padded = replace(pool, padding="same")
    if all(low == high == 0 for low, high in pads):
        return pool, "", ""
    if pads == same_pads(sizes, window, stride):
        return (padded, "locations", COUNTED) if op.counts_zeros else (padded, "", "")
    told = f"the padding {tuple(pads)} is"
    if windows(pads, sizes, window, stride) == [
        -(-n // s) for n, s in zip(sizes, stride, strict=True)
    ]:
        text = (
            f"{told} read as 'same', which has the same number of windows and shifts each of them "
            "by at most one location"
        )
        return padded, "locations", text
    return pool, "locations", f"{told} left out, so there are fewer windows"
