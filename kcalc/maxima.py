"""Maxima over subnetworks for any function ``r`` in place of the C map, and the maximal c value of leaky-ReLU networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import sympy as sp

from .arguments import real_array
from .calculi.factored import as_floats
from .calculi.slopes import ConvexCalculus
from .errors import KcalcError, UnreachableTarget
from .layers import Nonlinear
from .network import Network
from .regions import Subnetwork, subnetworks

__all__ = ["Maximal", "MaximalCValue", "maximal", "maximal_c_value"]

Node = Hashable
Values = Any


class _Expressions(ConvexCalculus[int]):
    """``U_{f,r}`` as numbered expressions, equal ones once: ``table[k]`` is () for x, (i,) for r of the i-th, else a mix."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.table: list[tuple[Any, ...]] = [()]
        self._numbers: dict[Any, int] = {(): 0}

    def _intern(self, entry: tuple[Any, ...]) -> int:
        number = self._numbers.setdefault(entry, len(self.table))
        if number == len(self.table):
            self.table.append(entry)
        return number

    def start(self) -> int:
        return 0

    def nonlinear(self, layer: Nonlinear, state: int) -> int:
        return self._intern((state,))

    def mix(self, shares: Sequence[sp.Expr], states: Sequence[int]) -> int:
        terms: dict[int, sp.Expr] = {}
        for share, state in zip(shares, states, strict=True):
            if not share.is_zero:
                terms[state] = terms[state] + share if state in terms else share
        if len(terms) == 1:
            return next(iter(terms))
        order = sorted(terms)
        return self._intern((tuple(order), tuple(as_floats([terms[k] for k in order]).tolist())))

    def evaluate(self, r: Callable[[Values], Values], x: Values) -> list[Values]:
        """The value of every expression. Raises: KcalcError where ``r(y) < y``."""
        values: list[Values] = []
        for entry in self.table:
            if not entry:
                values.append(x)
            elif len(entry) == 1:
                before = values[entry[0]]
                after = r(before)
                if not np.all(after >= before - 1e-12 * (1 + abs(before))):
                    raise KcalcError(
                        f"r(x) < x at x = {before}: only for non-decreasing r with r(x) >= x do the maximal subnetworks suffice"
                    )
                values.append(after)
            else:
                values.append(sum(share * values[k] for k, share in zip(*entry, strict=True)))
        return values


class Maximal:
    """``M_{f,r}(x) = max_g U_{g,r}(x)`` over the subnetworks ``g``, for a non-decreasing ``r`` with ``r(x) >= x``. [TAT App. B.2]

    ``U_{g,r}`` is the c-value graph of ``g`` with ``r`` in place of the C map of every nonlinear layer. Isomorphic subnetworks are
    evaluated once. Callable on numbers and arrays as far as ``r`` is.
    """

    def __init__(self, network: Network, r: Callable[[Values], Values]) -> None:
        self.network = network
        self.r = r
        self._expressions = _Expressions(network)
        self._exits: dict[int, Subnetwork] = {}
        for piece in subnetworks(network):
            states: dict[Node, int] = {piece.entry: 0}
            for node in piece.layers:
                inputs = [states[parent] for parent in network.parents(node)]
                states[node] = self._expressions.rule(network.layer(node), node, inputs)
            self._exits.setdefault(states[piece.exit], piece)

    def _values(self, r: Callable[[Values], Values], x: Values) -> list[Values]:
        values = self._expressions.evaluate(r, x)
        return [values[number] for number in self._exits] or [x]

    def __call__(self, x: Values) -> Values:
        """The maximum at ``x``, elementwise."""
        start = np.asarray(x, dtype=np.float64) if np.ndim(x) else float(x)
        return np.max(np.broadcast_arrays(*self._values(self.r, start)), axis=0)[()]

    def active(self, x: float) -> Subnetwork:
        """The (first) maximal subnetwork that attains the maximum at a number ``x``."""
        return _attaining(self._exits, self._values(self.r, float(x)))

    def __repr__(self) -> str:
        return f"Maximal(r={getattr(self.r, '__name__', self.r)}, {len(self._exits)} distinct maximal subnetworks)"


def _attaining(exits: dict[int, Subnetwork], values: Sequence[Values]) -> Subnetwork:
    if not exits:
        raise KcalcError("the network has no subnetwork (its inputs meet before any layer)")
    return list(exits.values())[int(np.argmax(values))]


def maximal(network: Network, r: Callable[[Values], Values]) -> Maximal:
    """The subnetwork maximising function for ``r``; see :class:`Maximal`."""
    if not callable(r):
        raise KcalcError(f"r must be a function, got {r!r}")
    return Maximal(network, r)


def leaky_relu_map(negative_slope: Any) -> Callable[[Values], Values]:
    """``C(c) = c + k (sqrt(1 - c^2) - c arccos c)``, ``k = (1 - alpha)^2 / (pi (1 + alpha^2))``, for c in [0, 1]. [TAT sec. 4]"""
    scalar = not np.ndim(negative_slope)
    alpha = float(negative_slope) if scalar else np.asarray(negative_slope, dtype=np.float64)
    k = (1 - alpha) ** 2 / (math.pi * (1 + alpha**2))

    def c_map(c: Values) -> Values:
        if scalar:
            c = min(c, 1.0)
            return c + k * (math.sqrt((1 - c) * (1 + c)) - c * math.acos(c))
        c = np.minimum(c, 1.0)
        return c + k * (np.sqrt((1 - c) * (1 + c)) - c * np.arccos(c))

    return c_map


class MaximalCValue:
    """The maximal c value function ``max_f C_f(0)`` of a network whose activations are leaky ReLUs of one negative slope.

    Strictly decreasing in the negative slope ``alpha`` on [-1, 1], from at most 1 to 0 (linear). [TAT App. B.1, B.3]
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.assumptions = ("every nonlinear layer is a leaky ReLU with the same negative slope; sums are normalised, sigma_b = 0",)
        self._maximal = Maximal(network, leaky_relu_map(0.0))

    def _values(self, negative_slope: Any) -> list[Values]:
        values = real_array(negative_slope, "negative_slope")
        if not np.all(np.abs(values) <= 1):
            raise KcalcError(f"negative_slope must lie in [-1, 1], got {negative_slope!r}")
        start = np.zeros(values.shape) if values.ndim else 0.0
        return self._maximal._values(leaky_relu_map(values), start)

    def __call__(self, negative_slope: Any) -> Any:
        """The maximal c value, elementwise. Raises: KcalcError outside [-1, 1]."""
        return np.max(np.stack(self._values(negative_slope)), axis=0)[()]

    def active(self, negative_slope: float) -> Subnetwork:
        """The (first) maximal subnetwork that attains the maximum."""
        return _attaining(self._maximal._exits, self._values(float(negative_slope)))

    def inverse(self, target: float) -> float:
        """The negative slope at which the maximal c value is ``target`` in (0, 1).

        Raises: KcalcError for other targets; UnreachableTarget where the network is too shallow, even with ``alpha = -1``.
        """
        from scipy.optimize import brentq

        value = float(target)
        if not 0 < value < 1:
            raise KcalcError(f"a target c value must lie strictly between 0 and 1, got {target!r}")
        most = float(self(-1.0))
        if value > most:
            raise UnreachableTarget(f"the maximal c value of this network is at most {most:.6g} (negative slope -1), got {target!r}")
        return float(brentq(lambda alpha: float(self(alpha)) - value, -1.0, 1.0, xtol=1e-15))  # pyright: ignore[reportArgumentType]

    def __repr__(self) -> str:
        return f"MaximalCValue({len(self._maximal._exits)} distinct maximal subnetworks)"


def maximal_c_value(network: Network) -> MaximalCValue:
    """The maximal c value function of a network; see :class:`MaximalCValue`."""
    return MaximalCValue(network)
