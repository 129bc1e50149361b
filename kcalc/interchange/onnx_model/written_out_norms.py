"""Normalisations written out in primitive operators, as older exporters do.

Recognised by the function of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..trace import Array, Normalise, Pointwise
from . import elementwise, shapes
from .graph_values import Node, Value
from .normal import kind_by_axes, normalised
from .pools import reduced_axes

if TYPE_CHECKING:
    from .context import Context


def _made(value: Value | None, *ops: str) -> Node | None:
    """The node that made a value, if it is one of these operators."""
    node = None if value is None else value.maker
    return node if node is not None and not node.domain and node.op in ops else None


def divided(reader: Context, node: Node, label: str) -> Sequence[Value] | None:
    """Div: a normalisation that is written out, else an elementwise quotient.

    The normalisations are (x - mean) / sqrt(var + epsilon) and x / sqrt(mean x^2 + epsilon).
    """
    found = _normalisation(reader, node, label, node.value(0), _variance_of_root(node.value(1)))
    return elementwise.pointwise(reader, node, label) if found is None else [found]


def multiplied(reader: Context, node: Node, label: str) -> Sequence[Value] | None:
    """Mul: by the reciprocal of a standard deviation, or by the gain of a normalisation.

    Else an elementwise product.
    """
    for x, other in (node.given(), node.given()[::-1]):
        found = _normalisation(reader, node, label, x, _variance_of_inverse(other))
        if found is None:
            found = _with_array(reader, node, label, x, other, "gain")
        if found is not None:
            return [found]
        gate = _made(other, "HardSigmoid")
        if gate is not None and _same(gate.value(0), x) and elementwise.is_sixth(gate):
            function = elementwise.PLAIN["HardSwish"]
            return [
                reader.emit(
                    Pointwise, node, label, x.shape, (x,), function=function, label="hard_swish"
                )
            ]
    return elementwise.pointwise(reader, node, label)


def added(reader: Context, node: Node, label: str) -> Sequence[Value] | None:
    """Add: the bias of a normalisation, else an elementwise sum."""
    for x, other in (node.given(), node.given()[::-1]):
        found = _with_array(reader, node, label, x, other, "bias")
        if found is not None:
            return [found]
    return elementwise.pointwise(reader, node, label)


def _normalisation(
    reader: Context, node: Node, label: str, x: Value, variance: tuple[Value, float] | None
) -> Value | None:
    """x times 1 / sqrt(variance + epsilon), where the variance is that of x."""
    if variance is None or x.op is None:
        return None
    mean = _made(variance[0], "ReduceMean")
    if mean is None or not mean.whole("keepdims", 1):
        return None
    squared, axes = _squared(mean.value(0)), reduced_axes(mean, mean.value(0).rank)
    if squared is None or not axes or not _same(squared, x):
        return None
    centred = _centred(x, axes)
    source = x if centred is None else centred
    found = kind_by_axes(axes, source.shape)
    if found is None or source.shape != x.shape:
        return None
    kind, groups, over = found
    label = label.removesuffix(f".{node.op.lower()}")
    if centred is None and kind != "layer":
        return None
    return normalised(
        reader,
        node,
        label,
        source,
        "rms" if centred is None else kind,
        over,
        variance[1],
        groups=groups,
    )


def _squared(value: Value) -> Value | None:
    """y where the value is y^2."""
    power, product = _made(value, "Pow"), _made(value, "Mul")
    if power is not None and power.value(1).number == 2:
        return power.value(0)
    return (
        product.value(0)
        if product is not None and _same(product.value(0), product.value(1))
        else None
    )


def _same(a: Value, b: Value) -> bool:
    """Whether two values are the same array.

    One value, or the same difference of the same values.
    """
    if a is b or (a.op is not None and a.op == b.op):
        return True
    first, second = _made(a, "Sub"), _made(b, "Sub")
    if first is None or second is None:
        return False
    return (
        _mean_of(first) is not None
        and _same(first.value(0), second.value(0))
        and _equal_means(first.value(1), second.value(1))
    )


def _equal_means(a: Value, b: Value) -> bool:
    if a is b:
        return True
    first, second = _made(a, "ReduceMean"), _made(b, "ReduceMean")
    if first is None or second is None or a.shape != b.shape:
        return False
    return _same(first.value(0), second.value(0)) and reduced_axes(
        first, first.value(0).rank
    ) == reduced_axes(second, second.value(0).rank)


def _mean_of(difference: Node) -> tuple[int, ...] | None:
    """The axes of the mean that a Sub takes off; None where it takes off something else."""
    mean = _made(difference.value(1), "ReduceMean")
    if (
        mean is None
        or not mean.whole("keepdims", 1)
        or not _same(mean.value(0), difference.value(0))
    ):
        return None
    return reduced_axes(mean, mean.value(0).rank)


def _centred(x: Value, axes: Sequence[int]) -> Value | None:
    """y where x is y - mean(y) over the axes."""
    difference = _made(x, "Sub")
    return (
        difference.value(0)
        if difference is not None and _mean_of(difference) == tuple(axes)
        else None
    )


def _with_epsilon(value: Value) -> tuple[Value, float] | None:
    """(variance, epsilon) where the value is their sum."""
    total = _made(value, "Add")
    if total is None:
        return value, 0.0
    for variance, epsilon in (total.given(), total.given()[::-1]):
        number = epsilon.number
        if number is not None and 0 <= number < 1 and epsilon.rank <= variance.rank:
            return variance, float(number)
    return None


def _variance_of_root(value: Value) -> tuple[Value, float] | None:
    """(variance, epsilon) where the value is sqrt(variance + epsilon)."""
    root, power = _made(value, "Sqrt"), _made(value, "Pow")
    if root is not None:
        return _with_epsilon(root.value(0))
    return (
        _with_epsilon(power.value(0))
        if power is not None and power.value(1).number == 0.5
        else None
    )


def _variance_of_inverse(value: Value) -> tuple[Value, float] | None:
    """(variance, epsilon) where the value is 1 / sqrt(variance + epsilon)."""
    inverse, quotient, power = _made(value, "Reciprocal"), _made(value, "Div"), _made(value, "Pow")
    if inverse is not None:
        return _variance_of_root(inverse.value(0))
    if quotient is not None and quotient.value(0).number == 1:
        return _variance_of_root(quotient.value(1))
    return (
        _with_epsilon(power.value(0))
        if power is not None and power.value(1).number == -0.5
        else None
    )


def _with_array(
    reader: Context, node: Node, label: str, x: Value, other: Value, role: str
) -> Value | None:
    """The normalisation ``x`` with ``other`` as its gain or bias, or None.

    ``role`` is "gain" or "bias". Returns None unless the normalisation has none yet and the array
    has one entry for every channel.
    """
    op: Any = reader.ops.get(x.op or "")
    if (
        not isinstance(op, Normalise)
        or other.array is None
        or op.bias is not None
        or (role == "gain" and op.gain is not None)
    ):
        return None
    array = _fitted(other.array, op)
    if array is None:
        return None
    source = reader.ops[op.reads[0]]
    before = Value(source.shape, op=source.name)
    gain, bias = (array, None) if role == "gain" else (op.gain, array)
    wish = reader.wishes[op.name]
    return normalised(
        reader, node, wish, before, op.kind, op.axes, op.epsilon, gain, bias, op.groups, op.running
    )


def _fitted(array: Array, op: Normalise) -> Array | None:
    """The array as a normalisation of that kind takes it; None where it varies along other axes."""
    rank = len(op.shape)
    full = array.reshape((1,) * (rank - array.ndim) + array.shape) if array.ndim <= rank else None
    if full is None:
        return None
    channels = op.axes if op.kind in ("layer", "rms") else (1,)
    good = all(full.shape[i] == (op.shape[i] if i in channels else 1) for i in range(rank))
    return full.reshape([op.shape[i] for i in channels]) if good else None


def reshaped(reader: Context, node: Node, label: str) -> Sequence[Value] | None:
    """Read a Reshape, which may be the last operation of a group normalisation.

    Group normalisation is an instance normalisation over groups of channels, reshaped back. Any
    other Reshape is read as a reshape.
    """
    inner = _made(node.value(0), "InstanceNormalization")
    outer = None if inner is None else _made(inner.value(0), "Reshape")
    shape = (
        None if inner is None or outer is None else shapes.target_shape(node, node.value(0).shape)
    )
    if (
        inner is None
        or outer is None
        or shape is None
        or outer.value(0).shape != shape
        or len(shape) < 2
    ):
        return shapes.reshape(reader, node, label)
    source, (batch, groups) = outer.value(0), inner.value(0).shape[:2]
    label = label.removesuffix(".reshape")
    plain = all(
        (a := inner.value(i).array) is not None and np.all(a == target)
        for i, target in ((1, 1), (2, 0))
    )
    if (
        not plain
        or source.shape[0] != batch
        or source.shape[1] % groups
        or inner.value(0).rank != 3
    ):
        return shapes.reshape(reader, node, label)
    return [
        normalised(
            reader,
            node,
            label,
            source,
            "group",
            range(1, len(shape)),
            inner.real("epsilon", 1e-5),
            groups=groups,
        )
    ]


RULES = {
    ("", "Div"): divided,
    ("", "Mul"): multiplied,
    ("", "Add"): added,
    ("", "Reshape"): reshaped,
}
