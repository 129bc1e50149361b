"""Run models with other batch sizes, and test that the batch size does not matter."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ...foundation.errors import KcalcError
from ..named_inputs import Call
from .copies import copied
from .examples import called, first_line, undisturbed


def batch_size(arguments: Call) -> int:
    """Return the number of examples: the size of axis 0 of the first tensor that has axes."""
    leaves = pytree.tree_leaves(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
    return int(tensors[0].shape[0]) if tensors else 0


def resized(arguments: Call, count: int) -> Call:
    """Return the arguments with ``count`` examples; the last example is repeated.

    Every tensor with as many examples as the first tensor is resized.
    """
    size = batch_size(arguments)

    def of_count(leaf: Any) -> Any:
        batched = isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == size
        if not batched or size == count:
            return leaf
        return leaf[torch.arange(count, device=leaf.device).clamp(max=size - 1)]

    return pytree.tree_map(of_count, arguments)


def plainly_alike(model: Any, arguments: Call, count: int) -> bool:
    """Whether a model runs the same operators on ``count`` examples and on one more.

    The operators' numerical arguments must agree, but the sizes of arrays may differ. The model
    runs on meta tensors, or on real tensors if it needs their values. Raises: KcalcError if the
    model does not run with these batch sizes.
    """
    given = [resized(arguments, k) for k in (count, count + 1)]
    with undisturbed():
        try:
            runs = [_numbers(copied(model, empty=True), _hollow(values)) for values in given]
        except Exception:  # the user's code may raise anything
            runs = [_run(copied(model), values) for values in given]
    return runs[0] == runs[1]


def _hollow(arguments: Call) -> Call:
    """Return the arguments with all tensors on the meta device."""

    def moved(leaf: Any) -> Any:
        return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(moved, arguments)


def _run(model: Any, arguments: Call) -> list[Any]:
    try:
        return _numbers(model, arguments)
    except Exception as error:  # the user's code may raise anything
        reason = first_line(error)
        raise KcalcError(f"the model cannot be run on these examples: {reason}") from None


def _numbers(model: Any, arguments: Call) -> list[Any]:
    """Return the operators of one run, each with its numerical arguments."""
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    with torch.no_grad(), _Recorder(own) as recorder:
        called(model, arguments)
    return recorder.found


class _Recorder(TorchDispatchMode):
    """Records every operator and its numerical arguments, except sizes and the tensors ``own``.

    ``own``: the ids of the model's own tensors.
    """

    def __init__(self, own: set[int]) -> None:
        super().__init__()
        self.own = own
        self.found: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sizes = [str(slot.type).startswith("List[int]") for slot in func._schema.arguments]
        given = [value for value, size in zip(args, sizes, strict=False) if not size]
        leaves = [leaf for leaf in pytree.tree_leaves([given, kwargs]) if id(leaf) not in self.own]
        self.found.append((str(func), list(map(_number, leaves))))
        return func(*args, **kwargs)


def _number(leaf: Any) -> Any:
    """Return a number, or the number in a zero-dimensional tensor; return None for other arguments.

    Unknown numbers are returned as nan, which does not equal any number.
    """
    if isinstance(leaf, torch.Tensor) and leaf.ndim == 0:
        return float("nan") if leaf.device.type == "meta" else leaf.item()
    return leaf if isinstance(leaf, bool | int | float | complex) else None
