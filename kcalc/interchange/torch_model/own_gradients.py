"""Capture autograd functions, ``tensor.data`` and inference mode, which exporters do not list.

An exporter lists the operations in the forward pass of an autograd function and drops its backward
pass. This module marks the results of each call in the graph by adding 0, with the number of the
call as the ``alpha`` of this addition. After the capture, the backward pass of every function is
compared with finite differences. If they agree, the mark is removed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...foundation.process_state import READING
from ..surrogates import DIRECTIONS, Slope, distance, slope_from

FIRST = 7_340_033  # the alpha of the first mark


@dataclass(frozen=True, eq=False)
class OwnCall:
    """A call to an autograd function: its class, and its arguments without tensor values."""

    kind: Any
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class NumberlessTensor:
    """The shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: Any


@contextmanager
def listed(calls: list[OwnCall]) -> Iterator[None]:
    """Return a context in which exporters list autograd functions and other special operations.

    Calls of autograd functions are appended to ``calls``.
    """
    import torch
    import torch.utils.checkpoint

    mode: Any = torch.autograd.grad_mode.inference_mode
    checkpoints: Any = torch.utils.checkpoint
    with READING:
        checkpointed = checkpoints.CheckpointFunction
        before = mode.__enter__, mode.__exit__
        kinds = [kind for kind in _kinds(torch.autograd.Function) if "forward" in vars(kind)]
        forwards = {kind: vars(kind)["forward"] for kind in kinds}
        mode.__enter__, mode.__exit__ = _entered, _left
        checkpoints.CheckpointFunction = _Plain
        try:
            for kind, forward in forwards.items():
                kind.forward = staticmethod(_marked(kind, forward, calls))
            with _data_detached():
                yield
        finally:
            for kind, forward in forwards.items():
                kind.forward = forward
            mode.__enter__, mode.__exit__ = before
            checkpoints.CheckpointFunction = checkpointed


def _kinds(kind: Any) -> Iterator[Any]:
    """Yield all user-defined subclasses of a class."""
    for one in kind.__subclasses__():
        if not one.__module__.startswith("torch."):
            yield one
        yield from _kinds(one)


def _entered(mode: Any) -> None:
    import torch

    mode.kcalc_before = torch.is_grad_enabled()
    torch.set_grad_enabled(mode.kcalc_before and not mode.mode)


def _left(mode: Any, *_: Any) -> None:
    import torch

    torch.set_grad_enabled(mode.kcalc_before)


def _data_detached() -> Any:
    """Return a context in which ``tensor.data`` is ``tensor.detach()``."""
    import torch

    getter = torch.Tensor.data.__get__  # pyright: ignore[reportAttributeAccessIssue]
    return _replacing({getter: lambda tensor: tensor.detach()})


def _without_stops() -> Any:
    """Return a context for an autograd function's forward pass, in which stops have no effect."""
    import torch

    getter = torch.Tensor.data.__get__  # pyright: ignore[reportAttributeAccessIssue]
    passed = dict.fromkeys((torch.Tensor.detach, torch.detach, getter), lambda x: x.view_as(x))
    return _replacing({torch._C._set_grad_enabled: lambda *_: None, **passed})


def _replacing(others: Mapping[Any, Callable[..., Any]]) -> Any:
    """Return a context in which PyTorch functions are replaced."""
    from torch.overrides import TorchFunctionMode

    class Replacing(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            own = next((other for name, other in others.items() if name == func), None)
            return own(*args) if own is not None else func(*args, **(kwargs or {}))

    return Replacing()


class _Plain:
    """Replaces checkpointing's autograd function with a plain call.

    As in the original, parameters used in the checkpointed function get gradients only if one of
    its arguments gets a gradient.
    """

    @staticmethod
    def apply(function: Any, preserve: Any, *arguments: Any) -> Any:
        import torch

        moved = any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments)
        with torch.set_grad_enabled(moved and torch.is_grad_enabled()):
            return function(*arguments)


def _marked(kind: Any, forward: Any, calls: list[OwnCall]) -> Callable[..., Any]:
    """Make a forward pass mark its results and append its calls to ``calls``."""
    import torch

    run = forward.__func__ if isinstance(forward, staticmethod) else forward
    apart = kind.setup_context is not torch.autograd.Function.setup_context

    @functools.wraps(run)
    def marked(*given: Any) -> Any:
        if not _tracing():
            return run(*given)
        arguments = given if apart else given[1:]
        with _without_stops():
            out = run(*given)
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        calls.append(OwnCall(kind, tuple(map(_shaped, arguments))))
        number = FIRST + len(calls) - 1
        return _with_mark(out, tensors, number)

    return marked


def _tracing() -> bool:
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode() is not None


def _shaped(value: Any) -> Any:
    import torch

    return (
        NumberlessTensor(tuple(value.shape), value.dtype)
        if isinstance(value, torch.Tensor)
        else value
    )


def _with_mark(out: Any, tensors: list[Any], number: int) -> Any:
    """Mark the results of a call.

    If the call has a single tensor argument and a single result of the same shape, the mark also
    reads the argument.
    """
    import torch

    if isinstance(out, list | tuple):
        return type(out)(_with_mark(part, [], number) for part in out)
    if not isinstance(out, torch.Tensor) or not out.is_floating_point():
        return out
    made = torch.ops.aten.add.Scalar(out, 0, number)
    if len(tensors) == 1 and tensors[0].shape == out.shape:
        made = torch.ops.aten.expand_as.default(made, tensors[0])
    return made


# -- after the capture -----------------------------------------------------------------------------


def number_of(node: Any) -> int | None:
    """Return the number of the call whose result a node marks, or None."""
    import torch

    if node.target is not torch.ops.aten.add.Scalar or len(node.args) < 3:
        return None
    zero, alpha = node.args[1:]
    return alpha - FIRST if zero == 0 and isinstance(alpha, int) and alpha >= FIRST else None


def settled(modules: list[Any], calls: list[OwnCall]) -> dict[int, OwnCall]:
    """Return the calls whose backward pass is not the true derivative; remove all other marks."""
    kinds: dict[Any, bool] = {}

    def differs(call: OwnCall) -> bool:
        key = (call.kind, *map(repr, call.arguments))
        if key not in kinds:
            kinds[key] = _differs(call)
        return kinds[key]

    own = {number: call for number, call in enumerate(calls) if differs(call)}
    for module in modules:
        for node in list(module.graph.nodes):
            number = number_of(node)
            if number is None or number in own:
                continue
            for user in list(node.users):
                if str(user.target) == "aten.expand_as.default":
                    user.replace_all_uses_with(node.args[0])
                    module.graph.erase_node(user)
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    return own


def _differs(call: OwnCall) -> bool:
    """Whether a backward pass clearly differs from the true derivative."""
    import torch

    for dtype, step, close in ((torch.float64, 1e-5, 1e-3), (torch.float32, 3e-3, 0.02)):
        try:
            return max(_apart(call, dtype, step, seed) for seed in range(DIRECTIONS)) > close
        except Exception:  # the user's function may accept only other types
            continue
    return True


def _real(value: Any) -> bool:
    return isinstance(value, NumberlessTensor) and value.dtype.is_floating_point


def _point(value: Any, dtype: Any, chance: Any) -> Any:
    """Return an argument for testing a backward pass."""
    import torch

    if _real(value):
        return torch.randn(value.shape, generator=chance, dtype=torch.float64).to(dtype)
    return (
        torch.ones(value.shape, dtype=value.dtype) if isinstance(value, NumberlessTensor) else value
    )


def _apart(call: OwnCall, dtype: Any, step: float, seed: int) -> float:
    """Return the relative difference between a backward pass and a finite difference."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    points = [_point(a, dtype, chance) for a in call.arguments]
    ways = {i: _point(a, dtype, chance) for i, a in enumerate(call.arguments) if _real(a)}

    def value(shift: float, track: bool = False) -> tuple[Any, list[Any]]:
        moved = {i: (points[i] + shift * way).requires_grad_(track) for i, way in ways.items()}
        with torch.set_grad_enabled(track):
            found = call.kind.apply(*(moved.get(i, p) for i, p in enumerate(points)))
            outs = found if isinstance(found, list | tuple) else [found]
            weigh = torch.Generator().manual_seed(seed + DIRECTIONS)
            total = sum(
                (o * torch.randn(o.shape, generator=weigh).to(dtype)).sum()
                for o in outs
                if isinstance(o, torch.Tensor) and o.is_floating_point()
            )
        return total, list(moved.values())

    total, inputs = value(0.0, True)
    grads: Any = [None] * len(inputs)
    if getattr(total, "requires_grad", False):
        grads = torch.autograd.grad(total, inputs, allow_unused=True)
    slopes = [
        (g * way).flatten().numpy()
        for g, way in zip(grads, ways.values(), strict=True)
        if g is not None
    ]
    moved = float(value(step)[0] - value(-step)[0]) / (2 * step)
    return distance(np.concatenate([np.zeros(1), *slopes]), moved)


def slope(call: OwnCall) -> Slope | None:
    """Return the slope that a backward pass applies elementwise, or None.

    ``call``: a call with a single tensor argument.
    """
    import torch

    def factors(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
        x = torch.tensor(points, requires_grad=True)
        given = [x if isinstance(a, NumberlessTensor) else a for a in call.arguments]
        with torch.enable_grad():
            out = call.kind.apply(*given)
            (found,) = torch.autograd.grad((out * torch.tensor(weights)).sum(), [x])
        return found.detach().numpy()

    try:
        return slope_from(factors)
    except Exception:  # the user's function may accept only other shapes
        return None


def spoken(call: OwnCall) -> str:
    """Describe a call for messages."""
    name = call.kind.__name__
    try:
        file = inspect.getsourcefile(call.kind) or ""
    except (TypeError, OSError):  # a class of a notebook
        file = ""
    return f"the autograd function {name}" + (f" ({file.rsplit('/', 1)[-1]})" if file else "")
