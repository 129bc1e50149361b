"""Evaluate operations numerically.

An operation has known values if it does not depend on the input, or if random numbers replace the
input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy as sp

from ...foundation.process_state import lambdify
from ..trace import (  # fmt: skip
    Attend,
    Contract,
    Copies,
    Drop,
    Held,
    Join,
    Linear,
    Masked,
    Mixed,
    Normalise,
    NotRead,
    Op,
    Part,
    Pass,
    Pointwise,
    Pooling,
    Reorder,
    Repeat,
    Reshape,
    Softmax,
    Stopped,
    Transpose,
)

Array = np.ndarray
DEPTH = 40
LARGEST = 2**24


class TooLargeError(Exception):
    """Raised if an array has too many entries to evaluate."""


class DoubleEvaluation:
    """Evaluates operations one by one in double precision.

    ``leaf`` returns the values of operations that are not evaluated, or None if they are unknown.
    """

    def __init__(
        self, ops: Mapping[str, Op], given: Mapping[str, Array], leaf: Callable[[Op], Array | None]
    ) -> None:
        self.ops, self.leaf = ops, leaf
        self.known: dict[str, Array | None] = dict(given)

    def __call__(self, name: str, depth: int = 0) -> Array | None:
        """Return the output of an operation, or None if it is unknown."""
        if name not in self.known:
            op = self.ops[name]
            if int(np.prod(op.shape, dtype=np.int64)) > LARGEST:
                raise TooLargeError
            self.known[name] = self.leaf(op) if depth > DEPTH else self._of(op, depth + 1)
        return self.known[name]

    def _of(self, op: Op, depth: int) -> Array | None:
        rule = RULES.get(type(op))
        if rule is None:
            return self.leaf(op)
        if isinstance(op, Held):
            return np.asarray(op.value, dtype=None if np.iscomplexobj(op.value) else np.float64)
        if isinstance(op, Linear):
            return self._layer(op, depth)
        arrays = [self(name, depth) for name in op.reads]
        if any(array is None for array in arrays):
            return self._partly(op, arrays)
        with np.errstate(all="ignore"):
            out = rule(op, arrays)
        return self.leaf(op) if out is None else out

    def _partly(self, op: Op, arrays: list[Array | None]) -> Array | None:
        """Evaluate an operation that has some unknown inputs.

        A product with zeros is 0 whatever the other factor is.
        """
        if isinstance(op, Contract) and any(
            array is not None and not array.any() for array in arrays
        ):
            return np.zeros(op.shape)
        return self.leaf(op)

    def _layer(self, op: Linear, depth: int) -> Array | None:
        """Evaluate a layer.

        Channels whose weights are all 0 equal their bias. Other channels are known only if the
        input is known.
        """
        if (
            any(k != 1 for k in op.kernel)
            or op.groups != 1
            or any(s != 1 for s in op.stride)
            or any(p != (0, 0) for p in op.padding)
        ):
            return self.leaf(op)
        weight = np.asarray(op.weight, dtype=np.float64).reshape(op.weight.shape[0], -1)
        bias = np.zeros(len(weight)) if op.bias is None else np.asarray(op.bias, dtype=np.float64)
        if not weight.any():
            return np.broadcast_to(_along(bias, op.out_axis, len(op.shape)), op.shape)
        read = self(op.reads[0], depth)
        if read is None:
            return self.leaf(op)
        return np.moveaxis(np.moveaxis(read, op.axis, -1) @ weight.T + bias, -1, op.out_axis)


def _along(values: Array, axis: int, rank: int) -> Array:
    return values.reshape(tuple(-1 if i == axis % rank else 1 for i in range(rank)))


def softmax(scores: Array, axis: int = -1) -> Array:
    """Return exp(x) / sum exp(x); entries may be -infinity."""
    top = scores.max(axis=axis, keepdims=True)
    # a row of infinities gives nan, which callers reject as weights
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - top)
        return powers / powers.sum(axis=axis, keepdims=True)


def attention_weights(op: Attend, queries: Array, keys: Array, mask: Array | None) -> Array:
    """Return the weights (..., T, S) of an Attend."""
    scores = op.scale * queries @ np.swapaxes(keys, -1, -2)
    return softmax(masked_scores(op, scores, mask))


def masked_scores(op: Attend, scores: Array, mask: Array | None) -> Array:
    """Return scores with the masks of an Attend added."""
    if op.causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], dtype=bool)), scores, -np.inf)
    return scores if mask is None else scores + mask


def _attend(op: Any, arrays: list[Any]) -> Array:
    queries, keys, values, *mask = arrays
    return attention_weights(op, queries, keys, mask[0] if mask else None) @ values


def elementwise(op: Any, arrays: list[Any]) -> Array | None:
    """Evaluate a Pointwise; return None if it has no expression."""
    symbols = sp.symbols(f"a:{len(arrays)}", real=True)
    try:
        expr = op.function(*symbols)
        if not isinstance(expr, sp.Expr):
            return None
        with np.errstate(all="ignore"):
            return np.broadcast_to(
                np.asarray(lambdify(symbols, expr, ["scipy", "numpy"])(*arrays), dtype=np.float64),
                op.shape,
            )
    except Exception:  # functions without a plain expression are not followed
        return None


def _normalised(op: Any, arrays: list[Any]) -> Array | None:
    if op.kind not in ("layer", "rms") or len(op.axes) != 1:
        return None
    x = normed(op, arrays[0], op.axes[0])
    return x if np.isfinite(x).all() else None


def normed(op: Normalise, x: Array, axis: int) -> Array:
    """Evaluate a layer norm or RMS norm over one axis."""
    x = x - x.mean(axis=axis, keepdims=True) if op.kind == "layer" else x
    x = x / np.sqrt((x * x).mean(axis=axis, keepdims=True) + op.epsilon)
    gain, bias = (
        None if array is None else _along(np.asarray(array, np.float64).ravel(), axis, x.ndim)
        for array in (op.gain, op.bias)
    )
    x = x if gain is None else x * gain
    return x if bias is None else x + bias


def through(array: Array, path: Sequence[Op]) -> Array:
    """Apply the rearrangements in ``path`` to an array, starting with the last."""
    for op in reversed(path):
        made = (
            array.take(op.order, op.axis)
            if isinstance(op, Reorder)
            else RULES[type(op)](op, [array])
        )
        assert made is not None  # the rules of rearrangements always return an array
        array = made
    return array


def _part(op: Any, arrays: list[Any]) -> Array:
    return arrays[0].take(list(op.places), axis=op.axis)


def subsamples(op: Op) -> bool:
    """Whether a pooling only selects entries, such as every second location."""
    if not isinstance(op, Pooling) or op.window is None:
        return False
    return all(k == 1 for k in op.window) and not any(map(any, op.padding))


def _pooled(op: Any, arrays: list[Any]) -> Array | None:
    if not subsamples(op):
        return None
    strides = dict(zip(op.axes, op.stride or op.window, strict=True))
    return arrays[0][tuple(slice(None, None, strides.get(i)) for i in range(arrays[0].ndim))]


def mixed(op: Any, array: Array) -> Array:
    """Multiply an array by the matrix of a Mixed, along the axis of the Mixed."""
    return np.moveaxis(
        np.moveaxis(array, op.axis, -1) @ np.asarray(op.matrix, np.float64).T, -1, op.axis
    )


def _repeated(array: Array, shape: tuple[int, ...]) -> Array:
    for axis, size in enumerate(shape):
        array = np.repeat(array, size // array.shape[axis], axis)
    return array


def run(op: Any, arrays: list[Any]) -> Array | None:
    """Evaluate an operation that has no rule, by calling the model's function."""
    if op.compute is None:
        return None
    try:
        made = np.asarray(op.compute(arrays))
    except Exception:  # the function may reject such numbers
        return None
    return made if made.shape == op.shape else None


RULES: dict[type[Op], Callable[[Any, list[Any]], Array | None]] = {
    Held: lambda op, _: op.value,
    NotRead: run,
    Linear: lambda op, _: None,
    Attend: _attend,
    Pointwise: elementwise,
    Normalise: _normalised,
    Part: _part,
    Pooling: _pooled,
    Mixed: lambda op, a: mixed(op, a[0]),
    Contract: lambda op, a: np.einsum(op.terms, *a),
    Softmax: lambda op, a: softmax(a[0], op.axis),
    Masked: lambda op, a: np.where(op.mask, op.value, a[0]),
    Pass: lambda op, a: a[0],
    Stopped: lambda op, a: a[0],
    Drop: lambda op, a: a[0],
    Reshape: lambda op, a: a[0].reshape(op.shape),
    Transpose: lambda op, a: a[0].transpose(op.order),
    Repeat: lambda op, a: _repeated(a[0], op.shape),
    Copies: lambda op, a: (
        np.repeat(a[0], op.count, op.axis)
        if op.each
        else np.concatenate([a[0]] * op.count, op.axis)
    ),
    Join: lambda op, a: np.concatenate(a, axis=op.axis),
}
