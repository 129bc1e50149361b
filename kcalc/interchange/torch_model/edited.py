"""Edit the calls that modules make, without a visible change of their class.

An edited module becomes an instance of a subclass of its class with the same name. If the module is
edited as a whole, the subclass changes its input and output. If individual calls in its code are
edited, its ``forward`` is the user's function with these calls redirected. The class stores the
change at each site. The module stores the constants as zero-dimensional tensors, which move to
other devices with the module and are not saved.
"""

from __future__ import annotations

import abc
import ast
import copy
import functools
import hashlib
import inspect
import json
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...activations import Activation
from ...activations.rectifiers import leaky_relu
from ...foundation.errors import KcalcError
from ..expressions import TreeReader
from ..json_format import activation_from_dict, activation_to_dict
from .activation import torch_function
from .splicing import (
    FUNCTIONS,
    NO_SELF,
    definition,
    digest,
    has_argument,
    innermost,
    looked_up,
    name_of,
    reached,
    rewritten,
    sites,
)

CONSTANT = "kcalc_constant_{}"
NUMBERS = "_kcalc_numbers"
ENTRY = "_kcalc_begin"
Slot = tuple[Any, ...]


# -- the change at a site, as data without numbers -------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A change that turns a call ``f(x)`` into ``scale * (f(a x + b) + shift)``.

    a, b, ``scale`` and ``shift`` are indices into the module's constants, or None for no change.
    ``inputs``: (slot, a, b) for each changed argument. ``taken``: the slot of an argument to which
    ``function`` is applied in place of f. ``written``: the argument that the call writes into.
    ``calls``: the name of the called function, empty if unknown. ``copied``: whether to copy an
    argument that replaces the result unchanged.
    """

    inputs: tuple[tuple[Slot, int | None, int | None], ...] = ()
    scale: int | None = None
    shift: int | None = None
    taken: Slot | None = None
    function: str = ""  # an activation as JSON text
    written: Slot | None = None
    calls: str = ""
    copied: bool = False

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Return the slots of all arguments that the change needs."""
        more = (self.taken, self.written)
        return (*(s for s, *_ in self.inputs), *(s for s in more if s is not None))


@dataclass(frozen=True)
class FunctionPlan:
    """The edits of a function at its sites.

    ``sites``: (site, whether it calls a method of a tensor, changes). There is one change for all
    visits, or one per visit. If the site calls another function whose code is edited, the plan of
    that function takes the place of the change.
    """

    module: str
    name: str
    digest: str
    sites: tuple[tuple[int, bool, tuple[Change | FunctionPlan | None, ...]], ...]

    @property
    def counted(self) -> bool:
        """Whether a site, possibly of an inner function, has separate changes for its visits."""
        inner = (c for *_, changes in self.sites for c in changes if isinstance(c, FunctionPlan))
        several = any(len(changes) > 1 for *_, changes in self.sites)
        return several or any(plan.counted for plan in inner)

    @property
    def methods(self) -> tuple[tuple[int, bool], ...]:
        """Return (site, whether it calls a method of a tensor) for every site."""
        return tuple((site, method) for site, method, _ in self.sites)


@dataclass(frozen=True)
class OrderPlan:
    """Edited calls of a ``forward`` without source code, by their index in its run.

    ``digest``: a hash of the names of all calls.
    """

    digest: str
    changes: tuple[tuple[int, Change], ...]


@dataclass(frozen=True)
class ModulePlan:
    """The edits of a module: of its result as a whole, or of calls in one of its methods.

    ``dropped``: parameters and buffers that the module no longer needs.
    """

    whole: Change | None = None
    function: FunctionPlan | None = None
    dropped: tuple[str, ...] = ()
    order: OrderPlan | None = None


# -- running ---------------------------------------------------------------------------------------


class EditedRun:
    """One run of an edited function, to which its redirected calls are passed.

    ``sites``: {site: changes}; ``way``: the sites of the calls that lead from ``forward`` to this
    function.
    """

    def __init__(self, owner: Any, sites: Any, visits: Any, way: tuple[int, ...] = ()) -> None:
        self.owner, self.sites, self.way = owner, sites, way
        # {path of sites from forward: [visits, planned visits]}, shared with inner functions
        self.visits: dict[Any, list[int]] = visits

    def __call__(self, site: int, func: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return the result of an edited call."""
        changes = self.sites[site]
        change = changes[0] if len(changes) == 1 else self._next(site, changes)
        if change is None:
            return func(*args, **kwargs)
        if isinstance(change, Act):
            return change(self.owner, func, args, kwargs)
        return change(self, site, func, args, kwargs)

    def _next(self, site: int, changes: tuple[Any, ...]) -> Any:
        count = self.visits.setdefault((*self.way, site), [0, len(changes)])
        count[0] += 1
        if count[0] > len(changes):
            raise KcalcError(LENGTH.format(*count))
        return changes[count[0] - 1]

    def done(self, value: Any) -> Any:
        """Check the number of visits, then return the result of the function."""
        for count, planned in self.visits.values():
            if count < planned:
                raise KcalcError(LENGTH.format(count, planned))
        return value

    @staticmethod
    def method(name: str) -> Callable[..., Any]:
        """Return a method of a tensor as a function."""
        return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


LENGTH = (
    "a loop of the edited model ran {} times, but it has separate edits for {} iterations; run it "
    "as many times as when the model was read, or shape the model for the new length"
)
OTHER = (
    "the edited model calls {} where it called {} when it was shaped; run it in the same way as "
    "when it was read, or read and shape it again"
)
NO_ARGUMENT = (
    "the edited model calls {} without the argument {!r}, which it passed when it was shaped; run "
    "it in the same way as when it was read, or read and shape it again"
)
NO_NUMBERS = (
    "this {} was created from the class of an edited module, but without its constants; copy the "
    "edited model with copy.deepcopy, or edit the new model with kc.apply_edits"
)
for _key, _function_of in FUNCTIONS.items():
    setattr(EditedRun, _key, staticmethod(_function_of))


class Act:
    """Applies a :class:`Change` at a call.

    ``names``: the parameters of the called function, if they are known; ``operator``: whether the
    call is an operator, so that ``2 * x`` may have been recorded as ``x * 2``; ``calls``: the name
    of the function that must be called, empty if any function may be called.
    """

    def __init__(
        self,
        change: Change,
        names: tuple[str, ...] = (),
        operator: bool = False,
        calls: str = "",
    ) -> None:
        self.names, self.operator, self.calls = names, operator, calls
        self.inputs = tuple((slot, _name(a), _name(b)) for slot, a, b in change.inputs)
        self.scale, self.shift = _name(change.scale), _name(change.shift)
        self.taken, self.written = change.taken, change.written
        self.function = _function(change.function) if change.function else None
        # whether the call must get a copy of the argument that it writes into
        own = change.written is not None and change.written != ("out",)
        moved = change.written in [slot for slot, *_ in change.inputs]
        plain = change.scale is None and change.shift is None
        removed = change.taken is not None and not change.function
        self.copied = own and not moved and not removed and not (plain and change.taken is None)
        self.apart = change.copied

    def __call__(self, owner: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result that replaces ``func(*args, **kwargs)``."""
        if self.calls and name_of(func) not in ("", self.calls):
            raise KcalcError(OTHER.format(_called(func), self.calls))
        turned = self.operator and _turned(*args)
        if turned:
            args = args[::-1]
        written = None
        if self.written is not None:
            written = self._argument(args, kwargs, self.written, func)
        if self.copied and self.written is not None:
            args, kwargs = self._changed(args, kwargs, self.written, func, _clone)
        for slot, a, b in self.inputs:
            place = slot[0]
            if len(slot) == 1 and isinstance(place, int) and place < len(args):  # the common case
                moved = _affine(owner, args[place], a, b)
                args = (*args[:place], moved, *args[place + 1 :])
                continue
            change = functools.partial(_affine, owner, a=a, b=b)
            args, kwargs = self._changed(args, kwargs, slot, func, change)
        if self.taken is None:
            found = func(*(args[::-1] if turned else args), **kwargs)
        else:
            found = self._argument(args, kwargs, self.taken, func)
            given = found
            if self.function is not None:
                found = self.function(found)
            if self.apart and found is given:
                found = found.clone()
        if self.shift is not None:
            found = found + _constant(owner, self.shift)
        if self.scale is not None:
            found = found * _constant(owner, self.scale)
        if written is None or found is written:
            return found
        return written.copy_(found)

    def _place(self, args: Any, kwargs: Any, place: Any, func: Any) -> Any:
        """Return the position or name of an argument, whichever this call uses."""
        given = place in kwargs if isinstance(place, str) else place < len(args)
        if given:
            return place
        if isinstance(place, str) and place in self.names:
            other: Any = self.names.index(place)
            if other < len(args):
                return other
        elif not isinstance(place, str) and place < len(self.names):
            other = self.names[place]
            if other in kwargs:
                return other
        raise KcalcError(NO_ARGUMENT.format(_called(func), place))

    def _argument(self, args: Any, kwargs: Any, slot: Slot, func: Any) -> Any:
        place = self._place(args, kwargs, slot[0], func)
        value = kwargs[place] if isinstance(place, str) else args[place]
        for part in slot[1:]:
            _check_within(value, part, func)
            value = value[part]
        return value

    def _changed(
        self, args: Any, kwargs: Any, slot: Slot, func: Any, change: Callable[[Any], Any]
    ) -> tuple[Any, Any]:
        """Return the arguments after ``change`` is applied to the argument at a slot."""
        place = self._place(args, kwargs, slot[0], func)
        if isinstance(place, str):
            return args, {**kwargs, place: _within(kwargs[place], slot[1:], change, func)}
        new = _within(args[place], slot[1:], change, func)
        return (*args[:place], new, *args[place + 1 :]), kwargs


class Enter:
    """Replaces a Python function by its edited form when it is called.

    ``original``: the function to which the calling code refers.
    """

    def __init__(self, plan: FunctionPlan, original: Any, sites: Any) -> None:
        self.plan, self.original, self.sites = plan, original, sites
        self.function = rewritten(original, plan.methods, None, False)
        # edited forms of functions with the same code, such as a lambda of a copied model
        self.versions: Any = weakref.WeakKeyDictionary()

    def __call__(self, run: EditedRun, site: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of the edited function, which replaces ``func(*args, **kwargs)``."""
        inner = EditedRun(run.owner, self.sites, run.visits, (*run.way, site))
        found = self._version(func, inner)
        if found is not None:
            return found(*args, **kwargs)
        # the function is an argument of the call, as in checkpoint(self.block, x)
        placed = [self._version(arg, inner) for arg in args]
        named = {name: self._version(arg, inner) for name, arg in kwargs.items()}
        if not any(v is not None for v in (*placed, *named.values())):
            raise KcalcError(OTHER.format(_called(func), self.plan.name))
        args = [arg if new is None else new for arg, new in zip(args, placed, strict=True)]
        return func(*args, **{n: kwargs[n] if new is None else new for n, new in named.items()})

    def _version(self, func: Any, run: EditedRun) -> Any:
        """Return the edited form of a called function, or None if it is a different function."""
        if isinstance(func, functools.partial):
            found = self._version(func.func, run)
            return found and functools.partial(found, *func.args, **func.keywords)
        own = (func.__self__,) if inspect.ismethod(func) else ()
        plain: Any = func.__func__ if own else func
        if plain is self.original:
            return functools.partial(self.function, run, *own)
        if not inspect.isfunction(plain):
            return None
        if plain not in self.versions:
            inner = innermost(plain)
            same = inspect.isfunction(inner) and inner.__code__ is innermost(self.original).__code__
            self.versions[plain] = (
                rewritten(plain, self.plan.methods, None, False) if same else None
            )
        version = self.versions[plain]
        return version and functools.partial(version, run, *own)


def _name(number: int | None) -> str | None:
    return None if number is None else CONSTANT.format(number)


def _constant(owner: Any, name: str) -> torch.Tensor:
    found = owner._buffers.get(name)
    if found is None:
        raise KcalcError(NO_NUMBERS.format(type(owner).__name__))
    return found


def _affine(owner: Any, x: Any, a: str | None, b: str | None) -> Any:
    x = x if a is None else x * _constant(owner, a)
    return x if b is None else x + _constant(owner, b)


def _turned(left: Any, right: Any = None) -> bool:
    if isinstance(left, torch.Tensor):
        return False
    return isinstance(right, torch.Tensor) or isinstance(left, bool | int | float | complex)


def _clone(x: Any) -> Any:
    return x.clone()


def _called(func: Any) -> str:
    return str(getattr(func, "__name__", type(func).__name__))


def _check_within(value: Any, part: Any, func: Any) -> None:
    good = isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
    if not good:
        raise KcalcError(NO_ARGUMENT.format(_called(func), part))


def _within(value: Any, inner: Slot, change: Callable[[Any], Any], func: Any) -> Any:
    if not inner:
        return change(value)
    _check_within(value, inner[0], func)
    parts = list(value)
    parts[inner[0]] = _within(parts[inner[0]], inner[1:], change, func)
    return tuple(parts) if isinstance(value, tuple) else parts


@functools.lru_cache(maxsize=512)
def _function(document: str) -> Callable[[Any], Any]:
    phi = activation_from_dict(json.loads(document), "an edit", TreeReader())
    slope = getattr(phi, "negative_slope", None)
    if slope is not None and leaky_relu(slope) == phi:
        number = float(slope)
        return lambda x: functional.leaky_relu(x, number)
    return torch_function(phi)


def document_of(phi: Activation) -> str:
    """Return an activation as the JSON text in a :class:`Change`."""
    return json.dumps(activation_to_dict(phi), sort_keys=True)


# -- functions -------------------------------------------------------------------------------------

CHANGED = (
    "the source code of {} has changed since it was shaped, or cannot be read; read and shape the "
    "model again"
)
OVERRIDDEN = (
    "the class {} overrides {}, which contains the edited calls; read and shape a model of this "
    "class"
)
Functions = tuple[Any, ...]  # the functions of a plan, outer functions first


def functions_of(plan: FunctionPlan, function: Any, owner: Any) -> Iterator[Any]:
    """Yield the functions of a plan and of its inner plans, in order.

    Raises: KcalcError if a function is not found, or if its source code has changed.
    """
    yield function
    for _, _, changes in plan.sites:
        for change in changes:
            if isinstance(change, FunctionPlan):
                yield from functions_of(change, resolved(change, function, owner), owner)


def resolved(plan: FunctionPlan, caller: Any, owner: Any) -> Any:
    """Return the function of a plan among the functions that ``caller`` refers to."""
    for function in reached(innermost(caller), owner):
        if _is_of(plan, function):
            return function
    raise KcalcError(CHANGED.format(f"{plan.module}.{plan.name}"))


def _is_of(plan: FunctionPlan, function: Any) -> bool:
    inner = innermost(function)
    if not inspect.isfunction(inner):
        return False
    if (str(inner.__module__), inner.__qualname__) != (plan.module, plan.name):
        return False
    found = definition(inner.__code__)
    return found is not None and digest(found[0]) == plan.digest


def checked_entry(cls: Any, plan: FunctionPlan) -> Any:
    """Return the method of a class that a plan describes, in most cases ``forward``.

    Raises: KcalcError if no method matches the plan.
    """
    if isinstance(inspect.getattr_static(cls, "forward"), staticmethod | classmethod):
        raise KcalcError(NO_SELF.format(f"{cls.__name__}.forward"))
    found = cls.forward if _is_of(plan, cls.forward) else None
    found = found or method_of(cls, lambda function: _is_of(plan, function))
    if found is None:
        overridden = any(method_of(kind, lambda f: _is_of(plan, f)) for kind in cls.__mro__)
        if overridden:
            raise KcalcError(OVERRIDDEN.format(cls.__name__, plan.name))
        raise KcalcError(CHANGED.format(f"{plan.module}.{plan.name}"))
    return found


def method_of(cls: Any, chosen: Callable[[Any], bool]) -> Any:
    """Return the method whose plain function ``chosen`` accepts, or None if there is none.

    Methods that a subclass overrides do not count.
    """
    names = dict.fromkeys(name for kind in cls.__mro__ for name in vars(kind))
    methods = (inspect.getattr_static(cls, name) for name in names)
    plain = (value for value in methods if inspect.isfunction(value))
    return next((value for value in plain if chosen(innermost(value))), None)


def _name_in(cls: Any, method: Any) -> str:
    """Return the name of a method in a class."""
    if cls.forward is method:
        return "forward"
    return next(name for kind in cls.__mro__ for name, v in vars(kind).items() if v is method)


def _sites(plan: FunctionPlan, functions: Iterator[Any]) -> tuple[Any, dict[int, Any]]:
    """Return the first function, and {site: changes}.

    The changes contain the other functions, which the first function calls.
    """
    function = next(functions)
    found = definition(innermost(function).__code__)
    assert found is not None
    nodes = sites(found[0])
    made: dict[int, Any] = {}
    for site, method, changes in plan.sites:
        node = nodes[site] if site < len(nodes) else None
        operator = isinstance(node, ast.BinOp | ast.AugAssign)
        named = isinstance(node, ast.Call) and not method
        made[site] = tuple(_made(change, operator, named, functions) for change in changes)
    return function, made


def _made(change: Any, operator: bool, named: bool, functions: Iterator[Any]) -> Any:
    if isinstance(change, Change):
        return Act(change, (), operator, change.calls if named else "")
    return None if change is None else Enter(change, *_sites(change, functions))


def _check(plan: FunctionPlan, functions: Iterator[Any], owner: Any) -> None:
    """Raise KcalcError if a call lacks an argument of the plan, or calls another function."""
    inner = innermost(next(functions))
    found = definition(inner.__code__)
    assert found is not None
    nodes = sites(found[0])
    for site, method, changes in plan.sites:
        node: Any = nodes[site] if site < len(nodes) else None
        if node is None or (method and not _may_be_method(node)):
            raise KcalcError(f"{plan.name} does not make the call to be edited")
        for change in changes:
            if isinstance(change, FunctionPlan):
                _check(change, functions, owner)
            elif change is not None:
                _check_change(change, node, method, inner, owner)


def _check_change(change: Change, node: Any, method: bool, inner: Any, owner: Any) -> None:
    for slot in change.slots:
        if not has_argument(node, method, slot):
            raise KcalcError(f"`{ast.unparse(node)[:60]}` has no argument at {[*slot]}")
    if change.calls and isinstance(node, ast.Call):
        called = name_of(looked_up(node.func, inner, owner))
        if called not in ("", change.calls):
            what = f"`{ast.unparse(node)[:60]}` is {called!r} here"
            raise KcalcError(f"{what}, but it was {change.calls!r} in the model that was read")


def _may_be_method(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


# -- classes ---------------------------------------------------------------------------------------

# {(class, plan, functions): subclass}, as long as the subclass is in use
_KNOWN: weakref.WeakValueDictionary[Any, type] = weakref.WeakValueDictionary()


def subclass(cls: Any, plan: ModulePlan, owner: Any = None) -> type:
    """Return a subclass with edits.

    ``owner``: a module of the class; its code may call functions in its attributes. Raises:
    KcalcError if the source code does not match the plan.
    """
    functions: Functions = ()
    if plan.function is not None:
        entry = checked_entry(cls, plan.function)
        owner = cls if owner is None else owner
        functions = tuple(functions_of(plan.function, entry, owner))
        _check(plan.function, iter(functions), owner)
    key = (cls, plan, functions)
    made = _KNOWN.get(key)
    if made is None:
        made = _KNOWN[key] = _subclass(cls, plan, functions)
    return made


def _subclass(cls: Any, plan: ModulePlan, functions: Functions) -> type:
    names = ("__module__", "__qualname__", "__doc__")
    space: dict[str, Any] = {name: getattr(cls, name, None) for name in names} | {
        "kcalc_class": cls,
        "kcalc_plan": plan,
        "__reduce_ex__": _reduced,
        "_apply": _applied,
        "_load_from_state_dict": _loaded,
        "extra_repr": _extra_repr,
        "__prepare_scriptable__": _refuse_script,
    }
    if hasattr(cls, "__deepcopy__"):
        space["__deepcopy__"] = _deepcopied
    made: Any = _new_class(cls, space)
    name = "forward"
    if plan.function is not None:
        _, table = _sites(plan.function, iter(functions))

        def begin(self: nn.Module) -> EditedRun:
            return EditedRun(self, table, {})

        setattr(made, ENTRY, begin)
        counted = plan.function.counted
        forward = rewritten(functions[0], plan.function.methods, ENTRY, counted)
        name = _name_in(cls, functions[0])
    else:
        forward = _around(cls, made, plan.whole, plan.order)
    setattr(made, name, forward)  # set afterwards, because a metaclass may wrap attributes
    return made


def _new_class(cls: Any, space: dict[str, Any]) -> type:
    """Create a subclass without side effects of subclassing, such as registration."""
    meta = type(cls)
    make = abc.ABCMeta.__new__ if issubclass(meta, abc.ABCMeta) else type.__new__
    try:
        made = make(meta, cls.__name__, (nn.Module,), space)  # type: ignore[arg-type]
        made.__bases__ = (cls,)
    except TypeError:  # the new class has another memory layout
        made = make(meta, cls.__name__, (cls,), space)  # type: ignore[arg-type]
    return made


def _around(cls: Any, made: Any, change: Change | None, order: OrderPlan | None) -> Any:
    """Return a ``forward`` that applies ``change`` to the whole call, or ``order`` inside it."""
    signature: Any = None
    names: tuple[str, ...] = ()
    try:
        signature = inspect.signature(cls.forward)
        names = tuple(signature.parameters)[1:]
    except (TypeError, ValueError):  # a function written in C
        pass
    for slot in () if change is None else change.slots:
        if signature is not None and not _takes(signature, slot):
            raise KcalcError(f"{cls.__name__}.forward has no argument at {[*slot]}")
    act = None if change is None else Act(change, names)
    run: Any = None
    ordered = order and {number: (Act(c), c.calls) for number, c in order.changes}
    if order is not None:
        run = torch.compiler.disable(_in_order, reason=NOT_COMPILED.format(cls.__name__))

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = super(made, self).forward  # pyright: ignore
        if order is not None:
            return run(self, order.digest, ordered, before, args, kwargs)
        if act is None:
            return before(*args, **kwargs)
        return act(self, before, args, kwargs)

    functools.update_wrapper(forward, cls.forward)
    del forward.__wrapped__  # the source code is not the running code
    if signature is not None:
        forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


class _ByOrder(TorchFunctionMode):
    """Edits calls that a module makes itself and that are identified by their index.

    ``names``: the names of the calls so far.
    """

    def __init__(self, owner: Any, acts: Any) -> None:
        super().__init__()
        self.owner, self.acts = owner, acts
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if not self._own():
            return func(*args, **kwargs)
        act, called = self.acts.get(len(self.names), (None, ""))
        if act is not None and name == called:
            self.names.append(name)
            return act(self.owner, func, args, kwargs)
        found = func(*args, **kwargs)
        if name == "__setitem__" or any(isinstance(v, torch.Tensor) for v in tree_leaves(found)):
            self.names.append(name)  # calls such as x.dim() are not counted
        return found

    def _own(self) -> bool:
        """Whether the module itself makes the current call, not a module inside it."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "_call_impl" and code.co_filename.endswith("nn/modules/module.py"):
                return frame.f_locals["self"] is self.owner
            frame = frame.f_back
        return True


NOT_COMPILED = (
    "{} has no source code, so its edited calls are found by their order, which compilers cannot "
    "follow; put its code into a file, or compile only the modules around it"
)
OTHER_CALLS = (
    "{} has no source code, so its edited calls are found by their order, but this run makes "
    "different calls; run it in the same way as when it was read, or read and shape it again"
)


def _in_order(self: Any, digest: str, acts: Any, before: Any, args: Any, kwargs: Any) -> Any:
    """Run a module whose edited calls are identified by their order."""
    with _ByOrder(self, acts) as mode:
        found = before(*args, **kwargs)
    if names_digest(mode.names) != digest:
        raise KcalcError(OTHER_CALLS.format(type(self).__name__))
    return found


def names_digest(names: Iterable[str]) -> str:
    """Return a hash of call names in order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


def _takes(signature: inspect.Signature, slot: Slot) -> bool:
    """Whether a method may have an argument at a slot."""
    place, *inner = slot
    given = [*signature.parameters.values()][1:]
    kinds = {parameter.kind for parameter in given}
    if len(inner) > 2 or not all(isinstance(part, int) and part >= 0 for part in inner):
        return False
    if isinstance(place, str):
        return inspect.Parameter.VAR_KEYWORD in kinds or place in [p.name for p in given]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(parameter.kind in positional for parameter in given)
    return 0 <= place < (1000 if inspect.Parameter.VAR_POSITIONAL in kinds else count)


def edited_class(module: Any) -> Any:
    """Return the subclass that contains the edits of a module, or None if it has no edits."""
    return next((kind for kind in type(module).__mro__ if "kcalc_plan" in vars(kind)), None)


def _plain(module: Any) -> Any:
    """Return an instance of the user's class that shares its attributes with the module."""
    cls = edited_class(module).kcalc_class
    twin = object.__new__(cls)
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin


def _reduced(self: Any, protocol: Any) -> Any:
    """Pickle a module as the user's class, the plan and the state."""
    kind = edited_class(self)
    cls = kind.kcalc_class
    ways = ("__reduce_ex__", "__reduce__")
    if any(getattr(cls, way) is not getattr(object, way) for way in ways):
        return _edited_again, (_plain(self), kind.kcalc_plan, self.__dict__[NUMBERS])
    return _again, (cls, kind.kcalc_plan), self.__getstate__()


def _again(cls: type, plan: ModulePlan) -> Any:
    """Return an empty module of an edited class.

    Raises: KcalcError if its source code has changed.
    """
    try:
        made: Any = subclass(cls, plan)
    except KcalcError:  # the plan may need functions in attributes of the module
        made = _new_class(cls, {"__setstate__": _finished, "kcalc_pending": (cls, plan)})
    return object.__new__(made)


def _finished(self: Any, state: Any) -> None:
    cls, plan = type(self).kcalc_pending
    self.__class__ = cls
    self.__setstate__(state)
    self.__class__ = subclass(cls, plan, self)


def _edited_again(module: Any, plan: ModulePlan, numbers: tuple[float, ...]) -> Any:
    edit(module, plan, numbers)
    return module


def _deepcopied(self: Any, memo: Any) -> Any:
    """Copy a module as its original class does, and edit the copy again if the edits were lost."""
    made = copy.deepcopy(_plain(self), memo)
    memo[id(self)] = made
    copies = dict(made.named_modules(remove_duplicate=False))
    for path, part in self.named_modules(remove_duplicate=False):
        kind, twin = edited_class(part), copies.get(path)
        if kind is not None and twin is not None and edited_class(twin) is None:
            edit(twin, kind.kcalc_plan, part.__dict__[NUMBERS])
    return made


def _applied(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply ``fn``, which may change the device or dtype, and restore the exact constants."""
    found = super(edited_class(self), self)._apply(fn, *args, **kwargs)
    if NUMBERS in self.__dict__:
        set_constants(self, self.__dict__[NUMBERS])
    return found


def _loaded(
    self: Any,
    state: Any,
    prefix: str,
    local: Any,
    strict: bool,
    missing: Any,
    unexpected: Any,
    errors: Any,
) -> None:
    """Ignore the weights of removed modules, which files saved from the original model contain."""
    kind = edited_class(self)
    dropped = {f"{prefix}{name}" for name in kind.kcalc_plan.dropped}
    for name in dropped:
        state.pop(name, None)
    given = (state, prefix, local, strict, missing, unexpected, errors)
    super(kind, self)._load_from_state_dict(*given)
    # the method of batch norms adds the batch counter to files that lack it
    unexpected[:] = [name for name in unexpected if name not in dropped]


def _refuse_script(self: Any) -> Any:
    raise KcalcError(
        f"the edited {type(self).__name__} cannot be scripted, because the compiler reads the "
        "source code of the original; use torch.jit.trace(model, x) or torch.export.export"
    )


def _extra_repr(self: Any) -> str:
    kind = edited_class(self)
    own = super(kind, self).extra_repr()
    return ", ".join(
        part for part in (own, _described(kind.kcalc_plan, self.__dict__.get(NUMBERS, ()))) if part
    )


def _described(plan: ModulePlan, numbers: tuple[float, ...]) -> str:
    """Describe the edited calls briefly."""
    if plan.function is not None:
        count = sum(1 for _ in _changes(plan.function))
        return f"edited: {count} call{'s' if count != 1 else ''}"
    change = plan.whole
    if plan.order is not None:
        return f"edited: {len(plan.order.changes)} calls by their order"
    if change is None:
        return ""
    if change.taken is not None and not change.function:
        return "removed"

    def number(place: int | None, nothing: float) -> float:
        return nothing if place is None or place >= len(numbers) else numbers[place]

    name = json.loads(change.function).get("name", "phi") if change.function else "f"
    inner = _affine_words("x", *((number(a, 1), number(b, 0)) for _, a, b in change.inputs[:1]))
    outer = _affine_words(f"{name}({inner})", (1.0, number(change.shift, 0)))
    scale = number(change.scale, 1)
    outer = f"({outer})" if change.shift is not None and scale != 1 else outer
    return f"edited: {outer if scale == 1 else f'{scale:.4g}*{outer}'}"


def _changes(plan: FunctionPlan) -> Iterator[Change]:
    for _, _, changes in plan.sites:
        for change in changes:
            if isinstance(change, FunctionPlan):
                yield from _changes(change)
            elif change is not None:
                yield change


def _affine_words(x: str, numbers: tuple[float, float] = (1.0, 0.0)) -> str:
    a, b = numbers
    return (x if a == 1 else f"{a:.4g}*{x}") + (f"{b:+.4g}" if b else "")


def set_constants(module: nn.Module, numbers: tuple[float, ...]) -> None:
    """Set the constants of a module, rounded once to their dtype."""
    module.__dict__[NUMBERS] = numbers
    for i, number in enumerate(numbers):
        name = CONSTANT.format(i)
        old = module._buffers.get(name)
        device = _device(module) if old is None else old.device
        wide = (_dtype(module) if old is None else old.dtype) == torch.float64
        dtype = torch.float64 if wide else torch.float32
        found = torch.empty((), dtype=dtype, device=device)
        if device.type != "meta":
            found.fill_(number)
        _hold(module, name, found)


def _hold(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Store a buffer that is not saved, even if the class overrides ``__getattr__``."""
    module._buffers[name] = tensor
    module._non_persistent_buffers_set.add(name)


def _first(module: nn.Module) -> torch.Tensor | None:
    tensors = (*module.parameters(), *module.buffers())
    return next((t for t in tensors if t.is_floating_point()), None)


def _dtype(module: nn.Module) -> torch.dtype:
    found = _first(module)
    return torch.get_default_dtype() if found is None else found.dtype


def _device(module: nn.Module) -> torch.device:
    found = _first(module)
    return torch.device("cpu") if found is None else found.device


def edit(module: Any, plan: ModulePlan, numbers: tuple[float, ...], like: Any = None) -> None:
    """Make a module an instance of the subclass for a plan, and set its constants.

    ``like``: a tensor with the dtype and device of the constants.
    """
    cls, made = type(module), subclass_for(module, plan)
    if _is_parametrised(cls):  # a class made for a single module is not cached
        space = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
        made = type(cls.__name__, (made,), space)
    object.__setattr__(module, "__class__", made)  # bypasses a __setattr__ of the class
    for name in plan.dropped:
        home, _, leaf = name.rpartition(".")
        owner = module.get_submodule(home)
        if leaf in owner._parameters:
            owner._parameters[leaf] = None
        else:
            owner._buffers[leaf] = None
    if like is not None:
        for i in range(len(numbers)):
            empty = torch.empty((), dtype=like.dtype, device=like.device)
            _hold(module, CONSTANT.format(i), empty)
    set_constants(module, numbers)


def subclass_for(module: Any, plan: ModulePlan) -> type:
    """Return the subclass of a module's class with edits.

    Raises: KcalcError under the same conditions as :func:`subclass`.
    """
    cls = type(module)
    return subclass(cls.__bases__[0] if _is_parametrised(cls) else cls, plan, module)


def _is_parametrised(cls: Any) -> bool:
    return cls.__name__.startswith("Parametrized") and cls.__module__ == parametrize.__name__
