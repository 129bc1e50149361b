"""Plan the edits that make a model compute a shaped network.

The plan refers to the calls that compute each value and is the same for every framework. It scales
the input and output of an activation, changes the weights of a sum, and replaces a norm with its
input. If an edit cannot be placed in the model's code, its node stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..activations import Activation
from ..foundation.process_state import cached_property
from ..network import layers as L
from ..network.network import sum_weights
from .edit_target import Node, Target
from .edits import Action, Edit, Exchanged, Scaled, Slot, Taken

Made = tuple[int, int]  # (call, index among its results); (-1, i) is the i-th input
KINDS = {L.Scale: "factor", L.Dropout: "dropout", L.Identity: "factor"}
NO_VALUE = "no single call of the model computes it"
NO_INPUT = "no call in the model reads one of its inputs at this place"
SHARED = "the model also uses one of its intermediate values elsewhere"
NO_PATH = "its input is not a result of the calls that would be left out"
TOGETHER = "the model computes it together with nodes that need different edits"
ZERO = "the model multiplies one of its terms by 0"
TWICE = "one call of the model belongs to two nodes that are edited"


class Unplaced(Exception):
    """Raised if an edit cannot be placed in the model's code. The message is the reason."""


@dataclass(frozen=True)
class WholeModule:
    """A module that can be edited instead of a group of calls with the same input and output.

    ``key``: the framework's name for the module; ``slot``: the argument that is the input.
    """

    key: Any
    slot: Slot


@dataclass(frozen=True, eq=False)
class Flow:
    """The calls of a model in order, and the data flow between them.

    ``reads``: for each call, {slot: value of the argument}; ``values``: {operation of the trace:
    its value}; ``returned``: the model's outputs. The other fields are functions. ``carries(call)``
    tests whether a call only changes the layout or type of its argument, and ``single(call)``
    whether it returns one array. ``whole(start, end)`` returns the smallest module that computes
    ``end`` from ``start``, or None. ``shape(value)`` returns the shape, or None if unknown.
    ``written(value)`` returns the later calls that write into a value. ``needed(value)`` tests
    whether the call that made a value reads it again in the backward pass. ``unsteady(call,
    slots)`` returns a reason if arguments of the call, other than the data at these slots, differ
    in training, and "" otherwise.
    """

    reads: Sequence[Mapping[Slot, Made]]
    values: Mapping[str, Made]
    carries: Callable[[int], bool]
    single: Callable[[int], bool]
    whole: Callable[[Made, Made], WholeModule | None] = field(default=lambda start, end: None)
    shape: Callable[[Made], Any] = field(default=lambda made: None)
    written: Callable[[Made], frozenset[int]] = field(default=lambda made: frozenset())
    needed: Callable[[Made], bool] = field(default=lambda made: False)
    returned: frozenset[Made] = frozenset()
    unsteady: Callable[[int, frozenset[Slot]], str] = field(default=lambda call, slots: "")

    @cached_property
    def readers(self) -> dict[Made, set[int]]:
        """Return {value: calls that read it}."""
        found: dict[Made, set[int]] = {}
        for call, reads in enumerate(self.reads):
            for made in reads.values():
                found.setdefault(made, set()).add(call)
        return found


Numbers = tuple[float, float, float, float]  # (a, b, scale, shift) in scale (f(a x + b) + shift)
Calls = dict[Any, Action]  # {call, or key of a whole module: action}


@dataclass(frozen=True)
class CallGroup:
    """The calls that compute a value from given start values.

    ``entries``: {(call, slot): start value that is read there}.
    """

    end: Made
    calls: frozenset[int]
    entries: Mapping[tuple[int, Slot], Made]


def group(flow: Flow, starts: Sequence[Made], end: Made) -> CallGroup:
    """Collect the calls from ``starts`` to ``end``.

    Raises: Unplaced if no call reads a start value, if a call outside the group reads an
    intermediate value, or if a call uses different values in training.
    """
    entries, inside = _between(flow, starts, end)
    for call in inside - {end[0]}:
        for made, readers in flow.readers.items():
            if made[0] == call and not readers <= inside:
                raise Unplaced(SHARED)
        if any(made[0] == call for made in flow.returned):
            raise Unplaced(SHARED)
    _check_steady(flow, entries, inside)
    return CallGroup(end, frozenset(inside), entries)


Entries = dict[tuple[int, Slot], Made]


def _between(flow: Flow, starts: Sequence[Made], end: Made) -> tuple[Entries, set[int]]:
    """Return the arguments that are start values, and all calls from ``starts`` to ``end``."""
    wanted = set(starts)
    reached: set[int] = set()
    entries: dict[tuple[int, Slot], Made] = {}
    waiting = [end[0]]
    while waiting:
        call = waiting.pop()
        if call in reached or call < 0:
            continue
        reached.add(call)
        for slot, made in flow.reads[call].items():
            if made in wanted:
                entries[call, slot] = made
            else:
                waiting.append(made[0])
    if wanted - set(entries.values()):
        raise Unplaced(NO_INPUT)
    inside = _depending(flow, reached, {call for call, _ in entries})
    return entries, inside


def _check_steady(flow: Flow, entries: Entries, inside: set[int]) -> None:
    """Raise Unplaced if values that a call reads besides its data change in training."""
    for call in inside:
        reads = flow.reads[call].items()
        slots = {s for s, made in reads if (call, s) in entries or made[0] in inside}
        if reason := flow.unsteady(call, frozenset(slots)):
            raise Unplaced(reason)


def _depending(flow: Flow, calls: set[int], first: set[int]) -> set[int]:
    """Return the calls that depend on a call in ``first``."""
    found: set[int] = set()
    for call in sorted(calls):
        made = {source for source, _ in flow.reads[call].values()}
        if call in first or made & found:
            found.add(call)
    return found


class Planner:
    """Decides the action at every call, node by node.

    ``left``: {node: why its edit cannot be placed in the model's code}.
    """

    def __init__(self, target: Target, flow: Flow, constants: Mapping[Node, Any]) -> None:
        self.target, self.flow, self.constants = target, flow, constants
        self.left: dict[Node, str] = {}

    def edits(self) -> Iterator[tuple[Edit, Calls]]:
        """Yield every edit of an activation, a sum or a removed layer, with {call: action}.

        If several nodes are parts of one operation, the edit of the first node comes with the
        actions of all of them.
        """
        found = [*self._by_node()]
        for members in self._parts(found):
            kinds = {(edit.kind, tuple(sorted(calls.items(), key=str))) for edit, calls in members}
            wanted = self.whole_of[self.target.ops[members[0][0].node].whole]
            if len(kinds) > 1 or {edit.node for edit, _ in members} != wanted:
                self.left |= {self.by_name[edit.node]: TOGETHER for edit, _ in members}
                continue
            for _, calls in members[1:]:
                calls.clear()
        yield from ((e, calls) for e, calls in found if self.by_name[e.node] not in self.left)

    def _parts(self, found: Sequence[tuple[Edit, Calls]]) -> list[list[tuple[Edit, Calls]]]:
        """Group the edits of nodes that are parts of the same operation."""
        by_whole: dict[str, list[tuple[Edit, Calls]]] = {}
        for edit, calls in found:
            op = self.target.ops.get(edit.node)
            if op is not None and op.whole:
                by_whole.setdefault(op.whole, []).append((edit, calls))
        return [*by_whole.values()]

    @cached_property
    def whole_of(self) -> dict[str, set[str]]:
        """Return {operation that is read as several nodes: its nodes}."""
        found: dict[str, set[str]] = {}
        for name in self.by_name:
            op = self.target.ops.get(name)
            if op is not None and op.whole:
                found.setdefault(op.whole, set()).add(name)
        return found

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Return {node as text: node}."""
        return {str(node): node for node in self.target.model}

    def _by_node(self) -> Iterator[tuple[Edit, Calls]]:
        for node in self.target.model:
            step = self.target.steps.get(node)
            try:
                if step is not None and isinstance(step[0], L.Nonlinear):
                    found = self._activation(node, step[0].activation, self.constants.get(node))
                elif step is not None and isinstance(step[0], L.Scale):
                    found = self._factor(node, step[0])
                elif step is not None and isinstance(step[0], L.Sum):
                    found = self._sum(node, step[0], step[1])
                elif node in self.target.gone:
                    found = self._removed(node)
                else:
                    continue
            except Unplaced as error:
                self.left[node] = str(error)
                continue
            if found is None:
                continue
            if node in self.target.parts:
                self.left[node] = SHARED
                continue
            yield found

    # -- activations -------------------------------------------------------------------------------

    def _activation(self, node: Node, phi: Activation, constants: Any) -> tuple[Edit, Calls] | None:
        layer = self.target.model.layer(node)
        assert isinstance(layer, L.Nonlinear)
        norm = self.target.model.parents(node)[0]
        gained = norm in self.target.gone and str(norm) in self.target.reading.gains
        if phi == layer.activation and not gained:
            return None
        base, numbers = transformation(phi)
        same = base == layer.activation
        norm, numbers = self._after_gain(node, numbers, same)
        what = constants.describe() if constants is not None else phi.name
        edit = self._edit(node, "activation", f"{layer.activation.name} -> {what}")

        def at(name: str) -> Calls:
            starts = self._starts(node, name)[0] if norm is None else [self._value(norm)]
            end = self._end(name)
            if same:
                return self._scaled(starts, end, *numbers)
            made = self._passed(starts, end, f"{phi.name} cannot replace it")
            last = max(made, key=lambda call: call if isinstance(call, int) else 0)
            taken = made[last]
            assert isinstance(taken, Taken)
            made[last] = Exchanged(taken.slot, base, *numbers, taken.copied)
            return made

        return edit, self._wherever_made(node, at)

    def _after_gain(self, node: Node, numbers: Numbers, same: bool) -> tuple[str | None, Numbers]:
        """Account for the gain of a norm before an activation.

        If the norm has a single gain g and bias h, the activation that was read is f(g z + h). The
        model applies f to g z + h, or to z if the norm is removed. ``same``: whether f stays the
        same. Returns: the norm whose output the calls read (None if there is no such gain), and the
        adjusted numbers.
        """
        norm = self.target.model.parents(node)[0]
        known = self.target.reading.gains.get(str(norm))
        if known is None:
            return None, numbers
        (g, h), (a, b, *outer) = known, numbers
        if norm in self.target.gone:
            a, b = (g * a, g * b + h) if same else (a, b)
        elif same:
            b = g * b + h * (1 - a)
        else:
            a, b = a / g, b - a * h / g
        return str(norm), (a, b, *outer)  # pyright: ignore[reportReturnType]

    def _wherever_made(self, node: Node, at: Callable[[str], Calls]) -> Calls:
        """Return the actions at every computation of a node's feature map.

        ``at``: a function that returns the actions at an operation that returns the feature map.
        Each computation needs the actions once: at the node's own operation if possible, else at
        the last operation where an edit is possible. For example, no edit is possible at a
        multiplication by a factor that is 1 only in evaluation mode.
        """
        made: Calls = {}
        for names in self.target.made_by(node):
            first = str(node) if str(node) in names else names[0]
            for call, action in self._at_one([first, *names[::-1]], at).items():
                if made.setdefault(call, action) != action:
                    raise Unplaced(SHARED)
        return made

    @staticmethod
    def _at_one(names: Sequence[str], at: Callable[[str], Calls]) -> Calls:
        """Return the actions at the first operation in ``names`` where they are possible."""
        failed: Unplaced | None = None
        for name in names:
            try:
                return at(name)
            except Unplaced as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def _scaled(
        self, starts: Sequence[Made], end: Made, a: float, b: float, scale: float, shift: float
    ) -> Calls:
        """Return the actions that scale and shift the input and output of a group of calls."""
        whole = self._whole(starts, end)
        if whole is not None:
            return {whole.key: Scaled(((whole.slot, a, b),), scale, shift)}
        found = group(self.flow, starts, end)
        made: Calls = {}
        for call, slot in found.entries:
            self._add(made, call, Scaled(((slot, a, b),)))
        self._add(made, end[0], Scaled((), scale, shift))
        return made

    def _whole(self, starts: Sequence[Made], end: Made) -> WholeModule | None:
        """Return the smallest module that computes ``end`` from ``starts``, or None."""
        if len(starts) > 1:
            return None
        found = self.flow.whole(starts[0], end)
        if found is not None:
            _check_steady(self.flow, *_between(self.flow, starts, end))
        return found

    @staticmethod
    def _add(made: Calls, call: Any, action: Scaled) -> None:
        known = made.get(call, Scaled())
        assert isinstance(known, Scaled)
        made[call] = action.after(known)

    # -- sums --------------------------------------------------------------------------------------

    def _sum(
        self, node: Node, layer: L.Sum, parents: tuple[Node, ...]
    ) -> tuple[Edit, Calls] | None:
        before = self.target.model.layer(node)
        assert isinstance(before, L.Sum)
        new = [float(w) for w in sum_weights(layer, len(parents))]
        old = [float(w) for w in sum_weights(before, len(parents))]
        if new == old:
            return None
        end = self._end(str(node))
        factors: dict[Made, set[float]] = {}
        for starts, w, known in zip(self._starts(node, str(node)), new, old, strict=True):
            if w and not known:
                raise Unplaced(ZERO)
            for start in starts:
                factors.setdefault(start, set()).add(w / known if known else 1.0)
        if any(len(found) > 1 for found in factors.values()):
            raise Unplaced("it adds the same value twice, with different weights")
        found = group(self.flow, list(factors), end)
        made: Calls = {}
        for (call, slot), start in found.entries.items():
            (factor,) = factors[start]
            if factor != 1:
                self._add(made, call, Scaled(((slot, factor, 0.0),)))
        words = ", ".join(f"{w:.6g}" for w in new)
        return self._edit(node, "sum", f"weights {words}"), made

    def _factor(self, node: Node, layer: L.Scale) -> tuple[Edit, Calls] | None:
        before = self.target.model.layer(node)
        assert isinstance(before, L.Scale)
        if layer == before:
            return None
        ratio = float(layer.factor) / float(before.factor)
        edit = self._edit(node, "factor", f"factor {float(layer.factor):.6g}")

        def at(name: str) -> Calls:
            return self._scaled(self._starts(node, name)[0], self._end(name), 1, 0, ratio, 0)

        return edit, self._wherever_made(node, at)

    # -- removed layers ----------------------------------------------------------------------------

    def _removed(self, node: Node) -> tuple[Edit, Calls]:
        layer = self.target.model.layer(node)
        edit = self._edit(node, KINDS.get(type(layer), "norm"), f"{type(layer).__name__} removed")

        def at(name: str) -> Calls:
            (starts,), end = self._starts(node, name), self._end(name)
            return {} if end in starts else self._passed(starts, end, NO_PATH)

        return edit, self._wherever_made(node, at)

    def _passed(self, starts: Sequence[Made], end: Made, reason: str) -> Calls:
        """Return the actions that make every call between two values return its argument."""
        whole = self._whole(starts, end)
        if whole is not None:
            return {whole.key: Taken(whole.slot, self._copied(starts, end))}
        found = group(self.flow, starts, end)
        ways: dict[int, list[tuple[int, Slot]]] = {}
        for call in sorted(found.calls):
            for slot, source in self.flow.reads[call].items():
                before = [] if source in starts else ways.get(source[0])
                if before is None or (source not in starts and source[0] not in found.calls):
                    continue
                way = before if self.flow.carries(call) else [*before, (call, slot)]
                if call not in ways or len(way) < len(ways[call]):
                    ways[call] = way
        way = ways.get(end[0])
        if not way or any(self._resized(call, slot) for call, slot in way):
            raise Unplaced(reason)
        made: Calls = {call: Taken(slot) for call, slot in way}
        last, slot = way[-1]
        made[last] = Taken(slot, self._copied(starts, end))
        return made

    def _copied(self, starts: Sequence[Made], end: Made) -> bool:
        """Whether a value must be copied so that it does not share memory with an equal value.

        A copy is needed if the model writes into the other value. It is also needed if the model
        writes into this value and the other value must not change, because it is an input, is read
        elsewhere, or is needed for gradients.
        """
        flow, written = self.flow, bool(self.flow.written(end))
        if not written and not any(map(flow.written, starts)):
            return False
        inside = group(flow, starts, end).calls
        return any(
            bool(flow.written(start) - inside)
            or (written and (start[0] < 0 or bool(flow.readers.get(start, set()) - inside)))
            or (written and flow.needed(start))
            for start in starts
        )

    def _resized(self, call: int, slot: Slot) -> bool:
        """Whether a call's result and its argument differ in shape."""
        before, after = self.flow.shape(self.flow.reads[call][slot]), self.flow.shape((call, 0))
        return before != after and None not in (before, after)

    # -- values ------------------------------------------------------------------------------------

    def _starts(self, node: Node, name: str) -> list[list[Made]]:
        """Return, for each parent, the values of that parent that ``name`` depends on."""
        found = self.target.read_from(node, name)
        return [list(dict.fromkeys(map(self._value, names))) for names in found]

    def _value(self, name: str) -> Made:
        op = self.target.ops.get(name)
        made = self.flow.values.get(op.whole if op is not None and op.whole else name)
        if made is None:
            raise Unplaced(NO_VALUE)
        return made

    def _end(self, name: str) -> Made:
        made = self._value(name)
        if made[0] >= 0 and not self.flow.single(made[0]):
            raise Unplaced(NO_VALUE)
        return made

    def _edit(self, node: Node, kind: str, what: str) -> Edit:
        return Edit(str(node), kind, what, str(self.target.reading.sources.get(node, "")))


def transformation(phi: Activation) -> tuple[Activation, Numbers]:
    """Write an activation as scale * (phi(a x + b) + shift); return (phi, (a, b, scale, shift))."""
    change = phi.transformation
    if change is None:
        return phi, (1.0, 0.0, 1.0, 0.0)
    numbers = (change.input_scale, change.input_shift, change.output_scale, change.output_shift)
    return phi.base, tuple(float(n) for n in numbers)  # pyright: ignore[reportReturnType]
