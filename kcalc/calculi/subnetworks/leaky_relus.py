"""The maximal c value of networks whose leaky ReLUs all have the same negative slope."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import partial
from typing import Any, overload

import numpy as np

from ...fields.arguments import Array, Number, Numbers, one_number, real_array
from ...foundation.errors import KcalcError, UnreachableTarget, glimpse
from ...foundation.printing import plain
from ...foundation.rootfinding import zero_between
from ...maps.maps import Assumption
from ...network.network import Network
from ..convex import WHOLE
from .maxima import Function, Maximal, Values
from .regions import Subnetwork

Node = Hashable


def leaky_relu_map(negative_slope: Any) -> Function:
    """Return ``C(c) = c + k (sqrt(1 - c^2) - c arccos c)`` for c in [0, 1] [TAT sec. 4].

    Here ``k = (1 - alpha)^2 / (pi (1 + alpha^2))``.
    """
    scalar = not np.ndim(negative_slope)
    alpha = float(negative_slope) if scalar else np.asarray(negative_slope, dtype=np.float64)
    k = (1 - alpha) ** 2 / (math.pi * (1 + alpha**2))
    return partial(_number if scalar else _array, k)


def _number(k: float, c: float) -> float:
    c = min(c, 1.0)
    return c + k * (math.sqrt((1 - c) * (1 + c)) - c * math.acos(c))


def _array(k: Values, c: Values) -> Values:
    c = np.minimum(c, 1.0)
    return c + k * (np.sqrt((1 - c) * (1 + c)) - c * np.arccos(c))


class MaximalCValue:
    """The maximal c value ``max_f C_f(0)`` if all leaky ReLUs have the same negative slope.

    The maximum decreases strictly in the negative slope ``alpha`` on [-1, 1], from at most 1 to 0
    at alpha = 1. [TAT App. B.1, B.3]
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._maximal = Maximal(network, leaky_relu_map(0.0))

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions under which this function is computed.

        For norms that subtract means of activations, the result is heuristic.
        """
        same = "every nonlinear layer is a leaky ReLU with the same negative slope"
        told = self.network.assumptions
        formal = [a for a in self._maximal.assumptions if a not in told]
        norms = [a.node for a in formal if a.node != WHOLE]
        return (
            Assumption(WHOLE, f"{same}; sums are normalised, and sigma_b = 0"),
            *(a for a in formal if a.node == WHOLE),
            *(Assumption(node, self._about(node), "heuristic") for node in norms),
            *told,
        )

    def _about(self, node: Node) -> str:
        kind = type(self.network.layer(node)).__name__
        return (
            f"this {kind} is treated as the identity on c values, but it subtracts the mean of its "
            "input activations, which lowers c values; kc.maximal(network, r, q=1.0) includes that"
        )

    @overload
    def __call__(self, negative_slope: Number) -> float: ...
    @overload
    def __call__(self, negative_slope: Numbers) -> Array: ...
    def __call__(self, negative_slope: Any) -> float | Array:
        """Evaluate the maximal c value, elementwise.

        Raises: KcalcError outside [-1, 1].
        """
        values = real_array(negative_slope, "negative_slope")
        if not np.all(np.abs(values) <= 1):
            raise KcalcError(f"negative_slope must lie in [-1, 1], got {glimpse(negative_slope)}")
        start = np.zeros(values.shape) if values.ndim else 0.0
        return np.asarray(self._maximal._greatest([leaky_relu_map(values)], start))[()]

    def active(self, negative_slope: float) -> Subnetwork:
        """Return the first subnetwork that attains the maximum.

        Parameters
        ----------
        negative_slope
            The slope for x < 0, in [-1, 1].

        Returns
        -------
        Subnetwork
            The subnetwork, with its entry and exit.

        """
        slope = one_number(negative_slope, "negative_slope")
        self(slope)
        return self._maximal._attaining([leaky_relu_map(slope)], 0.0)

    @overload
    def inverse(self, target: Number) -> float: ...
    @overload
    def inverse(self, target: Numbers) -> Array: ...
    def inverse(self, target: Any) -> float | Array:
        """Return the negative slope at which the maximal c value is ``target``, elementwise.

        Parameters
        ----------
        target
            The value to reach, in (0, 1).

        Returns
        -------
        float | Array
            The negative slope, with the shape of ``target``.

        Raises
        ------
        KcalcError
            For other targets.
        UnreachableTarget
            If the network is too shallow to reach the target, even with ``alpha = -1``.

        """
        values = real_array(target, "target")
        if not np.all((values > 0) & (values < 1)):
            shown = glimpse(target)
            raise KcalcError(f"a target c value must lie strictly between 0 and 1, got {shown}")
        most = float(self(-1.0))
        if np.any(values > most):
            bound = f"the maximal c value of this network is at most {most:.6g} (negative slope -1)"
            raise UnreachableTarget(f"{bound}, got {glimpse(target)}")
        slopes = [self._inverse(float(value)) for value in values.flat]
        return np.array(slopes).reshape(values.shape)[()]

    def _inverse(self, value: float) -> float:
        return zero_between(lambda alpha: float(self(alpha)) - value, -1.0, 1.0, 1e-15)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data: kind of maximum, largest value and assumptions.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        notes = plain(self.assumptions)
        return {"maximum": "c value", "at_relu": float(self(0.0)), "assumptions": notes}

    def __repr__(self) -> str:
        return f"MaximalCValue({self._maximal._text()})"

    def _repr_latex_(self) -> str:
        formula = r"\displaystyle \mu^0(\alpha) = \max_f\; \mathcal{C}_f(0)"
        return rf"${formula}\quad\text{{({self._maximal._text()})}}$"


def maximal_c_value(network: Network) -> MaximalCValue:
    """Create the maximal c value function of a network; see :class:`MaximalCValue`.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.

    Returns
    -------
    MaximalCValue
        A function of the negative slope.

    """
    return MaximalCValue(network)
