"""Copy PyTorch models so that the copies use their own layers and weights.

``copy.deepcopy`` does not copy functions, weak references or methods of built-in types. If a lambda
in a model refers to the model's layers, a deep copy would therefore run the layers of the original.
Here, such references in any object of the model are redirected to the copy. Tensors that share
memory with a parameter also share it in the copy.

References in a class, or in globals that its methods read, cannot be redirected.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import types
import weakref
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from ...foundation.errors import KcalcError
from .examples import first_line, is_library

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Module = TypeVar("Module", bound="torch.nn.Module")

MOST = 50_000  # maximum number of objects examined for one reference
PLAIN = (str, bytes, int, float, complex, type, types.ModuleType, type(None), weakref.ProxyType)
# common types that contain no further references
HELD = {str, bytes, int, float, bool, type(None)}
SEQUENCES = (list, deque)


def copied(model: Module, evaluating: bool = False, empty: bool = False) -> Module:
    """Copy a model for tracing, with batch normalisation in evaluation mode.

    A copied transformers model does not return its cache of keys and values.

    ``evaluating``: whether the whole copy is in evaluation mode; ``empty``: whether its parameters
    and buffers are on the meta device.

    Raises: KcalcError if the model cannot be copied.
    """
    import torch

    memo: dict[int, Any] = {}
    for tensor in chain(model.parameters(), model.buffers()) if empty else ():
        hollow = torch.empty_like(tensor, device="meta")
        trained = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(hollow, tensor.requires_grad) if trained else hollow
    twin = duplicate(model, memo)
    for module in twin.modules():
        if evaluating or isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.training = False
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", None) is True:  # the cache of keys and values
            with contextlib.suppress(Exception):  # the configuration may be frozen
                config.use_cache = False  # pyright: ignore[reportOptionalMemberAccess]
    return twin


def check_shapes(model: torch.nn.Module) -> None:
    """Raise KcalcError if a lazy module of a model never ran."""
    from torch.nn.parameter import is_lazy

    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise KcalcError(f"{name} has no shape yet; run the lazy module once, as in model(x)")


def duplicate(given: T, memo: dict[int, Any] | None = None) -> T:
    """Copy a model, or nested containers with a model, so that it runs its own layers.

    ``memo``: {id of an object: copy}, as in ``copy.deepcopy``; new copies are added to it.

    Raises: KcalcError if ``copy.deepcopy`` fails, or returns parameters of the original.
    """
    memo = {} if memo is None else memo
    _share_memory(given, memo)
    try:
        twin = _Copy(memo).settled(copy.deepcopy(given, memo))
    except Exception as error:
        raise KcalcError(
            "the model cannot be copied, but kcalc needs a copy to leave yours unchanged: "
            f"{first_line(error)}"
        ) from error
    _check_apart(given, twin)
    return twin


def memory(tensor: Any) -> int | None:
    """Return a key for the memory of a tensor, or None if it has none."""
    try:
        return tensor.untyped_storage()._cdata if tensor.numel() else None
    except (RuntimeError, NotImplementedError, AttributeError):  # sparse, quantised, subclasses
        return None


class _Copy:
    """Redirects references in a deep copy from the original to the copy.

    ``memo``: {id of an original: copy}; ``made``: {id of a function: (function, copy)}; ``cells``:
    {id of a closure's cell: (cell, copy)}.
    """

    def __init__(self, memo: dict[int, Any]) -> None:
        self.memo = memo
        self.made: dict[int, tuple[Any, Any]] = {}
        self.cells: dict[int, tuple[Any, Any]] = {}
        self.visited: dict[int, Any] = {}
        self.known: tuple[int, set[int]] = (0, set())

    @property
    def copies(self) -> set[int]:
        """Return the ids of all copies, which are the objects that may be changed."""
        if self.known[0] != len(self.memo):
            self.known = (len(self.memo), {id(value) for value in self.memo.values()})
        return self.known[1]

    def settled(self, value: Any) -> Any:
        """Redirect all references in a copied value, in place if possible, and return it."""
        holder = [value]
        stack: list[Any] = [holder]
        while stack:
            top = stack.pop()
            if id(top) in self.visited or isinstance(top, PLAIN):
                continue
            self.visited[id(top)] = top
            if top is holder or id(top) in self.copies:
                _refill(top, self._counterpart)
                if isinstance(getattr(top, "__dict__", None), dict):
                    _refill(vars(top), self._counterpart)
            stack += [part for part in _parts(top) if type(part) not in HELD]
        return holder[0]

    def _counterpart(self, value: Any) -> Any:
        """Return the replacement for a value that the copy refers to."""
        if type(value) in HELD:
            return value
        if id(value) in self.memo:
            return self.memo[id(value)]
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, weakref.ref) and type(value) is weakref.ref:
            target = value()
            new = self._counterpart(target)
            return value if new is target else weakref.ref(new)
        if isinstance(value, types.MethodType):
            return self._method(value)
        if isinstance(value, types.BuiltinMethodType):  # a method of a tensor, list, etc.
            new = self._closed_over(value.__self__)
            return value if new is value.__self__ else getattr(new, value.__name__)
        if isinstance(value, functools._lru_cache_wrapper):
            new = self._function(value.__wrapped__)
            if new is value.__wrapped__:
                return value
            return functools.lru_cache(**value.cache_parameters())(new)
        if isinstance(value, tuple | frozenset):
            new = [self._counterpart(part) for part in value]
            if all(one is other for one, other in zip(new, value, strict=True)):
                return value
            return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
        return value

    def _method(self, method: Any) -> Any:
        function, owner = self._closed_over(method.__func__), self._closed_over(method.__self__)
        if function is method.__func__ and owner is method.__self__:
            return method
        return types.MethodType(function, owner)

    def _closed_over(self, value: Any) -> Any:
        """Return the replacement for a value that a function of the original refers to."""
        new = self._counterpart(value)
        if new is not value or not self._reaches(value):
            return new
        try:
            return self.settled(copy.deepcopy(value, self.memo))
        except Exception:  # values that cannot be copied are shared with the original
            return value

    def _function(self, function: Any) -> Any:
        """Copy a function so that its cells, defaults and globals refer to the copy."""
        if id(function) not in self.made and not self._reaches(function):
            self.made[id(function)] = (function, function)
        if id(function) in self.made:
            return self.made[id(function)][1]
        names = [n for n, value in _globals(function).items() if self._reaches(value)]
        scope = dict(function.__globals__) if names else function.__globals__
        cells = tuple(map(self._cell, function.__closure__ or ()))
        new = types.FunctionType(function.__code__, scope, function.__name__, closure=cells or None)
        self.made[id(function)], self.made[id(new)] = (function, new), (new, new)
        scope.update({name: self._closed_over(scope[name]) for name in names})
        for old in function.__closure__ or ():
            self._fill(old)
        if function.__defaults__ is not None:
            new.__defaults__ = tuple(map(self._closed_over, function.__defaults__))
        if function.__kwdefaults__ is not None:
            given = function.__kwdefaults__.items()
            new.__kwdefaults__ = {name: self._closed_over(value) for name, value in given}
        vars(new).update({n: self._closed_over(value) for n, value in vars(function).items()})
        for name in ("__qualname__", "__doc__", "__module__", "__annotations__"):
            setattr(new, name, getattr(function, name))
        return new

    def _cell(self, cell: Any) -> Any:
        return self.cells.setdefault(id(cell), (cell, types.CellType()))[1]

    def _fill(self, cell: Any) -> None:
        """Fill a copied cell, but only once, so that later changes by the copy's code persist."""
        new = self._cell(cell)
        for value in _contents(cell):
            if not [*_contents(new)]:
                new.cell_contents = value  # in case the value refers to its own cell
                new.cell_contents = self._closed_over(value)

    def _reaches(self, value: Any) -> bool:
        """Whether a value refers, possibly indirectly, to the model or to layers and weights."""
        stack, seen = [value], {}
        while stack and len(seen) < MOST:
            top = stack.pop()
            if id(top) in seen or id(top) in self.copies or isinstance(top, PLAIN):
                continue
            seen[id(top)] = top
            if id(top) in self.memo or _is_layer(top):
                return True
            stack += _parts(top)
        return False


def _is_layer(value: Any) -> bool:
    import torch

    trained = isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    return trained or isinstance(value, torch.nn.Module)


def _refill(container: Any, changed: Any) -> None:
    """Replace the contents of a container in place."""
    if isinstance(container, dict):
        if any(changed(key) is not key for key in container):
            new = [(changed(key), value) for key, value in container.items()]
            container.clear()
            container.update(new)
        for key, value in [*dict.items(container)]:
            if (new := changed(value)) is not value:
                dict.__setitem__(container, key, new)
    elif isinstance(container, SEQUENCES):
        for place, value in enumerate(container):
            if (new := changed(value)) is not value:
                container[place] = new
    elif isinstance(container, set):
        new = [changed(value) for value in container]
        if any(value not in container for value in new):
            container.clear()
            container.update(new)
    elif isinstance(container, functools.partial):
        function, args = changed(container.func), tuple(map(changed, container.args))
        words = {name: changed(value) for name, value in container.keywords.items()}
        state = function, args, words, vars(container)
        container.__setstate__(state)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(container, weakref.WeakValueDictionary | weakref.WeakKeyDictionary):
        new = [(changed(key), changed(value)) for key, value in container.items()]
        container.clear()
        container.update(new)
    for name in _slots(container):
        before = getattr(container, name)
        if (new := changed(before)) is not before:
            object.__setattr__(container, name, new)


def _slots(value: Any) -> list[str]:
    """Return the names of the slots that are set on a value."""
    return [name for name in _slot_names(type(value)) if hasattr(value, name)]


@functools.lru_cache(maxsize=1000)
def _slot_names(kind: type) -> tuple[str, ...]:
    return tuple(
        name
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType)
    )


def _parts(value: Any) -> list[Any]:
    """Return the objects to which a value refers directly."""
    import torch

    if isinstance(value, types.FunctionType):
        found = [part for cell in value.__closure__ or () for part in _contents(cell)]
        found += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*found, *vars(value).values(), *_globals(value).values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.BuiltinMethodType):
        return [value.__self__]
    if isinstance(value, functools._lru_cache_wrapper):
        return [value.__wrapped__]
    if isinstance(value, weakref.ref):
        return [value()]
    found = [getattr(value, name) for name in _slots(value)]
    if isinstance(value, dict | weakref.WeakValueDictionary | weakref.WeakKeyDictionary):
        found += chain(value.keys(), value.values())
    elif isinstance(value, list | tuple | deque | set | frozenset):
        found += value
    elif isinstance(value, functools.partial):
        found += [value.func, *value.args, *value.keywords.values()]
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and not (isinstance(value, torch.Tensor) and not own):
        found += own.values()
    return found


def _contents(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # the cell is empty
        return ()


def _globals(function: Any) -> dict[str, Any]:
    """Return {name: value} of the globals that a function of the user's code may read."""
    if is_library(function.__code__.co_filename):
        return {}
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names.update(i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return {n: function.__globals__[n] for n in names if n in function.__globals__}


# -- tensors ---------------------------------------------------------------------------------------


def _tensors(given: Any) -> list[Any]:
    """Return the distinct tensors of modules, including tensors in lists and dictionaries."""
    import torch

    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    stack = [given]
    while stack:
        top = stack.pop()
        if id(top) in seen:
            continue
        seen[id(top)] = top
        if isinstance(top, torch.Tensor):
            found[id(top)] = top
        elif isinstance(top, torch.nn.Module):
            stack += vars(top).values()
        elif isinstance(top, dict):
            stack += top.values()
        elif isinstance(top, list | tuple):
            stack += top
    return [*found.values()]


def _share_memory(given: Any, memo: dict[int, Any]) -> None:
    """Add copies of tensors that ``copy.deepcopy`` would separate or cannot copy.

    Tensors that share the memory of a parameter share the memory of its copy. A view that records
    gradients becomes a view of the copy. Other computed tensors become constants.
    """
    import torch

    groups: dict[int, list[Any]] = {}
    for tensor in _tensors(given):
        key = memory(tensor)
        usual = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type != "meta"
        if key is not None and usual and id(tensor) not in memo:
            groups.setdefault(key, []).append(tensor)
        elif not tensor.is_leaf:
            memo.setdefault(id(tensor), tensor.detach().clone())
    for tensors in groups.values():
        leaves = [tensor for tensor in tensors if tensor.is_leaf]
        if len(tensors) > 1 and any(isinstance(t, torch.nn.Parameter) for t in leaves):
            storage = tensors[0].detach().untyped_storage().clone()
            for tensor in leaves:
                memo[id(tensor)] = _placed(tensor, storage)
        for tensor in tensors:
            if not tensor.is_leaf:
                base = memo.get(id(tensor._base))
                layout = tensor.size(), tensor.stride(), tensor.storage_offset()
                copied = tensor.detach().clone() if base is None else base.as_strided(*layout)
                memo[id(tensor)] = copied


def _placed(tensor: Any, storage: Any) -> Any:
    """Return a leaf tensor in ``storage`` with the layout of ``tensor``."""
    import torch

    new = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    with torch.no_grad():
        new.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(new, tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)


def _check_apart(given: Any, twin: Any) -> None:
    """Raise KcalcError if a copy contains parameters of the original."""
    held = {memory(tensor) for tensor in _tensors(given) if tensor.requires_grad} - {None}
    for tensor in _tensors(twin):
        if tensor.requires_grad and tensor.device.type != "meta" and memory(tensor) in held:
            raise KcalcError(
                "the model cannot be copied: after its __deepcopy__, a parameter of shape "
                f"{tuple(tensor.shape)} still shares memory with the original; make "
                "__deepcopy__ copy the parameters"
            )
