"""Describe the places of calls in a PyTorch model's code so that they can be found again."""

from __future__ import annotations

import ast
import builtins
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...foundation.errors import KcalcError
from ...foundation.process_state import cached_property
from ..editing_plan import Calls, Flow, Made, Unplaced, WholeModule
from ..edits import Action, CallEdit, Exchanged, Place, Scaled, Slot, Taken
from .call_log import CallGraph, LoggedCall, ModuleLevel
from .captured import TorchProgram
from .edited import edited_class, method_of, names_digest
from .mixture_modules import replaced_to_read
from .performing import EDITED, class_name, plan_of
from .splicing import (
    NO_SOURCE,
    codes_in,
    definition,
    digest,
    has_argument,
    innermost,
    inside,
    is_redirectable,
    looked_up,
    name_of,
    plain_function,
    reached,
    replaced_in_training,
    site_at,
    sites,
)
from .tensor_reads import tensor_reads
from .training_code import unsteady

# functions that only change the layout or type of their argument
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
# other functions that may return a view of their argument
VIEWS = {"__getitem__", "select", "narrow", "split", "chunk", "unbind", "expand", "expand_as"}
# functions whose gradients need their arguments but not their results
LINEAR = {
    "linear",
    "matmul",
    "__matmul__",
    "bmm",
    "mm",
    "addmm",
    "add",
    "__add__",
    "sub",
    "cat",
} | {f"conv{turn}{axes}d" for turn in ("", "_transpose") for axes in (1, 2, 3)}
INDIRECT = "it is unclear which argument of `{}` is its input"
REPLACED = "the module {} has a forward that was set on the instance"
OTHER = "{}.forward is not the function that runs there"
NO_SITE = (
    "{} computes it by other means than a call or an arithmetic operator, such as a property or a "
    "comparison; call a function of PyTorch instead"
)
HIDDEN = "the function {} is called there under a name that is known only at run time"
FOREIGN = (
    "`{}` runs a module that the model does not contain; create it in __init__ and assign it to an "
    "attribute"
)
BUILT_IN = "{} calls it, possibly many times"
SEVERAL = "its module {!r} runs several times, and the runs need different edits"
TIMES = "its code runs several times in one module, and the runs differ"
AGAIN = (
    "its code runs several times under gradient checkpointing, and the runs need different edits; "
    "checkpoint modules instead of functions"
)
RECURSIVE = "the module {!r} calls itself"
MANY = "{} makes several calls to compute it"
IN_TRAINING = (
    "in the other mode (training or evaluation), {} runs other code instead; keep only the "
    "differences in a branch on training"
)
READ = "a value that would be removed with it is also read elsewhere: {}"
ASKS = "{} checks whether it is being compiled and may then make other calls"
# functions that return True while a model is read, because reading exports it
ASKING = {
    "is_compiling",
    "is_exporting",
    "is_dynamo_compiling",
    "is_torchdynamo_compiling",
    "is_torchdynamo_exporting",
}
OPERATING = ("torch", "operator", "_operator")  # modules whose functions make one call
NOTHING: Made = (-1, -1)
Item = tuple[str, int]  # ("call", i) or ("module", i)


def flow_of(program: TorchProgram) -> Flow:
    """Return the data flow between the calls of a captured model.

    Raises: KcalcError if the calls were not recorded, or if the model is already edited.
    """
    graph = program.captured.calls
    if graph is None:
        if program.captured.overriding:
            raise KcalcError(
                f"the model cannot be edited: the class {program.captured.overriding} overrides "
                "__call__; move the code of __call__ to forward"
            )
        raise KcalcError(
            "the model cannot be edited: the calls in the model's code could not be recorded; read "
            "the original torch.nn.Module, whose Python code is available"
        )
    for module in graph.modules:
        if edited_class(module.levels[0].module) is not None:
            raise KcalcError(EDITED.format(module.levels[0].path))
    values: dict[str, Made] = {}
    for node, name in program.names.items():
        made = graph.made(node)
        if made is not None:
            values.setdefault(name, made)
    for i, node in enumerate(program.captured.entries):
        values.setdefault(program.names.get(node, ""), (-1, i))
    written = _written(graph)
    return Flow(
        [call.reads for call in graph.calls],
        values,
        lambda call: _name(graph.calls[call]) in CARRIES,
        lambda call: graph.calls[call].single,
        lambda start, end: _whole(graph, start, end),
        lambda made: graph.calls[made[0]].shapes[made[1]] if made[0] >= 0 else None,
        lambda made: written.get(made, frozenset()),
        lambda made: made[0] >= 0 and _name(graph.calls[made[0]]) not in LINEAR,
        frozenset(graph.modules[-1].results.values()),
        lambda call, slots: unsteady(graph.calls[call], slots),
    )


def _written(graph: CallGraph) -> dict[Made, frozenset[int]]:
    """Return {value: later calls that write into it, possibly through another view}."""
    found: dict[Made, frozenset[int]] = {}
    for number in reversed(range(len(graph.calls))):
        call = graph.calls[number]
        name = _name(call)
        target = (0,) if name == "__setitem__" else call.writes
        if target in call.reads:
            made = call.reads[target]
            found[made] = found.get(made, frozenset()) | {number}
        later = [found.get((number, i), frozenset()) for i in range(len(call.shapes))]
        if any(later) and (name in CARRIES or name in VIEWS) and (0,) in call.reads:
            made = call.reads[0,]
            found[made] = found.get(made, frozenset()).union(*later)
    for number, call in enumerate(graph.calls):  # a view of an array into which a later call writes
        if _name(call) in CARRIES or _name(call) in VIEWS:
            later = {i for i in found.get(call.reads.get((0,), NOTHING), ()) if i > number}
            for made in ((number, i) for i in range(len(call.shapes))):
                found[made] = found.get(made, frozenset()) | later
    return found


def _name(call: LoggedCall) -> str:
    return getattr(call.function, "__name__", "")


def _whole(graph: CallGraph, start: Made, end: Made) -> WholeModule | None:
    for number in graph.ending.get(end, ()):
        module = graph.modules[number]
        slot = next((slot for slot, made in module.reads.items() if made == start), None)
        if slot is not None and module.single:
            return WholeModule(("module", number), slot)
    return None


class Placing:
    """Turns actions at calls into edits at places in the code.

    ``left``: {node whose actions cannot be placed: reason}.
    """

    def __init__(self, graph: CallGraph) -> None:
        self.graph = graph
        self.left: dict[str, str] = {}
        self.steps: dict[Any, Any] = {}
        calls = (*graph.calls, *graph.modules)
        self.modules = {level.path: level.module for call in calls for level in call.levels}
        paths = [[level.path for level in call.levels] for call in calls]
        self.recursive = {path for way in paths for path in way if way.count(path) > 1}
        # {module: calls in its code, in order}, and {module: calls of the module}
        self.inside: dict[str, list[tuple[ModuleLevel, Item]]] = {}
        self.whole: dict[str, list[Item]] = {}
        self.visits: dict[str, dict[Place, dict[int, list[Item]]]] = {}
        order = [(2 * i + 1, ("call", i)) for i in range(len(graph.calls))]
        order += [(2 * m.begin, ("module", i)) for i, m in enumerate(graph.modules)]
        for _, item in sorted(order):
            call = self._item(item)
            if item[0] == "module":
                self.whole.setdefault(call.levels[0].path, []).append(item)
            own = call.levels[item[0] == "module" :]
            if own and own[0].frames:
                self.inside.setdefault(own[0].path, []).append((own[0], item))

    @cached_property
    def read_by(self) -> dict[int, str]:
        """Return {id() of a module: code outside it that reads its parameters by name}."""
        root = self.graph.modules[-1].levels[0].module
        return {
            id(found): where
            for owner in root.modules()
            for function, node in tensor_reads(type(owner))
            if isinstance(found := looked_up(node.value, function, owner), nn.Module)
            and found is not owner
            and {**found._parameters, **found._buffers}.get(node.attr) is not None
            for where in [f"{ast.unparse(node)}, in {function.__qualname__}"]
        }

    def _visits(self, path: str, steps: Place) -> dict[int, list[Item]]:
        """Return {run of a module: calls at a place in its code, in order}."""
        if path not in self.visits:
            found: dict[Place, dict[int, list[Item]]] = {}
            for level, item in self.inside[path]:
                try:
                    known, _ = self._steps(level, self._item(item))
                except Unplaced:
                    continue
                found.setdefault(known, {}).setdefault(level.run, []).append(item)
            self.visits[path] = found
        return self.visits[path][steps]

    def placed(self, wanted: Mapping[str, Calls]) -> dict[str, tuple[CallEdit, ...]]:
        """Return {node: edits} for ``wanted``, {node: {call: action}}; skip nodes in ``left``.

        If the actions of a node cannot be placed, all other actions are placed again without them,
        because actions at one call can affect the places of others.
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
        if len(self.left) == before:
            self._check_plans(found)
        if len(self.left) > before:
            return None
        return {owner: tuple(dict.fromkeys(calls)) for owner, calls in found.items()}

    def _check_plans(self, found: Mapping[str, list[CallEdit]]) -> None:
        """Drop edits that cannot be applied together in one module."""
        by_path: dict[str, list[tuple[str, CallEdit]]] = {}
        for owner, calls in found.items():
            for call in calls:
                by_path.setdefault(call.place[0], []).append((owner, call))
        for path, owned in by_path.items():
            reason = self._conflict(path, [call for _, call in owned])
            if reason is None:
                continue
            alone = {o: self._conflict(path, [c for w, c in owned if w == o]) for o, _ in owned}
            guilty = {owner: why for owner, why in alone.items() if why is not None}
            self.left.update(guilty or dict.fromkeys(alone, reason))

    def _conflict(self, path: str, calls: list[CallEdit]) -> str | None:
        """Return why the edits of a module cannot be applied together, or None if they can."""
        try:
            plan_of(self.modules, path, calls)
        except KcalcError as error:
            return str(error)
        return None

    def _tried(self, owner: str, step: Any) -> None:
        try:
            step()
        except Unplaced as error:
            self.left.setdefault(owner, str(error))

    def _enter(
        self, actions: dict[Item, tuple[Action, list[str]]], key: Any, action: Action, owner: str
    ) -> None:
        item: Item = key if isinstance(key, tuple) else ("call", key)
        if item[0] == "call" and not self.graph.calls[item[1]].levels[0].frames:
            item, action = self._of_module(item[1], action)
        if item not in actions:
            actions[item] = action, [owner]
            return
        known, owners = actions[item]
        if not (isinstance(known, Scaled) and isinstance(action, Scaled)):
            raise Unplaced("one call in the model belongs to two edited nodes")
        actions[item] = action.after(known), [*owners, owner]

    def _of_module(self, number: int, action: Action) -> tuple[Item, Action]:
        """Move an action to the module if a PyTorch module consists of this call only."""
        call = self.graph.calls[number]
        own = call.levels[0]
        for i in self.graph.ending.get((number, 0), ()):
            module = self.graph.modules[i]
            if (module.levels[0].path, module.levels[0].run) == (own.path, own.run):
                return ("module", i), _with_slots(action, _Moved(call, module))
        raise Unplaced(MANY.format(own.kind.__name__))

    # -- places ------------------------------------------------------------------------------------

    def _edit(self, item: Item, action: Action, actions: Mapping[Item, Action]) -> CallEdit:
        call = self._item(item)
        level = call.levels[0]
        for outer in call.levels[1:]:
            _check_training(outer)
        written = () if call.writes is None else call.writes
        if item[0] == "module":
            if isinstance(action, Taken) and (reader := self.read_by.get(id(level.module))):
                raise Unplaced(READ.format(reader))
            alike = {actions.get(other) for other in self.whole[level.path]}
            if len(alike) == 1:
                written = self._written_by(item[1])
                kind = class_name(call.levels[0].kind)
                return CallEdit((level.path, ()), action, written=written, calls=kind)
            if len(call.levels) < 2 or not call.levels[1].frames:
                raise Unplaced(SEVERAL.format(level.path))
            level, written = call.levels[1], self._written_by(item[1])
        if level.path in self.recursive:
            raise Unplaced(RECURSIVE.format(level.path))
        try:
            steps, site = self._steps(level, call)
        except _NoSource:
            return self._by_order(item, level, action, actions)
        runs = self._visits(level.path, steps)
        shown = {run: [actions.get(other) for other in items] for run, items in runs.items()}
        mine = shown[level.run]
        action = _with_slots(action, lambda slot: site(call, slot))
        written = site(call, written) if written else ()
        called = site.calls or self._called(site, [i for found in runs.values() for i in found])
        if len({known for items in shown.values() for known in items}) == 1:
            return CallEdit((level.path, steps), action, written=written, calls=called)
        if any(known != mine for known in shown.values()):
            raise Unplaced(TIMES)
        if level.again:
            raise Unplaced(AGAIN)
        visit = runs[level.run].index(item)
        called = site.calls or self._called(site, [item])
        return CallEdit((level.path, steps), action, visit, len(mine), written, called)

    def _called(self, site: Site, items: Sequence[Item]) -> str:
        """Return the name of the called function if it is known only at run time, else ""."""
        if site.method or not isinstance(site.node, ast.Call):
            return ""
        names = {_callee(self._item(item)) for item in items}
        return names.pop() if len(names) == 1 else ""

    def _by_order(
        self, item: Item, level: ModuleLevel, action: Action, actions: Mapping[Item, Action]
    ) -> CallEdit:
        """Return an edit that refers to a call by its index among its module's own calls."""
        runs: dict[int, list[int]] = {}
        for i, call in enumerate(self.graph.calls):
            if call.levels and call.levels[0].path == level.path:
                runs.setdefault(call.levels[0].run, []).append(i)
        names = {names_digest(_name(self.graph.calls[i]) for i in run) for run in runs.values()}
        if item[0] == "module" or len(names) > 1:
            raise Unplaced(TIMES)
        number = runs[level.run].index(item[1])
        if any(actions.get(("call", run[number])) != action for run in runs.values()):
            raise Unplaced(TIMES)
        call = self.graph.calls[item[1]]
        step = "", "", names.pop(), number, 0
        place = level.path, (step,)
        return CallEdit(place, action, written=call.writes or (), calls=_name(call))

    def _written_by(self, number: int) -> Slot:
        """Return the slot of the module's argument into which its last call writes."""
        module = self.graph.modules[number]
        call = self.graph.calls[module.results[0][0]]
        if call.writes is None:
            return ()
        read = call.reads.get(call.writes)
        return next((slot for slot, made in module.reads.items() if made == read), ())

    def _item(self, item: Item) -> LoggedCall:
        return (self.graph.calls if item[0] == "call" else self.graph.modules)[item[1]]

    def _steps(self, level: ModuleLevel, call: LoggedCall) -> tuple[Place, Site]:
        key = _key(level), call.function is None
        if key not in self.steps:
            try:
                way = [*_steps(level, call)]
            except Unplaced as error:
                self.steps[key] = error
            else:
                self.steps[key] = tuple(step for step, _ in way), way[-1][1]
        if isinstance(self.steps[key], Unplaced):
            raise self.steps[key]
        return self.steps[key]


def _callee(call: LoggedCall) -> str:
    """Return the name of the function that a module's code called, or "" for modules."""
    if call.function is None or call.through is None:
        return "" if call.function is None else name_of(call.function)
    return "" if call.through.code is None else call.through.code.co_name


class _NoSource(Unplaced):
    """Raised if the ``forward`` of a module has no source code."""


def _key(level: ModuleLevel) -> Any:
    return level.path, tuple((id(code), instruction) for code, instruction in level.frames)


def _with_slots(action: Action, moved: Callable[[Slot], Slot]) -> Action:
    if isinstance(action, Scaled):
        inputs = tuple((moved(slot), a, b) for slot, a, b in action.inputs)
        return replace(action, inputs=inputs)
    assert isinstance(action, Taken | Exchanged)
    return replace(action, slot=moved(action.slot))


@dataclass(frozen=True, eq=False)
class _Moved:
    """Maps the slots of a call to slots of the module that consists of this call only."""

    call: LoggedCall
    module: LoggedCall

    def __call__(self, slot: Slot) -> Slot:
        read = self.call.reads.get(slot)
        found = next((s for s, made in self.module.reads.items() if made == read), None)
        if read is None or found is None:
            raise Unplaced(MANY.format(self.module.levels[0].kind.__name__))
        return found


@dataclass(frozen=True, eq=False)
class Site:
    """The last step of a place: a call or an operator in a function.

    ``method``: whether it is a method call whose first argument is the tensor before the dot;
    ``bound``: the number of parameters of the called function, such as ``self``, that have no
    argument in the code; ``calls``: the name of the called function.
    """

    node: ast.AST
    name: str
    method: bool
    bound: int
    calls: str

    def __call__(self, call: LoggedCall, slot: Slot) -> Slot:
        """Return the slot in the code for a slot of the recorded call."""
        if not isinstance(self.node, ast.Call):
            return slot
        place: Any = slot[0]
        if call.through is not None:
            if place not in call.through.places:
                raise Unplaced(INDIRECT.format(self.name))
            number, name = call.through.places[place]
            place = self._written(number - self.bound, name)
        elif not self._has(place):
            raise Unplaced(INDIRECT.format(self.name))
        return (place, *slot[1:])

    def _written(self, number: int, name: str) -> Any:
        node: Any = self.node
        if name in [keyword.arg for keyword in node.keywords]:
            return name
        if self._has(number):
            return number
        raise Unplaced(INDIRECT.format(self.name))

    def _has(self, place: Any) -> bool:
        return has_argument(self.node, self.method, (place,))


Step = tuple[str, str, str, int, int]


def _steps(level: ModuleLevel, call: LoggedCall) -> Iterator[tuple[Step, Site]]:
    """Yield the functions from a module's ``forward`` to a call, each with the next site."""
    module, frames = level.module, level.frames
    kind = type(module)
    codes = [code for code, _ in frames]
    function: Any = kind.forward
    if replaced_to_read(module):
        function = method_of(kind, lambda f: f.__code__ is codes[0])
    if function is None or ("forward" in vars(module) and function is kind.forward):
        raise Unplaced(REPLACED.format(kind.__name__))
    forward = function
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
            kind = _NoSource if function is forward else Unplaced
            raise kind(NO_SOURCE.format(inner.__qualname__))
        if ASKING & {name for code in codes_in(inner.__code__) for name in code.co_names}:
            raise Unplaced(ASKS.format(inner.__qualname__))
        site = site_at(found[0], *frames[last])
        node: Any = None if site is None else sites(found[0])[site]
        if site is None or not is_redirectable(node):
            raise Unplaced(NO_SITE.format(inner.__qualname__))
        if replaced_in_training(found[0], node):
            raise Unplaced(IN_TRAINING.format(inner.__qualname__))
        following = _following(inner, module, codes[last + 1 :])
        ends = following is None
        method = ends and call.function is not None and _is_method(node, call, inner, module)
        if ends and not method:
            _check_callee(node, call, inner, module)
        step = str(inner.__module__), inner.__qualname__, digest(found[0]), site, int(method)
        if not ends and not _enters(node, following, inner, module):
            raise Unplaced(HIDDEN.format(following.__qualname__))
        bound = 0 if method else _bound(node, call, inner, module)
        calls = name_of(looked_up(node.func, inner, module)) if isinstance(node, ast.Call) else ""
        yield step, Site(node, ast.unparse(node)[:60], bool(method), bound, calls if ends else "")
        if following is None:
            name = codes[last + 1].co_name if len(frames) > last + 1 else ""
            if name == "_call_impl":
                raise Unplaced(FOREIGN.format(ast.unparse(node)[:60]))
            if name and call.function is not None:
                raise Unplaced(HIDDEN.format(name))
            return
        function = following
        inner_at = _index(codes[last + 1 :], innermost(function))
        if inner_at is None:
            raise Unplaced(HIDDEN.format(function.__qualname__))
        at = last + 1 + inner_at


def _check_training(level: ModuleLevel) -> None:
    """Raise Unplaced if a module is not called in training, because other code replaces it."""
    for code, instruction in level.frames:
        if _goes_in_training(code, instruction):
            raise Unplaced(IN_TRAINING.format(code.co_qualname))


@functools.lru_cache(maxsize=10_000)
def _goes_in_training(code: types.CodeType, instruction: int) -> bool:
    """Whether other code replaces a module's call in training."""
    found = definition(code)
    site = None if found is None else site_at(found[0], code, instruction)
    if found is None or site is None:
        return False
    node = sites(found[0])[site]
    called = node.func if isinstance(node, ast.Call) else None
    return replaced_in_training(found[0], node, called)


def _enters(node: Any, function: Any, inner: Any, module: nn.Module) -> bool:
    """Whether a call may run a function, as the called function or through an argument."""
    if not isinstance(node, ast.Call):
        return False
    given = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
    values = [plain_function(looked_up(value, inner, module)) for value in given]
    code = innermost(function).__code__  # other closures with the same code count too
    if any(value is not None and innermost(value).__code__ is code for value in values):
        return True
    # a name that is known only at run time
    return looked_up(node.func, inner, module) is None


def _bound(node: Any, call: LoggedCall, inner: Any, module: nn.Module) -> int:
    """Return 1 if the parameter ``self`` has no argument in the code, else 0."""
    code = None if call.through is None else call.through.code
    if not isinstance(node, ast.Call) or code is None or code.co_varnames[:1] != ("self",):
        return 0
    return int(not isinstance(looked_up(node.func, inner, module), types.FunctionType))


def _index(codes: list[types.CodeType], function: Any) -> int | None:
    code = getattr(function, "__code__", None)
    return next((i for i, known in enumerate(codes) if known is code), None)


def _following(inner: Any, module: nn.Module, codes: list[types.CodeType]) -> Any:
    """Return the Python function with code ``codes[0]`` that ``inner`` names, or None."""
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


def _is_method(node: ast.AST, call: LoggedCall, inner: Any, module: nn.Module) -> bool:
    """Whether a call is a call to a tensor's method, as in ``x.relu()``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if getattr(torch.Tensor, node.func.attr, None) is not call.function:
        return False
    base = looked_up(node.func.value, inner, module)
    return base is None or isinstance(base, torch.Tensor)


def _check_callee(node: ast.AST, call: LoggedCall, inner: Any, module: nn.Module) -> None:
    """Raise Unplaced if the code calls another function, such as ``sum``, which makes the call."""
    if not isinstance(node, ast.Call):
        return
    found = looked_up(node.func, inner, module)
    if found is None or call.function is None:
        return
    found = found.func if isinstance(found, functools.partial) else found
    if isinstance(found, types.FunctionType | types.MethodType | nn.Module):
        return
    home = str(getattr(found, "__module__", None) or "torch")
    name = getattr(found, "__name__", type(found).__name__)
    if vars(builtins).get(name) is found or home.partition(".")[0] not in OPERATING:
        raise Unplaced(BUILT_IN.format(f"{home}.{name}"))
