"""Read a captured graph node by node.

Calls that depend on no input are evaluated. All other calls are read by the rules for their
operators.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ..internal_errors import ModelError, internal_error
from ..trace import Entry, Held, Names, NotRead, Op, Pass, Stopped
from .calls import (
    RULES,
    Call,
    call_of,
    described,
    hands_on,
    in_place,
    is_random,
    leaves,
    sized,
    sources,
)
from .captured import Captured, identity
from .graph_values import Const, PaddedTensor, Ragged, Stale, TensorRef, is_traced, numbers_of
from .own_gradients import number_of
from .stops import NO_GRAD, REGIONS, own_gradient, stopped, trained
from .streams import Plan, read_planned
from .token_ids import COMPARISONS, REMARK, TokenIds
from .unsupported_ops import REASONS, VMAP

SAME_MEMORY = {
    "detach",
    "alias",
    "contiguous",
    "to",
    "positive",
    "lift_fresh",
    "view_as",
    "type_as",
}
VIEWS = SAME_MEMORY | {
    "view",
    "reshape",
    "flatten",
    "squeeze",
    "unsqueeze",
    "transpose",
    "permute",
    "t",
    "expand",
    "slice",
    "select",
    "narrow",
    "split",
    "chunk",
    "split_with_sizes",
    "unbind",
    "getitem",
    "unflatten",
    "movedim",
    "swapaxes",
    "numpy_T",
    "diagonal",
    "real",
    "expand_as",
    "tensor_split",
}
TURNED = {"transpose", "t", "permute", "numpy_T", "movedim", "swapaxes"}
IN_ORDER = SAME_MEMORY | {
    "view",
    "reshape",
    "unsqueeze",
    "squeeze",
    "flatten",
    "unflatten",
    "clone",
    "_to_copy",
}
RANDOM_LAYERS = {
    "dropout",
    "feature_dropout",
    "alpha_dropout",
    "feature_alpha_dropout",
    "native_dropout",
    "rrelu",
    "scaled_dot_product_attention",
    "rrelu_with_noise",
    "lstm",
    "gru",
    "rnn_tanh",
    "rnn_relu",
    "native_multi_head_attention",
}
RANDOM = (
    "it draws random numbers in every run; read the model in evaluation mode (model.eval()) if "
    "they are drawn only in training"
)
UNSIZED = (
    "the number of entries that it takes depends on the data (routing to experts, Boolean masks), "
    "but kernel maps need arrays of fixed size"
)
SWITCH = "_set_grad_enabled"
NOTHING = ("_assert", "sym_constrain", "_functional_sym_constrain")


class Walker:
    """Reads a captured graph node by node."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.ops: dict[str, Op] = {}
        self.names = Names()
        self.remarks: list[str] = list(captured.remarks)
        self.values: dict[Any, Any] = {}
        self.made: dict[Any, Any] = {}  # {node: its value before later writes into its memory}
        self._memory: dict[Any, Any] = {}  # {node: node whose memory it shares}, filled on demand
        self._constants: dict[Any, str] = {}
        self._tainted: dict[int, Any] = {}  # {memory of constants: activations written into it}
        self._kept: dict[tuple[Any, ...], Any] = {}
        self.places: dict[str, tuple[tuple[int, ...], bool]] = {}
        self.dropping: dict[str, Call] = {}  # dropout that is active in this run
        self.whole: dict[str, str] = {}  # {operation: module that is reported as one operation}
        self.token_ids = TokenIds(captured)
        self.plan: Plan | None = None  # the plan for several residual streams
        self.streams: dict[tuple[int, int], TensorRef] = {}  # {(stream, level): its feature map}

    # -- walking -----------------------------------------------------------------------------------

    def walk(self) -> tuple[str, ...]:
        """Read the whole graph, and return the names of the outputs."""
        for node in self.captured.entries:
            shape, dtype = described(node.meta.get("val"))
            name = self.names(self.captured.labels.get(node, str(node.name)))
            self.ops[name] = Entry(name=name, shape=shape, source=f"input {name}")
            self.values[node] = TensorRef(name, shape, dtype)
        self.values.update(self.captured.given)
        self._run(self.captured.graph)
        outputs = [self.values[node] for node in self.captured.outputs]
        for value in outputs:
            if isinstance(value, Ragged):
                raise KcalcError(
                    "torch: an output of the model is an array of unknown size: "
                    f"{value.reason}; return arrays with one entry per example, or read only "
                    "the part of the model before it"
                )
        return tuple(
            dict.fromkeys(self.read(value, "output") for value in outputs if is_traced(value))
        )

    def _run(self, graph: Any) -> Any:
        """Read the nodes of a graph, and return the values of its outputs."""
        *calls, output = graph.nodes
        without: set[Any] | None = None  # the nodes since gradients were disabled
        for node in calls:
            if getattr(node.target, "__name__", "") == SWITCH:
                self._stop(without or ())
                without = None if node.args[0] else set()
            elif self.plan is not None and read_planned(self, self.plan, node):
                continue
            elif node not in self.values:
                self.values[node] = self.made[node] = self._value(node)
                if without is not None:
                    without.add(node)
        self._stop(without or ())
        return self._resolved(output.args[0])

    def _stop(self, nodes: Collection[Any]) -> None:
        """Stop gradients at nodes whose values are read outside ``nodes``."""
        for node in nodes:
            if node.op == "call_function" and any(user not in nodes for user in node.users):
                self.values[node] = stopped(self, self.values[node], NO_GRAD)

    def inline(self, module: Any, arguments: Sequence[Any]) -> Any:
        """Read a call to a graph inside the graph."""
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        # drop the values of an earlier call
        self.values = {
            node: value for node, value in self.values.items() if node.graph is not module.graph
        }
        self.values.update(zip(inputs, arguments, strict=False))
        before, self.captured = self.captured, _inner(self.captured, module)
        try:
            return self._run(module.graph)
        finally:
            self.captured = before

    def _value(self, node: Any) -> Any:
        """Return the value of a node, or an unread operation if the rule for the node fails."""
        made = len(self.ops)
        try:
            return self._read(node)
        except ModelError:
            raise
        except Exception as error:  # a failure in one part must not stop the rest from being read
            for name in list(self.ops)[made:]:
                del self.ops[name]
            reason = internal_error(error, f"the reading of {node.target} at {node.name!r}")
            args, kwargs = self._resolved(node.args), self._resolved(node.kwargs)
            return self._unsized(call_of(self, node, args, dict(kwargs)), reason)

    def _read(self, node: Any) -> Any:
        if node.op in ("placeholder", "get_attr"):
            return self._stored(node)
        args, kwargs = self._resolved(node.args), self._resolved(node.kwargs)
        if node.target is operator.getitem and not isinstance(args[0], Ragged):
            return args[0][args[1]] if isinstance(args[0], list | tuple) else args[0]
        call = call_of(self, node, args, dict(kwargs))
        if (number := number_of(node)) in self.captured.own:
            return own_gradient(call, self.captured.own[number])
        if call.kind.startswith(NOTHING):
            return None
        ragged = [leaf for leaf in leaves([args, kwargs]) if isinstance(leaf, Ragged)]
        traced = any(is_traced(leaf) for leaf in leaves([args, kwargs]))
        written = next(
            (w for leaf in leaves([args, kwargs]) if (w := self._taint(leaf)) is not None), None
        )
        if written is not None:
            reason = "the model writes activations into its memory, which kcalc does not follow"
            return call.unread("an array written piece by piece", reason, written)
        if not traced and not is_random(node) and call.kind not in REGIONS:
            return self._computed(call, args, kwargs)
        fixed = (
            None if in_place(node) or is_random(node) else self.token_ids.fixed(node, self.values)
        )
        if fixed is not None:
            self.remarks += [REMARK] if call.kind in COMPARISONS else []
            return Const(fixed, of_ids=not call.kind.endswith("_like"))
        if any(isinstance(leaf, Const) and _is_batched(leaf.tensor) for leaf in leaves(call.args)):
            return self._unsized(call, VMAP)
        random = is_random(node) and call.kind.strip("_") not in RANDOM_LAYERS
        if ragged or not sized(node.meta.get("val")):
            value = self._unsized(call, ragged[0].reason if ragged else UNSIZED)
        else:
            value = call.unread("random noise", RANDOM) if random else self._handled(call)
        if in_place(node):
            self._written(node, value)
        return value

    def _unsized(self, call: Call, reason: str) -> Any:
        """Report a call as not read; if its size is unknown, return a Ragged value."""
        value = call.node.meta.get("val")
        if value is not None and sized(value) and described(value)[1] is not None:
            return call.unread(call.spoken, reason)
        return Ragged(tuple(sources(leaves(call.args))), reason)

    def _handled(self, call: Call) -> Any:
        function = RULES.get(call.kind) or RULES.get(call.kind.removesuffix("_"))
        if any(map(_is_complex, leaves(call.args))):
            return call.unread("complex numbers", "kernel calculus needs real feature maps")
        fresh = {name: self._fresh(value, call.path) for name, value in call.args.items()}
        call = replace(call, args=fresh)
        if function is None:
            nothing = call.spoken, f"kcalc has no rule for the operator {call.kind}"
            return call.unread(*REASONS.get(call.kind, nothing))
        made = list(self.ops)
        try:
            return function(call)
        except ModelError:
            raise
        except (
            Exception
        ) as error:  # unusual arguments of one call must not stop the rest from being read
            for name in list(self.ops)[len(made) :]:
                del self.ops[name]
            where = f"the rule for {call.kind}, which does not understand its arguments"
            return call.unread(call.spoken, internal_error(error, where))

    def _fresh(self, value: Any, where: str) -> Any:
        """Return a value, or an unread operation for an array that was written piece by piece."""
        if isinstance(value, list | tuple):
            return type(value)(self._fresh(part, where) for part in value)
        if not isinstance(value, Stale):
            return value
        return TensorRef(self.read(value, where), value.source.shape, value.source.dtype)

    def _stored(self, node: Any) -> Any:
        if node in self.captured.held:
            tensor, name = self.captured.held[node]
            place = identity(tensor)
            if place not in self._kept:  # make a copy, because the user's model may change later
                own = bool(name) and self.captured.copied
                self._kept[place] = tensor.detach() if own else tensor.detach().clone()
            tensor = self._kept[place]
            own = bool(name) and name in self.captured.trainable
            moves = self.captured.moves(node)
            return Const(tensor, (name,) if own else (), name if name else None, trained=moves)
        if node.op == "placeholder":
            return None
        value: Any = self.captured.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return Const(value.detach()) if hasattr(value, "detach") else value

    def resolved(self, node: Any) -> tuple[Any, Any]:
        """Return the values of a call's positional and keyword arguments."""
        return self._resolved(node.args), self._resolved(node.kwargs)

    def _resolved(self, tree: Any) -> Any:
        from torch.fx.node import Node, map_aggregate

        return map_aggregate(
            tree, lambda leaf: self.values.get(leaf) if isinstance(leaf, Node) else leaf
        )

    # -- values that depend on no input ------------------------------------------------------------

    def _computed(self, call: Call, args: Any, kwargs: Any) -> Any:
        """Return the value of a call that depends on no input."""
        import torch
        from torch.fx.node import map_aggregate

        constants = [leaf for leaf in leaves([args, kwargs]) if isinstance(leaf, Const)]
        origins = tuple(dict.fromkeys(name for leaf in constants for name in leaf.origins))
        given, named = map_aggregate(
            (args, kwargs), lambda leaf: leaf.tensor if isinstance(leaf, Const) else leaf
        )
        try:
            with torch.no_grad():
                result = call.node.target(*given, **named)
        except Exception as error:
            where = f"the computation of {call.kind} on constants"
            return self._unsized(call, internal_error(error, where))
        same = len(constants) == 1 and call.kind in VIEWS | {"clone", "_to_copy"}
        made = _constant(result, origins, constants[0] if same else None, call.kind)
        moves = trained(call.kind, constants, VIEWS)
        if moves:
            made = map_aggregate(
                made, lambda leaf: replace(leaf, trained=moves) if isinstance(leaf, Const) else leaf
            )
        if any(constant.of_ids for constant in constants):
            return map_aggregate(
                made, lambda leaf: replace(leaf, of_ids=True) if isinstance(leaf, Const) else leaf
            )
        return made

    def _taint(self, leaf: Any) -> Any:
        """Return the activations written into the memory of a constant, or None."""
        if not self._tainted or not isinstance(leaf, Const):
            return None
        return self._tainted.get(leaf.tensor.untyped_storage().data_ptr())

    # -- writes in place ---------------------------------------------------------------------------

    def _root(self, node: Any) -> Any:
        """Return the node that owns the memory of a node's value."""
        way = [node]
        while (last := way[-1]) not in self._memory and (
            last.target is operator.getitem or in_place(last) or hands_on(last)
        ):
            way.append(last.args[0])
        root = self._memory.get(way[-1], way[-1])
        self._memory |= dict.fromkeys(way, root)
        return root

    def _written(self, node: Any, value: Any) -> None:
        """Record a write into an array.

        Later readers of the array get the new value. Views of its parts are marked as stale,
        because their values are no longer known.
        """
        target = node.args[0]
        before = self.values.get(target)
        reason = (
            f"{node.target} changes it in place through another view of its memory, which kcalc "
            "does not follow"
        )
        if isinstance(before, Const):
            self._tainted[before.tensor.untyped_storage().data_ptr()] = value
            self.values[target] = value
            return
        root = self._root(target)
        for other, known in list(self.values.items()):
            if (
                other is node
                or self._root(other) is not root
                or not isinstance(known, TensorRef | PaddedTensor)
            ):
                continue
            alike = (
                isinstance(known, TensorRef)
                and isinstance(before, TensorRef)
                and self._through(known.name, before.name)
            )
            same = isinstance(value, TensorRef) and (
                other is target or (alike and known.shape == value.shape)
            )
            self.values[other] = value if same else Stale(known, reason)

    def _through(self, one: str, two: str) -> bool:
        """Whether two operations return the same array."""

        def origin(name: str) -> str:
            while isinstance(op := self.ops[name], Pass | Stopped) and op.reads:
                name = op.reads[0]
            return name

        return origin(one) == origin(two)

    # -- writing the trace -------------------------------------------------------------------------

    def stored(self, weight: Const, flip: bool) -> None:
        """Record how the parameter of a Linear is stored in the model.

        The record contains its shape, and whether it is a transposed matrix.
        """
        if weight.parameter is not None:
            known = next(
                tensor for tensor, name in self.captured.held.values() if name == weight.parameter
            )
            self.places[weight.parameter] = (tuple(known.shape), flip != weight.transposed)

    def read(self, value: Any, where: str = "") -> str:
        """Return the name of the operation that outputs a value. Constants become Held."""
        if isinstance(value, TensorRef):
            return value.name
        if isinstance(value, Const):
            return self.held(value)
        if isinstance(value, PaddedTensor):
            what = "padding" if value.mode == "constant" else f"{value.mode} padding"
            reason = (
                "no convolution reads the padded image; use the padding of the convolution or "
                "pooling"
            )
            name = self.names(f"{where}.pad" if where else "pad")
            self.ops[name] = NotRead(
                name=name, shape=value.shape, reads=(value.source.name,), what=what, reason=reason
            )
            return name
        if isinstance(value, Stale):
            name = self.names(f"{where}.in_place" if where else "in_place")
            reads, reason = (self.read(value.source, where),), value.reason
            self.ops[name] = NotRead(
                name=name,
                shape=value.source.shape,
                reads=reads,
                what="a write into part of an array",
                reason=reason,
            )
            return name
        raise KcalcError(f"torch: {where}: expected an array, got {type(value).__name__}")

    def held(self, const: Const, array: np.ndarray | None = None) -> str:
        """Return the name of the Held operation for a constant.

        ``array``: the values of the constant with a different shape.
        """
        numbers = numbers_of(const.tensor) if array is None else array
        origin = const.parameter or (", ".join(const.origins) or None)
        key = (id(const.tensor), numbers.shape)
        if key not in self._constants:
            name = self.names(f"{origin} (parameter)" if origin else "constant")
            parameter = origin if const.origins else None
            self.ops[name] = Held(
                name=name,
                shape=tuple(numbers.shape),
                value=numbers,
                parameter=parameter,
                source=origin or "a constant",
                trained=const.trained,
            )
            self._constants[key] = name
            self._kept[("held", name)] = const.tensor
        return self._constants[key]


def _inner(captured: Captured, module: Any) -> Captured:
    return replace(captured, module=module, graph=module.graph)


def _is_batched(tensor: Any) -> bool:
    """Whether ``torch.vmap`` hides an axis of a tensor."""
    from torch._C._functorch import is_batchedtensor

    return is_batchedtensor(tensor)


def _is_complex(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return isinstance(leaf, complex) or bool(getattr(dtype, "is_complex", False))


def _constant(result: Any, origins: tuple[str, ...], own: Const | None, kind: str) -> Any:
    """Return a computed constant, with the name of the parameter that it equals, if any.

    The constant equals a parameter if it contains the same values in the same order or transposed.
    """
    if isinstance(result, list | tuple):
        return tuple(_constant(part, origins, None, kind) for part in result)
    if not hasattr(result, "untyped_storage"):
        return result
    if own is None or own.parameter is None or result.numel() != own.tensor.numel():
        return Const(result, origins)
    if kind in TURNED:
        plain = result.ndim == own.tensor.ndim == 2 and result.shape == own.tensor.shape[::-1]
        return (
            Const(result, origins, own.parameter, not own.transposed)
            if plain
            else Const(result, origins)
        )
    if result.shape == own.tensor.shape or (kind in IN_ORDER and not own.transposed):
        return Const(result, origins, own.parameter, own.transposed)
    return Const(result, origins)
