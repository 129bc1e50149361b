"""Maxima of the slope and of the curvature over all subnetworks of a network.

DKS and TAT choose activations so that these maxima have given values. The reading is strict: no
interior feature map of a subnetwork is an output of the network or is read from outside the
subnetwork, and no subnetwork contains a node where two inputs meet. A maximum over subnetworks
therefore misses the depth of paths across such nodes; see ``MaximalSlope.bounds`` and
``.warning``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import sympy as sp

from ...activations import Activation
from ...fields.arguments import Number, Numbers, one_number, real_array
from ...foundation.errors import KcalcError, glimpse, unknown
from ...foundation.printing import marked, plain
from ...foundation.process_state import cached_property
from ...foundation.symbols import kappa as common_curvature
from ...maps.maps import Approximable, Assumption
from ...network.network import Network, Step
from ...network.primitives import Prod, owner
from ..factored import ONE, Array, Factors, LogProgram, Monomial
from ..slopes import Slopes, polynomial_texts
from .forward import HIDDEN, ForwardSlope, SlopeBounds, as_slopes, depths_text, exponential, inverse
from .pruning import certified, not_included
from .regions import Subnetwork, network_regions

Node = Hashable


class Polynomials:
    """The distinct slope polynomials of maximal subnetworks, with the first subnetwork of each."""

    def __init__(self, network: Network, q: Any, symbols_by_activation: bool) -> None:
        self.calculus = Slopes(network, q, symbols_by_activation)
        self._nodes, parents, regions = nodes, _, _ = network_regions(network)
        self._idom = regions.idom
        self._locals = self._local(list(network.steps()), parents)
        first: dict[Monomial, tuple[Node, Node]] = {}
        for path in regions.paths:
            polynomial = Factors.product(*[self._locals[node] for node in path[1:]])
            first.setdefault(polynomial, (nodes[path[0]], nodes[path[-1]]))
        self.monomials: list[Monomial] = not_included(first) or [ONE]
        self.owners = [
            Subnetwork(*first[m], network) if m in first else None for m in self.monomials
        ]

    def from_inputs(self, node: Node) -> Monomial:
        """The slope polynomial from the inputs, which move together, to a node.

        The polynomial is a product over the dominators of the node.
        """
        at, parts = self._nodes.index(node), list[Monomial]()
        while at < len(self._nodes):
            parts.append(self._locals[at])
            at = self._idom[at]
        return Factors.product(*parts)

    def _local(self, steps: Sequence[Step], parents: Sequence[Sequence[int]]) -> list[Monomial]:
        """The polynomial of every node relative to its immediate dominator.

        A mix of nodes p needs their polynomials relative to its own dominator s. Each of these
        polynomials is a product over the dominator path from p up to s, and is stored at p.
        Identical layers that read identical polynomials are computed once. With q values, every mix
        has separate weights.
        """
        calculus, idom, centring = self.calculus, self._idom, self.calculus.centring
        features = calculus.network.features
        done: dict[Any, Monomial] = {}
        local: list[Monomial] = []
        known: dict[int, tuple[int, Monomial]] = {}

        def relative(node: int, top: int) -> Monomial:
            parts: list[Monomial] = []
            at = node
            while at != top:
                if at in known and known[at][0] == top:
                    if at == node:
                        return known[at][1]
                    parts.append(known[at][1])
                    break
                if local[at]:
                    parts.append(local[at])
                at = idom[at]
            known[node] = top, Factors.product(*parts)
            return known[node][1]

        for k, (node, layer, reads) in enumerate(steps):
            key: Any = id(layer)
            inputs: tuple[Monomial, ...] = (ONE,) * len(reads)
            if len(reads) > 1:
                inputs = tuple([relative(p, idom[k]) for p in parents[k]])
                alike = calculus.q is None
                key = (key, inputs, *[features[p] for p in reads]) if alike else (node,)
            if node in centring:
                key = (node,)
            if key not in done:
                done[key] = calculus.of_node(node, inputs)
            local.append(done[key])
        return local


class MaximalSlope(Approximable):
    """The maximal slope function ``mu(psi) = max_f p_f(psi)``, for ``psi >= 1``.

    The maximum is over all subnetworks ``f``.

    The object accepts scalars and arrays. If activations have separate symbols, it accepts a
    mapping {activation name: slope}.

    References
    ----------
    [DKS sec. 17.1]

    """

    def __init__(
        self, network: Network, q: Any = None, symbols_by_activation: bool = False
    ) -> None:
        self.network = network
        self._q = q
        self._set = Polynomials(network, q, symbols_by_activation)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions under which the slope is computed.

        Activation inputs need not be Gaussian, and addends need not be independent.
        """
        return self._set.calculus.assumptions

    @cached_property
    def pieces(self) -> tuple[sp.Expr, ...]:
        """The slope polynomials to maximise over, as SymPy expressions.

        Polynomials of the highest degree come first.

        Equal polynomials are listed once. A polynomial is dropped if its factors are a sub-multiset
        of another polynomial's factors. With numeric weights, it is also dropped if it is proven to
        lie below another polynomial for all ``psi >= 1``. Numerical evaluation applies only the
        first rule.
        """
        return tuple(self._factors.expr(monomial) for monomial in self._pruned)

    @cached_property
    def _pruned(self) -> list[Monomial]:
        return certified(self._factors, self._set.monomials)

    @property
    def expr(self) -> sp.Expr:
        """The maximum of the pieces as a SymPy expression."""
        return self.pieces[0] if len(self.pieces) == 1 else sp.Max(*self.pieces, evaluate=False)

    @property
    def symbols(self) -> tuple[sp.Symbol, ...]:
        """The slope symbols in the pieces."""
        return tuple(entry for entry in self._factors.table if isinstance(entry, sp.Symbol))

    @property
    def symbols_of(self) -> Mapping[Activation, sp.Symbol]:
        """The slope symbol of every activation, if activations have separate symbols."""
        return MappingProxyType(self._set.calculus.symbols)

    @overload
    def __call__(self, psi: Number) -> float: ...
    @overload
    def __call__(self, psi: Numbers) -> Array: ...
    def __call__(self, psi: Any) -> float | Array:
        """Evaluate ``mu(psi)``, elementwise.

        Raises: KcalcError for psi < 1 and for symbols in mixing weights.
        """
        logs, shape = self._evaluate(psi)
        return exponential(logs.max(axis=0), shape)

    def active(self, psi: Any) -> Subnetwork:
        """The first maximal subnetwork that attains the maximum at a scalar ``psi``.

        Parameters
        ----------
        psi
            The slope C'(1) of every nonlinear layer, >= 1.

        Returns
        -------
        Subnetwork
            The subnetwork, with its entry and exit.

        """
        logs, shape = self._evaluate(psi)
        if shape:
            raise KcalcError("active accepts only a single psi")
        owner = self._set.owners[int(logs[:, 0].argmax())]
        if owner is None:
            raise KcalcError(
                "the network has no nonlinear layer, so no subnetwork is steeper than another"
            )
        return owner

    @overload
    def inverse(self, target: Number) -> float: ...
    @overload
    def inverse(self, target: Numbers) -> Array: ...
    def inverse(self, target: Any) -> float | Array:
        """Find ``psi`` with ``mu(psi) = target``, elementwise, for targets above ``mu(1)``.

        ``mu(1)`` is 1, or more if LayerNorms have slopes > 1. The result is accurate up to rounding
        errors.

        ``log mu`` is convex in ``log psi`` (a maximum of log-sum-exp) and ``mu(psi) >= psi``, so
        Newton's method descends monotonically from ``log psi = log target``.

        Parameters
        ----------
        target
            The value to reach.

        Returns
        -------
        float | Array
            ``psi``, with the shape of ``target``.

        Raises
        ------
        KcalcError
            For other targets, a network without nonlinear layers, several slope symbols, or symbols
            in mixing weights.

        """
        if len(self.symbols) != 1:
            reason = (
                f"it depends on {len(self.symbols)} slopes"
                if self.symbols
                else "the network has no nonlinear layer"
            )
            raise KcalcError(f"the maximal slope function has no inverse, because {reason}")
        least = float(self({str(self.symbols[0]): 1.0}))
        return inverse(self._log_and_slope, target, least)

    @overload
    def slope_to(self, node: Node, psi: Number) -> float: ...
    @overload
    def slope_to(self, node: Node, psi: Numbers) -> Array: ...
    def slope_to(self, node: Node, psi: Any) -> float | Array:
        """Return the slope from the inputs to a node's feature map, elementwise in ``psi >= 1``.

        The inputs move together.

        Parameters
        ----------
        node
            The label of a node.
        psi
            The slope C'(1) of every nonlinear layer, >= 1.

        Returns
        -------
        float | Array
            The slope, with the shape of ``psi``.

        Raises
        ------
        KcalcError
            For an unknown node, several slope symbols, psi < 1, or symbols in mixing weights.

        """
        self.network.layer(node)
        logs, shape = self._evaluate(psi, [self._set.from_inputs(node)])
        return exponential(logs[0], shape)

    def _log_and_slope(self, log_psi: float) -> tuple[float, float]:
        logs, degrees = self._program([np.array([log_psi])], self._set.monomials)
        piece = int(logs[:, 0].argmax())
        return float(logs[piece, 0]), float(degrees[piece, 0])

    # -- depth hidden by the strict reading --------------------------------------------------------

    @cached_property
    def forward(self) -> ForwardSlope:
        """``max_t V(t)`` over all nodes, as a function of psi with a method ``inverse``."""
        return ForwardSlope(self.network, self._q)

    @property
    def depth(self) -> int:
        """The largest number of nonlinear layers on any path through the network.

        Paths across taps, heads and inputs are included.
        """
        return self.forward.depth

    @overload
    def longest_path_bound(self, psi: Number) -> float: ...
    @overload
    def longest_path_bound(self, psi: Numbers) -> Array: ...
    def longest_path_bound(self, psi: Any) -> float | Array:
        """The bound ``psi^depth`` on the slope between any two nodes.

        Parameters
        ----------
        psi
            The slope C'(1) of every nonlinear layer, >= 1.

        Returns
        -------
        float | Array
            The bound, with the shape of ``psi``.

        """
        return self.forward.longest_path_bound(psi)

    @overload
    def forward_bound(self, psi: Number) -> float: ...
    @overload
    def forward_bound(self, psi: Numbers) -> Array: ...
    def forward_bound(self, psi: Any) -> float | Array:
        """Return the largest slope ``max_t V(t)`` over all nodes ``t``.

        ``V(t)`` is the slope from the inputs (which move together) to ``t``.

        Parameters
        ----------
        psi
            The slope C'(1) of every nonlinear layer, >= 1.

        Returns
        -------
        float | Array
            The slope, with the shape of ``psi``.

        """
        return self.forward(psi)

    def bounds(self, psi: float | None = None) -> SlopeBounds:
        """Return three measures of the network's slope at ``psi`` (by default ``1.5^(1/depth)``).

        Parameters
        ----------
        psi
            The slope C'(1) of every nonlinear layer, >= 1.

        Returns
        -------
        SlopeBounds
            mu, the forward bound and the longest-path bound.

        Raises
        ------
        KcalcError
            If activations have separate symbols.

        """
        if len(self.symbols) > 1:
            raise KcalcError(
                "bounds need one slope for all activations; build the function without "
                "symbols_by_activation"
            )
        if psi is not None:
            psi = one_number(psi, "psi")
        strict = max(self._factors.measure(self._set.monomials, largest=True))
        at = 1.5 ** (1 / max(self.depth, 1)) if psi is None else float(np.exp(as_slopes(psi)))
        mu, forward = float(self(at)), float(self.forward(at))
        return SlopeBounds(
            at,
            mu,
            forward,
            float(self.forward.longest_path_bound(at)),
            strict,
            self.depth,
            self._hidden(at, strict, mu),
        )

    @property
    def _has_taps(self) -> bool:
        """Whether the network has nonlinear layers, and several inputs or outputs."""
        return len(self.network.inputs) + len(self.network.outputs) > 2 and self.depth > 0

    def _hidden(self, psi: float, strict: int, mu: float) -> bool:
        """Whether an output is deeper or steeper than all subnetworks.

        Only networks with several inputs or outputs are checked.
        """
        if not self._has_taps:
            return False
        reached = max(self.forward.log_at(node, psi) for node in self.network.outputs)
        return strict < 0.9 * self.depth or reached > 1.1 * math.log(mu) + 1e-12

    @cached_property
    def warning(self) -> str | None:
        """A warning if taps, heads or additional inputs hide depth from the strict reading.

        The warning is None if no depth is hidden.

        There are two criteria. Either the deepest subnetwork has less than 0.9 of the depth. Or,
        for numeric weights, ``log V`` of an output exceeds ``log mu`` by more than a tenth at
        ``psi = 1.5^(1/depth)``. For networks with one input and one output, the warning is always
        None.
        """
        if not self._has_taps:
            return None
        if not self.network.free_symbols and len(self.symbols) == 1:
            return self.bounds().warning
        strict = max(self._factors.measure(self._set.monomials, largest=True))
        return f"{HIDDEN}: {depths_text(strict, self.depth)}" if strict < 0.9 * self.depth else None

    # -- display and evaluation --------------------------------------------------------------------

    @property
    def _factors(self) -> Factors:
        return self._set.calculus.factors

    @cached_property
    def _program(self) -> LogProgram:
        return LogProgram(self._factors)

    def _evaluate(
        self, psi: Any, monomials: Sequence[Monomial] | None = None
    ) -> tuple[Array, tuple[int, ...]]:
        """Return the logs of polynomials, (polynomial, point), and the shape of the points.

        The polynomials are ``monomials``, by default the pieces.
        """
        if isinstance(psi, Mapping):
            names = [str(symbol) for symbol in self.symbols]
            given: dict[str, Any] = {}
            for key, value in psi.items():
                said = key if isinstance(key, str) else glimpse(key)
                name = said if said in names else f"psi_{said.removeprefix('psi_')}"
                if names and name not in names:
                    raise unknown("slope", said, names)
                if name in given:
                    short = name.removeprefix("psi_")
                    raise KcalcError(
                        f"the slope of {short} is passed twice, as {short} and as {name!r}; pass "
                        "only one of them"
                    )
                given[name] = value
            missing = [name for name in names if name not in given]
            if missing:
                raise KcalcError(f"slopes are missing for {', '.join(missing)}; pass one for each")
            values = (as_slopes(given[name]) for name in names)
            try:
                columns = np.broadcast_arrays(np.zeros(()), *values)[1:] or (np.zeros(()),)
            except KcalcError:
                raise
            except ValueError:
                raise KcalcError(
                    "the slopes of the activations cannot be broadcast together"
                ) from None
        elif len(self.symbols) > 1:
            names = ", ".join(map(str, self.symbols))
            raise KcalcError(
                f"the maximal slope depends on {names}; pass a mapping of activation names to "
                f"slopes"
            )
        else:
            columns = (as_slopes(psi),)
        logs, _ = self._program(
            [column.reshape(-1) for column in columns[: len(self.symbols)]],
            monomials or self._set.monomials,
        )
        return np.broadcast_to(logs, (len(logs), columns[0].size)), columns[0].shape

    def __str__(self) -> str:
        return self._text(str, "max{%s}")

    def _text(self, write: Callable[[Any], str], maximum: str) -> str:
        """Format the maximum as text; long polynomials are described by their degree."""
        parts = polynomial_texts(self._factors, self._pruned, write)
        return (
            parts[0]
            if len(parts) == 1
            else maximum % ", ".join(parts[:8] + ["..."] * (len(parts) > 8))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data: the maximum as text, its symbols and the assumptions.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "maximum": "slope",
            "expr": str(self),
            "symbols": [str(s) for s in self.symbols],
            "assumptions": plain(self.assumptions),
        }

    def __repr__(self) -> str:
        text = str(self)
        return f"MaximalSlope({marked(text if len(text) <= 180 else text[:179] + '…', self)})"

    def _repr_latex_(self) -> str:
        arguments = ", ".join(sp.latex(symbol) for symbol in self.symbols) or r"\psi"
        body = self._text(sp.latex, r"\max\left\{%s\right\}")
        return rf"$\displaystyle \mu({arguments}) = {body}$"


def maximal_slope(
    network: Network, q: Any = None, *, symbols_by_activation: bool = False
) -> MaximalSlope:
    """Create the maximal slope function ``mu`` of a network.

    See :class:`MaximalSlope`, and ``kc.slope_polynomial`` for ``q``.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    q
        The mean square of the inputs, for exact slopes; None uses one symbol for all layers.
    symbols_by_activation
        Whether each activation has a separate slope symbol.

    Returns
    -------
    MaximalSlope
        A function of ``psi``.

    Examples
    --------
    >>> import kcalc as kc
    >>> mu = kc.maximal_slope(kc.architectures.vanilla(3, "tanh"))
    >>> print(round(mu(1.1), 6), round(mu.inverse(1.5), 6))
    1.331 1.144714

    """
    return MaximalSlope(network, q, symbols_by_activation)


# -- curvature -------------------------------------------------------------------------------------


class MaximalCurvature:
    """The maximal curvature function ``max_f C_f''(1) = multiplier * kappa``.

    [TAT App. B.2, with r_2(x) = x + kappa]

    Every nonlinear layer has ``C'(1) = 1`` and ``C''(1) = kappa >= 0``. ``C_f''(1) / kappa`` is
    ``p_f'(1)``, the mean number of nonlinear layers on a path through ``f``.
    """

    def __init__(self, network: Network, q: Any = None) -> None:
        self.network = network
        self._set = Polynomials(network, q, False)
        products = (node for node, op, _ in network.operations if isinstance(op, Prod))
        steep = next(map(owner, (*self._set.calculus.normalisations, *products)), None)
        if steep is not None:
            kind = type(network.layer(steep)).__name__
            remedy = (
                "leave out q" if steep in self._set.calculus.centring else "cut the network there"
            )
            raise KcalcError(
                f"the {kind} at node {steep!r} has a slope > 1, but curvatures add up only if all "
                f"slopes are 1; {remedy}"
            )

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions under which the maximum is computed."""
        return *self._set.calculus.assumptions, Assumption(
            "network", "C'(1) = 1 for every nonlinear layer"
        )

    @cached_property
    def multipliers(self) -> tuple[sp.Expr, ...]:
        """The exact values ``p_f'(1)`` of the subnetworks to maximise over.

        If all are numbers, only the largest is returned.
        """
        exact = [self._set.calculus.factors.curvature(monomial) for monomial in self._set.monomials]
        if all(value.is_number for value in exact):
            return (max(exact, key=float),)
        return tuple(dict.fromkeys(sp.factor_terms(value) for value in exact))

    @property
    def pieces(self) -> tuple[sp.Expr, ...]:
        """The functions to maximise over, in terms of ``kc.symbols.kappa``."""
        return tuple(value * common_curvature for value in self.multipliers)

    @property
    def expr(self) -> sp.Expr:
        """The maximum of the pieces as a SymPy expression."""
        return (
            sp.Max(*self.multipliers, evaluate=False) * common_curvature
            if len(self.multipliers) > 1
            else self.pieces[0]
        )

    @cached_property
    def multiplier(self) -> float:
        """``max_f p_f'(1)``.

        Raises: KcalcError for symbols in mixing weights.
        """
        program = LogProgram(self._set.calculus.factors)
        _, degrees = program([np.zeros(1)] * len(program.symbols), self._set.monomials)
        return float(degrees.max())

    @overload
    def __call__(self, kappa: Number) -> float: ...
    @overload
    def __call__(self, kappa: Numbers) -> Array: ...
    def __call__(self, kappa: Any) -> float | Array:
        """Return ``multiplier * kappa``, elementwise, for ``kappa >= 0``."""
        values = real_array(kappa, "kappa")
        if not np.all(values >= 0):
            raise KcalcError(
                f"kappa must be >= 0, because C maps are convex on [0, 1], got {glimpse(kappa)}"
            )
        return (self.multiplier * values)[()]

    @overload
    def inverse(self, target: Number) -> float: ...
    @overload
    def inverse(self, target: Numbers) -> Array: ...
    def inverse(self, target: Any) -> float | Array:
        """Find ``kappa`` at which the maximal curvature is ``target`` > 0, elementwise.

        Parameters
        ----------
        target
            The value to reach.

        Returns
        -------
        float | Array
            ``kappa``, with the shape of ``target``.

        Raises
        ------
        KcalcError
            For a network without nonlinear layers.

        """
        values = real_array(target, "target")
        if not self.multiplier:
            raise KcalcError(
                "the maximal curvature function has no inverse, because the network has no "
                "nonlinear layer"
            )
        if not np.all(values > 0):
            raise KcalcError(f"a target curvature must be > 0, got {glimpse(target)}")
        return (values / self.multiplier)[()]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data: the maximum as text and the assumptions.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "maximum": "curvature",
            "expr": self._short(str),
            "assumptions": plain(self.assumptions),
        }

    def __repr__(self) -> str:
        text = self._short(str)
        return f"MaximalCurvature({text if len(text) <= 178 else text[:177] + '…'})"

    def _repr_latex_(self) -> str:
        return rf"$\displaystyle \mu^2(\kappa) = {self._short(sp.latex)}$"

    def _short(self, write: Callable[[sp.Expr], str]) -> str:
        text = write(self.expr)
        return text if len(text) <= 400 else write(sp.Float(self.multiplier, 6) * common_curvature)


def maximal_curvature(network: Network, q: Any = None) -> MaximalCurvature:
    """Create the maximal curvature function of a network; see :class:`MaximalCurvature`.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    q
        The mean square of the inputs, > 0.

    Returns
    -------
    MaximalCurvature
        A function of ``kappa``.

    """
    return MaximalCurvature(network, q)
