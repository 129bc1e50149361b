"""Read reshapes, transposes, concatenation, padding, and nested graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..trace import Join, Pass, Prefixed, Reshape, Transpose
from .calls import Call, rule
from .graph_values import Const, PaddedTensor, TensorRef, numbers_of
from .stops import NO_GRAD, REGIONS, stopped, trained


@rule(
    "alias",
    "contiguous",
    "clone",
    "positive",
    "real",
    "lift_fresh",
    "lift_fresh_copy",
    "nan_to_num",
    "resolve_conj",
    "resolve_neg",
    "requires_grad_",
    "view_as_real_copy",
)
def passed(call: Call) -> Any:
    """Read an operator that returns its input."""
    return call.emit(Pass, [call.read(call.operand)])


@rule(
    "view",
    "reshape",
    "_unsafe_view",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "ravel",
    "view_as",
    "reshape_as",
    "view_copy",
)
def reshaped(call: Call) -> Any:
    """Read a reshape."""
    source = call.operand
    kind = Pass if tuple(source.shape) == call.shape else Reshape
    return call.emit(kind, [call.read(source)])


@rule(
    "permute",
    "transpose",
    "t",
    "movedim",
    "moveaxis",
    "swapaxes",
    "swapdims",
    "numpy_T",
    "mT",
    "adjoint",
    "mH",
    "matrix_H",
)
def permuted(call: Call) -> Any:
    """Read a permutation of axes."""
    source = call.operand
    order = list(range(len(source.shape)))
    if call.kind == "permute":
        order = [int(d) % len(order) for d in call["dims"]]
    elif call.kind in ("transpose", "swapaxes", "swapdims", "transpose_"):
        names = ("dim0", "dim1") if call["dim0"] is not None else ("axis0", "axis1")
        a, b = (int(call[name]) % len(order) for name in names)
        order[a], order[b] = order[b], order[a]
    elif call.kind in ("movedim", "moveaxis"):
        order = _moved(len(order), call["source"], call["destination"])
    else:
        order = (
            [*order[:-2], *order[:-3:-1]]
            if call.kind in ("mT", "t", "adjoint", "mH")
            else order[::-1]
        )
    if order == list(range(len(order))):
        return passed(call)
    return call.emit(Transpose, [call.read(source)], order=tuple(order))


def _moved(rank: int, source: Any, destination: Any) -> list[int]:
    starts, ends = (
        [int(v) % rank for v in (value if isinstance(value, list | tuple) else [value])]
        for value in (source, destination)
    )
    rest = iter(axis for axis in range(rank) if axis not in starts)
    return [starts[ends.index(axis)] if axis in ends else next(rest) for axis in range(rank)]


@rule("cat", "concat", "concatenate")
def joined(call: Call) -> Any:
    """Read a concatenation."""
    parts = list(call["tensors"])
    axis = int(call["dim"] or 0) % len(call.shape)
    parts = [p for p in parts if not (isinstance(p, Const) and p.tensor.numel() == 0)]
    if axis == 0:
        return call.unread("a concatenation of batches", "it concatenates along the batch axis")
    if any(isinstance(p, Const) for p in parts):
        return prefixed(call, parts, axis)
    reads = [call.read(p) for p in parts]
    return call.emit(Join, reads, axis=axis) if len(reads) > 1 else call.emit(Pass, reads)


def prefixed(call: Call, parts: list[Any], axis: int) -> Any:
    """Read a concatenation with arrays that depend on no input, such as class tokens."""
    what = "a concatenation with a constant"
    reason = "it concatenates an array that depends on no input (class tokens, coordinates)"
    refs = [p for p in parts if isinstance(p, TensorRef)]
    if len(refs) != 1 or len(parts) != len([p for p in parts if isinstance(p, Const)]) + 1:
        return call.unread(what, reason)
    values = [numbers_of(p.tensor) for p in parts if isinstance(p, Const)]
    value = np.concatenate(values, axis=axis)
    origins = dict.fromkeys(o for p in parts if isinstance(p, Const) for o in p.origins)
    behind = parts[0] is refs[0]
    if not behind and parts[-1] is not refs[0]:
        return call.unread(what, reason)
    return call.emit(
        Prefixed,
        [refs[0].name],
        what=what,
        reason=reason,
        axis=axis,
        value=value,
        parameter=", ".join(origins) or None,
        behind=behind,
        trained=trained("cat", (p for p in parts if isinstance(p, Const)), set()),
    )


@rule(
    "pad",
    "constant_pad_nd",
    *(f"{m}_pad{n}d" for m in ("reflection", "replication") for n in "123"),
)
def padded(call: Call) -> Any:
    """Read padding, which the next convolution absorbs."""
    source, mode, value = call.operand, str(call["mode"] or "constant"), call["value"]
    if call.kind.startswith(("reflection", "replication")):
        mode = "reflect" if call.kind.startswith("reflection") else "replicate"
    flat = (
        [int(n) for n in call["pad"] if n is not None]
        if call["pad"] is not None
        else [int(n) for n in call["padding"]]
    )
    if mode == "constant" and value not in (None, 0, 0.0):
        return call.unread("padding", f"it pads the image with the value {value}; use zeros")
    if not any(flat):
        return passed(call)
    pads = [(0, 0)] * len(call.shape)
    for i in range(len(flat) // 2):
        pads[len(pads) - 1 - i] = (flat[2 * i], flat[2 * i + 1])
    if (
        isinstance(source, PaddedTensor)
        and source.mode == mode in ("constant", "replicate")
        and min(flat) >= 0 <= min(map(min, source.pads))
    ):
        pads = [(a + c, b + d) for (a, b), (c, d) in zip(pads, source.pads, strict=True)]
        return PaddedTensor(source.source, tuple(pads), call.shape, call.dtype, mode)
    if not isinstance(source, TensorRef):
        return call.unread("padding", "it combines several kinds of padding")
    return PaddedTensor(source, tuple(pads), call.shape, call.dtype, mode)


@rule("copy", "copy_")
def copy(call: Call) -> Any:
    """Read copy_, which overwrites an array with another."""
    source = call["src"]
    if not isinstance(source, TensorRef):
        return call.unread("a write in place", "it overwrites activations with a constant")
    return call.emit(Pass, [call.read(source)])


@rule(
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
)
def filled(call: Call) -> Any:
    """Read a constant with the shape of an array (zeros_like, new_full, ...)."""
    import torch

    known = call["fill_value"]
    number = known if known is not None else 1.0 if "ones" in call.kind else 0.0
    number = number.tensor.item() if isinstance(number, Const) else number
    return Const(torch.full(call.shape, number, dtype=call.dtype))


@rule("sym_size", "size")
def size(call: Call) -> Any:
    """Read the size of an axis as its value for the example inputs."""
    return int(call.operand.shape[int(call["dim"])])


@rule(*REGIONS)
def wrapped(call: Call) -> Any:
    """Read a graph inside the graph."""
    values = [
        call.args[key]
        for key in sorted(call.args, key=lambda k: (not k.isdigit(), int(k) if k.isdigit() else 0))
        if key.isdigit()
    ]
    at = next(i for i, value in enumerate(values) if hasattr(value, "graph"))
    made = call.walker.inline(values[at], values[at + 1 :])
    if call.kind != "wrap_with_set_grad_enabled" or values[0]:
        return made
    return stopped(call.walker, made, NO_GRAD, source=call.source)


@rule("cond")
def branched(call: Call) -> Any:
    """Read the branch of torch.cond that runs, if the condition is known."""
    test, yes, no, operands = (call.args[str(i)] for i in range(4))
    if isinstance(test, Const | bool | int):
        truth = bool(test.tensor.item()) if isinstance(test, Const) else bool(test)
        return call.walker.inline(yes if truth else no, list(operands))
    return call.unread(
        "data-dependent control flow",
        "the branch that runs depends on the values of the input; read one model per branch",
    )


@rule("while_loop", "scan", "map_impl", "associative_scan")
def looped(call: Call) -> Any:
    """Report PyTorch's loop operators (while_loop, scan, map) as not read."""
    return call.unread(
        "a loop",
        "kcalc has no rule for torch's while_loop, scan and map; write a Python loop, which kcalc "
        "unrolls",
    )
