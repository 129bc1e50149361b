"""The numbers of a trace by NumPy in double precision, to set beside those of a framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp
from numpy.lib.stride_tricks import sliding_window_view
from scipy import special

from kcalc.interchange import trace as T
from kcalc.interchange.fusion import released

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
            value = inputs[0][:, int(start) : int(stop)]
        elif isinstance(op, T.Entry):
            value = next(given)
        else:
            value = _value(op, arrays, trace.channel_axis)
        found[op.name] = value = np.asarray(value)
        assert value.shape[1:] == tuple(op.shape[1:]), (op.name, value.shape, op.shape)
    return [found[name] for name in trace.outputs]


def _value(op: Any, arrays: list[Array], habit: int) -> Array:
    x = arrays[0] if arrays else np.zeros(0)
    match op:
        case T.Held():
            value = np.asarray(op.value)
            return value if value.dtype == bool else value.astype(np.float64)
        case T.Linear():
            return _linear(op, x)
        case T.Pointwise():
            symbols = sp.symbols(f"a0:{len(arrays)}", real=True)
            function = sp.lambdify(symbols, released(op.function(*symbols)), ["scipy", "numpy"])
            shape = np.broadcast_shapes(*(a.shape for a in arrays))
            return np.broadcast_to(function(*arrays), shape)
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
            for axis, size in enumerate(op.shape[1:], start=1):
                x = x.repeat(size // x.shape[axis], axis)
            return x
        case T.Part():
            return x.take(list(op.places), op.axis)
        case T.Reorder():
            return x.take(list(op.order), op.axis)
        case T.Contract():
            return np.einsum(op.terms, *arrays)
        case T.Softmax():
            return special.softmax(x, op.axis)
        case T.Masked():
            return np.where(op.mask, op.value, x)
        case T.Mixed():
            return np.moveaxis(np.tensordot(x, op.matrix, (op.axis, 1)), -1, op.axis)
        case T.Drop() | T.Pass() | T.Stopped():
            return x
    raise AssertionError(op)


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
        windows = sliding_window_view(x, reach, axis=tuple(range(2, 2 + count)))
        windows = windows[(..., *(slice(None, None, s) for s in (*stride, *dilation)))]
        axes = (1, *range(2 + count, 2 + 2 * count)), range(1, 2 + count)
        groups = (np.split(windows, op.groups, 1), np.split(weight, op.groups))
        parts = [np.tensordot(own, w, axes) for own, w in zip(*groups, strict=True)]
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
            out = _centred(x, op.axes, op.epsilon)
        else:
            moved = np.moveaxis(x, channel, 1)
            split = _centred(moved.reshape(len(x), op.groups, -1), 2, op.epsilon)
            out = np.moveaxis(split.reshape(moved.shape), 1, channel)
    for array, join in ((op.gain, np.multiply), (op.bias, np.add)):
        out = out if array is None else join(out, np.asarray(array, np.float64).reshape(shape))
    return out


def _centred(x: Array, axes: Any, epsilon: float) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def _pooled(op: T.Pooling, x: Array) -> Array:
    best = np.nanmax if op.kind == "max" else np.nanmean
    if op.window is None:
        examples = op.shape[0] if 0 in op.axes else len(x)
        return best(x, axis=op.axes).reshape(examples, *op.shape[1:])
    pads = dict(zip(op.axes, op.padding or ((0, 0),) * len(op.axes), strict=True))
    x = np.pad(x, [pads.get(a, (0, 0)) for a in range(x.ndim)], constant_values=np.nan)
    windows = sliding_window_view(x, op.window, axis=op.axes)
    places = dict(zip(op.axes, op.stride or op.window, strict=True))
    windows = windows[tuple(slice(None, None, places.get(a, 1)) for a in range(x.ndim))]
    return best(windows, axis=tuple(range(x.ndim, windows.ndim)))
