"""Modules of the user's own class whose calls are edited.

An edited module gets a subclass of its class, of the same name. Where the module is edited as a
whole, the subclass changes what goes in and out; where single calls of its code are, its
``forward`` is the user's function with these calls redirected. What happens at which site belongs
to the class, numbers to the module: they are arrays without axes that follow it to other devices
and are not saved.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ...activations import Activation
from ...activations.rectifiers import leaky_relu
from ...foundation.errors import KcalcError
from ..expressions import TreeReader
from ..json_format import activation_from_dict, activation_to_dict
from .activation import torch_function
from .splicing import FUNCTIONS, definition, digest, innermost, reached, rewritten

CONSTANT = "kcalc_constant_{}"
ENTRY = "_kcalc_begin"
Slot = tuple[Any, ...]
Step = tuple[str, str, str, int, int]  # module, qualified name, digest, site, whether a method


# -- what happens at a site, without its numbers ---------------------------------------------------


@dataclass(frozen=True)
class Change:
    """``scale * (f(a x + b) + shift)``.

    Numbers are given by their places among the constants of the module, None where there is none.
    ``inputs``: (slot, a, b). ``taken``: the slot whose argument takes the place of the result, of
    which ``function`` is taken first. ``written``: the argument that the call writes into.
    """

    inputs: tuple[tuple[Slot, int | None, int | None], ...] = ()
    scale: int | None = None
    shift: int | None = None
    taken: Slot | None = None
    function: str = ""  # the document of an activation, as JSON
    written: Slot | None = None

    def __call__(self, owner: nn.Module, func: Any, args: Any, kwargs: Any) -> Any:
        """The result in place of ``func(*args, **kwargs)``."""
        # of 2 * x, the operator was seen as x * 2
        turned = func in _BINARY and len(args) == 2 and not isinstance(args[0], torch.Tensor)
        if turned:
            args = args[::-1]
        written = None if self.written is None else _argument(args, kwargs, self.written)
        for slot, a, b in self.inputs:
            args, kwargs = _changed(args, kwargs, slot, lambda x, a=a, b=b: _affine(owner, x, a, b))
        if self.taken is None:
            found = func(*(args[::-1] if turned else args), **kwargs)
        else:
            found = _argument(args, kwargs, self.taken)
            if self.function:
                found = _function(self.function)(found)
        if self.shift is not None:
            found = found + _constant(owner, self.shift)
        if self.scale is not None:
            found = found * _constant(owner, self.scale)
        if written is None or found is written:
            return found
        return written.copy_(found)


@dataclass(frozen=True)
class FunctionPlan:
    """A function with edited sites.

    ``sites``: (site, whether a method of an array is called there, what happens at each visit: one
    for all, or one of each). Inner functions are plans themselves.
    """

    module: str
    name: str
    digest: str
    sites: tuple[tuple[int, bool, tuple[Change | FunctionPlan | None, ...]], ...]

    @property
    def counted(self) -> bool:
        """Whether a site, also of an inner function, has several visits."""
        inner = (c for *_, changes in self.sites for c in changes if isinstance(c, FunctionPlan))
        several = any(len(changes) > 1 for *_, changes in self.sites)
        return several or any(plan.counted for plan in inner)


class Run:
    """One run of an edited function: what redirected calls ask."""

    def __init__(
        self,
        owner: nn.Module,
        plan: FunctionPlan,
        functions: Mapping[Any, Any],
        outer: Run | None = None,
        way: tuple[int, ...] = (),
    ) -> None:
        self.owner, self.functions, self.way = owner, functions, way
        self.sites = functions[plan]
        # {sites from forward on: [visits, visits that were planned]}, one for all inner functions
        self.visits: dict[Any, list[int]] = {} if outer is None else outer.visits

    def __call__(self, site: int, func: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The result of a call, edited."""
        changes = self.sites[site]
        if len(changes) == 1:
            change = changes[0]
        else:
            count = self.visits.setdefault((*self.way, site), [0, len(changes)])
            count[0] += 1
            if count[0] > len(changes):
                raise KcalcError(LENGTH.format(*count))
            change = changes[count[0] - 1]
        if change is None:
            return func(*args, **kwargs)
        if isinstance(change, FunctionPlan):
            own = (func.__self__,) if inspect.ismethod(func) else ()
            inner = Run(self.owner, change, self.functions, self, (*self.way, site))
            return self.functions[change, "function"](inner, *own, *args, **kwargs)
        return change(self.owner, func, args, kwargs)

    def done(self, value: Any) -> Any:
        """The value that a function returns, after as many visits as were planned."""
        for count, planned in self.visits.values():
            if count < planned:
                raise KcalcError(LENGTH.format(count, planned))
        return value

    @staticmethod
    def method(name: str) -> Callable[..., Any]:
        """A method of an array as a function."""
        return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


LENGTH = (
    "a loop of the edited model ran {} times, and its edits are for {}, each its own; run it as "
    "often as when it was read, or shape the model for the new length"
)
for _name, _function_of in FUNCTIONS.items():
    setattr(Run, _name, staticmethod(_function_of))
_BINARY = frozenset(FUNCTIONS.values())


def _constant(owner: nn.Module, number: int) -> torch.Tensor:
    return getattr(owner, CONSTANT.format(number))


def _affine(owner: nn.Module, x: Any, a: int | None, b: int | None) -> Any:
    x = x if a is None else x * _constant(owner, a)
    return x if b is None else x + _constant(owner, b)


def _argument(args: Any, kwargs: Any, slot: Slot) -> Any:
    place, *inner = slot
    value = kwargs[place] if isinstance(place, str) else args[place]
    for part in inner:
        value = value[part]
    return value


def _changed(args: Any, kwargs: Any, slot: Slot, change: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The arguments with the one at a slot changed."""
    place, *inner = slot
    if isinstance(place, str):
        return args, {**kwargs, place: _within(kwargs[place], inner, change)}
    return (*args[:place], _within(args[place], inner, change), *args[place + 1 :]), kwargs


def _within(value: Any, inner: list[Any], change: Callable[[Any], Any]) -> Any:
    if not inner:
        return change(value)
    parts = list(value)
    parts[inner[0]] = _within(parts[inner[0]], inner[1:], change)
    return tuple(parts) if isinstance(value, tuple) else parts


@functools.lru_cache(maxsize=512)
def _function(document: str) -> Callable[[Any], Any]:
    import json

    phi = activation_from_dict(json.loads(document), "an edit", TreeReader())
    slope = getattr(phi, "negative_slope", None)
    if slope is not None and leaky_relu(slope) == phi:
        number = float(slope)
        return lambda x: functional.leaky_relu(x, number)
    return torch_function(phi)


def document_of(phi: Activation) -> str:
    """An activation as the text that a :class:`Change` has of it."""
    import json

    return json.dumps(activation_to_dict(phi), sort_keys=True)


# -- functions -------------------------------------------------------------------------------------


def resolved(module: str, name: str, known: str, callers: Any, owner: Any) -> Any:
    """The function that a plan names, among those that another one names.

    Raises: KcalcError where there is none, or its source has changed.
    """
    for function in reached(innermost(callers), owner):
        inner = innermost(function)
        if (inner.__module__, inner.__qualname__) == (module, name):
            found = definition(inner.__code__)
            if found is not None and digest(found[0]) == known:
                return function
    raise KcalcError(CHANGED.format(f"{module}.{name}"))


CHANGED = (
    "the source of {} is not the one that was shaped: it has changed, or cannot be read; read and "
    "shape the model again"
)


def checked_forward(cls: type, plan: FunctionPlan) -> Any:
    """``forward`` of a class. Raises: KcalcError where it is not the function of a plan."""
    function = cls.forward  # type: ignore[attr-defined]
    inner = innermost(function)
    found = definition(inner.__code__) if inspect.isfunction(inner) else None
    same = found is not None and (inner.__module__, inner.__qualname__, digest(found[0])) == (
        plan.module,
        plan.name,
        plan.digest,
    )
    if not same:
        raise KcalcError(CHANGED.format(f"{plan.module}.{plan.name}"))
    return function


def _compiled(
    function: Any, plan: FunctionPlan, owner: Any, entry: str | None, into: dict[Any, Any]
) -> Any:
    """The function of a plan, and those of its inner plans, in ``into``."""
    into[plan] = {site: changes for site, _, changes in plan.sites}
    for _, _, changes in plan.sites:
        for change in changes:
            if isinstance(change, FunctionPlan) and (change, "function") not in into:
                inner = resolved(change.module, change.name, change.digest, function, owner)
                into[change, "function"] = _compiled(inner, change, owner, None, into)
    methods = {site: method for site, method, _ in plan.sites}
    return rewritten(function, methods, entry, entry is not None and plan.counted)


# -- classes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModulePlan:
    """What is edited in a module: its result as a whole, or calls in its ``forward``.

    ``dropped``: parameters and buffers that the module does without.
    """

    whole: Change | None = None
    function: FunctionPlan | None = None
    dropped: tuple[str, ...] = ()


@dataclass
class _Subclasses:
    """The subclasses made so far; a class belongs to the module that it was made of first."""

    made: dict[tuple[type, ModulePlan], type] = field(default_factory=dict)


_KNOWN = _Subclasses()


def subclass(cls: type, plan: ModulePlan, owner: Any = None) -> type:
    """A subclass with edits.

    ``owner``: a module of the class, some of whose attributes its code may call.
    """
    key = (cls, plan)
    if key not in _KNOWN.made:
        _KNOWN.made[key] = _subclass(cls, plan, owner)
    return _KNOWN.made[key]


def _subclass(cls: type, plan: ModulePlan, owner: Any) -> type:
    names = ("__module__", "__qualname__", "__doc__")
    made = type(cls)(
        cls.__name__,
        (cls,),
        {name: getattr(cls, name, None) for name in names}
        | {
            "kcalc_class": cls,
            "kcalc_plan": plan,
            "__reduce_ex__": _reduced,
            "_apply": _applied,
            "_load_from_state_dict": _loaded,
        },
    )
    if plan.function is not None:
        functions: dict[Any, Any] = {}
        root, function = plan.function, checked_forward(cls, plan.function)
        forward = _compiled(function, root, owner or cls, ENTRY, functions)

        def begin(self: nn.Module) -> Run:
            return Run(self, root, functions)

        setattr(made, ENTRY, begin)
    else:
        whole = plan.whole

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = super(made, self).forward  # pyright: ignore
            if whole is None:
                return before(*args, **kwargs)
            return whole(self, before, args, kwargs)

        functools.update_wrapper(forward, cls.forward)  # type: ignore[attr-defined]
    made.forward = forward  # after the class, whose metaclass may wrap what it is made with
    return made


def _reduced(self: Any, protocol: Any) -> Any:
    """Pickled as its own class, its plan, and its state."""
    state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
    kind = type(self)
    return _again, (kind.kcalc_class, kind.kcalc_plan), state


def _again(cls: type, plan: ModulePlan) -> Any:
    """An empty module of an edited class. Raises: KcalcError where its source has changed."""
    made = subclass(cls, plan)
    return made.__new__(made)


def _applied(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Moved to another device or type, the constants are exact again."""
    found = super(_edited_class(self), self)._apply(fn, *args, **kwargs)
    set_constants(self, self.__dict__["_kcalc_numbers"])
    return found


def _loaded(self: Any, state: Any, prefix: str, *args: Any, **kwargs: Any) -> Any:
    """Weights of what was removed may be in a file of the original model."""
    for name in type(self).kcalc_plan.dropped:
        state.pop(f"{prefix}{name}", None)
    return super(_edited_class(self), self)._load_from_state_dict(state, prefix, *args, **kwargs)


def _edited_class(module: Any) -> Any:
    return next(kind for kind in type(module).__mro__ if "kcalc_plan" in vars(kind))


def set_constants(module: nn.Module, numbers: tuple[float, ...]) -> None:
    """Give a module its numbers, exact in the type that they have."""
    module.__dict__["_kcalc_numbers"] = numbers
    for i, number in enumerate(numbers):
        name = CONSTANT.format(i)
        old = module._buffers.get(name)
        device = _device(module) if old is None else old.device
        wide = (_dtype(module) if old is None else old.dtype) == torch.float64
        dtype = torch.float64 if wide else torch.float32
        if device.type == "meta":
            module.register_buffer(name, torch.empty((), dtype=dtype, device=device), False)
            continue
        module.register_buffer(name, torch.tensor(number, dtype=dtype, device=device), False)


def _first(module: nn.Module) -> torch.Tensor | None:
    tensors = (*module.parameters(), *module.buffers())
    return next((t for t in tensors if t.is_floating_point()), None)


def _dtype(module: nn.Module) -> torch.dtype:
    found = _first(module)
    return torch.get_default_dtype() if found is None else found.dtype


def _device(module: nn.Module) -> torch.device:
    found = _first(module)
    return torch.device("cpu") if found is None else found.device


def edit(module: nn.Module, plan: ModulePlan, numbers: tuple[float, ...], like: Any = None) -> None:
    """Give a module the subclass of a plan, and its numbers.

    ``like``: a tensor whose type and device the constants have.
    """
    module.__class__ = subclass(type(module), plan, module)
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
            module.register_buffer(CONSTANT.format(i), empty, False)
    set_constants(module, numbers)
