"""Shaping: constants that make a network trainable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import KcalcError, unknown
from ..network import Network
from .base import Constants, ConstantsTable, Shaping
from .dks import dks

METHODS: dict[str, Callable[..., Shaping]] = {"dks": dks}

__all__ = ["METHODS", "Constants", "ConstantsTable", "Shaping", "dks", "shape"]


def shape(network: Network, activation: Any = None, method: str = "dks", **targets: Any) -> Shaping:
    """Shape a network by a method: ``"dks"`` with ``zeta=1.5``.

    ``activation=None`` keeps each layer's own activation. Returns: a :class:`Shaping`. Raises: KcalcError for an
    unknown method or target, and whatever the method refuses.
    """
    if not isinstance(network, Network):
        raise KcalcError(f"expected a kcalc.Network, got {type(network).__name__}; wrap a graph with kc.Network(graph)")
    if method not in METHODS:
        raise unknown("shaping method", method, METHODS)
    allowed = set(METHODS[method].__annotations__) - {"network", "activation", "return"}
    for name in targets:
        if name not in allowed:
            raise unknown(f"target of method {method!r}", name, allowed)
    return METHODS[method](network, activation, **targets)
