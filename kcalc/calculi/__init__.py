"""Calculi: states for feature maps and rules for primitives, folded over a network's graph.

The folds are in :mod:`kcalc.network.compose`. The other packages of kcalc use kcalc's public names
and the names that this module exports. Each submodule is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch_gradients import normalised_batches
    from .ntk import KernelFunction, TangentKernel, TangentReading
    from .regime import kind, predicted_limit
    from .slopes import Slopes, polynomial_texts, slope_polynomial, slope_texts
    from .tangent import PARAMETERIZATIONS
    from .widths import open_nodes

_HOMES = {
    "PARAMETERIZATIONS": "tangent",
    "KernelFunction": "ntk",
    "Slopes": "slopes",
    "TangentKernel": "ntk",
    "TangentReading": "ntk",
    "kind": "regime",
    "normalised_batches": "batch_gradients",
    "open_nodes": "widths",
    "polynomial_texts": "slopes",
    "predicted_limit": "regime",
    "slope_polynomial": "slopes",
    "slope_texts": "slopes",
}

__all__ = [
    "PARAMETERIZATIONS",
    "KernelFunction",
    "Slopes",
    "TangentKernel",
    "TangentReading",
    "kind",
    "normalised_batches",
    "open_nodes",
    "polynomial_texts",
    "predicted_limit",
    "slope_polynomial",
    "slope_texts",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
