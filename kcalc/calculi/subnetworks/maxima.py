"""Maxima over subnetworks for an arbitrary function ``r`` in place of the C map."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
import sympy as sp

from ...fields.arguments import Array, Number, Numbers, one_number, real_array
from ...foundation.errors import KcalcError, UnreachableTarget, glimpse, unknown
from ...foundation.printing import plain
from ...foundation.process_state import cached_property
from ...foundation.rootfinding import zero_between
from ...maps.maps import Approximable, Assumption
from ...network.compose import require_network
from ...network.network import Network
from ...network.primitives import Post, Prod, owner
from ..convex import ConvexCalculus
from ..factored import as_floats, shares_by_part
from .regions import Subnetwork, network_regions

Node = Hashable
Values = Any
Function = Callable[[Values], Values]


class _NegativeFactor(Exception):
    """Raised if a Product has a negative factor and therefore decreases in the other factors."""


class _Expressions(ConvexCalculus[int]):
    """``U_{f,r}`` as numbered expressions without repeats.

    ``table[k]`` is ("x",), ("r", i, index of r), ("mix", numbers, shares), ("norm", i, slope),
    ("times", numbers), ("greater", i) or ("lesser", i); the last two are the greater and the lesser
    of x and entry i. ``positive``: whether to raise _NegativeFactor if a Product has a negative
    factor.
    """

    name = "maxima over subnetworks"

    def __init__(self, network: Network, kinds: Mapping[Node, int], q: Any, positive: bool) -> None:
        super().__init__(network, q)
        self.kinds, self.positive = kinds, positive
        self.table: list[tuple[Any, ...]] = [("x",)]
        self._numbers: dict[Any, int] = {}

    def _intern(self, entry: tuple[Any, ...]) -> int:
        number = self._numbers.setdefault(entry, len(self.table))
        if number == len(self.table):
            self.table.append(entry)
        return number

    def start(self) -> int:
        return 0

    def restart(self, which: str, state: int) -> int:
        """Return the expression ``which``, "greater" or "lesser", of a state and x.

        x is the value at which a new subnetwork starts.
        """
        return self._intern((which, state)) if state else 0

    def nonlinear(self, op: Post, node: Node, state: int) -> int:
        return self._intern(("r", state, self.kinds[node]))

    def normalise(self, slope: sp.Expr, state: int) -> int:
        return self._intern(("norm", state, float(slope)))

    def multiply(self, states: Sequence[int]) -> int:
        return self._intern(("times", tuple(sorted(states))))

    def mix(self, shares: Sequence[sp.Expr], states: Sequence[int]) -> int:
        terms = shares_by_part(shares, states)
        if len(terms) == 1:
            return next(iter(terms))
        order = sorted(terms)
        return self._intern(
            ("mix", tuple(order), tuple(as_floats([terms[k] for k in order]).tolist()))
        )

    def evaluate(self, functions: Sequence[Function], x: Values) -> list[Values]:
        """Return the value of every expression.

        Raises: KcalcError if a function ``r`` decreases between two of its arguments;
        _NegativeFactor for a Product with a negative factor, if ``positive``.
        """
        values: list[Values] = []
        calls: list[list[tuple[Values, Values]]] = [[] for _ in functions]
        greater, lesser = (max, min) if isinstance(x, float) else (np.maximum, np.minimum)
        for entry in self.table:
            match entry:
                case ("x",):
                    values.append(x)
                case ("r", before, which):
                    after = _finite(functions[which](values[before]), values[before])
                    calls[which].append((values[before], after))
                    values.append(after)
                case ("mix", numbers, shares):
                    values.append(
                        sum(share * values[k] for k, share in zip(numbers, shares, strict=True))
                    )
                case ("times", numbers):
                    factors = [values[k] for k in numbers]
                    if self.positive and any(np.any(np.asarray(f) < 0) for f in factors):
                        raise _NegativeFactor
                    values.append(math.prod(factors))
                case ("norm", before, slope):
                    values.append(1 - slope * (1 - values[before]))
                case (which, before):
                    values.append((greater if which == "greater" else lesser)(x, values[before]))
        for pairs in calls:
            _check_monotone(pairs)
        return values


def _finite(after: Any, before: Values) -> Values:
    """Return the values of ``r`` as finite floats, with the shape of the argument.

    Raises: KcalcError if ``r`` returns anything else.
    """
    try:
        numbers = np.asarray(after, dtype=float)
        fits = np.broadcast_shapes(numbers.shape, np.shape(before)) == np.shape(before)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise KcalcError(
            f"r must return a real number for a number and an array for an array, got "
            f"{glimpse(after)} at x = {before}"
        )
    after = numbers if np.ndim(before) else float(numbers)
    if not np.all(np.isfinite(after)):
        raise KcalcError(f"r is not finite at x = {before}")
    return after


def _check_monotone(pairs: Sequence[tuple[Values, Values]]) -> None:
    """Reject a function ``r`` that decreases anywhere on the values passed to it."""
    if not pairs:
        return
    shape = np.shape(pairs[0][0])
    before, after = (
        np.array([np.broadcast_to(p[i], shape) if shape else p[i] for p in pairs], dtype=float)
        for i in (0, 1)
    )
    before, after = before.reshape(len(pairs), -1), after.reshape(len(pairs), -1)
    order = np.argsort(before, axis=0, kind="stable")
    x, y = np.take_along_axis(before, order, 0), np.take_along_axis(after, order, 0)
    wrong = np.argwhere(np.diff(y, axis=0) < -1e-9 * (1 + np.abs(y[:-1])))
    if len(wrong):
        i, j = wrong[0]
        raise KcalcError(
            f"r must be non-decreasing, but r({x[i, j]:.6g}) = {y[i, j]:.6g} > "
            f"r({x[i + 1, j]:.6g}) = {y[i + 1, j]:.6g}"
        )


class _Exit(NamedTuple):
    """The position of an expression: cut point ``index`` of ``path`` (node numbers).

    ``states``: {index of a later cut point: expression}. ``start`` is the index of the cut point at
    which the value is x, or None if the path restarts at every cut point with a value below x.
    """

    path: tuple[int, ...]
    index: int
    states: Mapping[int, int]
    start: int | None


class _Paths:
    """The expressions at the cut points of the maximal subnetworks.

    A path restarts with the value x at a cut point where x is greater than the path's value. A path
    with Products is evaluated again with restarts where x is smaller. These minimal values show
    whether any subnetwork has a negative factor. With ``every``, such a path is instead evaluated
    once from each of its cut points, and factors may have any sign. The cost is quadratic in the
    number of cut points.
    """

    def __init__(self, network: Network, kinds: Mapping[Node, int], q: Any, every: bool) -> None:
        self.expressions = _Expressions(network, kinds, q, not every)
        self.nodes, self._parents, regions = network_regions(network)
        self.exits: dict[int, _Exit] = {}
        multiplying = {owner(node) for node, op, _ in network.operations if isinstance(op, Prod)}
        products = [k for k, node in enumerate(self.nodes) if node in multiplying]
        for path in regions.paths:
            multiplies = bisect(products, path[-1]) > bisect(products, path[0])
            for start in range(len(path) - 1) if multiplies and every else ():
                self._record(path, self._states(path, start), start)
            if not (multiplies and every):
                self._record(path, self._states(path, 0, "greater"), None)
            if multiplies and not every:
                self._states(path, 0, "lesser")

    def _states(self, path: tuple[int, ...], start: int, restart: str = "") -> dict[int, int]:
        """Return {later cut point: expression} for a path with the value x at ``start``."""
        state, found = 0, {}
        for index, (entry, leaving) in enumerate(pairwise(path[start:]), start + 1):
            found[index] = state = self._behind(entry, leaving, state)
            state = self.expressions.restart(restart, state) if restart else state
        return found

    def _behind(self, entry: int, leaving: int, state: int) -> int:
        """Compute the expression at the cut point ``leaving`` from the ``state`` at ``entry``."""
        reached = {entry: state}
        for member in _between(leaving, reached, self._parents):
            reached[member] = self.expressions.of_node(
                self.nodes[member], [reached[parent] for parent in self._parents[member]]
            )
        return reached[leaving]

    def _record(self, path: tuple[int, ...], states: dict[int, int], start: int | None) -> None:
        for index, state in states.items():
            self.exits.setdefault(state, _Exit(path, index, states, start))

    def active(self, values: Sequence[Values], x: float) -> tuple[Node, Node]:
        """Return (entry, exit) of the first subnetwork with the largest value.

        Among nested subnetworks, it is the longest.
        """
        best = max(self.exits, key=lambda number: float(values[number]))
        path, last, states, start = self.exits[best]
        longer = range(last, len(path))
        last = next((k - 1 for k in longer if values[states[k]] != values[best]), len(path) - 1)
        first = start
        if first is None:
            first = next((k for k in range(last - 1, 0, -1) if values[states[k]] < x), 0)
        return self.nodes[path[first]], self.nodes[path[last]]


class Maximal(Approximable):
    """``M_{f,r}(x) = max_g U_{g,r}(x)`` over the subnetworks ``g``.

    ``r`` is any non-decreasing function.

    ``U_{g,r}`` is the C map of ``g`` with ``r`` in place of the C map of every nonlinear layer.
    Every subnetwork lies between two cut points of a maximal subnetwork, so one sweep over the cut
    points, ``m <- U(max(x, m))``, finds the maximum over all subnetworks. If ``r(y) >= y``
    everywhere, a maximal subnetwork attains the maximum; otherwise a shorter subnetwork may attain
    it. Isomorphic parts are evaluated once. A Product decreases in its factors if they are
    negative, for example if ``x < 0``. Every subnetwork is then evaluated separately, at a cost
    quadratic in the number of cut points.

    If ``q``, the q value of the inputs, is given, mixes are weighted by the true q values and
    LayerNorms act through their C maps. The object accepts scalars, and arrays if ``r`` accepts
    arrays.

    References
    ----------
    [TAT App. B.2]

    """

    def __init__(
        self, network: Network, r: Function | Mapping[Any, Function], q: Any = None
    ) -> None:
        self.network, self.r, self.q = network, r, q
        self.functions, self._kinds = _functions(network, r)
        self._sweep = _Paths(network, self._kinds, q, every=False)

    @cached_property
    def _intervals(self) -> _Paths:
        return _Paths(self.network, self._kinds, self.q, every=True)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions under which the maximum is computed."""
        return self._sweep.expressions.assumptions

    def _values(self, functions: Sequence[Function], x: Values) -> tuple[_Paths, list[Values]]:
        """Return the paths that were evaluated, and the values of all their expressions at ``x``.

        If a Product has a negative factor, every subnetwork is evaluated separately.
        """
        with suppress(_NegativeFactor):
            return self._sweep, self._sweep.expressions.evaluate(functions, x)
        return self._intervals, self._intervals.expressions.evaluate(functions, x)

    def _greatest(self, functions: Sequence[Function], x: Values) -> Values:
        paths, found = self._values(functions, x)
        values = [found[number] for number in paths.exits] or [x]
        if isinstance(x, float):
            return max(map(float, values))
        greatest = values[0]
        for value in values[1:]:
            greatest = np.maximum(greatest, value)
        return np.broadcast_to(greatest, np.shape(x)).copy()[()]

    @overload
    def __call__(self, x: Number) -> float: ...
    @overload
    def __call__(self, x: Numbers) -> Array: ...
    def __call__(self, x: Values) -> float | Array:
        """Return the maximum at ``x``, elementwise.

        Raises: KcalcError if ``r`` decreases, or is not finite, at the values that are passed to
        it.
        """
        array = real_array(x, "x")
        return np.asarray(self._greatest(self.functions, array if array.ndim else float(array)))[()]

    def active(self, x: float) -> Subnetwork:
        """Return the first subnetwork that attains the maximum at a scalar ``x``.

        Among nested subnetworks, it is the longest.

        Parameters
        ----------
        x
            The argument of the maximum.

        Returns
        -------
        Subnetwork
            The subnetwork, with its entry and exit.

        """
        return self._attaining(self.functions, one_number(x, "x"))

    def _attaining(self, functions: Sequence[Function], x: float) -> Subnetwork:
        if not self._sweep.exits:
            raise KcalcError("the network has no subnetwork (its inputs meet before any layer)")
        paths, values = self._values(functions, x)
        return Subnetwork(*paths.active(values, x), self.network)

    def inverse(self, target: float, low: float, high: float) -> float:
        """Find ``x`` in [low, high] at which the maximum is ``target``; ``r`` must be continuous.

        Parameters
        ----------
        target
            The value of the maximum to reach.
        low
            The lower end of the interval.
        high
            The upper end of the interval.

        Returns
        -------
        float
            The number ``x``.

        Raises
        ------
        UnreachableTarget
            If the target is not between the maxima at the two ends.

        """
        value = one_number(target, "target")
        low = one_number(low, "low")
        high = one_number(high, "high")
        ends = float(self(low)), float(self(high))
        if not min(ends) <= value <= max(ends):
            goes = f"the maximum ranges from {ends[0]:.6g} to {ends[1]:.6g} on [{low}, {high}]"
            raise UnreachableTarget(f"{goes}, but the target {value:.6g} is not in this range")
        return zero_between(lambda x: float(self(x)) - value, low, high, 1e-15, rtol=1e-14)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data: the map, the number of subnetworks and the assumptions.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        names = self.r if isinstance(self.r, Mapping) else {"r": self.r}
        functions = {str(name): str(getattr(r, "__name__", r)) for name, r in names.items()}
        count, notes = len(self._sweep.exits), plain(self.assumptions)
        return {"functions": functions, "subnetworks": count, "assumptions": notes}

    def _text(self) -> str:
        return f"{len(self._sweep.exits)} distinct subnetworks"

    def __repr__(self) -> str:
        names = self.r if isinstance(self.r, Mapping) else {"r": self.r}
        shown = ", ".join(f"{name}={getattr(r, '__name__', r)}" for name, r in names.items())
        return f"Maximal({shown}; {self._text()})"

    def _repr_latex_(self) -> str:
        return (
            rf"$\displaystyle \mathcal{{M}}_r(x) = \max_g\; "
            rf"\mathcal{{U}}_{{g,r}}(x)\quad\text{{({self._text()})}}$"
        )


def _between(node: int, reached: Mapping[int, int], parents: Sequence[Sequence[int]]) -> list[int]:
    """Return ``node`` and the nodes between it and the ``reached`` nodes, in topological order."""
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
    """Return (functions, {nonlinear node: index of its function})."""
    require_network(network)
    names = {node: op.activation.name for node, op, _ in network.operations if isinstance(op, Post)}
    if callable(r):
        return [r], dict.fromkeys(names, 0)
    if not isinstance(r, Mapping):
        raise KcalcError(
            f"r must be a function, or a mapping of nodes or activation names to functions, got "
            f"{glimpse(r)}"
        )
    known = {*map(owner, names), *names.values()}
    for key, function in r.items():
        if key not in known:
            raise unknown("nonlinear node or activation", key, map(str, known))
        if not callable(function):
            raise KcalcError(f"r[{key!r}] must be a function, got {function!r}")
    keys = list(r)
    kinds: dict[Node, int] = {}
    for node, name in names.items():
        key = owner(node) if owner(node) in r else name
        if key not in r:
            raise KcalcError(f"r contains no function for node {node!r} ({name})")
        kinds[node] = keys.index(key)
    return list(r.values()), kinds


def maximal(network: Network, r: Function | Mapping[Any, Function], q: Any = None) -> Maximal:
    """Create the maximum over subnetworks with ``r`` in place of local C maps.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    r
        One function, or {node or activation name: function}; see :class:`Maximal`.
    q
        The q value of the inputs, or None.

    Returns
    -------
    Maximal
        A function of ``x``.

    """
    return Maximal(network, r, q)
