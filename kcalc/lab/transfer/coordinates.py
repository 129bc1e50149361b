"""Coordinate checks, which measure how much training changes feature maps at several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError, glimpse
from ...foundation.errors import unknown as unknown_name
from ...foundation.extras import imported
from ...foundation.plain_arguments import is_key, items, truth, whole
from ...foundation.printing import Shown, spread
from .rules import Options, options
from .torch_parts import watched_parts
from .torch_training import Family, default_loss, result_of


@dataclass(frozen=True)
class TrainedCoordinates(Shown):
    """Root mean square changes of feature maps during training, and their scaling with size.

    Attributes
    ----------
    sizes
        The widths, or the values of the quantity ``along``.
    along
        The name of the quantity that changes between sizes.
    changes
        {module: root mean square changes of its output}, with shape (sizes, seeds).
    slopes
        {module: (power of the size, its standard error over seeds)}.
    losses
        The training losses before the last step, with shape (sizes, seeds).
    edits
        Changes to the model that the rules require. They are not applied.

    """

    sizes: tuple[float, ...]
    changes: dict[str, np.ndarray]
    slopes: dict[str, tuple[float, float]]
    losses: np.ndarray
    along: str = "width"
    edits: tuple[str, ...] = ()
    hidden = ("changes", "losses")

    def steady(self, module: str, slack: float = 0.05, errors: float = 3.0) -> bool:
        """Return whether the power of a module is 0 within its error.

        Parameters
        ----------
        module
            The name of the module, a key of ``slopes``.
        slack
            The tolerance that is added to the ``errors`` standard errors.
        errors
            The number of standard errors within which a power counts as 0.

        Returns
        -------
        bool
            True if |power| <= ``slack`` + ``errors`` standard errors.

        Raises
        ------
        KcalcError
            If the module is unknown.

        """
        if not is_key(module, self.slopes):
            raise unknown_name("module", module, self.slopes)
        slope, error = self.slopes[module]
        return abs(slope) <= one_number(slack, "slack") + one_number(errors, "errors") * error

    def _frame(self) -> dict[str, np.ndarray]:
        modules = np.array([*self.changes])[:, None, None]
        seeds = np.arange(self.losses.shape[1])
        return spread(
            {
                "module": modules,
                self.along: np.array(self.sizes)[:, None],
                "seed": seeds,
                "change": np.stack([*self.changes.values()]),
            }
        )

    def _rows(self) -> list[tuple[str, ...]]:
        head = (
            "module",
            f"power of the {self.along}",
            "standard error",
            *(f"change at {size:g}" for size in self.sizes),
        )
        body = (
            (name, f"{p:+.3f}", f"{e:.3f}", *(f"{c:.4g}" for c in self.changes[name].mean(axis=1)))
            for name, (p, e) in self.slopes.items()
        )
        return [head, *body]

    def __repr__(self) -> str:
        worst = max(self.slopes, key=lambda name: abs(self.slopes[name][0]))
        return (
            f"TrainedCoordinates({len(self.slopes)} modules, largest power of the {self.along} "
            f"{self.slopes[worst][0]:+.3f} at {worst}{undone(self.edits)})"
        )


def trained_coordinates(
    build: Any,
    x: Any,
    y: Any,
    lr: float,
    widths: Sequence[Any] = (128, 256, 512),
    optimizer: str = "adamw",
    *,
    steps: int = 10,
    seeds: int = 3,
    standard: bool = False,
    zero_readout: bool = True,
    only: str | None = None,
    loss: Any = None,
    unknown: str | None = None,
    rank: str | None = None,
) -> TrainedCoordinates:
    """Train PyTorch models of several sizes by the rules of :func:`kcalc.transfer`.

    The rules may also call for changes to the model itself, such as multipliers. These are not
    applied; ``.edits`` lists them.

    Parameters
    ----------
    build
        A function of the width (or of keywords) that returns a ``torch.nn.Module`` with one output.
    x
        One batch of inputs: a tensor, or tensors by argument name, such as ``{"idx": ids}``.
    y
        The targets of the batch, a tensor.
    lr
        The learning rate at the first size. The rules determine the rates at the other sizes.
    widths
        The sizes: numbers, or dictionaries that differ in one number.
    optimizer
        See :func:`kcalc.transfer`.
    steps
        The number of training steps, each on the whole batch.
    seeds
        The number of models per size.
    standard
        True keeps initial weights and learning rates unchanged, for comparison.
    zero_readout
        True starts readouts at 0, so that slopes are close to their values at large width.
    only
        The name of a single parameter to train; None trains all.
    loss
        A function of the output and ``y``. None means cross-entropy for integer targets and mean
        squared error for others.
    unknown
        See :func:`kcalc.transfer`.
    rank
        See :func:`kcalc.transfer`.

    Returns
    -------
    TrainedCoordinates
        The changes in the outputs of all modules with parameters, and in the model's output.

    Raises
    ------
    KcalcError
        If the sizes do not differ, if a number is invalid, or if :func:`kcalc.transfer` raises an
        error.

    """
    sizes, along = extents(widths)
    rate = positive(lr, "lr")
    chosen = options(optimizer, unknown=unknown, rank=rank)
    family = family_of(build, sizes[0], (x, y), chosen, loss)
    family = replace(
        family,
        standard=truth(standard, "standard"),
        zero_readout=truth(zero_readout, "zero_readout"),
    )
    count, draws = whole(steps, "steps", 1), whole(seeds, "seeds", 2)
    changes: dict[str, list[list[float]]] = {}
    losses = []
    for size in sizes:
        rules = family.rules(size, sizes[-1])
        if only is not None and not is_key(only, rules.parameters):
            raise unknown_name("parameter", only, rules.parameters)
        found = []
        for seed in range(draws):
            model, made = family.started(rules, size, seed, rate)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(only in (None, name))
            before = outputs_of(model, family.x)
            for _ in range(count):
                last = family.step(model, made, family.x, family.y)
            found.append((_moved(before, outputs_of(model, family.x)), last))
        losses.append([last for _, last in found])
        for name in found[0][0]:
            changes.setdefault(name, []).append([moved[name] for moved, _ in found])
    extent = tuple(float(_extent(size, along)) for size in sizes)
    whole_table = {n: np.array(v) for n, v in changes.items() if len(v) == len(sizes)}
    kept = {n: v for n, v in whole_table.items() if (v > 0).all() and np.isfinite(v).all()}
    if not kept:
        raise KcalcError(
            "every feature map either stays constant or becomes infinite or nan; use a "
            "different lr or more steps"
        )
    slopes = {name: power(np.array(extent), values) for name, values in kept.items()}
    edits = () if family.standard else rules.edits  # for the last size
    return TrainedCoordinates(extent, kept, slopes, np.array(losses), along, edits)


def undone(edits: tuple[str, ...]) -> str:
    """Return a note on required edits that the trained models lack, or "" if there are none."""
    return f"; trained without this edit: {'; '.join(edits)}" if edits else ""


def family_of(build: Any, base: Any, batch: tuple[Any, Any], chosen: Options, loss: Any) -> Family:
    """Check the arguments and return the family of models."""
    torch = imported("torch")
    if not callable(build) or isinstance(build, torch.nn.Module):
        raise KcalcError(f"build must be a function of the width, got {type(build).__name__}")
    x, y = batch
    arrays = (
        {f"x[{name!r}]": tensor for name, tensor in x.items()} if isinstance(x, Mapping) else {}
    )
    arrays = {**(arrays or {"x": x}), "y": y}
    for name, tensor in arrays.items():
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0 or tensor.numel() == 0:
            raise KcalcError(f"{name} must be a torch.Tensor of examples, got {glimpse(tensor)}")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise KcalcError(f"{name} contains values that are not finite")
    for name, tensor in arrays.items():
        if len(tensor) != len(y):
            raise KcalcError(f"{name} has {len(tensor)} examples, but y has {len(y)}")
    if loss is not None and not callable(loss):
        raise KcalcError(f"loss must be a function of the output and y, got {glimpse(loss)}")
    return Family(build, base, *batch, chosen, loss or default_loss, False, False)


def extents(widths: Any) -> tuple[tuple[Any, ...], str]:
    """Return (sizes, name of the quantity that changes between them).

    Raises: KcalcError if fewer than two sizes differ, or if several numbers change.
    """
    given = items(widths, "widths")
    if len(given) < 2:
        raise KcalcError("widths must contain at least two sizes")
    if not all(isinstance(size, Mapping) for size in given):
        sizes = tuple(whole(size, "a width", 1) for size in given)
        if len(set(sizes)) < len(sizes):
            raise KcalcError(f"widths must differ, got {glimpse(widths)}")
        return sizes, "width"
    names = {name for size in given for name in size}
    changing = [name for name in names if len({size.get(name) for size in given}) > 1]
    if len(changing) != 1:
        raise KcalcError(f"exactly one number must differ between the sizes, got {changing}")
    for size in given:
        whole(size.get(changing[0]), changing[0], 1)
    return tuple(dict(size) for size in given), str(changing[0])


def _extent(size: Any, along: str) -> int:
    return size[along] if isinstance(size, dict) else size


def positive(number: Any, what: str) -> float:
    """Return ``number`` if it is positive.

    Raises: KcalcError for other values.
    """
    found = float(one_number(number, what))
    if not found > 0:
        raise KcalcError(f"{what} must be positive, got {number}")
    return found


def outputs_of(model: Any, x: Any) -> dict[str, Any]:
    """Return {module with parameters: output} and the output of the model.

    If a layer reads a concatenation, ``"layer [k]"`` is the contribution of the channels in part k.
    Random numbers are the same in every call.
    """
    import torch

    found: dict[str, Any] = {}

    def keep(name: str, out: Any) -> None:
        first = out[0] if isinstance(out, list | tuple) and out else out  # for an LSTM, its outputs
        if isinstance(first, torch.Tensor):
            found[name] = first.detach().double().clone()

    hooks = [
        module.register_forward_hook(lambda _m, _i, out, name=name: keep(name, out))
        for name, module in model.named_modules()
        if name
        and "parametrizations" not in name.split(".")  # parametrizations return weights
        and any(True for _ in module.parameters(recurse=False))
    ]
    parts = watched_parts(model)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), parts:
            torch.manual_seed(0)
            out = result_of(model, x)
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(out, torch.Tensor):
        raise KcalcError(f"the model must return one tensor, got {type(out).__name__}")
    return found | parts.found | {"output": out.double()}


def _moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float((after[name] - value).square().mean().sqrt()) for name, value in before.items()
    }


def power(extent: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Return the power of the size by least squares, and its standard error over seeds."""
    logs = np.log(extent) - np.log(extent).mean()
    each = logs @ np.log(values) / (logs @ logs)
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(each.size))
