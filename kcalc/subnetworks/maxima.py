"""Maxima over subnetworks for any function ``r`` in place of the C map, and the maximal c value of leaky-ReLU networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sympy as sp

from ..arguments import one_number, real_array
from ..calculi.convex import WHOLE, ConvexCalculus
from ..calculi.factored import as_floats, is_zero
from ..compose import require_network
from ..errors import KcalcError, UnreachableTarget, glimpse, unknown
from ..layers import Nonlinear
from ..maps import Assumption
from ..network import Network
from ..printing import plain
from .regions import Subnetwork, network_regions

__all__ = ["Maximal", "MaximalCValue", "maximal", "maximal_c_value"]

Node = Hashable
Values = Any
Function = Callable[[Values], Values]


class _Expressions(ConvexCalculus[int]):
    """``U_{f,r}`` as numbered expressions, equal ones once.

    ``table[k]`` is ("x",), ("r", i, which r), ("mix", numbers, shares), ("norm", i, slope), ("times", numbers) or
    ("restart", i): the greater of x and i.
    """

    name = "maxima over subnetworks"

    def __init__(self, network: Network, kinds: Mapping[Node, int], q: Any = None) -> None:
        super().__init__(network, q)
        self.kinds = kinds
        self.table: list[tuple[Any, ...]] = [("x",)]
        self._numbers: dict[Any, int] = {}

    def _intern(self, entry: tuple[Any, ...]) -> int:
        number = self._numbers.setdefault(entry, len(self.table))
        if number == len(self.table):
            self.table.append(entry)
        return number

    def start(self) -> int:
        return 0

    def restart(self, state: int) -> int:
        """The greater of a state and of x, as which a later subnetwork may start."""
        return self._intern(("restart", state)) if state else 0

    def nonlinear(self, layer: Nonlinear, node: Node, state: int) -> int:
        return self._intern(("r", state, self.kinds[node]))

    def normalise(self, slope: sp.Expr, state: int) -> int:
        return self._intern(("norm", state, float(slope)))

    def multiply(self, states: Sequence[int]) -> int:
        return self._intern(("times", tuple(sorted(states))))

    def mix(self, shares: Sequence[sp.Expr], states: Sequence[int]) -> int:
        terms: dict[int, sp.Expr] = {}
        for share, state in zip(shares, states, strict=True):
            if not is_zero(share):
                terms[state] = terms[state] + share if state in terms else share
        if len(terms) == 1:
            return next(iter(terms))
        order = sorted(terms)
        return self._intern(("mix", tuple(order), tuple(as_floats([terms[k] for k in order]).tolist())))

    def evaluate(self, functions: Sequence[Function], x: Values) -> list[Values]:
        """The value of every expression. Raises: KcalcError where an ``r`` decreases between values it was called with."""
        values: list[Values] = []
        calls: list[list[tuple[Values, Values]]] = [[] for _ in functions]
        larger = max if isinstance(x, float) else np.maximum
        for entry in self.table:
            match entry:
                case ("x",):
                    values.append(x)
                case ("r", before, which):
                    after = _finite(functions[which](values[before]), values[before])
                    calls[which].append((values[before], after))
                    values.append(after)
                case ("mix", numbers, shares):
                    values.append(sum(share * values[k] for k, share in zip(numbers, shares, strict=True)))
                case ("times", numbers):
                    values.append(_multiplied([values[k] for k in numbers]))
                case ("norm", before, slope):
                    values.append(1 - slope * (1 - values[before]))
                case (_, before):
                    values.append(larger(x, values[before]))
        for pairs in calls:
            _check_monotone(pairs)
        return values


def _multiplied(factors: Sequence[Values]) -> Values:
    """A product of c values. Raises: KcalcError for negative ones, where it decreases in its factors."""
    if any(np.any(np.asarray(factor) < 0) for factor in factors):
        raise KcalcError(
            "a Product of negative c values decreases in its factors, so that maxima over subnetworks are for x >= 0, r(x) >= 0"
        )
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return product


def _finite(after: Any, before: Values) -> Values:
    """What ``r`` returned, as floats of the shape it was given. Raises: KcalcError for anything else."""
    try:
        numbers = np.asarray(after, dtype=float)
        fits = np.broadcast_shapes(numbers.shape, np.shape(before)) == np.shape(before)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise KcalcError(f"r must return a real number for a number and an array for an array, got {glimpse(after)} at x = {before}")
    after = numbers if np.ndim(before) else float(numbers)
    if not np.all(np.isfinite(after)):
        raise KcalcError(f"r is not finite at x = {before}")
    return after


def _check_monotone(pairs: Sequence[tuple[Values, Values]]) -> None:
    """Refuse an ``r`` that decreases on the values it was called with, point by point."""
    if not pairs:
        return
    shape = np.shape(pairs[0][0])
    before, after = (np.array([np.broadcast_to(p[i], shape) if shape else p[i] for p in pairs], dtype=float) for i in (0, 1))
    before, after = before.reshape(len(pairs), -1), after.reshape(len(pairs), -1)
    order = np.argsort(before, axis=0, kind="stable")
    x, y = np.take_along_axis(before, order, 0), np.take_along_axis(after, order, 0)
    wrong = np.argwhere(np.diff(y, axis=0) < -1e-9 * (1 + np.abs(y[:-1])))
    if len(wrong):
        i, j = wrong[0]
        raise KcalcError(f"r must be non-decreasing, but r({x[i, j]:.6g}) = {y[i, j]:.6g} > r({x[i + 1, j]:.6g}) = {y[i + 1, j]:.6g}")


class _Exit(NamedTuple):
    """Where the value of an expression is reached: cut point ``index`` of a path (node numbers), whose cut points have ``states``."""

    path: tuple[int, ...]
    index: int
    states: tuple[int, ...]


class Maximal:
    """``M_{f,r}(x) = max_g U_{g,r}(x)`` over the subnetworks ``g``, for any non-decreasing ``r``. [TAT App. B.2]

    ``U_{g,r}`` is the c-value graph of ``g`` with ``r`` in place of the C map of every nonlinear layer. Every subnetwork lies between
    two cut points of a maximal one, so one sweep finds the maximum over all of them, ``m <- U(max(x, m))`` piece by piece: where
    ``r(y) >= y`` the maximal ones win by themselves, where ``r(y) < y`` somewhere shorter ones may. Isomorphic pieces are evaluated once.
    With ``q``, the q value of the inputs, mixes weigh by true q values and LayerNorms act as the C maps they have.
    Callable on numbers and arrays as far as ``r`` is.
    """

    def __init__(self, network: Network, r: Function | Mapping[Any, Function], q: Any = None) -> None:
        self.network = network
        self.r = r
        self.functions, kinds = _functions(network, r)
        self._expressions = _Expressions(network, kinds, q)
        self._nodes, parents, regions = network_regions(network)
        self._exits: dict[int, _Exit] = {}
        self._layers = list(network.steps())
        for path in regions.paths:
            self._walk(path, parents)

    def _walk(self, path: tuple[int, ...], parents: Sequence[Sequence[int]]) -> None:
        """The expressions at the cut points of a maximal subnetwork, each started anew where x is greater."""
        expressions, reached = self._expressions, {path[0]: 0}
        found = [0]
        for node in path[1:]:
            for member in _behind(node, reached, parents):
                name, layer, _ = self._layers[member]
                reached[member] = expressions.rule(layer, name, [reached[p] for p in parents[member]])
            found.append(reached[node])
            reached = {node: expressions.restart(reached[node])}
        states = tuple(found)
        for index, state in enumerate(states[1:], 1):
            self._exits.setdefault(state, _Exit(path, index, states))

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the formal reading takes for granted."""
        return self._expressions.assumptions

    def _values(self, functions: Sequence[Function], x: Values) -> list[Values]:
        values = self._expressions.evaluate(functions, x)
        return [values[number] for number in self._exits] or [x]

    def _greatest(self, functions: Sequence[Function], x: Values) -> Values:
        values = self._values(functions, x)
        if isinstance(x, float):
            return max(map(float, values))
        greatest = values[0]
        for value in values[1:]:
            greatest = np.maximum(greatest, value)
        return np.broadcast_to(greatest, np.shape(x)).copy()[()]

    def __call__(self, x: Values) -> Values:
        """The maximum at ``x``, elementwise. Raises: KcalcError where ``r`` decreases or is not finite on the values it meets."""
        array = real_array(x, "x")
        return np.asarray(self._greatest(self.functions, array if array.ndim else float(array)))[()]

    def active(self, x: float) -> Subnetwork:
        """The (first) subnetwork that attains the maximum at a number ``x``, in the longest form that does."""
        return self._attaining(self.functions, one_number(x, "x"))

    def _attaining(self, functions: Sequence[Function], x: float) -> Subnetwork:
        if not self._exits:
            raise KcalcError("the network has no subnetwork (its inputs meet before any layer)")
        values = self._expressions.evaluate(functions, x)
        best = max(self._exits, key=lambda number: float(values[number]))
        path, last, states = self._exits[best]
        last = next((k - 1 for k in range(last, len(states)) if values[states[k]] != values[best]), len(states) - 1)
        first = next((k for k in range(last - 1, 0, -1) if values[states[k]] < x), 0)
        return Subnetwork(self._nodes[path[first]], self._nodes[path[last]], self.network)

    def inverse(self, target: float, low: float, high: float) -> float:
        """``x`` in [low, high] with maximum ``target``; the maximum must be continuous there (as ``r`` is), and reach it.

        Raises: UnreachableTarget where the maximum at ``low`` and at ``high`` does not enclose the target.
        """
        from scipy.optimize import brentq

        value, low, high = one_number(target, "target"), one_number(low, "low"), one_number(high, "high")
        ends = float(self(low)), float(self(high))
        if not ends[0] <= value <= ends[1]:
            raise UnreachableTarget(
                f"the maximum goes from {ends[0]:.6g} to {ends[1]:.6g} on [{low}, {high}], so that it is nowhere {value:.6g}"
            )
        return float(brentq(lambda x: float(self(x)) - value, low, high, xtol=1e-15, rtol=1e-14))  # pyright: ignore

    def to_dict(self) -> dict[str, Any]:
        """What is maximised over how many subnetworks, and the assumptions, as plain data."""
        names = self.r if isinstance(self.r, Mapping) else {"r": self.r}
        functions = {str(name): str(getattr(r, "__name__", r)) for name, r in names.items()}
        return {"functions": functions, "subnetworks": len(self._exits), "assumptions": plain(self.assumptions)}

    def _text(self) -> str:
        return f"{len(self._exits)} distinct subnetworks"

    def __repr__(self) -> str:
        names = self.r if isinstance(self.r, Mapping) else {"r": self.r}
        shown = ", ".join(f"{name}={getattr(r, '__name__', r)}" for name, r in names.items())
        return f"Maximal({shown}; {self._text()})"

    def _repr_latex_(self) -> str:
        return rf"$\displaystyle \mathcal{{M}}_r(x) = \max_g\; \mathcal{{U}}_{{g,r}}(x)\quad\text{{({self._text()})}}$"


def _behind(node: int, reached: Mapping[int, int], parents: Sequence[Sequence[int]]) -> list[int]:
    """What lies between the reached nodes and ``node``, that included, each after those it reads."""
    if all(parent in reached for parent in parents[node]):
        return [node]
    found: set[int] = {node}
    waiting = [node]
    while waiting:
        for parent in parents[waiting.pop()]:
            if parent not in found and parent not in reached:
                found.add(parent)
                waiting.append(parent)
    return sorted(found)  # numbers are in topological order


def _functions(network: Network, r: Any) -> tuple[list[Function], dict[Node, int]]:
    """The functions, and which one every nonlinear node has."""
    require_network(network)
    nodes = network.nodes_of(Nonlinear)
    if callable(r):
        return [r], dict.fromkeys(nodes, 0)
    if not isinstance(r, Mapping):
        raise KcalcError(f"r must be a function, or a mapping of nodes or activation names to functions, got {glimpse(r)}")
    names = {node: network.layer(node).activation.name for node in nodes}
    known = {*nodes, *names.values()}
    for key, function in r.items():
        if key not in known:
            raise unknown("nonlinear node or activation", key, map(str, known))
        if not callable(function):
            raise KcalcError(f"r[{key!r}] must be a function, got {function!r}")
    keys = list(r)
    kinds: dict[Node, int] = {}
    for node in nodes:
        key = node if node in r else names[node]
        if key not in r:
            raise KcalcError(f"r gives no function for node {node!r} ({names[node]})")
        kinds[node] = keys.index(key)
    return list(r.values()), kinds


def maximal(network: Network, r: Function | Mapping[Any, Function], q: Any = None) -> Maximal:
    """The subnetwork maximising function for ``r``, one function or {node or activation name: function}; see :class:`Maximal`."""
    return Maximal(network, r, q)


# -- leaky ReLUs -----------------------------------------------------------------------------------------------------------------------


def leaky_relu_map(negative_slope: Any) -> Function:
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
        self._maximal = Maximal(network, leaky_relu_map(0.0))

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the formal reading takes for granted; what subtracts means of activations, which are not 0, is heuristic."""
        text = "every nonlinear layer is a leaky ReLU with the same negative slope; sums are normalised, sigma_b = 0"
        formal = self._maximal.assumptions
        norms = [Assumption(a.node, self._about(a.node), "heuristic") for a in formal if a.node != WHOLE]
        return Assumption(WHOLE, text), *(a for a in formal if a.node == WHOLE), *norms

    def _about(self, node: Node) -> str:
        kind = type(self.network.layer(node)).__name__
        text = "is taken as the identity on c values, but it subtracts the mean of the activations it reads, which lowers c values"
        return f"this {kind} {text}; kc.maximal(network, r, q=1.0) counts that"

    def __call__(self, negative_slope: Any) -> Any:
        """The maximal c value, elementwise. Raises: KcalcError outside [-1, 1]."""
        values = real_array(negative_slope, "negative_slope")
        if not np.all(np.abs(values) <= 1):
            raise KcalcError(f"negative_slope must lie in [-1, 1], got {glimpse(negative_slope)}")
        start = np.zeros(values.shape) if values.ndim else 0.0
        return np.asarray(self._maximal._greatest([leaky_relu_map(values)], start))[()]

    def active(self, negative_slope: float) -> Subnetwork:
        """The (first) subnetwork that attains the maximum."""
        slope = one_number(negative_slope, "negative_slope")
        self(slope)
        return self._maximal._attaining([leaky_relu_map(slope)], 0.0)

    def inverse(self, target: Any) -> Any:
        """The negative slope at which the maximal c value is ``target`` in (0, 1), elementwise.

        Raises: KcalcError for other targets; UnreachableTarget where the network is too shallow, even with ``alpha = -1``.
        """
        values = real_array(target, "target")
        if not np.all((values > 0) & (values < 1)):
            raise KcalcError(f"a target c value must lie strictly between 0 and 1, got {glimpse(target)}")
        most = float(self(-1.0))
        if np.any(values > most):
            raise UnreachableTarget(f"the maximal c value of this network is at most {most:.6g} (negative slope -1), got {glimpse(target)}")
        return np.array([self._inverse(float(value)) for value in values.flat]).reshape(values.shape)[()]

    def _inverse(self, value: float) -> float:
        from scipy.optimize import brentq

        return float(brentq(lambda alpha: float(self(alpha)) - value, -1.0, 1.0, xtol=1e-15))  # pyright: ignore[reportArgumentType]

    def to_dict(self) -> dict[str, Any]:
        """The kind of maximum, the largest value and the assumptions, as plain data."""
        return {"maximum": "c value", "at_relu": float(self(0.0)), "assumptions": plain(self.assumptions)}

    def __repr__(self) -> str:
        return f"MaximalCValue({self._maximal._text()})"

    def _repr_latex_(self) -> str:
        return rf"$\displaystyle \mu^0(\alpha) = \max_f\; \mathcal{{C}}_f(0)\quad\text{{({self._maximal._text()})}}$"


def maximal_c_value(network: Network) -> MaximalCValue:
    """The maximal c value function of a network; see :class:`MaximalCValue`."""
    return MaximalCValue(network)
