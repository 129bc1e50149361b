"""Windows of convolutions and pooling, with explicit or automatic padding and rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .graph_values import Node

Pads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class OnnxWindow:
    """A window over locations; ``sizes``: the number of output locations along each axis."""

    stride: tuple[int, ...]
    padding: Pads
    dilation: tuple[int, ...]
    sizes: tuple[int, ...]
    mode: str = "zeros"


def window_of(
    node: Node, sizes: Sequence[int], extent: Sequence[int], around: Pads | None = None
) -> OnnxWindow | None:
    """Return the window of a node; ``around``: padding by an earlier node.

    Returns None if the padding is negative.

    Raises: KcalcError if attributes have a wrong number of axes, or if the window does not fit.
    """
    rank = len(sizes)
    stride = node.wholes("strides") or (1,) * rank
    dilation = node.wholes("dilations") or (1,) * rank
    pads = node.wholes("pads") or (0,) * (2 * rank)
    told = node.wholes("kernel_shape") or tuple(extent)
    if not (len(extent) == len(stride) == len(dilation) == rank == len(pads) / 2) or tuple(
        told
    ) != tuple(extent):
        raise node.fail(
            f"its window {told}, strides {stride}, dilations {dilation} and pads {pads} do not "
            f"match {rank} location axes"
        )
    if any(k < 1 for k in (*stride, *dilation, *extent)):
        raise node.fail("its window, strides and dilations must be positive")
    reach = [(k - 1) * d + 1 for k, d in zip(extent, dilation, strict=True)]
    mode = node.text("auto_pad", "NOTSET")
    around = around or ((0, 0),) * rank
    inner = [n + low + high for n, (low, high) in zip(sizes, around, strict=True)]
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        padding = tuple(
            _same(n, r, s, mode == "SAME_LOWER")
            for n, r, s in zip(inner, reach, stride, strict=True)
        )
    elif mode in ("NOTSET", "VALID"):
        padding = (
            ((0, 0),) * rank
            if mode == "VALID"
            else tuple(zip(pads[:rank], pads[rank:], strict=True))
        )
    else:
        raise node.fail(
            f"its auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {mode[:40]!r}"
        )
    padding = tuple(
        (low + a, high + b) for (low, high), (a, b) in zip(padding, around, strict=True)
    )
    if any(k < 0 for pair in padding for k in pair):
        return None
    out = []
    for i, ((low, high), n, r, s) in enumerate(zip(padding, sizes, reach, stride, strict=True)):
        room = n + low + high - r
        if room < 0:
            raise node.fail(
                f"its window has {r} locations, but its padded input has only {n + low + high}"
            )
        out.append(room // s + 1)
        if node.op != "Conv" and node.whole("ceil_mode") and room % s and (out[i] * s < n + low):
            padding = (*padding[:i], (low, high + s - room % s), *padding[i + 1 :])
            out[i] += 1
    return OnnxWindow(tuple(stride), padding, tuple(dilation), tuple(out))


def _same(size: int, reach: int, stride: int, lower: bool) -> tuple[int, int]:
    """Return the padding (before, after) that results in ceil(size / stride) windows.

    If the total is odd, the extra location comes before the image if ``lower``, else after it.
    """
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    small = total // 2
    return (total - small, small) if lower else (small, total - small)
