"""Record the calls that a model's Python code makes to PyTorch while the model is captured.

The place of a call identifies it: the module that makes it, and the functions of the user's code
from this module's ``forward`` down to the call. Edits of a model refer to places.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.fx import traceback
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ...foundation.process_state import cached_property

TORCH = torch.__path__[0] + "/"
HOME = str(Path(__file__).parent) + "/"
# files of PyTorch that are edited like user code, because their layers consist of other layers
OPEN = (f"{TORCH}nn/modules/transformer.py", f"{TORCH}nn/modules/container.py")
CHECKPOINT = f"{TORCH}utils/checkpoint.py"
KEY = "kcalc_call"
# functions through which exporters intercept calls of functions and modules
EXPORTING = ("__torch_function__", "module_call_wrapper")

Slot = tuple[Any, ...]  # (place of an argument, place inside a list or tuple)
Made = tuple[int, int]  # (call, index among its results)
Frame = tuple[CodeType, int]  # code of a function and index of the current instruction


@dataclass(frozen=True, eq=False)
class ModuleLevel:
    """A module that encloses a call.

    ``run``: the index of the module's call; ``frames``: the frames of the user's code between this
    module and the next inner module, outermost first; ``again``: whether gradient checkpointing
    runs some of this code a second time.
    """

    path: str
    module: nn.Module
    run: int
    frames: tuple[Frame, ...]
    again: bool = False

    @property
    def kind(self) -> type:
        """Return the class of the module."""
        return type(self.module)


@dataclass(frozen=True, eq=False)
class Through:
    """A PyTorch function that the user's code called and that made the recorded call.

    ``places``: {slot of an argument of the recorded call: (position, name) of the parameter of the
    function that received the same object}.
    """

    code: CodeType
    places: dict[Any, tuple[int, str]]


@dataclass(eq=False)
class LoggedCall:
    """A call to a PyTorch function, or to a module of the model (then ``function`` is None).

    ``levels``: the modules around the call, innermost first, beginning with the called module if
    there is one. ``reads``: {slot of an argument: the call result that is passed there};
    ``writes``: the slot of the argument that the call writes into. ``single``: whether the call
    returns one array; ``shapes``: the shapes of the results, None if they depend on the data.
    ``begin``, ``end``: the range of the calls made inside this call. ``through``: the PyTorch
    function between the user's code and the call.
    """

    function: Any
    levels: tuple[ModuleLevel, ...]
    reads: dict[Slot, Made]
    writes: Slot | None = None
    begin: int = 0
    end: int = 0
    single: bool = True
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    results: dict[int, Made] = field(default_factory=dict)
    through: Through | None = None


class CallLog(TorchFunctionMode):
    """Records calls while a model runs, possibly several times.

    ``calls``: calls to PyTorch functions in all runs; ``modules``: calls to modules.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # exporters run a model with shared modules through proxies that share their ``__dict__``
        self.known = {id(vars(module)): (path, module) for path, module in model.named_modules()}
        self.calls: list[LoggedCall] = []
        self.modules: list[LoggedCall] = []
        self.made: dict[int, Made] = {}  # id() of a tensor -> the last call that made it
        self._alive: list[Any] = []  # keeps tensors alive, so that their ids stay unique
        self._runs: dict[str, int] = {}
        self._open: list[LoggedCall] = []

    @contextmanager
    def running(self) -> Iterator[CallLog]:
        """Record the calls to modules and functions."""
        handles = []
        for module in self.model.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            # the input and output of ``forward``, between the user's hooks
            handles += [
                module.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True),
                module.register_forward_pre_hook(self._given, with_kwargs=True),
                module.register_forward_hook(self._end, prepend=True, with_kwargs=True),
            ]
        try:
            with traceback.preserve_node_meta(), self:
                yield self
        finally:
            for handle in handles:
                handle.remove()
            self._alive.clear()
            self.made.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a call, and mark the operators that it runs."""
        kwargs = kwargs or {}
        number = len(self.calls)
        levels, through = self._levels(0, args, kwargs)
        call = LoggedCall(func, levels, self._reads(args, kwargs), through=through)
        call.writes = _written(func, args, kwargs)
        with _annotated(number):
            found = func(*args, **kwargs)
        call.single = isinstance(found, torch.Tensor)
        call.shapes = tuple(_shape(leaf) for _, leaf in _tensors(found))
        if not call.shapes and getattr(func, "__name__", "") != "__setitem__":  # x.dim(), x.shape
            return found
        self.calls.append(call)
        self._note(found, number)
        return found

    # -- data flow ---------------------------------------------------------------------------------

    def _reads(self, args: Any, kwargs: Any) -> dict[Slot, Made]:
        found: dict[Slot, Made] = {}
        for place, value in [*enumerate(args), *kwargs.items()]:
            for inner, leaf in _tensors(value):
                if (made := self.made.get(id(leaf))) is not None:
                    found[(place, *inner)] = made
        return found

    def _note(self, found: Any, number: int) -> None:
        for place, (_, leaf) in enumerate(_tensors(found)):
            self.made[id(leaf)] = (number, place)
            self._alive.append(leaf)

    # -- modules -----------------------------------------------------------------------------------

    def _begin(self, module: Any, args: Any, kwargs: Any) -> None:
        if id(vars(module)) not in self.known:
            return
        path, _ = self.known[id(vars(module))]
        self._runs[path] = self._runs.get(path, -1) + 1
        levels, through = self._levels(1, args, kwargs)
        if all(level.path for level in levels[1:]) and not path:  # a new run of the model
            self._enter(args, kwargs)
        call = LoggedCall(None, levels, self._reads(args, kwargs), through=through)
        call.begin = len(self.calls)
        self._open.append(call)

    def _given(self, module: Any, args: Any, kwargs: Any) -> None:
        if id(vars(module)) in self.known and self._open:
            self._open[-1].reads = self._reads(args, kwargs)

    def _end(self, module: Any, args: Any, kwargs: Any, found: Any) -> None:
        if id(vars(module)) not in self.known or not self._open:
            return
        call = self._open.pop()
        call.end, call.single = len(self.calls), isinstance(found, torch.Tensor)
        for place, (_, leaf) in enumerate(_tensors(found)):
            if (made := self.made.get(id(leaf))) is not None:
                call.results[place] = made
        self.modules.append(call)

    def _enter(self, args: Any, kwargs: Any) -> None:
        """Record the inputs of the model as (-1, index), since no call made them."""
        self._open.clear()
        for place, (_, leaf) in enumerate(_tensors([args, kwargs])):
            self.made[id(leaf)] = (-1, place)
            self._alive.append(leaf)

    def _levels(
        self, own: int, args: Any, kwargs: Any
    ) -> tuple[tuple[ModuleLevel, ...], Through | None]:
        """Return the fields ``levels`` and ``through`` of the LoggedCall for the current call.

        ``own``: the number of levels that are part of the call itself.
        """
        frame: Any = sys._getframe(2)
        frames, levels, below, again = list[Frame](), list[ModuleLevel](), None, False
        through: Through | None = None
        while frame is not None:
            code = frame.f_code
            if code.co_filename.endswith("nn/modules/module.py"):
                if code.co_name == "_call_impl":
                    found = self.known.get(id(vars(frame.f_locals["self"])))
                    if found is not None:
                        path, module = found
                        run = self._runs.get(path, 0)
                        levels.append(ModuleLevel(path, module, run, tuple(frames[::-1]), again))
                        frames, below, again = [], None, False
                    elif frames:  # a module that the model does not contain
                        frames.append((code, frame.f_lasti))
            elif is_user_code(code.co_filename):
                if below is not None and not frames and len(levels) == own:
                    through = _through(below, args, kwargs)
                frames.append((code, frame.f_lasti))
                below = None
            elif code.co_name in EXPORTING:
                below = None
            elif not code.co_filename.startswith(HOME):
                below, again = frame, again or code.co_filename == CHECKPOINT
            frame = frame.f_back
        return tuple(levels), through


@dataclass(frozen=True, eq=False)
class CallGraph:
    """The calls of one run of a model, and the nodes of the captured graph that they made.

    ``calls``: calls to PyTorch functions in order; ``modules``: calls to modules, inner modules
    first; ``numbers``: {node: index of its call}.
    """

    calls: tuple[LoggedCall, ...]
    modules: tuple[LoggedCall, ...]
    numbers: dict[Any, int]

    def made(self, node: Any) -> Made | None:
        """Return the call that returns a node of the graph, or None if no call returns it."""
        number = self.numbers.get(node)
        if number is None:
            return None
        if node.target is operator.getitem and self.numbers.get(node.args[0]) == number:
            return (number, int(node.args[1]))
        return (number, 0) if node in self.last else None

    @cached_property
    def last(self) -> frozenset[Any]:
        """Return the last node of every call."""
        return frozenset({number: node for node, number in self.numbers.items()}.values())

    @cached_property
    def ending(self) -> dict[Made, list[int]]:
        """Return {value: modules that return it}, inner modules first."""
        found: dict[Made, list[int]] = {}
        for number, module in enumerate(self.modules):
            if 0 in module.results:
                found.setdefault(module.results[0], []).append(number)
        return found


def call_graph(log: CallLog, graph: Any) -> CallGraph | None:
    """Return the calls of the run that made a captured graph.

    Returns None if the nodes of the graph have no marks.
    """
    numbers = {
        node: node.meta["custom"][KEY]
        for node in graph.nodes
        if KEY in (node.meta.get("custom") or {}) and not _is_check(node)
    }
    if not numbers:
        return None
    # an exporter runs the model several times; take the run whose calls made the nodes
    runs = [call for call in log.modules if not call.levels[0].path]

    def ending(run: LoggedCall) -> int:
        """Return the end of a run and of the model's hooks after it."""
        return min((r.begin for r in runs if r.begin >= run.end), default=len(log.calls))

    first, last = min(numbers.values()), max(numbers.values())
    run = next((r for r in runs if r.begin <= first and last < ending(r)), None)
    if run is None:
        return None
    begin, end = run.begin, ending(run)

    def moved(made: Made) -> Made:
        return (made[0] - begin, made[1]) if made[0] >= 0 else made

    calls = log.calls[begin:end]
    modules = [call for call in log.modules if begin <= call.begin and call.end <= end]
    for call in (*calls, *modules):
        call.reads = {slot: moved(made) for slot, made in call.reads.items()}
        call.results = {place: moved(made) for place, made in call.results.items()}
        call.begin, call.end = call.begin - begin, call.end - begin
    numbers = {node: number - begin for node, number in numbers.items()}
    return CallGraph(tuple(calls), tuple(modules), numbers)


def _is_check(node: Any) -> bool:
    """Whether a node returns nothing, such as the check of a dtype that an exporter adds.

    Such a check before ``x.to(dtype)`` has the mark of the call that made ``x``.
    """
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.returns


def _shape(tensor: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor, or None if it is symbolic."""
    sizes = tuple(tensor.shape)
    return sizes if all(isinstance(size, int) for size in sizes) else None


def _tensors(value: Any) -> Iterator[tuple[Slot, Any]]:
    """Yield (place, tensor) for a tensor, or for the tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield (), value
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            for inner, leaf in _tensors(part):
                yield (place, *inner), leaf
    elif value is not None and not isinstance(value, bool | int | float | str):
        leaves = pytree.tree_leaves(value)
        if len(leaves) != 1 or leaves[0] is not value:
            for place, leaf in enumerate(leaves):
                if isinstance(leaf, torch.Tensor):
                    yield (place,), leaf


def _written(func: Any, args: Any, kwargs: Any) -> Slot | None:
    """Return the slot of the argument that a call writes into and returns, or None."""
    name = getattr(func, "__name__", "")
    inplace = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name.endswith("__") and name != "__invert__"
    place = _place_of_inplace(func)
    flag = kwargs.get("inplace", args[place] if place is not None and place < len(args) else False)
    if kwargs.get("out") is not None:
        return ("out",)
    first = (0,) if args else (next(iter(kwargs), 0),)
    return first if inplace or augmented or flag is True else None


def _annotated(number: int) -> Any:
    """Return a context that marks the operators of a call.

    Before PyTorch 2.9, operators cannot be marked, so no call has a place.
    """
    annotate = getattr(traceback, "annotate", None)
    return nullcontext() if annotate is None else annotate({KEY: number})


def _through(frame: Any, args: Any, kwargs: Any) -> Through:
    """Match the arguments of a call with the parameters of the function that makes the call."""
    code = frame.f_code
    given = {id(value): place for place, value in [*enumerate(args), *kwargs.items()]}
    places: dict[Any, tuple[int, str]] = {}
    for number, name in enumerate(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        value = frame.f_locals.get(name)
        if isinstance(value, torch.Tensor | list | tuple) and id(value) in given:
            places.setdefault(given[id(value)], (number, name))
    return Through(code, places)


def is_user_code(file: str) -> bool:
    """Whether a file contains the user's code, not PyTorch's or kcalc's."""
    own = file.startswith(HOME)  # edited models call functions of kcalc
    return file in OPEN or not (file.startswith(TORCH) or own)


@functools.lru_cache(maxsize=1000)
def _place_of_inplace(func: Any) -> int | None:
    """Return the position of the argument ``inplace`` of a PyTorch function, or None."""
    try:
        names = [*inspect.signature(func).parameters]
    except (TypeError, ValueError):  # a function written in C
        return None
    return names.index("inplace") if "inplace" in names else None


__all__ = [
    "OPEN",
    "CallGraph",
    "CallLog",
    "LoggedCall",
    "ModuleLevel",
    "call_graph",
    "is_user_code",
]
