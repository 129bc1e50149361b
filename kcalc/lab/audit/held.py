"""Tensors in plain attributes of a model, which PyTorch does not register."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

DEEPEST = 5  # the maximum depth at which nested containers are searched


def held(model: Any) -> dict[str, Any]:
    """Return {path: tensor} for a model's plain attributes, even inside lists and objects.

    These tensors are neither parameters nor buffers.
    """
    import torch

    standard = set(vars(torch.nn.Module()))
    seen = {id(t) for t in (*model.parameters(), *model.buffers())}
    seen |= {id(module) for module in model.modules()}
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name not in standard:
                _hold(value, f"{path}.{name}" if path else name, seen, found, DEEPEST)
    return found


def returned(result: Any) -> list[Any]:
    """Return the tensors in a model's result, including nested containers and data classes.

    The attributes of a plain object are searched only if it is the result itself. Plain objects
    inside a container are not searched, because they may contain other tensors, such as keys and
    values for later tokens.
    """
    import torch
    from torch.utils import _pytree as pytree

    found: dict[int, Any] = {}
    seen: set[int] = set()
    nests = [result]
    for nest in nests:
        for leaf in pytree.tree_leaves(nest):
            if isinstance(leaf, torch.Tensor):
                found.setdefault(id(leaf), leaf)
            elif id(leaf) not in seen and (leaf is result or _carries(leaf)):
                seen.add(id(leaf))
                names = [f.name for f in fields(leaf)] if is_dataclass(leaf) else []
                slots = [getattr(leaf, name, None) for name in names]
                nests.append([*slots, *getattr(leaf, "__dict__", {}).values()])
    return list(found.values())


def _carries(value: Any) -> bool:
    """Return whether an object is a distribution, a transform or a data class."""
    import torch

    kinds = torch.distributions.Distribution | torch.distributions.Transform
    return isinstance(value, kinds) or (is_dataclass(value) and not isinstance(value, type))


def _hold(value: Any, path: str, seen: set[int], found: dict[str, Any], left: int) -> None:
    """Add the tensors in a value to ``found``."""
    import torch

    if left == 0 or id(value) in seen or isinstance(value, str | bytes | int | float | type):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        found[path] = value
        return
    for name, item in _parts(value):
        _hold(item, path + name, seen, found, left - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (next part of the path, item) for each item of a container."""
    import torch

    if isinstance(value, torch.nn.Module):
        for name, tensor in value.named_parameters():
            yield f".{name}", tensor
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f".{name}", cell.cell_contents
            except ValueError:  # the closure cell is still empty
                continue
    elif isinstance(value, MethodType):
        yield "", value.__func__
    elif not isinstance(value, ModuleType) and not type(value).__module__.startswith("torch"):
        attributes = getattr(value, "__dict__", {})
        yield from ((f".{name}", item) for name, item in list(attributes.items()))
