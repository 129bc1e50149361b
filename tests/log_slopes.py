"""Slopes of a network by floating-point numbers, node by node.

a reading of the convex calculus apart from slope polynomials.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sympy as sp

from kcalc.calculi.convex import ConvexCalculus
from kcalc.calculi.factored import Array, as_floats, mixed
from kcalc.fields.arguments import real_array
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.network.network import Network
from kcalc.network.primitives import Post

Node = Hashable


class LogSlope(NamedTuple):
    """``log p(psi)`` and the mean degree ``d log p / d log psi``.

    At ``psi = 1`` the latter is the curvature ``p'(1)``.
    """

    log: Array
    degree: Array


class _LogSlopes(ConvexCalculus[LogSlope]):
    def __init__(self, network: Network, log_psi: Array, q: Any = None) -> None:
        super().__init__(network, q)
        self.log_psi = log_psi

    def start(self) -> LogSlope:
        return LogSlope(np.zeros_like(self.log_psi), np.zeros_like(self.log_psi))

    def normalise(self, slope: sp.Expr, state: LogSlope) -> LogSlope:
        return LogSlope(state.log + np.log(float(slope)), state.degree)

    def nonlinear(self, op: Post, node: Node, state: LogSlope) -> LogSlope:
        return LogSlope(state.log + self.log_psi, state.degree + 1.0)

    def mix(self, shares: Sequence[sp.Expr], states: Sequence[LogSlope]) -> LogSlope:
        weights = as_floats(shares).reshape(-1, *[1] * self.log_psi.ndim)
        logs = np.stack([state.log for state in states])
        degrees = np.stack([state.degree for state in states])
        log, degree = mixed(weights, logs, degrees, np.zeros(1, np.intp))
        return LogSlope(log[0], degree[0])


def log_slopes(network: Network, psi: Any, q: Any = None) -> dict[Node, LogSlope]:
    """``log V(t)`` and mean degree at every node ``t``, where ``V(t)`` is the slope from the inputs
    to ``t``.

    A subnetwork (s, t) has slope ``V(t)/V(s)`` and, at ``psi = 1``, curvature
    ``degree(t) - degree(s)``.
    Parameters: ``psi`` > 0, a number or an array. Raises: KcalcError for other values and for
    symbols in mixing weights.
    """
    values = real_array(psi, "psi")
    if not np.all(values > 0):
        raise KcalcError(f"psi must be positive, got {glimpse(psi)}")
    return _LogSlopes(network, np.log(values), q).read()
