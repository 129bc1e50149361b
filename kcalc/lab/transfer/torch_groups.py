"""Parameter groups and initial weights of PyTorch models."""

from __future__ import annotations

import warnings
from typing import Any

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import choice
from .optimizers import OPTIMIZERS
from .result import EPSILONS, ParameterRule, Transfer, require_known


def param_groups(
    transfer: Transfer, model: Any, settings: tuple[Any, Any, Any], optimizer: str | None
) -> list[dict[str, Any]]:
    """Return groups of parameters with the same rules; see :meth:`Transfer.param_groups`."""
    lr, decay = _setting(settings[0], "lr"), _setting(settings[1], "weight_decay")
    eps = None if settings[2] is None else _setting(settings[2], "eps")
    require_known(transfer)
    takers = sorted({rule.optimizer for rule in transfer.parameters.values()})
    if optimizer is None and len(takers) > 1:
        raise KcalcError(
            f"the parameters are divided between {' and '.join(takers)}; request the groups for "
            f"each optimizer separately, for example with optimizer={takers[0]!r}"
        )
    if optimizer is not None:
        choice(optimizer, "optimizer of these parameters", takers)
    warn_guessed(transfer)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in _matched(transfer, model).items():
        rule = transfer.parameters[name]
        if not parameter.requires_grad or optimizer not in (None, rule.optimizer):
            continue
        own: dict[str, Any] = {
            "lr": lr * rule.learning_rate,
            "weight_decay": decay * rule.weight_decay,
        }
        if rule.optimizer in EPSILONS:
            small = rule.epsilon * (EPSILONS[rule.optimizer] if eps is None else eps)
            own["eps"] = (None, small) if OPTIMIZERS[rule.optimizer].floor else small
        groups.setdefault(tuple(own.values()), {"params": []} | own)["params"].append(parameter)
    return list(groups.values())


def warn_guessed(transfer: Transfer) -> None:
    """Warn once if the rules for some parameters rest on a guess."""
    guessed = [rule for rule in transfer.parameters.values() if rule.guessed]
    if guessed:
        places = ", ".join(repr(name) for name in dict.fromkeys(rule.guessed for rule in guessed))
        warnings.warn(
            f"some rules ({len(guessed)}, such as that for {guessed[0].name!r}) are heuristic, "
            f"because a path through these parameters contains {places}, which has no rule "
            "(unknown='heuristic'); check them with kc.trained_coordinates",
            stacklevel=4,
        )


def rescale(transfer: Transfer, model: Any) -> None:
    """Rescale the initial weights of a model; see :meth:`Transfer.rescale`."""
    import torch

    require_known(transfer)
    own = _matched(transfer, model)
    for name in own:
        if transfer.parameters[name].base_std is None:
            raise KcalcError(
                f"the standard deviation of {name} in the base is unknown; to rescale, pass a "
                "model as the base"
            )
    with torch.no_grad():
        for name, parameter in own.items():
            _rescale(transfer.parameters[name], parameter)


FEW = 24  # with fewer entries, the standard deviation has an error of a sixth or more


def _rescale(rule: ParameterRule, parameter: Any) -> None:
    """Rescale one parameter, unless it is constant."""
    if rule.role == "length":  # the lengths of rows, which share one factor
        size = float(parameter.detach().double().square().mean()) ** 0.5
        if rule.base_std and size:
            parameter.mul_(rule.base_std * rule.init_std / size)
        return
    if min(parameter.numel(), rule.base_entries) < FEW:
        parameter.mul_(1.0 if not parameter.numel() or _constant(parameter) else rule.init_std)
        return
    present, centre = moments([parameter])
    if rule.base_std and present:
        parameter.sub_(centre).mul_(rule.base_std * rule.init_std / present).add_(centre)


def _constant(parameter: Any) -> bool:
    return bool((parameter == parameter.flatten()[0]).all())


def moments(parameters: list[Any]) -> tuple[float, float]:
    """Return (standard deviation, mean) for parameters with the same distribution.

    A mean within 5 standard errors of 0 counts as 0, and the standard deviation is then taken about
    0. Constant parameters have deviation 0.
    """
    import torch

    every = torch.cat([p.detach().double().flatten() for p in parameters])
    mean, spread = float(every.mean()), float(every.var(unbiased=False)) ** 0.5
    if not spread or abs(mean) > 5 * spread / len(every) ** 0.5:
        return spread, mean
    return float(every.square().mean()) ** 0.5, 0.0


def _matched(transfer: Transfer, model: Any) -> dict[str, Any]:
    """Return {name: parameter} of a model.

    Raises: KcalcError if the model's parameters do not match the rules.
    """
    if not hasattr(model, "named_parameters"):
        raise KcalcError(f"expected a torch.nn.Module, got a {type(model).__name__}")
    own = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad or name in transfer.parameters
    }
    for name, parameter in own.items():
        if name not in transfer.parameters:
            raise KcalcError(f"the model has a parameter {name!r} without a rule")
        shape = transfer.parameters[name].shape
        if shape and shape != tuple(parameter.shape):
            raise KcalcError(
                f"{name!r} has the shape {tuple(parameter.shape)}, but its rule is for the "
                f"shape {shape}; pass this model's width to kc.transfer as to="
            )
    for name in transfer.parameters:
        if name not in own:
            raise KcalcError(
                f"there is a rule for a parameter {name!r}, which this model does not have"
            )
    return own


def _setting(number: Any, what: str) -> float:
    found = float(one_number(number, what))
    if found < 0:
        raise KcalcError(f"{what} must be >= 0, got {number}")
    return found
