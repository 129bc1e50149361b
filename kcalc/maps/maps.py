"""Kernel maps as objects: callable, differentiable, plottable, with assumptions.

Each local or global map implements one evaluation method. This module derives everything else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import sympy as sp

from ..fields.arguments import (
    Array,
    Node,
    Number,
    Numbers,
    derivative_order,
    finished,
    gap_balls,
    gaps_at,
    gaps_at_angle,
    one_number,
    one_q,
    per_input,
    q_array,
    q_balls,
    q_of_inputs,
    q_pair,
    read_pair,
    series_length,
    single_precision,
)
from ..fields.jets import Jet
from ..foundation.errors import KcalcError, glimpse
from ..foundation.guests import DRAWINGS
from ..foundation.printing import Shown, marked, plain
from .composition import Composition, Formula

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..fields.balls import Enclosure
    from ..fields.tables import QTable, Table
    from .sphere import SphereEigenvalues


@dataclass(frozen=True)
class Assumption:
    """An assumption of a result, made at a node.

    Attributes
    ----------
    kind
        "exact", "convention" or "heuristic".

    """

    node: Node
    text: str
    kind: str = "convention"

    def to_dict(self) -> dict[str, str]:
        """Return the assumption as plain data.

        Returns
        -------
        dict[str, str]
            Plain values, ready for JSON.

        """
        return asdict(self) | {"node": str(self.node)}

    def __str__(self) -> str:
        return f"{self.node} [{self.kind}]: {self.text}"


INFINITE_WIDTH = Assumption(
    "network",
    "infinite width; weights with mean 0, independent between layers, i.i.d. Gaussian or uniform "
    "orthogonal in each layer",
)


@dataclass(frozen=True)
class FixedPoint(Shown):
    """A fixed point: its value, the slope of the map there, and whether it is attracting.

    ``stable`` is None if the slope is inconclusive.
    """

    value: float
    slope: float
    listed = ("stable",)

    @property
    def stable(self) -> bool | None:
        """True if the fixed point is attracting (|slope| < 1), False if it is repelling.

        The value is None if |slope| is within 1e-9 of 1, because the first derivative is then
        inconclusive.
        """
        return None if abs(abs(self.slope) - 1) < 1e-9 else abs(self.slope) < 1


def _snapped(value: float) -> float:
    """Return 0 for a value that is 0 up to rounding, and the value itself otherwise."""
    return 0.0 if abs(value) < 1e-12 else value


class Approximable:
    """A result with ``assumptions``. It is heuristic if any of its assumptions is heuristic."""

    @property
    def heuristic(self) -> bool:
        """True if the result used a rule whose hypothesis fails or only partly holds."""
        return any(a.kind == "heuristic" for a in getattr(self, "assumptions", ()))

    def _heuristic_lines(self) -> list[str]:
        """Write a line for each heuristic assumption; nodes with the same reason share one."""
        nodes: dict[str, list[str]] = {}
        for a in getattr(self, "assumptions", ()):
            if a.kind == "heuristic":
                nodes.setdefault(a.text, []).append(str(a.node))
        return [f"heuristic: {', '.join(names)}: {text}" for text, names in nodes.items()]


class KernelMap(Approximable, Formula, ABC):
    """Base class of Q maps and C maps."""

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the map, node by node."""
        return ()


def sole(found: dict[Node, Any]) -> Any:
    """Return the value of the only output, or {output: value} for several outputs."""
    return next(iter(found.values())) if len(found) == 1 else found


def one_output(of: KernelMap, what: str) -> Node:
    """Return the only output of a map.

    Raises KcalcError if the map has several outputs.
    """
    if len(of.outputs) != 1:
        raise KcalcError(
            f"{what} need one output, but the network has {len(of.outputs)}: "
            f"{', '.join(map(str, of.outputs[:6]))}"
        )
    return of.outputs[0]


class CMap(KernelMap):
    """A C map: the c value of two feature maps as a function of the c and q values of the inputs.

    Call ``C(c, q=1)`` with numbers, arrays (which broadcast) or {input: value}. Call ``C(c, q1,
    q2)`` if the two inputs have different q values (``q2=None`` means ``q1``). All methods that
    evaluate the map accept q values in this way. With several outputs, the result is {output:
    value}.
    """

    least: float = -1.0  # the smallest c value of the domain
    scan = 721  # number of angles in the search for fixed points

    @abstractmethod
    def gaps(
        self,
        gap: dict[Node, Array],
        q1: dict[Node, Array],
        q2: dict[Node, Array] | None,
        order: int,
    ) -> dict[Node, Jet]:
        """Return 1 - C for each output as a jet of the given order.

        The variable of the jet is a common change of all input c values. ``q2=None`` means that the
        two inputs have the same q values.
        """

    def _jets(
        self, gap: dict[Node, Any], q1: Any, q2: Any, order: int
    ) -> tuple[dict[Node, Jet], tuple[int, ...]]:
        first, second, shape = q_of_inputs(self.inputs, q1, q2, gap)
        return self.gaps(gap, first, second, order), shape

    @overload
    def __call__(
        self,
        c: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> float: ...
    @overload
    def __call__(
        self, c: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> Array: ...
    def __call__(self, c: Any, q1: Any = None, q2: Any = None, *, q: Any = None) -> float | Array:
        """Return the c values at the output.

        The domain is -1 <= c <= 1, q > 0. Raises KcalcError outside the domain, or for nan.
        """
        q1, q2 = q_pair(q1, q2, q)
        jets, shape = self._jets(gaps_at(self.inputs, c), q1, q2, 0)
        single = single_precision(c, q1, q2)
        return sole({n: finished(1 - jet.value, shape, single) for n, jet in jets.items()})

    @overload
    def at_angle(
        self,
        theta: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> float: ...
    @overload
    def at_angle(
        self, theta: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> Array: ...
    def at_angle(
        self, theta: Any, q1: Any = None, q2: Any = None, *, q: Any = None
    ) -> float | Array:
        """Return the angle arccos C at the output for angles theta at the input.

        theta = arccos c is in [0, pi]. The result is accurate even near 0.

        Parameters
        ----------
        theta
            The angle between the two inputs, in [0, pi].
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        float | Array
            Angles in radians, with the shape of ``theta``.

        """
        q1, q2 = q_pair(q1, q2, q)
        jets, shape = self._jets(gaps_at_angle(self.inputs, theta), q1, q2, 0)
        single = single_precision(theta, q1, q2)
        return sole(
            {
                n: finished(2 * np.arcsin(np.sqrt(np.clip(jet.value, 0, 2) / 2)), shape, single)
                for n, jet in jets.items()
            }
        )

    @overload
    def gap_at_angle(
        self,
        theta: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> float: ...
    @overload
    def gap_at_angle(
        self, theta: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> Array: ...
    def gap_at_angle(
        self, theta: Any, q1: Any = None, q2: Any = None, *, q: Any = None
    ) -> float | Array:
        """Return 1 - C at the output for angles at the input.

        If both inputs have the same q, the result has full relative accuracy, however small it is.
        For q1 != q2, it has full absolute accuracy only.

        Parameters
        ----------
        theta
            The angle between the two inputs, in [0, pi].
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        float | Array
            1 - C, with the shape of ``theta``.

        """
        q1, q2 = q_pair(q1, q2, q)
        jets, shape = self._jets(gaps_at_angle(self.inputs, theta), q1, q2, 0)
        single = single_precision(theta, q1, q2)
        return sole({n: finished(jet.value, shape, single) for n, jet in jets.items()})

    def derivative(self, n: int = 1) -> CMapDerivative:
        """Return the n-th derivative with respect to c.

        With several inputs, the derivative is with respect to a common change of all their c
        values.

        Parameters
        ----------
        n
            The order, an integer >= 1.

        Returns
        -------
        CMapDerivative
            A function of c and q.

        """
        return CMapDerivative(self, derivative_order(n))

    def series(self, n: int, q: Any = 1) -> Array:
        """Return the Taylor coefficients b_0 ... b_{n-1} of C at c = 0, with q1 = q2 = q.

        Parameters
        ----------
        n
            The number of coefficients.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Array
            An array of n numbers.

        """
        jets, _ = self._jets(
            {node: np.asarray(1.0) for node in self.inputs},
            per_input(self.inputs)(q, one_q, "q"),
            None,
            series_length(n) - 1,
        )
        out = {}
        for node, jet in jets.items():
            b = -np.array([float(np.asarray(a)) for a in jet.coefficients])
            b[0] = _snapped(b[0] + 1)
            out[node] = b
        return sole(out)

    def ball_gaps(
        self, gap: dict[Node, Any], q1: dict[Node, Any], q2: dict[Node, Any] | None, field: Any
    ) -> dict[Node, Any]:
        """Return 1 - C for each output as balls, from balls at the inputs.

        ``q2=None`` means that the two inputs have the same q values.
        """
        raise KcalcError(f"{self!r} has no certified evaluation")

    def ball(
        self, c: Any, q1: Any = None, q2: Any = None, digits: int = 30, *, q: Any = None
    ) -> Enclosure:
        """Return a certified enclosure of C(c, q1, q2), computed with ``digits`` decimal digits.

        The enclosure is proven, not estimated.

        Arguments are single numbers or {input: number}. Floats represent their exact binary values;
        SymPy and mpmath numbers keep all their digits.

        Parameters
        ----------
        c
            The cosine between the two inputs, in [-1, 1].
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        digits
            The number of decimal digits.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Enclosure
            A :class:`kcalc.fields.balls.Enclosure`, or {output: enclosure} for several outputs.

        Raises
        ------
        KcalcError
            For arguments outside the domain, for symbols, and if no bound on an activation can be
            derived.

        """
        from ..fields.balls import Enclosure, ball_field

        q1, q2 = q_pair(q1, q2, q)
        field = ball_field(digits)
        first, second = read_pair(
            lambda given, what: q_balls(self.inputs, given, what, field), q1, q2
        )
        found = self.ball_gaps(gap_balls(self.inputs, c, field), first, second, field)
        with field.working():
            return sole(
                {
                    node: Enclosure.of(1 - value).checked(f"{self!r} at {node}")
                    for node, value in found.items()
                }
            )

    def table(
        self, q1: Any = None, q2: Any = None, tolerance: float = 1e-14, *, q: Any = None
    ) -> Table:
        """Return C at fixed q values as a :class:`kcalc.fields.tables.Table`.

        Evaluating the table at a million points takes about 20 ms. The table has an error bound.

        All inputs share one c value.

        Parameters
        ----------
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        tolerance
            The largest accepted error.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Table
            The table, as a function of c.

        Raises
        ------
        KcalcError
            For several outputs, and for q values that are not single numbers.

        """
        from ..fields.tables import tabulate

        function = self._gap_function(q1, q2, q)
        return tabulate(function, one_number(tolerance, "tolerance"), self.name)

    def _gap_function(self, q1: Any, q2: Any, q: Any) -> GapAt:
        """Return 1 - C at fixed q values, as a function."""
        output = one_output(self, "tables")
        q1, q2 = q_pair(q1, q2, q)
        first, second = read_pair(
            lambda given, what: per_input(self.inputs)(
                given, lambda v: np.asarray(one_q(v, what)), what
            ),
            q1,
            q2,
        )
        return GapAt(self, first, second, output)

    def fixed_points(self, q: Any = 1) -> tuple[FixedPoint, ...]:
        """Return the isolated solutions of C(c) = c in [-1, 1] with q1 = q2 = q, in order.

        If C is the identity map, the result is empty.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        tuple[FixedPoint, ...]
            The fixed points with values and slopes; empty if every c is fixed.

        """
        from ..foundation.rootfinding import sign_changes

        one_output(self, "fixed points")
        slope = self.derivative(1)
        per_input(self.inputs)(q, one_q, "q")

        def excess(theta: Array) -> Array:
            return 2 * np.sin(theta / 2) ** 2 - self.gap_at_angle(theta, q)

        grid = np.linspace(0.0, np.arccos(self.least), self.scan)[1:-1]
        roots = [_snapped(float(np.cos(t))) for t in sign_changes(excess, grid, tolerance=1e-15)]
        isolated = {
            1.0: np.abs(excess(grid[:2])).max() > 1e-15,
            self.least: np.abs(excess(grid[-2:])).max() > 1e-15,
        }
        ends = [
            c
            for c in (self.least, 1.0)
            if isolated[c]
            and abs(float(self(c, q)) - c) < 1e-14 * np.clip(abs(float(slope(c, q))), 10, 1e4)
        ]
        points = sorted({round(c, 14): c for c in [*roots, *ends]}.values())
        return tuple(FixedPoint(c, float(slope(c, q))) for c in points)

    def sphere_eigenvalues(
        self, dimension: int, max_degree: int, q: float = 1.0
    ) -> SphereEigenvalues:
        """Return the eigenvalues of the map as a kernel on the unit sphere S^(d-1).

        Points are uniformly distributed on the sphere.

        The map is ``K(c) = sum_k lambda_k N(d, k) P_k(c)``. P_k is the Gegenbauer polynomial with
        ``P_k(1) = 1``, and N(d, k) is the number of spherical harmonics of degree k. Hence ``sum_k
        N(d, k) lambda_k = K(1)``.

        Parameters
        ----------
        dimension
            d >= 2, the number of features of the inputs. d = 2 is the circle.
        max_degree
            The highest degree k.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        SphereEigenvalues
            The eigenvalues for the degrees 0 to ``max_degree``.

        Raises
        ------
        KcalcError
            For networks with several inputs or outputs, for an invalid dimension or degree, and for
            token maps, which are defined only on part of [-1, 1].

        Examples
        --------
        >>> import kcalc as kc
        >>> found = kc.activation("relu").c_map.sphere_eigenvalues(2, 3)
        >>> print(f"{found.eigenvalues[0]:.6f} {found.multiplicities}")
        0.405285 (1, 2, 2, 2)

        """
        from .sphere import sole_input, sphere_eigenvalues

        node, output = sole_input(self.inputs, self.outputs)
        if self.least != -1:
            raise KcalcError(
                "a map of token cosines is not defined at every angle on a sphere; use the C map "
                "of two inputs, or kc.ntk(net, tokens=...)"
            )
        level = {node: np.asarray(one_q(q))}

        def kernel(gap: Array) -> Array:
            jet = self.gaps({node: gap}, level, None, 0)[output]
            return 1 - np.asarray(jet.value) + 0 * np.asarray(gap)

        return sphere_eigenvalues(kernel, "C", dimension, max_degree, self.assumptions)

    def plot(
        self,
        ax: Axes | None = None,
        q1: Any = None,
        q2: Any = None,
        *,
        q: Any = None,
        **options: Any,
    ) -> Axes:
        """Plot C over its domain, which is [-1, 1], or [-1/(T - 1), 1] for T tokens.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        q
            The mean square of the inputs, > 0.
        **options
            Further options of the plot.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["CMap"]({self.name: self}, ax=ax, q1=q1, q2=q2, q=q, **options)

    def to_dict(self, points: int = 41) -> dict[str, Any]:
        """Return the name, sampled values at q = 1 and the assumptions as plain data.

        Parameters
        ----------
        points
            The number of sampled points.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        c = np.cos(np.linspace(np.arccos(self.least), 0, series_length(points)))
        values = self(c)
        sampled = (
            {str(k): v.tolist() for k, v in values.items()}
            if isinstance(values, dict)
            else values.tolist()
        )
        return {
            "map": self.name,
            "c": c.tolist(),
            "C": sampled,
            "assumptions": plain(self.assumptions),
        }

    def __repr__(self) -> str:
        return f"CMap({marked(self.name, self)})"


@dataclass(frozen=True)
class GapAt:
    """The function that maps 1 - c to 1 - C at fixed q values, for tables."""

    base: CMap
    q1: dict[Node, Array]
    q2: dict[Node, Array] | None
    output: Node

    def __call__(self, gap: Array) -> Array:
        jets = self.base.gaps(dict.fromkeys(self.base.inputs, gap), self.q1, self.q2, 0)
        return np.broadcast_to(np.asarray(jets[self.output].value, dtype=float), gap.shape)


class MapDerivative(Formula):
    """Base class of the derivatives of C and Q maps, with the map ``base`` and the ``order``."""

    base: Any
    order: int

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the map."""
        return self.base.assumptions

    def to_dict(self) -> dict[str, Any]:
        """Return the map's name, its assumptions and the derivative's order as plain data."""
        return {
            "derivative_of": self.base.name,
            "order": self.order,
            "assumptions": plain(self.assumptions),
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({marked(self.base.name, self.base)}, order {self.order})"

    def _derived(
        self, whole: Composition | dict[Node, Composition]
    ) -> Composition | dict[Node, Composition]:
        return (
            {n: part.derivative(self.order) for n, part in whole.items()}
            if isinstance(whole, dict)
            else whole.derivative(self.order)
        )


@dataclass(frozen=True, repr=False)
class CMapDerivative(MapDerivative):
    """A derivative of a C map with respect to c. Call it like the map.

    Infinite values (kinks at c = +-1) are returned as inf.
    """

    base: CMap
    order: int

    def symbolic(
        self, q1: Any = None, q2: Any = None, *, q: Any = None
    ) -> Composition | dict[Node, Composition]:
        """Return the derivative as a named composition, with q values as in the map's ``symbolic``.

        Parameters
        ----------
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Composition | dict[Node, Composition]
            The composition, or one per output.

        Raises
        ------
        KcalcError
            If the order exceeds 4.

        """
        return self._derived(self.base.symbolic(q1, q2, q=q))

    @overload
    def __call__(
        self,
        c: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> float: ...
    @overload
    def __call__(
        self, c: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> Array: ...
    def __call__(self, c: Any, q1: Any = None, q2: Any = None, *, q: Any = None) -> float | Array:
        """Return the derivative at c, with the same arguments and shapes as the map."""
        q1, q2 = q_pair(q1, q2, q)
        jets, shape = self.base._jets(gaps_at(self.base.inputs, c), q1, q2, self.order)
        factor = float(sp.factorial(self.order))
        values = {
            n: (-jet.coefficients[self.order] if self.order else 1 - jet.value) * factor
            for n, jet in jets.items()
        }
        for node, value in values.items():
            if np.isnan(value).any():
                raise KcalcError(
                    f"node {node!r}: the derivative of order {self.order} of its C map is unknown "
                    "at c = +-1 after activations with kinks or jumps, because lower derivatives, "
                    "or derivatives at earlier nodes, are infinite there; use |c| < 1"
                )
        return sole(
            {n: finished(value, shape, single_precision(c, q1, q2)) for n, value in values.items()}
        )


class QMap(KernelMap):
    """A Q map: the q value at the output as a function of the q values of the inputs.

    Call ``Q(q)`` with a number or an array.
    """

    @abstractmethod
    def values(self, q: dict[Node, Any], order: int) -> dict[Node, Jet]:
        """Return Q for each output as a jet of the given order in a common change of all q."""

    def _evaluate(self, q: Any, order: int) -> Any:
        given = per_input(self.inputs)(q, q_array, "q")
        shape = np.broadcast_shapes(*(a.shape for a in given.values()))
        factor = float(sp.factorial(order))
        out = {
            n: finished(jet.coefficients[order] * factor, shape, single_precision(q))
            for n, jet in self.values(given, order).items()
        }
        return sole(out)

    @overload
    def __call__(self, q: Number) -> float: ...
    @overload
    def __call__(self, q: Numbers) -> Array: ...
    def __call__(self, q: Any) -> float | Array:
        """Return q values at the output, for q > 0.

        Raises KcalcError outside the domain or for nan.
        """
        return self._evaluate(q, 0)

    def derivative(self, n: int = 1) -> QMapDerivative:
        """Return the n-th derivative with respect to q.

        Parameters
        ----------
        n
            The order, an integer >= 1.

        Returns
        -------
        QMapDerivative
            A function of q.

        """
        return QMapDerivative(self, derivative_order(n))

    def series(self, n: int, q: Any = 1) -> Array:
        """Return the Taylor coefficients a_0 ... a_{n-1} of Q about q: Q(q + t) = sum_k a_k t^k.

        Parameters
        ----------
        n
            The number of coefficients.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Array
            An array of n numbers, n <= 101.

        """
        order = derivative_order(series_length(n) - 1)
        jets = self.values(per_input(self.inputs)(q, lambda v: np.asarray(one_q(v)), "q"), order)
        return sole(
            {
                node: np.array([float(np.asarray(a)) for a in jet.coefficients])
                for node, jet in jets.items()
            }
        )

    def ball_values(self, q: dict[Node, Any], field: Any) -> dict[Node, Any]:
        """Return Q for each output as balls, from balls at the inputs."""
        raise KcalcError(f"{self!r} has no certified evaluation")

    def ball(self, q: Any, digits: int = 30) -> Enclosure:
        """Return a certified enclosure of Q(q), computed with ``digits`` decimal digits.

        See :meth:`CMap.ball`.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.
        digits
            The number of decimal digits.

        Returns
        -------
        Enclosure
            ``mid`` and ``radius`` of an interval that contains Q(q).

        """
        from ..fields.balls import Enclosure, ball_field

        field = ball_field(digits)
        balls = self.ball_values(q_balls(self.inputs, q, "q", field), field)
        return sole(
            {
                node: Enclosure.of(value).checked(f"{self!r} at {node}")
                for node, value in balls.items()
            }
        )

    def table(self, low: float = 1e-3, high: float = 1e3, tolerance: float = 1e-13) -> QTable:
        """Return a table of Q for low <= q <= high, where q is the q value of all inputs.

        Parameters
        ----------
        low
            The lower end of the interval.
        high
            The upper end of the interval.
        tolerance
            The largest accepted error.

        Returns
        -------
        QTable
            A :class:`~kcalc.fields.tables.QTable` with a relative error of at most ``tolerance``.

        Raises
        ------
        KcalcError
            Unless 0 < low < high, and if there are several outputs or Q is too rough for a table.

        """
        from ..fields.tables import tabulate_q

        one_output(self, "tables")
        return tabulate_q(
            self,
            float(one_q(low, "low")),
            float(one_q(high, "high")),
            one_number(tolerance, "tolerance"),
            self.name,
        )

    def fixed_points(self, low: float = 1e-6, high: float = 1e6) -> tuple[FixedPoint, ...]:
        """Return the isolated solutions of Q(q) = q in [low, high], in increasing order.

        If every q is fixed, the result is empty.

        Parameters
        ----------
        low
            The lower end of the interval.
        high
            The upper end of the interval.

        Returns
        -------
        tuple[FixedPoint, ...]
            The fixed points with values and slopes; empty if every q is fixed.

        """
        from ..foundation.rootfinding import finite_part, sign_changes

        one_output(self, "fixed points")

        def excess(log_q: Array) -> Array:
            with np.errstate(over="ignore"):
                return self(np.exp(log_q)) / np.exp(log_q) - 1

        if not (bottom := one_q(low, "low")) < (top := one_q(high, "high")):
            raise KcalcError(
                f"low must be less than high, got low = {glimpse(low)} and high = {glimpse(high)}"
            )
        grid = finite_part(excess, np.linspace(np.log(bottom), np.log(top), 241))
        roots = [float(np.exp(t)) for t in sign_changes(excess, grid, tolerance=1e-14)]
        slope = self.derivative(1)
        return tuple(FixedPoint(q, float(slope(q))) for q in roots)

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Plot Q against q.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.
        **options
            Further options of the plot.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["QMap"]({self.name: self}, ax=ax, **options)

    def to_dict(self, points: int = 41) -> dict[str, Any]:
        """Return the name, sampled values and the assumptions as plain data.

        Parameters
        ----------
        points
            The number of sampled points.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        q = np.geomspace(0.01, 100, series_length(points))
        values = self(q)
        sampled = (
            {str(k): v.tolist() for k, v in values.items()}
            if isinstance(values, dict)
            else values.tolist()
        )
        return {
            "map": self.name,
            "q": q.tolist(),
            "Q": sampled,
            "assumptions": plain(self.assumptions),
        }

    def __repr__(self) -> str:
        return f"QMap({marked(self.name, self)})"


@dataclass(frozen=True, repr=False)
class QMapDerivative(MapDerivative):
    """A derivative of a Q map with respect to q. Call it like the map."""

    base: QMap
    order: int

    def symbolic(self) -> Composition | dict[Node, Composition]:
        """Return the derivative as a named composition in the symbol ``q``.

        Returns
        -------
        Composition | dict[Node, Composition]
            The composition, or one per output.

        Raises
        ------
        KcalcError
            If the order exceeds 4.

        """
        return self._derived(self.base.expr)

    @overload
    def __call__(self, q: Number) -> float: ...
    @overload
    def __call__(self, q: Numbers) -> Array: ...
    def __call__(self, q: Any) -> float | Array:
        """Return the derivative at q."""
        return self.base._evaluate(q, self.order)
