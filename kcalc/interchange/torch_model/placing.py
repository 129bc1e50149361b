"""Where calls stand in a PyTorch model's code, as data that finds them again."""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..editing_plan import Calls, Flow, Made, Unplaced, Whole
from ..edits import Action, CallEdit, Exchanged, Place, Scaled, Slot, Taken
from .call_log import CallGraph, Level, LoggedCall
from .captured import Program
from .splicing import definition, digest, innermost, inside, reached, site_at, sites

# functions that hand numbers on in another layout or type
CARRIES = {
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "transpose",
    "permute",
    "movedim",
    "swapaxes",
    "t",
    "mT",
    "T",
    "contiguous",
    "clone",
    "detach",
    "to",
    "type",
    "type_as",
    "float",
    "double",
    "half",
    "bfloat16",
    "view_as",
    "reshape_as",
    "__get__",
}
NO_SOURCE = "the source of {} cannot be read, and its calls cannot be edited"
REPLACED = "the forward of {} was replaced on the module itself"
OTHER = "{}.forward is not the function that runs there"
NO_SITE = "it is no call or operator of {}"
HIDDEN = "the function {} is called there under a name that only the running code knows"
BUILT_IN = "{} calls it, many times for all that it knows"
SEVERAL = "its module {!r} runs several times, and the edits differ"
TIMES = "its code runs several times in one module, and not alike in every run"
MANY = "{} makes it out of several calls"
Item = tuple[str, int]  # ("call", i) or ("module", i)


def flow_of(program: Program) -> Flow:
    """The calls of a captured model. Raises: Unplaced where they were not logged."""
    graph = program.captured.calls
    if graph is None:
        raise Unplaced("the calls of the model's code could not be followed")
    values: dict[str, Made] = {}
    for node, name in program.names.items():
        made = graph.made(node)
        if made is not None:
            values.setdefault(name, made)
    for i, node in enumerate(program.captured.entries):
        values.setdefault(program.names.get(node, ""), (-1, i))
    return Flow(
        [call.reads for call in graph.calls],
        values,
        lambda call: _name(graph.calls[call]) in CARRIES,
        lambda call: graph.calls[call].single,
        lambda start, end: _whole(graph, start, end),
        lambda made: graph.calls[made[0]].shapes[made[1]] if made[0] >= 0 else None,
        frozenset(graph.modules[-1].results.values()),
    )


def _name(call: LoggedCall) -> str:
    return getattr(call.function, "__name__", "")


def _whole(graph: CallGraph, start: Made, end: Made) -> Whole | None:
    for number in graph.ending.get(end, ()):
        module = graph.modules[number]
        slot = next((slot for slot, made in module.reads.items() if made == start), None)
        if slot is not None and module.single:
            return Whole(("module", number), slot)
    return None


class Placing:
    """Turns actions at calls into edits at places.

    ``left``: the owners of actions (nodes) for which there is none, with the reason.
    """

    def __init__(self, graph: CallGraph) -> None:
        self.graph = graph
        self.left: dict[str, str] = {}
        self.steps: dict[Any, Any] = {}
        # {place as it ran: {run: the items that reached it, in order}}
        self.reached_at: dict[Any, dict[int, list[Item]]] = {}
        for i, call in enumerate(graph.calls):
            if call.levels and call.levels[0].frames:
                self._note(call.levels[0], ("call", i))
        for i, module in enumerate(graph.modules):
            own = module.levels[0]
            self.reached_at.setdefault((own.path,), {})[own.run] = [("module", i)]
            if len(module.levels) > 1 and module.levels[1].frames:
                self._note(module.levels[1], ("module", i))

    def _note(self, level: Level, item: Item) -> None:
        self.reached_at.setdefault(_key(level), {}).setdefault(level.run, []).append(item)

    def placed(self, wanted: Mapping[str, Calls]) -> dict[str, tuple[CallEdit, ...]]:
        """{owner: its edits} of ``{owner: {call: action}}``, without those in ``left``.

        An owner without a place changes what happens at the places of others, so the rest is
        placed anew.
        """
        while True:
            rest = {owner: calls for owner, calls in wanted.items() if owner not in self.left}
            found = self._placed(rest)
            if found is not None:
                return found

    def _placed(self, wanted: Mapping[str, Calls]) -> dict[str, tuple[CallEdit, ...]] | None:
        actions: dict[Item, tuple[Action, list[str]]] = {}
        before = len(self.left)
        for owner, calls in wanted.items():
            for key, action in calls.items():
                self._tried(owner, lambda k=key, a=action, o=owner: self._enter(actions, k, a, o))
        if len(self.left) > before:
            return None
        found: dict[str, list[CallEdit]] = {owner: [] for owner in wanted}
        for item, (action, owners) in actions.items():
            for owner in owners:
                self._tried(
                    owner,
                    lambda i=item, a=action, o=owner: found[o].append(
                        self._edit(i, a, {k: v[0] for k, v in actions.items()})
                    ),
                )
        if len(self.left) > before:
            return None
        return {owner: tuple(dict.fromkeys(calls)) for owner, calls in found.items()}

    def _tried(self, owner: str, step: Any) -> None:
        try:
            step()
        except Unplaced as error:
            self.left.setdefault(owner, str(error))

    def _enter(
        self, actions: dict[Item, tuple[Action, list[str]]], key: Any, action: Action, owner: str
    ) -> None:
        item: Item = key if isinstance(key, tuple) else ("call", key)
        if item[0] == "call" and not self.graph.calls[item[1]].levels:
            raise Unplaced("no module of the model makes it")
        if item[0] == "call" and not self.graph.calls[item[1]].levels[0].frames:
            item, action = self._of_module(item[1], action)
        if item not in actions:
            actions[item] = action, [owner]
            return
        known, owners = actions[item]
        if not (isinstance(known, Scaled) and isinstance(action, Scaled)):
            raise Unplaced("one call of the model belongs to two nodes that are edited")
        actions[item] = action.after(known), [*owners, owner]

    def _of_module(self, number: int, action: Action) -> tuple[Item, Action]:
        """The action at a call that is all of a module of PyTorch's, at the module."""
        call = self.graph.calls[number]
        own = call.levels[0]
        for i in self.graph.ending.get((number, 0), ()):
            module = self.graph.modules[i]
            if (module.levels[0].path, module.levels[0].run) == (own.path, own.run):
                slots = {
                    slot: next((s for s, made in module.reads.items() if made == read), None)
                    for slot, read in call.reads.items()
                }
                return ("module", i), _with_slots(action, slots, own.kind.__name__)
        raise Unplaced(MANY.format(own.kind.__name__))

    # -- places ------------------------------------------------------------------------------------

    def _edit(self, item: Item, action: Action, actions: Mapping[Item, Action]) -> CallEdit:
        call = self._item(item)
        level = call.levels[0]
        written = () if call.writes is None else call.writes
        if item[0] == "module":
            alike = {actions.get(runs[0]) for runs in self.reached_at[(level.path,)].values()}
            if len(alike) == 1:
                written = self._written_by(item[1])
                return CallEdit((level.path, ()), action, written=written)
            if len(call.levels) < 2 or not call.levels[1].frames:
                raise Unplaced(SEVERAL.format(level.path))
            level, written = call.levels[1], self._written_by(item[1])
        runs = self.reached_at[_key(level)]
        shown = {run: [actions.get(other) for other in items] for run, items in runs.items()}
        mine = shown[level.run]
        if any(known != mine for known in shown.values()):
            raise Unplaced(TIMES)
        steps = self._steps(level, call)
        if all(known == action for known in mine):
            return CallEdit((level.path, steps), action, written=written)
        visit = runs[level.run].index(item)
        return CallEdit((level.path, steps), action, visit, len(mine), written)

    def _written_by(self, number: int) -> Slot:
        """The argument of a module that the call which makes its result writes into."""
        module = self.graph.modules[number]
        end = module.results.get(0)
        if end is None or end[0] < 0:
            return ()
        call = self.graph.calls[end[0]]
        if call.writes is None:
            return ()
        read = call.reads[call.writes]
        return next((slot for slot, made in module.reads.items() if made == read), ())

    def _item(self, item: Item) -> LoggedCall:
        return (self.graph.calls if item[0] == "call" else self.graph.modules)[item[1]]

    def _steps(self, level: Level, call: LoggedCall) -> Place:
        key = _key(level)
        if key not in self.steps:
            self.steps[key] = tuple(_steps(level, call))
        return self.steps[key]


def _key(level: Level) -> Any:
    return level.path, tuple((id(code), instruction) for code, instruction in level.frames)


def _with_slots(action: Action, slots: Mapping[Slot, Slot | None], kind: str) -> Action:
    def moved(slot: Slot) -> Slot:
        found = slots.get(slot)
        if found is None:
            raise Unplaced(MANY.format(kind))
        return found

    if isinstance(action, Scaled):
        inputs = tuple((moved(slot), a, b) for slot, a, b in action.inputs)
        return replace(action, inputs=inputs)
    assert isinstance(action, Taken | Exchanged)
    return replace(action, slot=moved(action.slot))


def _steps(level: Level, call: LoggedCall) -> Iterator[tuple[str, str, str, int, int]]:
    """The functions from a module's ``forward`` to a call, each with the site of the next."""
    module, frames = level.module, level.frames
    kind = type(module)
    if "forward" in vars(module):
        raise Unplaced(REPLACED.format(kind.__name__))
    function: Any = kind.forward
    codes = [code for code, _ in frames]
    at = _index(codes, innermost(function))
    if at is None:
        raise Unplaced(OTHER.format(kind.__name__))
    while True:
        inner = innermost(function)
        last = at
        while last + 1 < len(frames) and inside(codes[last + 1], inner.__code__):
            last += 1
        found = definition(inner.__code__)
        if found is None:
            raise Unplaced(NO_SOURCE.format(inner.__qualname__))
        site = site_at(found[0], *frames[last])
        if site is None:
            raise Unplaced(NO_SITE.format(inner.__qualname__))
        following = _following(inner, module, codes[last + 1 :])
        ends = following is None
        node = sites(found[0])[site]
        method = ends and call.function is not None and _is_method(node, call, inner)
        if ends and not method:
            _check_callee(node, call, inner, module)
        yield inner.__module__, inner.__qualname__, digest(found[0]), site, int(method)
        if following is None:
            if len(frames) > last + 1 and call.function is not None:
                raise Unplaced(HIDDEN.format(codes[last + 1].co_name))
            return
        function = following
        inner_at = _index(codes[last + 1 :], innermost(function))
        if inner_at is None:
            raise Unplaced(HIDDEN.format(function.__qualname__))
        at = last + 1 + inner_at


def _index(codes: list[types.CodeType], function: Any) -> int | None:
    code = getattr(function, "__code__", None)
    return next((i for i, known in enumerate(codes) if known is code), None)


def _following(inner: Any, module: nn.Module, codes: list[types.CodeType]) -> Any:
    """The function of Python that a call enters, None where it enters none that is named."""
    if not codes:
        return None
    for function in reached(inner, module):
        wrapped = function
        while True:
            if wrapped.__code__ is codes[0]:
                return function
            if not hasattr(wrapped, "__wrapped__"):
                break
            wrapped = wrapped.__wrapped__
            if not isinstance(wrapped, types.FunctionType):
                break
    return None


def _is_method(node: ast.AST, call: LoggedCall, inner: Any) -> bool:
    """Whether a call is one of a method of an array, ``x.relu()``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    home = getattr(torch.Tensor, node.func.attr, None)
    if home is None or getattr(call.function, "__name__", "") != getattr(home, "__name__", None):
        return False
    base = _looked_up(node.func.value, inner, None)
    return not isinstance(base, types.ModuleType | type)


def _check_callee(node: ast.AST, call: LoggedCall, inner: Any, module: nn.Module) -> None:
    """Raises: Unplaced where a call of something else, such as ``sum``, makes the logged one."""
    if not isinstance(node, ast.Call):
        return
    found = _looked_up(node.func, inner, module)
    if found is None or call.function is None:
        return
    name = getattr(found, "__name__", "")
    if vars(builtins).get(name) is found:
        raise Unplaced(BUILT_IN.format(f"Python's {name}"))


def _looked_up(node: ast.expr, inner: Any, module: Any) -> Any:
    """What a name or an attribute in a function is, None where only the running code knows."""
    if isinstance(node, ast.Name):
        code = inner.__code__
        if module is not None and code.co_varnames[:1] == (node.id,):
            return module
        if node.id in code.co_varnames or node.id in code.co_cellvars + code.co_freevars:
            return None
        return inner.__globals__.get(node.id, vars(builtins).get(node.id))
    if isinstance(node, ast.Attribute):
        home = _looked_up(node.value, inner, module)
        if home is None or isinstance(home, torch.Tensor):
            return None
        return getattr(home, node.attr, None)
    return None
