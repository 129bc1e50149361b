"""Reshapes, transpositions, concatenation, padding, slices; graphs within the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..trace import Join, Pass, Prefixed, Reshape, Transpose
from .calls import Call
from .graph_values import Const, Padded, Ref, numbers_of
from .walker import Handler, Walker


def _source(call: Call) -> Any:
    return call["self"] if call["self"] is not None else call["input"]


def passed(walker: Walker, call: Call) -> Any:
    """The same array."""
    return walker.emit(call, Pass, [walker.read(_source(call), call.path)])


def reshaped(walker: Walker, call: Call) -> Any:
    """The same numbers in another shape."""
    source = _source(call)
    kind = Pass if tuple(source.shape) == call.shape else Reshape
    return walker.emit(call, kind, [walker.read(source, call.path)])


def permuted(walker: Walker, call: Call) -> Any:
    """Axes in another order."""
    source = _source(call)
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
        return passed(walker, call)
    return walker.emit(call, Transpose, [walker.read(source, call.path)], order=tuple(order))


def _moved(rank: int, source: Any, destination: Any) -> list[int]:
    starts, ends = (
        [int(v) % rank for v in (value if isinstance(value, list | tuple) else [value])]
        for value in (source, destination)
    )
    rest = iter(axis for axis in range(rank) if axis not in starts)
    return [starts[ends.index(axis)] if axis in ends else next(rest) for axis in range(rank)]


def joined(walker: Walker, call: Call) -> Any:
    """Concatenation."""
    parts = list(call["tensors"])
    axis = int(call["dim"] or 0) % len(call.shape)
    parts = [p for p in parts if not (isinstance(p, Const) and p.tensor.numel() == 0)]
    if axis == 0:
        return walker.unread(
            call, "a concatenation of batches", "it mixes examples; run the model on each"
        )
    if any(isinstance(p, Const) for p in parts):
        return prefixed(walker, call, parts, axis)
    reads = [walker.read(p, call.path) for p in parts]
    return (
        walker.emit(call, Join, reads, axis=axis)
        if len(reads) > 1
        else walker.emit(call, Pass, reads)
    )


def prefixed(walker: Walker, call: Call, parts: list[Any], axis: int) -> Any:
    """Concatenation with arrays that depend on no input, such as class tokens."""
    what = "a concatenation with a constant"
    reason = (
        "an array that depends on no input has no kernel of its own (class tokens, coordinates)"
    )
    refs = [p for p in parts if isinstance(p, Ref)]
    if len(refs) != 1 or len(parts) != len([p for p in parts if isinstance(p, Const)]) + 1:
        return walker.unread(call, what, reason)
    values = [numbers_of(p.tensor) for p in parts if isinstance(p, Const)]
    value = np.concatenate(values, axis=axis)
    origins = dict.fromkeys(o for p in parts if isinstance(p, Const) for o in p.origins)
    behind = parts[0] is refs[0]
    if not behind and parts[-1] is not refs[0]:
        return walker.unread(call, what, reason)
    return walker.emit(
        call,
        Prefixed,
        [refs[0].name],
        what=what,
        reason=reason,
        axis=axis,
        value=value,
        parameter=", ".join(origins) or None,
        behind=behind,
    )


def padded(walker: Walker, call: Call) -> Any:
    """Padding, to be taken in by the convolution behind it."""
    source, mode, value = _source(call), str(call["mode"] or "constant"), call["value"]
    if call.kind.startswith(("reflection", "replication")):
        mode = "reflect" if call.kind.startswith("reflection") else "replicate"
    flat = (
        [int(n) for n in call["pad"] if n is not None]
        if call["pad"] is not None
        else [int(n) for n in call["padding"]]
    )
    if mode == "constant" and value not in (None, 0, 0.0):
        return walker.unread(
            call, "padding", f"it puts the number {value} around the image; use zeros"
        )
    if not any(flat):
        return passed(walker, call)
    pads = [(0, 0)] * len(call.shape)
    for i in range(len(flat) // 2):
        pads[len(pads) - 1 - i] = (flat[2 * i], flat[2 * i + 1])
    if (
        isinstance(source, Padded)
        and source.mode == mode in ("constant", "replicate")
        and min(flat) >= 0 <= min(map(min, source.pads))
    ):
        pads = [(a + c, b + d) for (a, b), (c, d) in zip(pads, source.pads, strict=True)]
        return Padded(source.source, tuple(pads), call.shape, call.dtype, mode)
    if not isinstance(source, Ref):
        return walker.unread(call, "padding", "padding of several kinds around one image")
    return Padded(source, tuple(pads), call.shape, call.dtype, mode)


def copy(walker: Walker, call: Call) -> Any:
    """Writing one array over another."""
    source = call["src"]
    if not isinstance(source, Ref):
        return walker.unread(call, "a write in place", "a constant is written over activations")
    return walker.emit(call, Pass, [walker.read(source, call.path)])


def filled(_: Walker, call: Call) -> Any:
    """A constant in the shape of an array (zeros_like, new_full, ...)."""
    import torch

    known = call["fill_value"]
    number = known if known is not None else 1.0 if "ones" in call.kind else 0.0
    number = number.tensor.item() if isinstance(number, Const) else number
    return Const(torch.full(call.shape, number, dtype=call.dtype))


def size(_: Walker, call: Call) -> Any:
    """The size of an axis, as it is for the example inputs."""
    return int(_source(call).shape[int(call["dim"])])


def wrapped(walker: Walker, call: Call) -> Any:
    """Graphs within the graph: without gradients, in mixed precision, under checkpointing."""
    values = [
        call.args[key]
        for key in sorted(call.args, key=lambda k: (not k.isdigit(), int(k) if k.isdigit() else 0))
        if key.isdigit()
    ]
    at = next(i for i, value in enumerate(values) if hasattr(value, "graph"))
    return walker.inline(values[at], values[at + 1 :])


def branched(walker: Walker, call: Call) -> Any:
    """torch.cond: one branch where the test is known, else not read."""
    test, yes, no, operands = (call.args[str(i)] for i in range(4))
    if isinstance(test, Const | bool | int):
        truth = bool(test.tensor.item()) if isinstance(test, Const) else bool(test)
        return walker.inline(yes if truth else no, list(operands))
    return walker.unread(
        call,
        "data-dependent control flow",
        "which branch is taken depends on the values of the input; read one model per branch",
    )


def looped(walker: Walker, call: Call) -> Any:
    """torch's own loops."""
    return walker.unread(
        call,
        "a loop",
        "loops of torch's own (while_loop, scan, map) have no rule; write a Python loop, which is "
        "unrolled",
    )


def handlers() -> Mapping[str, Handler]:
    """{operator: handler} of this file."""
    table: dict[str, Handler] = {
        "cat": joined,
        "concat": joined,
        "concatenate": joined,
        "copy": copy,
        "copy_": copy,
        "cond": branched,
    }
    table |= dict.fromkeys(
        (
            "detach",
            "alias",
            "contiguous",
            "clone",
            "positive",
            "real",
            "lift_fresh",
            "lift_fresh_copy",
            "nan_to_num",
        ),
        passed,
    )
    table |= dict.fromkeys(
        ("resolve_conj", "resolve_neg", "requires_grad_", "detach_", "view_as_real_copy"), passed
    )
    names = (
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
    table |= dict.fromkeys(names, reshaped)
    table |= dict.fromkeys(
        (
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
        ),
        permuted,
    )
    table |= dict.fromkeys(
        (
            "pad",
            "constant_pad_nd",
            *(f"{m}_pad{n}d" for m in ("reflection", "replication") for n in (1, 2, 3)),
        ),
        padded,
    )
    table |= dict.fromkeys(("sym_size", "size"), size)
    table |= dict.fromkeys(
        (
            "zeros_like",
            "ones_like",
            "full_like",
            "empty_like",
            "new_zeros",
            "new_ones",
            "new_full",
            "new_empty",
        ),
        filled,
    )
    table |= dict.fromkeys(
        (
            "wrap_with_set_grad_enabled",
            "wrap_with_autocast",
            "tag_activation_checkpoint",
            "wrap",
            "invoke_subgraph",
        ),
        wrapped,
    )
    return table | dict.fromkeys(("while_loop", "scan", "map_impl", "associative_scan"), looped)
