"""Optimisers from optax, selected by name, for the parameter trees of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...foundation.errors import KcalcError
from ...foundation.extras import imported
from ...foundation.plain_arguments import choice
from .settings import Settings

Tree = Any


@dataclass(frozen=True)
class Optimiser:
    """An optimiser and its default learning rates.

    ``make(settings)`` returns an optax transformation with learning rate 1. Updates are then
    multiplied by the learning rate of the step.

    ``rates`` are the learning rates to try by default, chosen for deep shaped networks on small
    images.
    """

    name: str
    meaning: str
    make: Callable[[Settings], Any]
    rates: tuple[float, ...]


def _sgd(settings: Settings) -> Any:
    """Return SGD, in which weight decay is added to the gradient as usual."""
    optax, nesterov = imported("optax"), settings.optimizer == "nesterov"
    descent = optax.sgd(1.0, momentum=settings.momentum or None, nesterov=nesterov)
    decay = optax.add_decayed_weights(settings.weight_decay)
    return optax.chain(decay, descent) if settings.weight_decay else descent


def _adam(settings: Settings) -> Any:
    optax = imported("optax")
    if settings.weight_decay:
        return optax.adamw(1.0, b1=settings.momentum, weight_decay=settings.weight_decay)
    return optax.adam(1.0, b1=settings.momentum)


def _muon(settings: Settings) -> Any:
    optax = imported("optax")
    if not hasattr(optax, "contrib") or not hasattr(optax.contrib, "MuonDimensionNumbers"):
        raise KcalcError(
            f"optax {optax.__version__} has no Muon for stacked weights; install optax >= 0.2.6"
        )
    return optax.contrib.muon(
        1.0,
        beta=settings.momentum,
        weight_decay=settings.weight_decay,
        adam_weight_decay=settings.weight_decay,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=_matrices,
    )


def _matrices(params: Tree) -> Tree:
    """Return the input axes and the output axes of each weight.

    The weights of repeated blocks are stacked along an additional leading axis.
    """
    optax = imported("optax")

    def numbers(leaf: str, array: Any) -> Any:
        if leaf != "weight" or array.ndim < 2:
            return None
        stacked = array.ndim % 2  # a dense weight has two axes, a convolution four
        read = tuple(range(stacked, array.ndim - 1))
        return optax.contrib.MuonDimensionNumbers(read, array.ndim - 1)

    return {
        name: {leaf: numbers(leaf, array) for leaf, array in leaves.items()}
        for name, leaves in params.items()
    }


def _elsewhere(settings: Settings) -> Any:
    raise KcalcError(
        f"{settings.optimizer} is not an optax transformation; use kcalc.training.fit to train "
        "with it"
    )


RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
DESCENT = (RATES[0], *RATES[2:])
OPTIMISERS: dict[str, Optimiser] = {
    o.name: o
    for o in (
        Optimiser("sgd", "gradient descent with momentum", _sgd, DESCENT),
        Optimiser("nesterov", "gradient descent with Nesterov's momentum", _sgd, DESCENT),
        Optimiser("adam", "Adam, with decoupled weight decay", _adam, RATES[1:]),
        Optimiser(
            "muon",
            "Muon: orthogonalised momentum, similar to Shampoo; Adam for biases",
            _muon,
            RATES[1:],
        ),
        Optimiser(
            "kfac", "K-FAC by kfac-jax (a separate extra), if it works", _elsewhere, RATES[:5]
        ),
    )
}


def optimiser(name: str) -> Optimiser:
    """Return the optimiser with this name.

    Raises: KcalcError for unknown names; the message lists similar names.
    """
    return OPTIMISERS[choice(name, "optimizer", OPTIMISERS)]
