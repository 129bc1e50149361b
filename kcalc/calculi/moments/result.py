"""Exact moments as a result: per node and per weight matrix, with their assumptions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sympy as sp

from ...fields import SYMPY
from ...fields.arguments import as_number, symbolic_q
from ...foundation.errors import KcalcError, unknown
from ...foundation.guests import DRAWINGS
from ...foundation.plain_arguments import is_key, mapping
from ...foundation.printing import Rows, Shown, filled_columns, plain
from ...foundation.process_state import cached_property
from ...maps.maps import Assumption
from ...network.layers import Affine
from ...network.network import Network
from .moment import Moment, _plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node = Hashable
NAMES = ("mean", "fourth", "variance")


@dataclass(frozen=True)
class InputSize:
    """The size of an input x.

    Attributes
    ----------
    square
        |x|^2.
    q
        The mean square, |x|^2 / channels.

    """

    square: Any
    q: Any

    def subs(self, values: Any) -> InputSize:
        """Substitute numbers for symbols.

        Parameters
        ----------
        values
            {symbol or its name: number}.

        Returns
        -------
        InputSize
            The size at these values.

        """
        return InputSize(sp.sympify(self.square).subs(values), sp.sympify(self.q).subs(values))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with expressions as text.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        found = ((name, sp.sympify(value)) for name, value in vars(self).items())
        return {name: _plain(v if v.free_symbols else float(v)) for name, v in found}

    def __str__(self) -> str:
        parts = self.to_dict().values()
        square, q = (part if isinstance(part, str) else f"{part:.6g}" for part in parts)
        return f"|x|^2 = {square}, q = {q}"


def input_size(network: Network, q: Any, signature: str) -> InputSize:
    """Return the size of an input with mean square ``q``; by default |x|^2 = 1.

    Raises: KcalcError for a ``q`` that is neither a positive number nor an expression in symbols.
    """
    layer: Any = network.layer(network.inputs[0])
    width: Any = sp.sympify(layer.features, strict=True)
    if q is None:
        return InputSize(sp.Integer(1), 1 / width)
    level = symbolic_q(as_number(q, "q"), "q", signature)
    return InputSize(level * width, level)


@dataclass(frozen=True, repr=False)
class Moments(Shown):
    """Exact moments of a network at finite width, for one input.

    Means are proportional to |x|^2; fourth moments and variances are proportional to |x|^4.

    Attributes
    ----------
    input
        The size of the input: ``square`` = |x|^2 (1 if no q value was given) and ``q`` = |x|^2 /
        channels.
    nodes
        {node: :class:`Moment` of |y|^2}, where y is the vector of channels.
    weights
        {Affine: :class:`Moment` of |J|^2}, where |J|^2 is the sum of squares of d y_out / d W over
        all channels of ``output`` and all entries of the weights.
    network
        The network with all widths filled in.

    """

    network: Network
    output: Node
    nodes: dict[Node, Moment]
    assumptions: tuple[Assumption, ...]
    jacobians: dict[Node, Moment] | None
    input: InputSize
    refusal: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    again: Callable[..., Moments] | None = field(default=None, compare=False)
    most = 40

    @property
    def weights(self) -> dict[Node, Moment]:
        """{Affine: Moment of |J|^2}.

        Raises: KcalcError if Jacobians were not requested, or if the distribution of weights has
        atoms.
        """
        if self.jacobians is None:
            raise KcalcError(self.refusal)
        return self.jacobians

    @property
    def out(self) -> Moment:
        """The moments of the output."""
        return self.nodes[self.output]

    @property
    def symbolic(self) -> bool:
        """Whether moments are SymPy expressions."""
        return isinstance(self.out.mean, sp.Basic)

    @cached_property
    def growth(self) -> float:
        """1 plus the relative variance of the output.

        This equals E |y|^4 / (E |y|^2)^2, which is 1 for a norm without fluctuations.
        """
        return 1 + self.out.relative

    def width_for(self, variance: float, most: int = 10**9) -> int:
        """Find the smallest ``features=`` with relative output variance <= ``variance``.

        Parameters
        ----------
        variance
            The largest accepted relative variance of the output.
        most
            The largest width to try.

        Returns
        -------
        int
            A number of channels.

        Raises
        ------
        KcalcError
            If layers define all widths, or if even ``most`` channels are too few.

        """
        from .stability import width_for

        assert self.again is not None
        return width_for(self.again, self.options, variance, most)

    def subs(self, values: Mapping[Any, Any]) -> Moments:
        """Substitute numbers (or expressions) for symbols.

        Parameters
        ----------
        values
            {symbol or its name: number}.

        Returns
        -------
        Moments
            The moments at these values.

        Raises
        ------
        KcalcError
            For unknown symbols.

        """
        from dataclasses import replace

        every = [*self.nodes.values(), *(self.jacobians or {}).values()]
        parts = (
            sp.sympify(part).free_symbols
            for moment in every
            for part in (moment.mean, moment.fourth)
        )
        free = self.network.free_symbols.union(*parts, sp.sympify(self.input.square).free_symbols)
        named: dict[Any, Any] = {symbol.name: symbol for symbol in free}
        given: dict[Any, Any] = {}
        for key, value in mapping(values, "values").items():
            name = key if isinstance(key, str) else getattr(key, "name", None)
            if not is_key(name, named):
                raise unknown("symbol", key, named or ["(the moments have no symbols)"])
            given[named[name]] = SYMPY.number(value)
        nodes = {node: moment.subs(given) for node, moment in self.nodes.items()}
        jacobians = (
            None
            if self.jacobians is None
            else {node: moment.subs(given) for node, moment in self.jacobians.items()}
        )
        return replace(self, nodes=nodes, jacobians=jacobians, input=self.input.subs(given))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the relative variances of |y|^2 by node and of |J|^2 by layer.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["Moments"]({"": self}, ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "output": str(self.output),
            "input": self.input.to_dict(),
            "nodes": plain(self.nodes),
            "weights": plain(self.jacobians),
            "assumptions": plain(self.assumptions),
        }

    # -- display -----------------------------------------------------------------------------------

    def _rows(self) -> Rows:
        head = (
            "node",
            "layer",
            *(f"{name} |y|^{2 if name == 'mean' else 4}" for name in NAMES[:2]),
            "Var |y|^2",
        )
        rows: list[tuple[str, ...]] = [(*head, "mean |J|^2", "mean |J|^4", "Var |J|^2")]
        for node, moment in self.nodes.items():
            weights = (self.jacobians or {}).get(node)
            jacobian = [weights.text(name) for name in NAMES] if weights is not None else [""] * 3
            rows.append(
                (
                    str(node),
                    type(self.network.layer(node)).__name__,
                    *[moment.text(name) for name in NAMES],
                    *jacobian,
                )
            )
        return filled_columns([row[:4] + row[5:7] for row in rows] if self.symbolic else rows)

    def _below(self) -> list[str]:
        return [f"input: {self.input}"]

    def _frame(self) -> list[dict[str, Any]]:
        def named(end: str, moment: Moment | None) -> dict[str, Any]:
            return {
                f"{name} {end}": None if moment is None else getattr(moment, name)
                for name in (*NAMES, "relative")
            }

        weights = self.jacobians or {}
        return [
            {"node": str(n)} | named("of |y|^2", m) | named("of |J|^2", weights.get(n))
            for n, m in self.nodes.items()
        ]

    def __repr__(self) -> str:
        mean, relative = self.out.text("mean"), self.out.text("relative")
        at = f"E|y|^2 = {mean}, Var|y|^2/(E|y|^2)^2 = {relative} at {self.output!r}"
        return f"Moments({len(self.nodes)} nodes, input {self.input}, {at})"


def law_names(network: Network, laws: Mapping[Node, Any]) -> list[tuple[Node, str]]:
    """Return (node, distribution) pairs for the weights; one pair if all distributions agree."""
    names = {node: str(laws[node]) for node in network.nodes_of(Affine)}
    if len(set(names.values())) == 1:
        return [("network", next(iter(names.values())))]
    return list(names.items())
