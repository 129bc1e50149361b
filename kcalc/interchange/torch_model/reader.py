"""Trace PyTorch models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...foundation.errors import KcalcError
from ...foundation.extras import imported
from ..batches import FIXED, of_batches
from ..example_shapes import is_shape
from ..named_inputs import Call, as_one
from ..rewriting import rewritten
from ..rewriting.mixing import ATTENTION
from ..trace import Attention, Entry, Held, Linear, Lookup, NotRead, Op, Trace, needed
from . import gates, linear, mixture_rules, norms, pointwise, pooling, shapes, stops  # noqa: F401
from .capture import capture, exported
from .captured import Captured, TorchProgram, shared_memory
from .copies import check_shapes
from .examples import example_arguments
from .graph_values import TensorRef
from .streams import plan_of
from .walker import Walker
from .windows import with_window

DROPOUTS = "torch.nn.modules.dropout."


@dataclass(frozen=True, eq=False)
class TorchModel:
    """Information about a model that is needed for edits, stored in the trace's field ``model``.

    ``stored``: {parameter: (shape, whether the transposed matrix is stored)}; ``program``: the
    captured graph and the calls that made it.
    """

    stored: dict[str, tuple[tuple[int, ...], bool]]
    program: TorchProgram


def trace_torch(model: Any, *examples: Any, experts: bool = False) -> Trace:
    """Return the trace of a Module, GraphModule, ScriptModule or ExportedProgram.

    The model does not change.

    ``examples``: a tensor, array or shape (including the batch) for each argument of ``forward``. A
    dictionary in the last position contains arguments by name. An ExportedProgram needs no
    examples. ``experts``: see :func:`capture`. Raises: KcalcError with the place and the reason if
    the model cannot be traced.
    """
    torch = imported("torch")
    if isinstance(model, torch.export.ExportedProgram):
        trace = _traced(model, replace(exported(model), copied=False), None)
        count = next(op.shape[0] for op in trace.ops if isinstance(op, Entry))
        return replace(trace, remarks=(*trace.remarks, FIXED.format(count)))
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise KcalcError(f"expected a torch.nn.Module or an ExportedProgram, got {kind}")
    from .counting import batch_size, plainly_alike, resized

    check_shapes(model)
    arguments = example_arguments(model, examples)
    arrays = not any(map(is_shape, (*examples, *(examples[-1].values() if arguments[1] else ()))))

    def traced(count: int) -> Trace:
        given = resized(arguments, count)
        return _traced(model, capture(model, given, experts=experts), given, arrays)

    alike = partial(plainly_alike, model, arguments)
    try:
        return of_batches(batch_size(arguments), traced, alike, cheap=False)
    except KcalcError as error:
        if told := as_one(model.forward, examples):
            raise KcalcError(f"{told}. With one batch of examples, {error}") from None
        raise


def _traced(model: Any, captured: Captured, arguments: Call | None, arrays: bool = False) -> Trace:
    """Return the trace of a captured model.

    ``arguments``: the arguments of the model, None if it cannot be captured again; ``arrays``:
    whether the user gave the arguments as arrays rather than shapes.
    """
    walker = Walker(captured)
    if arguments is not None:
        walker.plan = plan_of(captured, _tensors(arguments))
    outputs = walker.walk()
    if arguments is not None and arrays:
        _check_ids(walker, arguments)
    _mark_dropout(model, walker, arguments)
    if not outputs:
        raise KcalcError(
            "torch: no output of the model depends on its inputs, so there is nothing to analyse"
        )
    raw = dict(walker.ops)
    cut = _put_together(walker, outputs)
    outputs, renamed = _as_one(walker, outputs)
    ops, unused = _leading_to(walker.ops, outputs)
    tied = shared_memory(model)  # ask the original, because copies may not share memory
    ops = tuple(
        replace(op, parameter=tied.get(op.parameter, op.parameter))
        if isinstance(op, Linear)
        else with_window(op, model)
        if isinstance(op, Attention)
        else op
        for op in ops
    )
    remarks = [
        *walker.remarks,
        *(
            f"the input {name!r} is not part of the network; if it is a padding mask, sequences "
            "are read as if they had no padding"
            for name in unused
            if name not in cut
        ),
    ]
    details = TorchModel(
        walker.places,
        TorchProgram(captured, _names_of_nodes(walker, raw, renamed), arguments, arrays),
    )
    return Trace(
        "torch",
        ops,
        outputs,
        1,
        tuple(dict.fromkeys(remarks)),
        path_only=bool(captured.remarks),
        model=details,
    )


def _check_ids(walker: Walker, arguments: Call) -> None:
    """Raise KcalcError if an example contains an id outside the table of an embedding."""
    tensors = _tensors(arguments)
    entries = [op.name for op in walker.ops.values() if isinstance(op, Entry)]
    given = dict(zip(entries, tensors, strict=False))
    for op in walker.ops.values():
        ids = given.get(op.reads[0]) if op.reads else None
        if not isinstance(op, Lookup) or ids is None or ids.is_floating_point() or not ids.numel():
            continue
        rows, least, most = len(op.weight), int(ids.min()), int(ids.max())
        if least < 0 or most >= rows:
            raise KcalcError(
                f"the example input {op.reads[0]!r} contains the id "
                f"{most if most >= rows else least}, but the table of {op.name!r} has ids "
                f"from 0 to {rows - 1}; pass ids in this range"
            )


def _tensors(arguments: Call) -> list[Any]:
    """Return the tensors among the arguments of a model, in order."""
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(arguments) if hasattr(leaf, "is_floating_point")]


def _mark_dropout(model: Any, walker: Walker, arguments: Call | None) -> None:
    """Mark dropout that stays active in evaluation mode.

    ``nn.Dropout`` follows the mode of the model. If the model is in training mode, kcalc also runs
    it in evaluation mode, and marks any other dropout call whose place drops entries in that run.
    """
    dropping = walker.dropping
    if arguments is not None and model.training:
        dropping = {name: call for name, call in dropping.items() if not call.within(DROPOUTS)}
        on = _on_in_evaluation(model, arguments) if dropping else set()
        dropping = {name: call for name, call in dropping.items() if call.source in on}
    for name in dropping:
        walker.ops[name] = replace(walker.ops[name], always=True)


def _on_in_evaluation(model: Any, arguments: Call) -> set[str]:
    """Return the places of dropout calls that drop entries in evaluation mode."""
    walker = Walker(capture(model, arguments, evaluating=True))
    walker.walk()
    return {call.source for call in walker.dropping.values()}


def _put_together(walker: Walker, outputs: tuple[str, ...]) -> set[str]:
    """Rewrite the operations of a walker.

    Returns: the inputs from which columns of ids were made.

    Modules that can be read after the rewriting are no longer reported as one operation.
    """
    trace, born = rewritten(Trace("torch", tuple(walker.ops.values()), outputs))
    entries = {name: op for name, op in walker.ops.items() if isinstance(op, Entry)}
    walker.ops = {**entries, **{op.name: op for op in trace.ops}}
    inside = {
        name: path
        for name in walker.ops
        if (path := walker.whole.get(name) or walker.whole.get(born.get(name, "")))
    }
    unread = {path for name, path in inside.items() if isinstance(walker.ops[name], NotRead)}
    walker.whole = {name: path for name, path in inside.items() if path in unread}
    for name in list(walker.ops):
        walker.names(name)
    return {old for new, old in born.items() if isinstance(walker.ops.get(new), Entry)}


def _names_of_nodes(walker: Walker, raw: dict[str, Op], renamed: dict[str, str]) -> dict[Any, str]:
    """Return {node of the captured graph: operation of the trace with its value}."""
    out = {}
    for node, value in (walker.values | walker.made).items():
        if isinstance(value, TensorRef) and _unmoved(
            raw.get(value.name), walker.ops.get(value.name)
        ):
            out[node] = renamed.get(value.name, value.name)
    return out


def _unmoved(before: Op | None, after: Op | None) -> bool:
    """Whether an operation has the same output before and after the trace is rewritten."""
    if before is None or after is None or isinstance(before, Entry):
        return True
    if isinstance(before, Linear) and isinstance(after, Linear):
        same = (before.bias is None) == (after.bias is None) and before.rows == after.rows
        if not same or before.reads != after.reads or before.weight.shape != after.weight.shape:
            return False
    return before.shape == after.shape


def _as_one(walker: Walker, outputs: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Merge the operations of each module that is reported as one operation (attention).

    Returns: (the outputs under their new names, {operation: operation that replaces it}).
    """
    last: dict[str, str] = {}
    outside = {
        name for op in walker.ops.values() if op.name not in walker.whole for name in op.reads
    } | set(outputs)
    for name, path in walker.whole.items():
        if name in outside or path not in last:
            last[path] = name
    renamed = {name: path for path, name in last.items()}
    members = {path: [n for n, p in walker.whole.items() if p == path] for path in last}
    made: dict[str, Op] = {}
    for name, op in walker.ops.items():
        path = walker.whole.get(name)
        if path is None:
            made[name] = replace(op, reads=tuple(renamed.get(n, n) for n in op.reads))
        elif last[path] == name:
            inside = set(members[path])
            reads = dict.fromkeys(
                renamed.get(n, n) for m in inside for n in walker.ops[m].reads if n not in inside
            )
            reads = {n: None for n in reads if not isinstance(walker.ops.get(n), Held)}
            label = path if path not in walker.ops or path in inside else walker.names(path)
            renamed[name] = label
            why = (
                part.reason
                for part in map(walker.ops.get, members[path])
                if isinstance(part, NotRead) and part.what == "attention"
            )
            reason = next(why, ATTENTION)
            told = {"name": label, "what": "attention", "reason": reason}
            made[label] = op.become(NotRead, **told, reads=tuple(reads))
    walker.ops = made
    return tuple(renamed.get(name, name) for name in outputs), renamed


def _leading_to(ops: dict[str, Op], outputs: tuple[str, ...]) -> tuple[tuple[Op, ...], list[str]]:
    """Return the operations that the outputs need, and the names of unused inputs."""
    found = needed(ops, outputs)
    return tuple(op for name, op in ops.items() if name in found), [
        n for n, op in ops.items() if n not in found and isinstance(op, Entry)
    ]
