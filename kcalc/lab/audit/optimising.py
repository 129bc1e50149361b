"""Criteria on the optimiser: OPT-MISSING and PREC-STALL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ...foundation.errors import KcalcError, glimpse
from .findings import Finding, criterion, named, part
from .subject import Subject, parts

STALLED = 0.5  # least fraction of unchanged weights for a finding


@criterion(
    "OPT-MISSING",
    "error or warning",
    "a trainable parameter is in no parameter group of the given optimizer, in two groups, or in a "
    "group with learning rate 0 and no schedule. It is a warning if all learning rates are 0",
)
def missing(subject: Subject) -> Iterator[Finding]:
    """Report parameters that belong to no parameter group, or to two."""
    if subject.optimizer is None:
        return
    try:
        optimizers = optimizers_of(subject, subject.original)
    except KcalcError:
        raise
    except ValueError as error:
        if "more than one parameter group" not in str(error):
            raise KcalcError(
                f"the optimizer could not be created: {' '.join(str(error).split())[:200]}"
            ) from error
        yield Finding(
            "OPT-MISSING",
            "error",
            (),
            "some parameters are in more than one parameter group",
            "put every parameter into exactly one group",
        )
        return
    counts = Counter(map(id, _held(optimizers)))
    trainable = {n: p for n, p in subject.original.named_parameters() if p.requires_grad}
    if not any(counts[id(p)] for p in trainable.values()):
        yield Finding(
            "OPT-MISSING",
            "error",
            tuple(trainable),
            "the optimizer contains none of this model's parameters",
            "pass a function that creates the optimizer from the model, such as "
            "optimizer=lambda model: ...",
            subject.place(tuple(trainable)),
        )
        return
    for wrong, text in ((0, "in no group"), (2, "in two groups")):
        names = [n for n, p in trainable.items() if min(counts[id(p)], 2) == wrong]
        for form, members in parts(names, trainable).items():
            yield Finding(
                "OPT-MISSING",
                "error",
                members,
                f"{part(form, members)} is trainable but {text} of the optimizer",
                "put it into one group, or set requires_grad=False",
                subject.place(members),
            )
    yield from _still(subject, trainable, optimizers)


def _still(subject: Subject, trainable: dict[str, Any], optimizers: list[Any]) -> Iterator[Finding]:
    """Report parameters in groups whose learning rate is 0 and stays 0.

    A group with ``initial_lr`` has a schedule, which may start at 0. If all learning rates are 0,
    nothing is reported, because the code may set them before every step.
    """
    rates = {}
    for group in (g for one in optimizers for g in one.param_groups if "lr" in g):
        rate = max(float(group["lr"]), float(group.get("initial_lr", 0.0)))
        for parameter in group["params"]:
            rates[id(parameter)] = max(rate, rates.get(id(parameter), 0.0))
    names = tuple(n for n, p in trainable.items() if rates.get(id(p), 1.0) == 0)
    if not names:
        return
    every = all(rate == 0 for rate in rates.values())
    yield Finding(
        "OPT-MISSING",
        "warning" if every else "error",
        names,
        f"{named(names)} is trainable, but the learning rate of its parameter group is 0"
        + (", as it is in all other groups" if every else ""),
        "set the learning rate of the group"
        + (
            " unless your code sets it before every step"
            if every
            else ", or set requires_grad=False if this is intended"
        ),
        subject.place(names),
    )


def optimizers_of(subject: Subject, model: Any) -> list[Any]:
    """Return the user's optimizers. If a function was given, call it with ``model``.

    Raises: KcalcError for anything that is not an optimizer.
    """
    import torch

    given = subject.optimizer
    if not isinstance(given, torch.optim.Optimizer | list | tuple) and callable(given):
        given = _made(given, model)
    several = list(given) if isinstance(given, list | tuple) else [given]
    if not several or not all(isinstance(one, torch.optim.Optimizer) for one in several):
        raise KcalcError(
            "optimizer must be a torch.optim.Optimizer, a list of optimizers, or a function that "
            f"takes the model and returns one of these, got {glimpse(given)}"
        )
    return several


def _held(optimizers: list[Any]) -> list[Any]:
    """Return the parameters in all groups of the optimizers."""
    return [p for one in optimizers for group in one.param_groups for p in group["params"]]


def _made(function: Any, model: Any) -> Any:
    try:
        return function(model)
    except ValueError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise KcalcError(
            f"the optimizer function raised {type(error).__name__}: {text}; it must take "
            "the model and return an optimizer"
        ) from error


@criterion(
    "PREC-STALL",
    "warning",
    "more than half of the 16-bit weights that the optimizer updates in place do not change in one "
    "step",
)
def stalled(subject: Subject) -> Iterator[Finding]:
    """Report updates that are lost to rounding in 16-bit weights."""
    import torch

    narrow = {
        name: p
        for name, p in subject.parameters.items()
        if p.dtype in (torch.bfloat16, torch.float16) and p.requires_grad
    }
    if subject.optimizer is None or not narrow:
        return
    unchanged, moved = _after_one_step(subject, tuple(narrow))
    share = sum(unchanged.values()) / max(sum(moved.values()), 1)
    if share <= STALLED:
        return
    names = tuple(n for n in narrow if moved[n] and unchanged[n] > STALLED * moved[n])
    yield Finding(
        "PREC-STALL",
        "warning",
        names,
        f"{share:.0%} of the 16-bit weights do not change in one step of the optimizer",
        "keep a 32-bit master copy of the weights, or use stochastic rounding",
        subject.place(names),
    )


def _stepped(optimizer: Any) -> None:
    try:
        optimizer.step()
    except Exception as error:
        raise KcalcError(
            f"a step of {type(optimizer).__name__} raised {type(error).__name__}: "
            f"{str(error)[:200]}; use an optimizer whose step needs no closure"
        ) from error


def _after_one_step(subject: Subject, names: tuple[str, ...]) -> tuple[Counter, Counter]:
    """Count the entries of each parameter that have a gradient but do not change in one step.

    The second counter counts all entries with a gradient.
    """
    import torch

    from ...interchange.torch_model import duplicate

    model, given = subject.model, subject.optimizer
    if isinstance(given, torch.optim.Optimizer | list | tuple):
        model, given = duplicate((subject.original, given))
        optimizers = list(given) if isinstance(given, list | tuple) else [given]
    else:
        optimizers = optimizers_of(subject, model)
    held = set(map(id, _held(optimizers)))
    parameters = dict(model.named_parameters())
    kept = {name: p.detach().clone() for name, p in parameters.items()}
    unchanged: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for name, gradient in subject.measured.gradients.items():
        parameters[name].grad = gradient
    try:
        for optimizer in optimizers:
            _stepped(optimizer)
        for name in names:
            gradient = subject.measured.gradients.get(name)
            if gradient is not None and id(parameters[name]) in held:
                alive = gradient != 0
                moved[name] = int(alive.sum())
                unchanged[name] = int((alive & (parameters[name] == kept[name])).sum())
    finally:
        with torch.no_grad():
            for name, value in kept.items():
                parameters[name].copy_(value)
                parameters[name].grad = None
    return unchanged, moved
