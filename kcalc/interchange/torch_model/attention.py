"""Read operators used for attention and for written-out normalisation.

The operators are contractions, softmax, masks and moments.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..trace import Attend, Contract, Copies, Masked, Moment, Pointwise, Softmax
from .calls import Call, rule
from .graph_values import Const, TensorRef, numbers_of
from .unsupported_ops import REASONS, SUMS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
INFINITE = "it sets entries to infinity, as attention does before its softmax"


def contraction(
    call: Call, left: Any, right: Any, terms: str | None, what: str, reason: str
) -> Any:
    """Read a contraction of two arrays, at least one of which depends on the input.

    ``terms``: the einsum equation, or None for a matrix product.
    """
    if terms is None:
        terms = _matrix_terms(left.shape, right.shape)
    if (
        terms is None
        and isinstance(left, TensorRef)
        and isinstance(right, TensorRef)
        and len(left.shape) == len(right.shape) > 2
    ):
        left, right = _alike(call, left, right)
        terms = _matrix_terms(left.shape, right.shape)
    if terms is None or any(not isinstance(v, TensorRef | Const) for v in (left, right)):
        return call.unread(what, reason)
    reads = [call.read(value) for value in (left, right)]
    return call.emit(Contract, reads, what=what, reason=reason, terms=terms)


@rule("baddbmm")
def added_product(call: Call) -> Any:
    """Read baddbmm, beta * bias + alpha * x @ y, which adds a mask to scores."""
    what, reason = "baddbmm", "it adds an activation to a product of two activations"
    if not isinstance(call["self"], Const):
        return call.unread(what, reason)
    beta, alpha = (1 if call[name] is None else call[name] for name in ("beta", "alpha"))
    made = contraction(call, call["batch1"], call["batch2"], None, what, reason)
    reads = [call.walker.held(call["self"]), made.name]
    return call.emit(
        Pointwise, reads, function=lambda bias, x: beta * bias + alpha * x, label="add"
    )


def _matrix_terms(left: tuple[int, ...], right: tuple[int, ...]) -> str | None:
    if min(len(left), len(right)) < 2:
        return None
    batch = LETTERS[: max(len(left), len(right)) - 2]
    if any(a != b for a, b in zip(left[-3::-1], right[-3::-1], strict=False)):
        return None  # broadcasting repeats heads or examples
    mine, theirs = batch[len(batch) - len(left) + 2 :], batch[len(batch) - len(right) + 2 :]
    return f"{mine}xy,{theirs}yz->{batch}xz"


def _alike(call: Call, *arrays: TensorRef) -> list[TensorRef]:
    """Return batches of matrices with equal numbers of heads; shared heads are repeated."""
    made = list(arrays)
    for axis in range(1, len(arrays[0].shape) - 2):
        count = max(array.shape[axis] for array in made)
        for n, array in enumerate(made):
            if array.shape[axis] != count and count % array.shape[axis] == 0:
                made[n] = copies(call, array, axis, count // array.shape[axis])
    return made


def copies(call: Call, source: TensorRef, axis: int, count: int) -> TensorRef:
    """Read a repetition of every entry along an axis."""
    shape = tuple(n * count if i == axis else n for i, n in enumerate(source.shape))
    what = "repetition"
    reason = "it repeats channels or examples, so they are no longer independent"
    return call.emit(
        Copies,
        [source.name],
        shape=shape,
        what=what,
        reason=reason,
        axis=axis,
        count=count,
        each=True,
    )


@rule("softmax", "_softmax", "_safe_softmax")
def softmax(call: Call) -> Any:
    """Read softmax along one axis."""
    what, reason = REASONS[call.kind]
    source = call.operand
    if call["dim"] is None or not isinstance(source, TensorRef):
        return call.unread(what, reason)
    axis = int(call["dim"]) % len(source.shape)
    return call.emit(Softmax, [call.read(source)], what=what, reason=reason, axis=axis)


@rule("scaled_dot_product_attention")
def attend(call: Call) -> Any:
    """Read scaled_dot_product_attention."""
    operands = [call[name] for name in ("query", "key", "value")]
    mask = call["attn_mask"]
    if any(not isinstance(v, TensorRef) for v in operands):
        return call.unread("attention", SUMS)
    if len({len(v.shape) for v in operands}) == 1:
        operands = _alike(call, *operands)
    if any(v.shape[:-2] != call.shape[:-2] for v in operands):
        return call.unread("attention", SUMS)
    reads = [call.read(v) for v in operands]
    if isinstance(mask, Const):
        array = numbers_of(mask.tensor)
        reads.append(
            call.walker.held(mask, np.where(array, 0.0, -np.inf) if array.dtype == bool else array)
        )
    elif mask is not None:
        return call.unread("attention", SUMS)
    scale = call["scale"] if call["scale"] is not None else 1 / math.sqrt(operands[0].shape[-1])
    causal, rate = bool(call["is_causal"]), float(call["dropout_p"] or 0.0)
    return call.emit(
        Attend,
        reads,
        what="attention",
        reason=SUMS,
        scale=float(scale),
        causal=causal,
        rate=rate,
    )


def masked(call: Call) -> Any:
    """Read masked_fill and where with a mask that does not depend on the input.

    Returns None in other cases.
    """
    if call.kind.startswith("where"):
        mask, source, value = call["condition"], call["self"], call["other"]
    else:
        mask, source, value = call["mask"], call["self"], call["value"]
    number = (
        value.tensor.item() if isinstance(value, Const) and value.tensor.numel() == 1 else value
    )
    if (
        not isinstance(mask, Const)
        or not isinstance(source, TensorRef)
        or isinstance(number, bool)
        or not isinstance(number, int | float)
    ):
        return None
    where = numbers_of(mask.tensor).astype(bool)
    where = ~where if call.kind.startswith("where") else where
    if source.shape != call.shape or (math.isfinite(number) and (where.all() or not where.any())):
        return None
    what, reason = (
        ("a mask of infinities", INFINITE)
        if not math.isfinite(number)
        else ("a mask", "it sets some locations to a number")
    )
    return call.emit(
        Masked, [source.name], what=what, reason=reason, mask=where, value=float(number)
    )


@rule("var", "std", "linalg_vector_norm", "norm")
def moment(call: Call) -> Any:
    """Read variances, standard deviations and norms over axes that are kept with size 1."""
    source = call.operand
    what, reason = REASONS[call.kind]
    dims = call["dim"]
    kind = "norm" if "norm" in call.kind else call.kind
    order = call["ord"] if call["ord"] is not None else call["p"]
    if (
        not isinstance(source, TensorRef)
        or dims in (None, [])
        or isinstance(dims, bool)
        or kind not in ("var", "std", "norm")
    ):
        return call.unread(what, reason)
    if kind == "norm" and order not in (None, 2, 2.0):
        return call.unread(what, reason)
    axes = call.axes
    correction = call["correction"] if "correction" in call.args else call["unbiased"]
    correction = 1.0 if correction is None else float(correction)
    return call.emit(
        Moment,
        [call.read(source)],
        what=what,
        reason=reason,
        kind=kind,
        axes=axes,
        correction=correction,
    )
