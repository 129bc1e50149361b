"""Find parameters that gradient descent does not change in a few steps on fresh copies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...foundation.errors import KcalcError
from .examples import redrawn
from .objective import objective
from .program import unchecked

STEPS = 4
STEP = 0.01  # size of an update relative to the parameters
SMALL = 1e-5  # relative to the largest gradient; smaller gradients may be rounding
ROUNDING = 1e-3  # a gradient is rounding if 64 bits shrink it below this fraction

Gradients = dict[str, Any]


def differentiated(
    model: Any, call: Any, classes: bool, seed: int, names: list[str], before: Any = None
) -> Gradients:
    """Return {parameter: gradient} for one run.

    A gradient is None if the loss does not depend on the parameter.

    ``before`` is {parameter: value with which to run the model}.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in (before or {}).items():
            parameters[name].copy_(value)
    args, kwargs = call
    with sdpa_kernel(SDPBackend.MATH), unchecked():
        aim = objective(model(*args, **kwargs), classes, seed)
    found = gradients_of(aim.loss, [parameters[n] for n in names])
    return dict(zip(names, map(dense, found), strict=True))


def gradients_of(loss: Any, wanted: list[Any]) -> tuple[Any, ...]:
    """Return the gradients of a loss, with None for tensors that it does not depend on.

    Raises: KcalcError if the model's backward pass raises an error.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    try:
        # as in the forward run, because checkpoints run their layers again
        with sdpa_kernel(SDPBackend.MATH):
            return torch.autograd.grad(loss, wanted, allow_unused=True)
    except Exception as error:
        from ...interchange.torch_model import first_line, place

        raise KcalcError(
            f"the gradient of the model's result could not be computed{place(error)}: "
            f"{first_line(error).rstrip('. ')}; make sure that the model's backward pass runs in "
            "evaluation mode"
        ) from error


def dense(gradient: Any) -> Any:
    """Return a gradient as a dense tensor; the gradient of a table may be sparse."""
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def dead(
    fresh: Callable[[], Any], call: Any, gradients: Gradients, classes: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parameters whose gradient is zero now and in the following steps.

    ``fresh`` returns a copy of the model. Each copy runs only once, because models may keep
    results.

    Returns: the parameters whose gradient is exactly zero, and the matrices whose gradient is only
    rounding error. A gradient counts as rounding error if it is a thousand times smaller in 64 bits
    than in 32 bits.
    """
    names = [name for name, g in gradients.items() if g is not None and g.numel()]
    zero = {name for name in names if not bool(gradients[name].any())}
    rounded = _suspects(gradients) - zero
    if not zero and not rounded:
        return (), ()
    model = fresh()
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(STEPS):
        if step:
            _descend(values, gradients)
            try:
                call, gradients = _further(fresh, call, classes, step, names, values)
            except Exception:  # some models run only once, or only with certain weights
                return (), ()
            zero = {n for n in zero if gradients[n] is None or not bool(gradients[n].any())}
        known = {name: gradients[name] for name in rounded}
        rounded = _rounded(fresh, call, known, classes, step, values)
        if not zero and not rounded:
            break
    return tuple(n for n in names if n in zero), tuple(n for n in names if n in rounded)


def _further(
    fresh: Callable[[], Any], call: Any, classes: bool, seed: int, names: list[str], values: Any
) -> tuple[Any, Gradients]:
    """Return (inputs, gradients) for redrawn inputs.

    If the model accepts no other inputs, the original inputs are used.
    """
    anew = redrawn(call, seed)
    try:
        return anew, differentiated(fresh(), anew, classes, seed, names, values)
    except Exception:  # some models accept only positive or sorted numbers
        return call, differentiated(fresh(), call, classes, seed, names, values)


def _size(gradient: Any) -> float:
    return math.sqrt(float(gradient.double().square().mean())) if gradient is not None else 0.0


def _suspects(gradients: Gradients) -> set[str]:
    """Return the 32-bit matrices whose gradient is much smaller than the largest gradient."""
    import torch

    sizes = {n: _size(g) for n, g in gradients.items() if g is not None and g.numel()}
    most = max(sizes.values(), default=0.0)
    return {
        n
        for n, size in sizes.items()
        if size < SMALL * most and gradients[n].ndim > 1 and gradients[n].dtype == torch.float32
    }


def _rounded(
    fresh: Callable[[], Any],
    call: Any,
    gradients: Gradients,
    classes: bool,
    seed: int,
    values: Gradients,
) -> set[str]:
    """Return the named parameters whose 32-bit gradient almost vanishes in 64 bits."""
    import torch
    from torch.utils import _pytree as pytree

    if not gradients:
        return set()

    def wide(leaf: Any) -> Any:
        return (
            leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
        )

    try:
        model = fresh().double()
        for module in model.modules():  # tensors that are neither parameters nor buffers
            own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
            vars(module).update(pytree.tree_map(wide, own))
        found = differentiated(
            model, pytree.tree_map(wide, call), classes, seed, list(gradients), values
        )
    except Exception:  # some models work only in one precision
        return set()
    return {n for n in gradients if _size(found[n]) < ROUNDING * _size(gradients[n])}


def _descend(values: Gradients, gradients: Gradients) -> None:
    """Take a step of gradient descent with a size relative to the size of the parameters."""
    moved = {n: g for n, g in gradients.items() if g is not None}
    size = math.sqrt(sum(float(values[n].float().square().sum()) for n in moved))
    slope = math.sqrt(sum(float(g.float().square().sum()) for g in moved.values()))
    rate = STEP * size / slope if slope > 0 else 0.0
    for name, gradient in moved.items():
        values[name].sub_(gradient.to(values[name]), alpha=rate)
