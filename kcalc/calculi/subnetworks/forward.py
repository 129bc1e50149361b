"""The largest slope from the inputs to a node, ``max_t V(t)``, and the depth of a network.

Both quantities count paths across feature maps that have several readers or are outputs. No
subnetwork contains these paths, so a maximum over subnetworks misses them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import sympy as sp

from ...fields.arguments import Number, Numbers, real_array
from ...foundation.errors import KcalcError, glimpse
from ...foundation.printing import Shown
from ...foundation.process_state import cached_property
from ...maps.maps import Assumption
from ...network.network import Network
from ...network.primitives import Post
from ..convex import ConvexCalculus
from ..factored import Array, as_floats, is_zero

Node = Hashable
LARGE = 500.0
HIDDEN = "taps, heads or additional inputs hide depth from the strict subnetworks"


class _State(NamedTuple):
    """The slope ``V = psi^power * exp(log_constant) * V(base)``.

    Base 0 represents the inputs, with V = 1; the other bases are mixes.
    """

    base: int
    power: int
    log_constant: float


class _Forward(ConvexCalculus[_State]):
    """The calculus with slopes as states; ``mixes[k]`` is (shares, states) for base k + 1."""

    def __init__(self, network: Network, q: Any) -> None:
        super().__init__(network, q)
        self.mixes: list[tuple[Sequence[sp.Expr], list[_State]]] = []

    def start(self) -> _State:
        return _State(0, 0, 0.0)

    def nonlinear(self, op: Post, node: Node, state: _State) -> _State:
        return _State(state.base, state.power + 1, state.log_constant)

    def normalise(self, slope: sp.Expr, state: _State) -> _State:
        return _State(state.base, state.power, state.log_constant + math.log(float(slope)))

    def mix(self, shares: Sequence[sp.Expr], states: Sequence[_State]) -> _State:
        if all(state == states[0] for state in states):
            return states[0]
        self.mixes.append((shares, list(states)))
        return _State(len(self.mixes), 0, 0.0)


class ForwardSlope:
    """The largest slope ``max_t V(t)`` over all nodes ``t``, for ``psi >= 1``.

    ``V(t)`` is the slope from the inputs (which move together) to ``t``.

    The largest slope bounds the slope of every subnetwork (``V(t) / V(s)`` with ``V(s) >= 1``).
    Unlike a maximum over subnetworks, it counts paths across taps, heads and additional inputs. For
    a network with one input, it is the maximum over subnetworks in the permissive reading.
    """

    def __init__(self, network: Network, q: Any = None) -> None:
        self.network = network
        self._reading = _Forward(network, q)
        self._states = self._reading.read()
        steepest: dict[tuple[int, float], tuple[int, Node]] = {}
        for node, state in self._states.items():
            key = state.base, state.log_constant
            if key not in steepest or steepest[key][0] < state.power:
                steepest[key] = state.power, node
        self._candidates = [
            (_State(base, power, log), node) for (base, log), (power, node) in steepest.items()
        ]

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions under which the slope is computed."""
        return self._reading.assumptions

    @cached_property
    def _mixes(self) -> list[tuple[Array, list[_State]]]:
        return [(as_floats(shares), states) for shares, states in self._reading.mixes]

    def _bases(self, log_psi: float) -> tuple[list[float], list[float]]:
        """Return ``log V`` and ``d log V / d log psi`` of the inputs and of every mix."""
        logs, degrees = [0.0], [0.0]
        for weights, states in self._mixes:
            at = [logs[s.base] + s.power * log_psi + s.log_constant for s in states]
            mean = [degrees[s.base] + s.power for s in states]
            if len(states) > 8:
                log, degree = _mixed_arrays(weights, np.array(at), np.array(mean))
            else:
                log, degree = _mixed(weights.tolist(), at, mean)
            logs.append(log)
            degrees.append(degree)
        return logs, degrees

    def _greatest(self, log_psi: float) -> tuple[float, float, Node]:
        """Return ``log max_t V(t)``, its derivative, and the node that attains it."""
        logs, degrees = self._bases(log_psi)
        value, degree, index = max(
            (logs[s.base] + s.power * log_psi + s.log_constant, degrees[s.base] + s.power, -k)
            for k, (s, _) in enumerate(self._candidates)
        )
        return value, degree, self._candidates[-index][1]

    def log_at(self, node: Node, psi: float) -> float:
        """Return ``log V(node)``."""
        state = self._states[node]
        return (
            self._bases(math.log(psi))[0][state.base]
            + state.power * math.log(psi)
            + state.log_constant
        )

    @overload
    def __call__(self, psi: Number) -> float: ...
    @overload
    def __call__(self, psi: Numbers) -> Array: ...
    def __call__(self, psi: Any) -> float | Array:
        """Evaluate the largest slope, elementwise.

        Raises: KcalcError if psi < 1.
        """
        logs = as_slopes(psi)
        return exponential([self._greatest(float(log))[0] for log in logs.flat], logs.shape)

    def active(self, psi: float) -> Node:
        """Return the node t with the largest slope V(t) at a scalar ``psi``."""
        logs = as_slopes(psi)
        if logs.ndim:
            raise KcalcError("active accepts only a single psi")
        return self._greatest(float(logs))[2]

    @overload
    def inverse(self, target: Number) -> float: ...
    @overload
    def inverse(self, target: Numbers) -> Array: ...
    def inverse(self, target: Any) -> float | Array:
        """Return ``psi`` at which the largest slope is ``target``, elementwise.

        Raises: KcalcError for a target that does not exceed the value at ``psi = 1``, and for
        networks without nonlinear layers.
        """
        if not self.depth:
            raise KcalcError(
                "the forward slope has no inverse, because the network has no nonlinear layer"
            )
        return inverse(
            lambda log: self._greatest(log)[:2], target, math.exp(self._greatest(0.0)[0])
        )

    # -- depth -------------------------------------------------------------------------------------

    @cached_property
    def _depths(self) -> list[tuple[int, float]]:
        """The largest (number of nonlinear layers, log of constants) on a path to every base.

        Weights of 0 are not counted.
        """
        depths = [(0, 0.0)]
        for shares, states in self._reading.mixes:
            reached = [
                (depths[s.base], s)
                for s, share in zip(states, shares, strict=True)
                if not is_zero(share)
            ]
            depths.append(
                (
                    max(d[0] + s.power for d, s in reached),
                    max(d[1] + s.log_constant for d, s in reached),
                )
            )
        return depths

    @cached_property
    def depth(self) -> int:
        """The largest number of nonlinear layers on any path through the network.

        Paths across taps, heads and inputs are included.
        """
        return max(self._depths[s.base][0] + s.power for s, _ in self._candidates)

    @overload
    def longest_path_bound(self, psi: Number) -> float: ...
    @overload
    def longest_path_bound(self, psi: Numbers) -> Array: ...
    def longest_path_bound(self, psi: Any) -> float | Array:
        """Return the bound ``psi^depth`` on the slope between any two nodes.

        With LayerNorm slopes, the bound is multiplied by their largest product on a path.
        """
        logs = as_slopes(psi)
        constant = max(self._depths[s.base][1] + s.log_constant for s, _ in self._candidates)
        return exponential(self.depth * logs + constant, logs.shape)

    def __repr__(self) -> str:
        return f"ForwardSlope({len(self.network)} nodes, depth {self.depth})"


def depths_text(strict: int, depth: int) -> str:
    """Compare the depth of the deepest subnetwork with the depth of the network, in a sentence."""
    return (
        f"the deepest subnetwork has {strict} of the {depth} nonlinear layers on the longest path"
    )


@dataclass(frozen=True)
class SlopeBounds(Shown):
    """Three measures of the slope of a network at ``psi``: ``strict <= forward <= longest_path``.

    ``strict`` is the maximum over subnetworks, ``forward`` is the maximum of the slope from the
    inputs to any node, and ``longest_path`` is ``psi^depth``. ``strict_depth`` is the number of
    nonlinear layers of the deepest subnetwork. If ``hidden``, ``strict`` misses depth; use the
    other two measures.
    """

    psi: float
    strict: float
    forward: float
    longest_path: float
    strict_depth: int
    depth: int
    hidden: bool

    @property
    def warning(self) -> str | None:
        """A warning if the strict reading hides depth, otherwise None."""
        if not self.hidden:
            return None
        figures = (
            f"mu = {self.strict:.4g}, forward bound {self.forward:.4g}, longest path "
            f"{self.longest_path:.4g}"
        )
        return (
            f"{HIDDEN}: {depths_text(self.strict_depth, self.depth)}; at psi = {self.psi:.6g}: "
            f"{figures}"
        )

    def _measures(self) -> list[tuple[str, float, str]]:
        return [
            (
                "strict mu",
                self.strict,
                f"maximum over subnetworks, the deepest of which has {self.strict_depth} "
                "nonlinear layers",
            ),
            ("forward bound", self.forward, "maximum of the slope from the inputs to any node"),
            ("longest path bound", self.longest_path, f"psi^{self.depth}"),
        ]

    def _frame(self) -> list[dict[str, Any]]:
        return [{"bound": name, "slope": value} for name, value, _ in self._measures()]

    def _rows(self) -> list[tuple[str, str, str]]:
        return [
            (f"at psi = {self.psi:.8g}", "slope", ""),
            *((name, f"{value:.8g}", text) for name, value, text in self._measures()),
        ]

    def _below(self) -> list[str]:
        return [f"warning: {self.warning}"] if self.warning else []

    def to_dict(self) -> dict[str, Any]:
        """Return all three values as plain data."""
        return asdict(self) | {"warning": self.warning}


def exponential(logs: Any, shape: tuple[int, ...]) -> Any:
    """Return slopes of the given shape from their logarithms; inf beyond double precision."""
    with np.errstate(over="ignore"):
        return np.exp(logs).reshape(shape)[()]


def inverse(function: Any, target: Any, least: float) -> Any:
    """Return ``psi`` at which a slope is ``target`` > ``least``, by :func:`newton`.

    ``least`` is the slope at ``psi = 1``.
    """
    values = real_array(target, "target")
    if not np.all(values > least):
        raise KcalcError(
            f"a target slope must exceed {least:.6g}, the value at psi = 1, got {glimpse(target)}"
        )
    return newton(function, values)


def newton(function: Any, targets: Array) -> Any:
    """Return ``psi`` with ``f(log psi) = log target``, elementwise, by Newton's method.

    ``function`` maps ``log psi`` to (f, its derivative); f must be convex and increasing, with
    ``f(x) >= x``.
    """
    found: list[float] = []
    for target in targets.flat:
        goal = at = math.log(target)
        before = math.inf
        while True:  # until the steps no longer shrink
            value, slope = function(at)
            step = (value - goal) / slope
            at = max(at - step, 0.0)
            if abs(step) <= 1e-15 * at or not abs(step) < before:
                break
            before = abs(step)
        found.append(math.exp(at))
    return np.array(found).reshape(targets.shape)[()]


def as_slopes(psi: Any) -> Array:
    """Check ``psi`` and return ``log psi``.

    Raises: KcalcError for ``psi < 1``, which is impossible for a C map with C(0) = 0.
    """
    values = real_array(psi, "psi")
    if not np.all(values >= 1):
        raise KcalcError(
            "psi must be >= 1, because a C map with C(0) = 0 has slope >= 1 at c = 1, got "
            f"{glimpse(psi)}"
        )
    return np.log(values)


def _mixed(
    weights: Sequence[float], logs: Sequence[float], degrees: Sequence[float]
) -> tuple[float, float]:
    """Return the log and the mean degree of ``sum_j weights_j exp(logs_j)``.

    Both have full relative precision near ``psi = 1``.
    """
    top = max(logs)
    shift = top if top > LARGE else 0.0
    terms = [w * math.exp(log - shift) for w, log in zip(weights, logs, strict=True)]
    total = sum(terms)
    log = (
        shift + math.log(total)
        if shift
        else math.log1p(sum(w * math.expm1(log) for w, log in zip(weights, logs, strict=True)))
    )
    return log, sum(t * d for t, d in zip(terms, degrees, strict=True)) / total


def _mixed_arrays(weights: Array, logs: Array, degrees: Array) -> tuple[float, float]:
    top = float(logs.max())
    shift = top if top > LARGE else 0.0
    terms = weights * np.exp(logs - shift)
    total = float(terms.sum())
    log = shift + math.log(total) if shift else math.log1p(float(weights @ np.expm1(logs)))
    return log, float(terms @ degrees) / total
