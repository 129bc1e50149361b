"""Norms of linear maps between locations: an image to its patches, and pooling."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError, NoRule, glimpse
from ...network.primitives import Fresh, Window
from ..array_operations import axis_padding, reach, window_outputs

Node = Hashable
Locations = tuple[int, int]


def _pair(value: Any, node: Node) -> Locations:
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(v, int) for v in value):
        return value
    raise KcalcError(
        f"node {node!r}: a window must be two integers (height, width) here, got {glimpse(value)}"
    )


def affine_window(
    op: Fresh, node: Node, locations: Locations | None
) -> tuple[int, float, Locations | None]:
    """Return (taps, norm of the map from an image to its patches, locations of the output).

    A location lies in at most ``prod ceil(k/s)`` patches, and the square root of this number bounds
    the norm. The norm is 1 for a kernel with one tap. Raises: KcalcError for kernels without
    locations to act on, and if no window fits.
    """
    kernel, stride = _pair(op.kernel, node), _pair(op.stride, node)
    if locations is None:
        if kernel != (1, 1) or stride != (1, 1):
            raise KcalcError(
                f"node {node!r} is a convolution, but its input has no locations; set "
                "image_shape=(height, width) in its Input"
            )
        return 1, 1.0, None
    if op.padding in ("reflect", "replicate"):
        raise NoRule(
            f"node {node!r}: smoothness bounds have no rule for {op.padding} padding, which "
            "reads some locations more often than others; use 'same' or 'circular'"
        )
    dilation = _pair(op.dilation, node)
    outputs = window_outputs(locations, reach(kernel, dilation), stride, op.padding)
    _check_fit(outputs, kernel, locations, node)
    wraps = op.padding == "circular"
    often = [
        k if d > 1 or (wraps and k > n) else min(math.ceil(k / s), m)
        for k, s, d, n, m in zip(kernel, stride, dilation, locations, outputs, strict=True)
    ]
    return math.prod(kernel), math.sqrt(math.prod(often)), outputs


def _check_fit(
    outputs: Locations, window: tuple[int, int], locations: Locations, node: Node
) -> None:
    if min(outputs) < 1:
        raise KcalcError(
            f"node {node!r}: a window of {window} does not fit into {locations} locations"
        )


def pool_norms(
    op: Window, node: Node, locations: Locations | None
) -> tuple[float, float, Locations | None]:
    """Return (norm, smallest singular value, locations of the output) of pooling.

    The smallest singular value is inf |A^T v| over unit vectors v of outputs. The norm of mean
    pooling is bounded by Schur's test, which is exact if windows do not overlap. The norm of max
    pooling is bounded by the square root of the number of windows that cover one entry. Raises:
    NoRule for weighted means, KcalcError for inputs without locations, and if no window fits.
    """
    if op.pooling == "weighted_mean":
        raise NoRule(
            f"node {node!r}: smoothness bounds have no rule for weighted pooling; use kind='mean'"
        )
    if locations is None:
        raise KcalcError(
            f"node {node!r} pools, but its input has no locations; set image_shape=(height, "
            "width) in its Input"
        )
    if op.window is None:
        norm = 1 / math.sqrt(math.prod(locations)) if op.pooling == "mean" else 1.0
        return norm, norm if op.pooling == "mean" else 0.0, None
    window = _pair(op.window, node)
    stride = window if op.stride is None else _pair(op.stride, node)
    outputs = window_outputs(locations, window, stride, op.padding)
    _check_fit(outputs, window, locations, node)
    axes = [
        _axis(n, k, s, m, op) for n, k, s, m in zip(locations, window, stride, outputs, strict=True)
    ]
    norm = math.sqrt(math.prod(axes))
    apart = (
        op.pooling == "mean"
        and window == stride
        and all(n % k == 0 for n, k in zip(locations, window, strict=True))
    )
    return norm, norm if apart else 0.0, outputs


def _axis(size: int, window: int, stride: int, outputs: int, op: Window) -> float:
    """The largest column sum of the pooling matrix along one axis.

    The entries of the matrix are 1/count for means and 1 for maxima.
    """
    low, _ = axis_padding(size, window, stride, op.padding)
    total = np.zeros(size)
    for i in range(outputs):
        covered = slice(max(i * stride - low, 0), min(i * stride - low + window, size))
        count = covered.stop - covered.start
        total[covered] += 1 / count if op.pooling == "mean" and count > 0 else 1
    return float(total.max())
