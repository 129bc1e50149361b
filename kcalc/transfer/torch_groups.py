"""Parameter groups and initial weights of PyTorch models."""

from __future__ import annotations

from typing import Any

from ..fields.arguments import one_number
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import choice
from .result import EPSILONS, ParameterRule, Transfer, require_known


def param_groups(
    transfer: Transfer, model: Any, settings: tuple[Any, Any, Any], optimizer: str | None
) -> list[dict[str, Any]]:
    """Parameters with the same rule in one group; see :meth:`Transfer.param_groups`."""
    lr, decay = _setting(settings[0], "lr"), _setting(settings[1], "weight_decay")
    eps = None if settings[2] is None else _setting(settings[2], "eps")
    require_known(transfer)
    takers = sorted({rule.optimizer for rule in transfer.parameters.values()})
    if optimizer is None and len(takers) > 1:
        raise KcalcError(
            f"parameters are divided between {' and '.join(takers)}: ask for the groups of each, "
            f"optimizer={takers[0]!r}"
        )
    if optimizer is not None:
        choice(optimizer, "optimizer of these parameters", takers)
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
            own["eps"] = small if rule.optimizer == "adamw" else (None, small)
        groups.setdefault(tuple(own.values()), {"params": []} | own)["params"].append(parameter)
    return list(groups.values())


def rescale(transfer: Transfer, model: Any) -> None:
    """See :meth:`Transfer.rescale`."""
    import torch

    require_known(transfer)
    own = _matched(transfer, model)
    for name in own:
        if transfer.parameters[name].base_std is None:
            raise KcalcError(
                f"the standard deviation of {name} in the base is not known: rescaling needs a "
                f"base that is a model"
            )
    with torch.no_grad():
        for name, parameter in own.items():
            _rescale(transfer.parameters[name], parameter)


def _rescale(rule: ParameterRule, parameter: Any) -> None:
    """One parameter; constants stay."""
    present = float(parameter.double().var(unbiased=False)) ** 0.5
    if rule.base_std and present:
        parameter.mul_(rule.base_std * rule.init_std / present)


def _matched(transfer: Transfer, model: Any) -> dict[str, Any]:
    """{name: parameter}.  Raises: KcalcError where the model has others than the rules."""
    if not hasattr(model, "named_parameters"):
        raise KcalcError(f"expected a torch.nn.Module, got a {type(model).__name__}")
    own = dict(model.named_parameters())
    for name, parameter in own.items():
        if name not in transfer.parameters:
            raise KcalcError(f"the model has a parameter {name!r} without a rule")
        shape = transfer.parameters[name].shape
        if shape and shape != tuple(parameter.shape):
            raise KcalcError(
                f"{name!r} has the shape {tuple(parameter.shape)}, and the rules are those of "
                f"{shape}: give kc.transfer this model's width, to="
            )
    for name in transfer.parameters:
        if name not in own:
            raise KcalcError(f"the model has no parameter {name!r}, which has a rule")
    return own


def _setting(number: Any, what: str) -> float:
    found = float(one_number(number, what))
    if found < 0:
        raise KcalcError(f"{what} must be >= 0, got {number}")
    return found
