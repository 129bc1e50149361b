"""Optimisers by name, all from optax, made for the trees of parameters that models have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..foundation.errors import KcalcError, unknown
from .extras import extra
from .settings import Settings

Tree = Any


@dataclass(frozen=True)
class Optimiser:
    """An optimiser.

    ``make(settings)`` is an optax transformation with the learning rate 1, to which updates are
    proportional.

    ``rates``: the learning rates to try where none is given, for deep shaped networks on small
    images.
    """

    name: str
    meaning: str
    make: Callable[[Settings], Any]
    rates: tuple[float, ...]


def _sgd(settings: Settings) -> Any:
    optax = extra("optax")
    return _decayed(optax.sgd(1.0, momentum=settings.momentum or None), settings)


def _nesterov(settings: Settings) -> Any:
    optax = extra("optax")
    return _decayed(optax.sgd(1.0, momentum=settings.momentum, nesterov=True), settings)


def _decayed(descent: Any, settings: Settings) -> Any:
    """Weight decay as a part of the gradient, as is usual with SGD."""
    optax = extra("optax")
    return (
        optax.chain(optax.add_decayed_weights(settings.weight_decay), descent)
        if settings.weight_decay
        else descent
    )


def _adam(settings: Settings) -> Any:
    optax = extra("optax")
    if settings.weight_decay:
        return optax.adamw(1.0, b1=settings.momentum, weight_decay=settings.weight_decay)
    return optax.adam(1.0, b1=settings.momentum)


def _muon(settings: Settings) -> Any:
    optax = extra("optax")
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
    """Which axes of each weight are read and emitted.

    Those of repeated blocks are stacked along a leading axis of their own.
    """
    optax = extra("optax")

    def one(leaves: dict[str, Any]) -> dict[str, Any]:
        return {
            leaf: numbers(array) if leaf == "weight" else None for leaf, array in leaves.items()
        }

    def numbers(array: Any) -> Any:
        stacked = array.ndim % 2  # a dense weight has two axes, a convolution four
        return (
            optax.contrib.MuonDimensionNumbers(
                tuple(range(stacked, array.ndim - 1)), array.ndim - 1
            )
            if array.ndim > 1
            else None
        )

    return {name: one(leaves) for name, leaves in params.items()}


def _elsewhere(settings: Settings) -> Any:
    raise KcalcError(
        f"{settings.optimizer} is no optax transformation; train with kcalc.training.fit"
    )


OPTIMISERS: dict[str, Optimiser] = {
    o.name: o
    for o in (
        Optimiser("sgd", "gradient descent with momentum", _sgd, (1e-5, 1e-4, 3e-4, 1e-3, 3e-3)),
        Optimiser(
            "nesterov",
            "gradient descent with Nesterov's momentum",
            _nesterov,
            (1e-5, 1e-4, 3e-4, 1e-3, 3e-3),
        ),
        Optimiser(
            "adam", "Adam, with decoupled weight decay", _adam, (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
        ),
        Optimiser(
            "muon",
            "Muon: momentum made orthogonal, of Shampoo's class; Adam for biases",
            _muon,
            (3e-5, 1e-4, 3e-4, 1e-3, 3e-3),
        ),
        Optimiser(
            "kfac",
            "K-FAC by kfac-jax (an extra of its own), where it steps",
            _elsewhere,
            (1e-5, 3e-5, 1e-4, 3e-4, 1e-3),
        ),
    )
}


def optimiser(name: str) -> Optimiser:
    """The optimiser of a name.  Raises: KcalcError for other names, with the nearest."""
    if not isinstance(name, str) or name not in OPTIMISERS:
        raise unknown("optimizer", name, OPTIMISERS)
    return OPTIMISERS[name]
