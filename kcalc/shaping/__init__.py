"""Shaping: constants that make a network trainable."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from ..errors import KcalcError, unknown
from ..network import Network
from .base import Shaping
from .comparison import Comparison
from .constants import Constants, ConstantsTable
from .dks import dks
from .eoc import Edge, EdgeShaping, edge, edge_curve, eoc
from .limits import DepthLimit, depth_limit, flow, flow_slope, flow_time
from .phases import PhaseDiagram, phase_diagram
from .scales import RULES, WEIGHTS, Consequences, normalisation
from .search import mirrors
from .tat import tat

METHODS: dict[str, Callable[..., Shaping]] = {"dks": dks, "tat": tat, "eoc": eoc, "normalisation": normalisation, **WEIGHTS}

__all__ = [
    "METHODS", "RULES", "Comparison", "Consequences", "Constants", "ConstantsTable", "DepthLimit", "Edge", "EdgeShaping", "PhaseDiagram",
    "Shaping", "depth_limit", "dks", "edge", "edge_curve", "eoc", "flow", "flow_slope", "flow_time", "mirrors", "normalisation",
    "phase_diagram", "shape", "tat",
]  # fmt: skip


def shape(network: Network, activation: Any = None, method: str = "dks", **targets: Any) -> Shaping:
    """Shape a network: find constants for its activations (or its weights) that make it trainable at any depth.

    ``activation=None`` keeps each layer's own. The methods and their targets:

    - ``"dks"``: ``zeta=1.5`` bounds the slopes of all subnetworks' C maps at 1; ``subnetworks="strict"`` or ``"forward"``; ``q_slope=1``, a
      value, ``"minimize"`` or None (dropped); ``free_slope=True`` gives leaky_relu its slope as a further constant. See :func:`dks`.
    - ``"tat"``: ``eta=.9`` (relu, leaky_relu: the largest c value that orthogonal inputs reach) or ``tau=.3`` (smooth activations: the
      largest curvature). See :func:`tat`.
    - ``"normalisation"``: Q(1) = 1 only; ``"he"``, ``"lecun"``, ``"glorot"``, ``"fan_out"``: weight variances, with the consequences for q
      and c as ``values``. No targets.
    - ``"eoc"``: the edge of chaos, chosen by ``sigma_b``, ``sigma_w`` or ``q``; changes the weights' scales. See :func:`eoc`.

    Returns: a :class:`Shaping`. Raises: KcalcError for an unknown method or target, and whatever the method refuses.
    """
    if not isinstance(network, Network):
        raise KcalcError(f"expected a kcalc.Network, got {type(network).__name__}; wrap a graph with kc.Network(graph)")
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("shaping method", method, METHODS)
    allowed = set(signature(METHODS[method]).parameters) - {"network", "activation"}
    for name in targets:
        if name not in allowed:
            raise unknown(f"target of method {method!r}", name, allowed or ["(this method takes none)"])
    return METHODS[method](network, activation, **targets)
