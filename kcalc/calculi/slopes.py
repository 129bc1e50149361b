"""Slope polynomials: a network's ``C'(1)`` as a function of the slope of its nonlinear layers, factored as the network is.

Replace the C map of every nonlinear layer by ``r(x) = psi x`` and every mix by a convex combination; the network then multiplies 1 by
its slope polynomial ``p(psi)``, with ``p(1) = 1`` and coefficients >= 0 [DKS sec. 17.1, 21.3]. The reading is formal: it takes the
network as shaping leaves it (``sigma_b = 0``, ``C(0) = 0`` before each LayerNorm), needs no independence of addends, and a feature map
that a Sum reads twice counts as two addends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, lru_cache, singledispatchmethod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import sympy as sp

from ..arguments import real_array
from ..compose import fold, no_rule, require_network
from ..errors import KcalcError
from ..layers import Affine, Concat, Dropout, Flatten, Identity, Input, LayerNorm, Nonlinear, Pool, RMSNorm, Scale, Sum, as_number
from ..network import Network, concat_channels, sum_weights
from ..symbols import psi as common_slope
from ..symbols import slope_of
from .factored import ONE, Array, Factors, Monomial, as_floats, mixed

__all__ = ["ASSUMPTIONS", "ConvexCalculus", "LogSlope", "Slopes", "convex_shares", "log_slopes", "slope_polynomial"]

Node = Hashable
State = TypeVar("State")

ASSUMPTIONS = (
    "infinite width; every nonlinear layer keeps q where mixing weights take no q values",
    "C(0) = 0 before every LayerNorm, so that its slope is 1; pooling and convolutions act as the identity on c values",
    "addends of a Sum are taken as independent (not checked: slope polynomials are formal)",
)


# -- the table of rules --------------------------------------------------------------------------------------------------------------


class ConvexCalculus(ABC, Generic[State]):
    """``U_{f,r}``: nonlinear layers act by one function ``r``, mixes are convex, all else is the identity. [TAT App. B.4]

    Sum mixes with ``w_i^2``, Concat with the numbers of channels ``k_i``, both normalised to sum 1. Where ``q`` is given, each counts
    times the q value of what is mixed; ``q`` maps every node to its q value, or is that of the network inputs, from which the kernel
    calculus finds the others. [DKS eq. 12, footnote 10]
    """

    name = "slope polynomials"

    def __init__(self, network: Network, q: Any = None) -> None:
        require_network(network)
        self.network = network
        self.q: Mapping[Node, Any] | None = q if q is None or isinstance(q, Mapping) else _q_values(network, q)
        for node, value in (self.q or {}).items():
            if _exact(as_number(value, f"q[{node!r}]")).is_positive is False:
                raise KcalcError(f"q values must be positive, got {value} at {node!r}")

    @abstractmethod
    def start(self) -> State:
        """The state of every network input."""

    @abstractmethod
    def nonlinear(self, layer: Nonlinear, state: State) -> State:
        """``r`` applied to a state."""

    @abstractmethod
    def mix(self, shares: Sequence[sp.Expr], states: Sequence[State]) -> State:
        """The convex combination of states; ``shares`` sum to one."""

    @singledispatchmethod
    def rule(self, layer: Any, node: Node, inputs: list[State]) -> State:
        """The state a layer emits. Raises: NoRule for BatchNorm, Product and Opaque."""
        raise no_rule(self.name, layer, node)

    @rule.register
    def _(self, layer: Input, node: Node, inputs: list[State]) -> State:
        return self.start()

    @rule.register
    def _(self, layer: Affine, node: Node, inputs: list[State]) -> State:
        if layer.sigma_b != 0:
            raise KcalcError(f"node {node!r} has sigma_b = {layer.sigma_b}, which lowers the slope; {self.name} are for sigma_b = 0")
        return inputs[0]

    @rule.register
    def _(self, layer: Scale | Identity | Flatten | Dropout, node: Node, inputs: list[State]) -> State:
        return inputs[0]

    @rule.register
    def _(self, layer: LayerNorm | RMSNorm | Pool, node: Node, inputs: list[State]) -> State:
        return inputs[0]

    @rule.register
    def _(self, layer: Nonlinear, node: Node, inputs: list[State]) -> State:
        return self.nonlinear(layer, inputs[0])

    @rule.register
    def _(self, layer: Sum, node: Node, inputs: list[State]) -> State:
        return self.mix(self._shares(node, [_square(w) for w in sum_weights(layer, len(inputs))]), inputs)

    @rule.register
    def _(self, layer: Concat, node: Node, inputs: list[State]) -> State:
        return self.mix(self._shares(node, [_exact(k) for k in self._channels[node]]), inputs)

    def read(self) -> dict[Node, State]:
        """The state of every node."""
        return fold(self.network, self, dict.fromkeys(self.network.inputs, self.start()))  # pyright: ignore[reportArgumentType]

    @cached_property
    def _channels(self) -> dict[Node, tuple[Any, ...]]:
        return concat_channels(self.network)

    def _shares(self, node: Node, amounts: list[sp.Expr]) -> tuple[sp.Expr, ...]:
        if self.q is None:
            return convex_shares(tuple(amounts))
        parents = self.network.parents(node)
        missing = next((parent for parent in parents if parent not in self.q), None)
        if missing is not None:
            raise KcalcError(f"node {node!r} mixes {missing!r}, for which q gives no value")
        shares = convex_shares(tuple(a * _exact(self.q[parent]) for a, parent in zip(amounts, parents, strict=True)))
        return tuple(_rounded(share) if share.is_Float else share for share in shares)


def _q_values(network: Network, q: Any) -> Mapping[Node, Any]:
    from .global_maps import q_values

    return q_values(network, as_number(q, "q"))


@lru_cache(maxsize=4096)
def _rounded(share: sp.Expr) -> sp.Expr:
    """To 14 digits, so that the rounding errors of q values do not make equal blocks differ."""
    return sp.Float(float(f"{float(share):.14g}"))


@lru_cache(maxsize=4096)
def _sympified(value: Any, kind: type) -> sp.Expr:
    return sp.sympify(value, strict=True)


def _exact(value: Any) -> sp.Expr:
    return _sympified(value, type(value))


def _square(weight: Any) -> sp.Expr:
    square: sp.Expr = _exact(weight) ** 2
    return square if square.free_symbols else sp.expand(square)  # pyright: ignore[reportReturnType]


@lru_cache(maxsize=512)
def convex_shares(amounts: tuple[sp.Expr, ...]) -> tuple[sp.Expr, ...]:
    """``a_i / sum_j a_j``, simplified, exact unless an amount is a float."""
    total = sp.expand(sp.Add(*amounts))
    if not total.is_Rational and not total.is_Float and (total.is_number or not total.is_polynomial()):
        total = sp.simplify(total)
    if total == 1 or (total.is_Float and abs(float(total) - 1) <= 4e-16 * len(amounts)):
        return amounts
    if total.is_zero:
        raise KcalcError("a Sum whose weights are all 0 has no slope polynomial; remove it")
    done = {a: a / total for a in set(amounts)}
    if not total.is_Rational and not total.free_symbols:
        done = {a: sp.radsimp(share) for a, share in done.items()}
    return tuple(done[a] for a in amounts)


# -- symbolic ----------------------------------------------------------------------------------------------------------------------------


class Slopes(ConvexCalculus[Monomial]):
    """The calculus of factored slope polynomials: nonlinear layers multiply by ``psi``, or by a symbol of their activation's own."""

    def __init__(self, network: Network, q: Any = None, symbols_by_activation: bool = False) -> None:
        super().__init__(network, q)
        self.factors = Factors()
        self.symbols: dict[Any, sp.Symbol] = {}
        self._slopes: dict[int, Monomial] = {}
        self._by_activation = symbols_by_activation

    def start(self) -> Monomial:
        return ONE

    def nonlinear(self, layer: Nonlinear, state: Monomial) -> Monomial:
        slope = self._slopes.get(id(layer))
        if slope is None:
            slope = self._slopes[id(layer)] = self.factors.symbol(self._symbol(layer) if self._by_activation else common_slope)
        return self.factors.product(state, slope)

    def _symbol(self, layer: Nonlinear) -> sp.Symbol:
        """One symbol per activation; activations that share a name are numbered in the order they come."""
        if layer.activation not in self.symbols:
            name = layer.activation.name
            same = sum(other.name == name for other in self.symbols)
            self.symbols[layer.activation] = slope_of(f"{name}_{same + 1}" if same else name)
        return self.symbols[layer.activation]

    def mix(self, shares: Sequence[sp.Expr], states: Sequence[Monomial]) -> Monomial:
        return self.factors.mix(shares, states)


def slope_polynomial(network: Network, q: Any = None, *, symbols_by_activation: bool = False) -> Any:
    """The slope polynomial ``p(psi)`` of a network, factored as the network is. [DKS sec. 21.3, eq. 20]

    Parameters: with ``q``, the q value of the inputs or a mapping of every node to its own, mixes weigh what they mix by its true q
    value; None takes all as equal, as ``Q(q) = q`` at every nonlinear layer and normalised sums make them [DKS footnote 10];
    ``symbols_by_activation=True`` gives each activation its own ``psi_<name>``. All network inputs share one c value.
    Returns: a SymPy expression in ``kc.symbols.psi`` (``.as_poly()`` expands it exactly), or {output: expression} for several outputs.
    Raises: NoRule for BatchNorm, Product and Opaque; KcalcError for a Concat of known and unknown channels.
    """
    calculus = Slopes(network, q, symbols_by_activation)
    states = calculus.read()
    polynomials = {node: calculus.factors.expr(states[node]) for node in network.outputs}
    return polynomials if len(polynomials) > 1 else polynomials[network.outputs[0]]


# -- numbers -------------------------------------------------------------------------------------------------------------------------


class LogSlope(NamedTuple):
    """``log p(psi)`` and the mean degree ``d log p / d log psi``; at ``psi = 1`` the latter is the curvature ``p'(1)``."""

    log: Array
    degree: Array


class _LogSlopes(ConvexCalculus[LogSlope]):
    def __init__(self, network: Network, log_psi: Array, q: Any = None) -> None:
        super().__init__(network, q)
        self.log_psi = log_psi

    def start(self) -> LogSlope:
        return LogSlope(np.zeros_like(self.log_psi), np.zeros_like(self.log_psi))

    def nonlinear(self, layer: Nonlinear, state: LogSlope) -> LogSlope:
        return LogSlope(state.log + self.log_psi, state.degree + 1.0)

    def mix(self, shares: Sequence[sp.Expr], states: Sequence[LogSlope]) -> LogSlope:
        weights = as_floats(shares).reshape(-1, *[1] * self.log_psi.ndim)
        logs, degrees = np.stack([state.log for state in states]), np.stack([state.degree for state in states])
        log, degree = mixed(weights, logs, degrees, np.zeros(1, np.intp))
        return LogSlope(log[0], degree[0])


def log_slopes(network: Network, psi: Any, q: Any = None) -> dict[Node, LogSlope]:
    """``log V(t)`` and mean degree at every node ``t``, where ``V(t)`` is the slope from the inputs to ``t``.

    A subnetwork (s, t) has slope ``V(t)/V(s)`` and, at ``psi = 1``, curvature ``degree(t) - degree(s)``.
    Parameters: ``psi`` > 0, a number or an array. Raises: KcalcError for other values and for symbols in mixing weights.
    """
    values = real_array(psi, "psi")
    if not np.all(values > 0):
        raise KcalcError(f"psi must be positive, got {psi!r}")
    return _LogSlopes(network, np.log(values), q).read()
