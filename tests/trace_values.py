"""The numbers of a trace by NumPy in double precision, to set beside those of a framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy as sp

from kcalc.interchange import trace as T

Array = np.ndarray


def values_of(trace: T.Trace, *inputs: Array) -> list[Array]:
    """The outputs of a trace for inputs in the order in which it reads them.

    Normalisation over examples takes its running moments.
    """
    given = iter(inputs)
    found: dict[str, Array] = {}
    for op in trace.ops:
        arrays = [found[name] for name in op.reads]
        if isinstance(op, T.Entry) and op.part:  # x[1:5] of the only input
            start, stop = op.name.partition("[")[2].rstrip("]").split(":")
            found[op.name] = inputs[0][:, int(start) : int(stop)]
        elif isinstance(op, T.Entry):
            found[op.name] = np.asarray(next(given))
        else:
            found[op.name] = np.asarray(_value(op, arrays, trace.channel_axis))
        assert found[op.name].shape[1:] == tuple(op.shape[1:]), (
            op.name,
            found[op.name].shape,
            op.shape,
        )
    return [found[name] for name in trace.outputs]


def _value(op: Any, arrays: list[Array], habit: int) -> Array:
    x = arrays[0] if arrays else np.zeros(0)
    match op:
        case T.Held():
            return (
                np.asarray(op.value, np.float64)
                if np.asarray(op.value).dtype != bool
                else np.asarray(op.value)
            )
        case T.Linear():
            return _linear(op, x)
        case T.Pointwise():
            return np.broadcast_to(
                _pointwise(op, arrays), np.broadcast_shapes(*(a.shape for a in arrays))
            )
        case T.Normalise():
            return _normalised(op, x, habit % x.ndim)
        case T.Pooling():
            return _pooled(op, x)
        case T.Join():
            return np.concatenate(arrays, op.axis)
        case T.Reshape():
            return x.reshape((-1, *op.shape[1:]) if len(x) != op.shape[0] else op.shape)
        case T.Transpose():
            return x.transpose(op.order)
        case T.Repeat():
            return _repeated(op, x)
        case T.Part():
            return x.take(list(op.places), op.axis)
        case T.Contract():
            return np.einsum(op.terms, *arrays)
        case T.Softmax():
            return _softmax(x, op.axis)
        case T.Masked():
            return np.where(op.mask, op.value, x)
        case T.Mixed():
            return np.moveaxis(np.tensordot(x, op.matrix, (op.axis, 1)), -1, op.axis)
        case T.Drop() | T.Pass() | T.Stopped():
            return x
    raise AssertionError(
        f"{type(op).__name__} {op.name!r} has no numbers: {getattr(op, 'reason', '')}"
    )


def _pointwise(op: T.Pointwise, arrays: Sequence[Array]) -> Any:
    symbols = sp.symbols(f"a0:{len(arrays)}", real=True)
    return sp.lambdify(symbols, op.function(*symbols), ["scipy", "numpy"])(*arrays)


def _linear(op: T.Linear, x: Array) -> Array:
    weight = np.asarray(op.weight, np.float64)
    x = np.moveaxis(x, op.axis, 1)
    if not op.kernel:
        out = np.moveaxis(np.tensordot(x, weight, (1, 1)), -1, 1)
    else:
        count = len(op.kernel)
        stride, dilation = op.stride or (1,) * count, op.dilation or (1,) * count
        x = np.pad(x, [(0, 0), (0, 0), *(op.padding or ((0, 0),) * count)])
        reach = [(k - 1) * d + 1 for k, d in zip(op.kernel, dilation, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(
            x, reach, axis=tuple(range(2, 2 + count))
        )
        places = tuple(slice(None, None, s) for s in stride)
        windows = windows[
            (slice(None), slice(None), *places, *(slice(None, None, d) for d in dilation))
        ]
        each, made = weight.shape[1], weight.shape[0] // op.groups
        parts = []
        for g in range(op.groups):
            own = windows[:, g * each : (g + 1) * each]
            axes = (1, *range(2 + count, 2 + 2 * count))
            parts.append(
                np.tensordot(
                    own, weight[g * made : (g + 1) * made], (axes, tuple(range(1, 2 + count)))
                )
            )
        out = np.moveaxis(np.concatenate(parts, -1), -1, 1)
    if op.bias is not None:
        out = out + np.asarray(op.bias, np.float64).reshape(-1, *(1,) * (out.ndim - 2))
    return np.moveaxis(out, 1, op.out_axis)


def _normalised(op: T.Normalise, x: Array, channel: int) -> Array:
    shape = [1] * x.ndim
    if op.kind in ("layer", "rms"):
        mean = x.mean(op.axes, keepdims=True) if op.kind == "layer" else 0.0
        out = (x - mean) / np.sqrt(((x - mean) ** 2).mean(op.axes, keepdims=True) + op.epsilon)
        shape = [n if i in op.axes else 1 for i, n in enumerate(x.shape)]
    else:
        shape[channel] = -1
        if op.kind == "batch" and op.running is not None:
            mean, variance = (np.asarray(a, np.float64).reshape(shape) for a in op.running)
            out = (x - mean) / np.sqrt(variance + op.epsilon)
        elif op.kind == "batch":
            out = (x - x.mean(op.axes, keepdims=True)) / np.sqrt(
                x.var(op.axes, keepdims=True) + op.epsilon
            )
        else:
            moved = np.moveaxis(x, channel, 1)
            split = moved.reshape(len(x), op.groups, -1)
            split = (split - split.mean(2, keepdims=True)) / np.sqrt(
                split.var(2, keepdims=True) + op.epsilon
            )
            out = np.moveaxis(split.reshape(moved.shape), 1, channel)
    for array, join in ((op.gain, np.multiply), (op.bias, np.add)):
        out = out if array is None else join(out, np.asarray(array, np.float64).reshape(shape))
    return out


def _pooled(op: T.Pooling, x: Array) -> Array:
    best = np.nanmax if op.kind == "max" else np.nanmean
    if op.window is None:
        return (
            best(x, axis=op.axes).reshape(len(x), *op.shape[1:])
            if 0 not in op.axes
            else best(x, axis=op.axes).reshape(op.shape)
        )
    pads = dict(zip(op.axes, op.padding or ((0, 0),) * len(op.axes), strict=True))
    x = np.pad(x, [pads.get(a, (0, 0)) for a in range(x.ndim)], constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(x, op.window, axis=op.axes)
    places = dict(zip(op.axes, op.stride or op.window, strict=True))
    windows = windows[tuple(slice(None, None, places.get(a, 1)) for a in range(x.ndim))]
    return best(windows, axis=tuple(range(x.ndim, windows.ndim)))


def _repeated(op: T.Repeat, x: Array) -> Array:
    for axis, size in enumerate(op.shape[1:], start=1):
        x = x.repeat(size // x.shape[axis], axis)
    return x


def _softmax(x: Array, axis: int) -> Array:
    out = np.exp(x - x.max(axis, keepdims=True))
    return out / out.sum(axis, keepdims=True)
