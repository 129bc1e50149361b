"""The transfer rules as an optax transformation."""

from __future__ import annotations

from typing import Any

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError, unknown
from ...foundation.extras import imported
from .optimizers import OPTIMIZERS
from .result import ParameterRule, Transfer, require_known
from .torch_groups import warn_guessed


def transformation(transfer: Transfer, lr: Any, weight_decay: Any, eps: Any) -> Any:
    """Return one transformation that applies all rules; see :meth:`Transfer.optax`."""
    optax = imported("optax")
    having = [name for name, one in OPTIMIZERS.items() if one.optax]
    if transfer.optimizer not in having:
        raise KcalcError(
            f"there is no optax transformation for optimizer={transfer.optimizer!r}; use "
            f"{' or '.join(having)}, or param_groups for PyTorch"
        )
    require_known(transfer)
    warn_guessed(transfer)
    rate, decay, small = (
        float(one_number(v, n))
        for v, n in ((lr, "lr"), (weight_decay, "weight_decay"), (eps, "eps"))
    )

    def one(rule: ParameterRule) -> Any:
        if transfer.optimizer == "adamw":
            return optax.adamw(
                rate * rule.learning_rate,
                eps=small * rule.epsilon,
                weight_decay=decay * rule.weight_decay,
            )
        if transfer.optimizer == "lion":
            return optax.lion(rate * rule.learning_rate, weight_decay=decay * rule.weight_decay)
        return optax.chain(
            optax.add_decayed_weights(decay * rule.weight_decay),
            optax.sgd(rate * rule.learning_rate),
        )

    def labels(params: Any) -> Any:
        import jax

        return jax.tree_util.tree_map_with_path(lambda path, _: _label(transfer, path), params)

    return optax.partition({name: one(rule) for name, rule in transfer.parameters.items()}, labels)


def _label(transfer: Transfer, path: tuple[Any, ...]) -> str:
    keys = [getattr(p, "key", getattr(p, "name", getattr(p, "idx", p))) for p in path]
    name = ".".join(map(str, keys))
    if name not in transfer.parameters:
        raise unknown("parameter", name, transfer.parameters)
    return name
