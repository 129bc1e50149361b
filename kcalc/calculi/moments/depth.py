"""Moments of a block repeated to a symbolic depth, and scalings that keep them bounded."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import sympy as sp

from ...fields.arguments import as_number
from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import is_key
from ...foundation.printing import Printed
from ...maps.maps import Assumption
from ...network.compose import require_network
from ...network.network import Network
from ..widths import with_widths
from .closed import MINUS, PLUS, ClosedBackward, ClosedForward, tidied
from .evaluation import InputMoments, fed_by
from .laws import laws_by_node
from .moment import Moment
from .reading import compiled
from .result import InputSize, input_size

Node = Hashable
L = sp.Symbol("L", positive=True, integer=True)


@dataclass(frozen=True)
class LayerFactors:
    """Moments for one weight matrix W of a block whose input has |x|^2 = 1.

    ``second`` and ``fourth``: E |v|^2 and E |v|^4 of the vector v that W multiplies; ``mean``: E
    |M|^2 of the Jacobian M from W v to the block's output; ``plus`` and ``minus``: the two modes of
    E (tr M M^T)^2.
    """

    second: sp.Expr
    fourth: sp.Expr
    mean: sp.Expr
    plus: sp.Expr
    minus: sp.Expr


@dataclass(frozen=True, repr=False)
class DepthMoments:
    """The moments of ``depth`` consecutive copies of a block with Gaussian weights.

    E |y|^2 = |x|^2 mean_factor^depth, E |y|^4 = |x|^4 fourth_factor^depth.

    Attributes
    ----------
    block
        The block.
    depth
        The number of copies, a number or a symbol.
    mean_factor
        The factor of E |y|^2 per block.
    fourth_factor
        The factor of E |y|^4 per block.
    minus_factor
        The factor of the Jacobian's second mode (S = -T/2).
    input
        The size of the input.

    """

    block: Network
    depth: sp.Expr
    mean_factor: sp.Expr
    fourth_factor: sp.Expr
    minus_factor: sp.Expr
    layers: dict[Node, LayerFactors]
    input: InputSize

    @property
    def out(self) -> Moment:
        """The moments of |y|^2 after all blocks, as expressions."""
        square = self.input.square
        mean, fourth = self.mean_factor**self.depth, self.fourth_factor**self.depth
        return Moment.of_expressions(square * mean, square**2 * fourth)

    @property
    def relative(self) -> sp.Expr:
        """Var |y|^2 / (E |y|^2)^2 after all blocks."""
        return self.relative_factor**self.depth - 1

    @property
    def relative_factor(self) -> sp.Expr:
        """E |y|^4 / (E |y|^2)^2 for one block."""
        return tidied(self.fourth_factor / self.mean_factor**2)

    def jacobian(self, node: Node, block: Any) -> Moment:
        """Return the moments of |d y_out / d W|^2 for the weights ``node`` of one block.

        Parameters
        ----------
        node
            A node of the block with weights.
        block
            The index of the block, counted from 1: a number or a symbol.

        Returns
        -------
        Moment
            The mean and second moment, over the random weights.

        Raises
        ------
        KcalcError
            For a node without weights, or an index outside 1 ... depth.

        """
        if not is_key(node, self.layers):
            raise KcalcError(
                f"node {glimpse(node)} is not an Affine in the block; its Affine nodes are "
                f"{', '.join(map(str, self.layers))}"
            )
        k: Any = sp.sympify(as_number(block, "block"), strict=True)
        if k.is_number and (not k.is_integer or k < 1 or (self.depth.is_number and k > self.depth)):
            raise KcalcError(f"block must be an integer from 1 to {self.depth}, got {block}")
        own, left = self.layers[node], self.depth - k
        square = self.input.square
        mean = square * own.second * own.mean * self.mean_factor ** (self.depth - 1)
        modes = own.plus * self.fourth_factor**left + own.minus * self.minus_factor**left
        fourth = square**2 * own.fourth * self.fourth_factor ** (k - 1) * modes
        return Moment.of_expressions(mean, fourth)

    def stability(self, parameter: Any = None) -> Stability:
        """Return the parameter scaling that keeps moments bounded; see :func:`depth_stability`.

        Parameters
        ----------
        parameter
            The symbol that scales with depth.

        Returns
        -------
        Stability
            The scaling, or the rate of growth per copy.

        """
        return _stability(self, parameter)

    def __str__(self) -> str:
        factors = (self.mean_factor, self.fourth_factor)
        second, fourth = ("" if f == 1 else f" ({f})^({self.depth})" for f in factors)
        return f"E|y|^2 = |x|^2{second}\nE|y|^4 = |x|^4{fourth}\ninput: {self.input}"

    def _repr_latex_(self) -> str:
        factors = (self.mean_factor, self.fourth_factor)
        second, fourth = (
            "" if f == 1 else r"\, " + sp.latex(sp.Pow(f, self.depth, evaluate=False))
            for f in factors
        )
        rows = rf"E|y|^2 = |x|^2{second}\\ E|y|^4 = |x|^4{fourth}"
        return rf"$\begin{{array}}{{l}}{rows}\end{{array}}$"

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions on weights and input, and the assumptions of the block."""
        fresh = "every copy of the block has independent Gaussian weights"
        own = (Assumption("block", fresh), Assumption("block", f"the input has {self.input}"))
        return (*own, *self.block.assumptions)

    def __repr__(self) -> str:
        shown = f"depth {self.depth}, input {self.input}, mean factor {self.mean_factor}"
        return f"DepthMoments({len(self.block)} nodes, {shown})"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, with expressions as text.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        names = ("depth", "mean_factor", "fourth_factor", "minus_factor")
        layers = {
            str(node): {k: str(v) for k, v in vars(one).items()}
            for node, one in self.layers.items()
        }
        found = {name: str(getattr(self, name)) for name in names}
        return found | {"input": self.input.to_dict(), "layers": layers}


def moments_at_depth(
    block: Network, depth: Any = L, features: Any = None, q: Any = None
) -> DepthMoments:
    """Compute the exact moments of ``depth`` consecutive copies of a block.

    The block has one input and one output of the same width.

    Weights are Gaussian, and the output of each copy is the input of the next copy.

    Parameters
    ----------
    block
        A network with one input and one output, such as one built by ``kc.chain``.
    depth
        A number or a SymPy symbol.
    features
        The width of layers that do not specify one, or {node: width}.
    q
        The mean square of the input of the first copy, |x|^2 = q * channels. By default |x|^2 = 1,
        as for :func:`kc.moments`.

    Returns
    -------
    DepthMoments
        The moments as functions of the depth.

    Raises
    ------
    KcalcError
        In the same cases as :func:`kc.moments`, for blocks with several outputs or different widths
        at input and output, and for a depth that is not an integer >= 1.

    """
    require_network(block)
    length: Any = sp.sympify(as_number(depth, "depth"), strict=True)
    if length.is_number and (not length.is_integer or length < 1):
        raise KcalcError(f"depth must be an integer >= 1 or a SymPy symbol, got {depth}")
    sized = with_widths(block, features, symbols=True)
    read = compiled(sized, laws_by_node(sized, "gaussian"))
    if len(sized.outputs) != 1:
        raise KcalcError(
            f"a block needs one output, but this one has {len(sized.outputs)} outputs: "
            f"{', '.join(map(str, sized.outputs[:4]))}"
        )
    out, source = read.features[sized.outputs[0]], read.features[sized.inputs[0]]
    if (
        sp.simplify(
            sp.sympify(out.vector.width, strict=True) - sp.sympify(source.vector.width, strict=True)
        )
        != 0
    ):
        raise KcalcError(
            "a repeated block must have the same width at its input and output, got "
            f"{source.vector.width} -> {out.vector.width}"
        )
    size = input_size(sized, q, "moments_at_depth(..., q=None)")
    one = sp.Integer(1)
    forward = ClosedForward(read, out.vector, InputMoments(one, one), commit=True)
    backward = ClosedBackward(read, out.vector, commit=True)
    square = sp.sympify(out.factor, strict=True) ** 2
    second, fourth = forward.norm(out.vector)
    layers: dict[Node, LayerFactors] = {}
    for node, fresh in read.owners.items():
        fed = fed_by(fresh, node)
        scale = sp.sympify(fed.amplitude, strict=True) ** 2 * square
        modes = backward.fourths[fresh.id]
        below = forward.norm(fed.source)
        layers[node] = LayerFactors(
            *below,
            scale * backward.seconds[fresh.id],
            scale**2 * modes[PLUS],
            scale**2 * modes[MINUS],
        )
    entry = backward.entry
    factors = tidied(square * second), tidied(square**2 * fourth), tidied(square**2 * entry[MINUS])
    return DepthMoments(sized, length, *factors, layers, size)


@dataclass(frozen=True)
class Stability(Printed):
    """The scaling that keeps the moments of a deep network of identical blocks bounded.

    Without a ``parameter``, ``bounded`` and ``rate`` describe growth with depth.

    If the block tends to the identity as the ``parameter`` tends to 0, moments stay bounded if and
    only if s = depth * parameter^mean_power stays bounded. Then E |y|^2 -> exp(mean_rate s) and E
    |y|^4 -> exp(fourth_rate s).

    For other blocks, ``critical`` and ``rate`` describe the parameter. Fields that do not apply are
    None or empty.

    Attributes
    ----------
    bounded
        Whether both moments stay bounded at any depth; None if symbols leave this open.
    parameter
        The symbol that scales with depth.
    mean_power
        The power of the parameter in s.
    mean_rate
        The rate in E |y|^2 -> exp(mean_rate s).
    fourth_rate
        The rate in E |y|^4 -> exp(fourth_rate s).
    critical
        The values of the parameter at which one block preserves the mean.
    rate
        The growth of log E|y|^4 per block, at the first critical value if there is a parameter.
    assumptions
        The assumptions.

    """

    mean_factor: sp.Expr
    relative_factor: sp.Expr
    bounded: bool | None
    parameter: sp.Symbol | None = None
    mean_power: sp.Expr | None = None
    mean_rate: sp.Expr | None = None
    fourth_rate: sp.Expr | None = None
    critical: tuple[sp.Expr, ...] = ()
    rate: sp.Expr | None = None
    assumptions: tuple[Assumption, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        lines = [
            f"one block multiplies E|y|^2 by {self.mean_factor} and E|y|^4/(E|y|^2)^2 by "
            f"{self.relative_factor}"
        ]
        if self.mean_power is not None:
            power = "" if self.mean_power == 1 else f"^{self.mean_power}"
            s = sp.Symbol("s")
            second, fourth = (sp.exp(rate * s) for rate in (self.mean_rate, self.fourth_rate))
            lines.append(
                f"bounded as depth grows if and only if s = depth * {self.parameter}{power} is "
                f"bounded; then E|y|^2 -> {second}, E|y|^4 -> {fourth}"
            )
        elif self.critical:
            values = ", ".join(map(str, self.critical))
            lines.append(
                f"the mean is preserved at {self.parameter} = {values}, where log E|y|^4 grows by "
                f"{self.rate} per block"
            )
        elif self.bounded is not None:
            lines.append("bounded at every depth" if self.bounded else "not bounded as depth grows")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, with expressions as text.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        apart = ("bounded", "critical", "assumptions")
        table = {
            name: str(value)
            for name, value in vars(self).items()
            if value is not None and name not in apart
        }
        return table | {"bounded": self.bounded, "critical": [str(v) for v in self.critical]}

    def _frame(self) -> list[dict[str, Any]]:
        return [self.to_dict()]


def depth_stability(block: Network, parameter: Any = None, features: Any = None) -> Stability:
    """Compute the scaling that keeps moments of a repeated block bounded, or their rate of growth.

    A residual block whose branch contains m factors alpha gives s = L alpha^m; bounding L
    alpha^(2m) is not enough. A plain relu layer preserves its mean at alpha = 1. Its fourth moment
    then grows by a factor 1 + 5/n per layer, so widths must grow as fast as depth.

    Parameters
    ----------
    block
        A network with one input and one output, such as one built by ``kc.chain``.
    parameter
        A SymPy symbol in the block's sigma_w or sums.
    features
        The width of layers that do not specify one, or {node: width}.

    Returns
    -------
    Stability
        The scaling, or the rate of growth per copy.

    Raises
    ------
    KcalcError
        In the same cases as :func:`moments_at_depth`, and for a parameter that is not in the block.

    References
    ----------
    [Per-layer gradient, sec. 4.2, corrected]

    """
    return moments_at_depth(block, L, features).stability(parameter)


def _stability(found: DepthMoments, parameter: Any) -> Stability:
    mean: Any = found.mean_factor
    relative, fourfold = found.relative_factor, found.fourth_factor
    free: Any = mean.free_symbols | relative.free_symbols
    if parameter is None:
        rate = sp.log(found.fourth_factor)
        return Stability(
            mean,
            relative,
            _bounded(mean, found.fourth_factor),
            rate=rate,
            assumptions=found.assumptions,
        )
    wanted = parameter if isinstance(parameter, str) else getattr(parameter, "name", None)
    symbol: Any = next((s for s in free if s.name == wanted), None)
    if symbol is None:
        raise KcalcError(
            f"the block has no parameter {glimpse(parameter)}; its symbols are "
            f"{', '.join(sorted(map(str, free))) or 'none'}"
        )
    if all(sp.simplify(factor.subs(symbol, 0) - sp.Integer(1)) == 0 for factor in (mean, fourfold)):  # pyright: ignore
        rate, power = _leading(mean - 1, symbol)
        fourth, other = _leading(found.fourth_factor - 1, symbol)
        if power == other:
            return Stability(
                mean, relative, None, symbol, power, rate, fourth, assumptions=found.assumptions
            )
    roots = sp.solve(sp.Eq(mean, 1), symbol)
    critical = tuple(r for r in roots if r.is_real is not False and r.is_nonnegative is not False)
    rate = sp.log(tidied(found.fourth_factor.subs(symbol, critical[0]))) if critical else None
    return Stability(
        mean, relative, None, symbol, critical=critical, rate=rate, assumptions=found.assumptions
    )


def _leading(expr: sp.Expr, symbol: sp.Symbol) -> tuple[sp.Expr, sp.Expr]:
    """Return (coefficient, power) of the lowest-order term."""
    term: Any = sp.factor(sp.expand(expr).as_leading_term(symbol))
    coefficient, rest = term.as_independent(symbol, as_Add=False)
    return tidied(coefficient), sp.Integer(0) if rest == 1 else rest.as_base_exp()[1]


def _bounded(mean: sp.Expr, fourth: sp.Expr) -> bool | None:
    if mean.free_symbols or fourth.free_symbols:
        return None
    return bool(mean <= 1 and fourth <= 1)
