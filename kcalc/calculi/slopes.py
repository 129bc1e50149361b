"""Slope polynomials: a network's ``C'(1)`` as a function of the slope of its nonlinear layers.

The factors of a slope polynomial follow the structure of the network.

Replace the C map of every nonlinear layer by ``r(x) = psi x`` and every sum and concatenation by a
convex combination; the network then multiplies 1 by its slope polynomial ``p(psi)``, with
``p(1) = 1`` and coefficients >= 0 [DKS sec. 17.1, 21.3]. The slope of a Product is the sum of its k
factors' slopes, so ``p(1) = k`` there. The calculus is formal: it assumes a shaped network
(``sigma_b = 0``, ``C(0) = 0`` before each LayerNorm). It does not check that activation inputs are
Gaussian or that addends are independent, and it counts a feature map that a Sum reads twice as two
addends. If the q value of the inputs is given, mixes are weighted by the true q values. A LayerNorm
that reads channel means ``m`` then has its true slope ``q / (q - m^2) >= 1``, so ``p(1) >= 1``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, overload

import sympy as sp

from ..activations import Activation
from ..foundation.plain_arguments import truth
from ..foundation.symbols import psi as common_slope
from ..foundation.symbols import slope_of
from ..maps.maps import sole
from ..network.network import Network
from ..network.primitives import Post
from .convex import ConvexCalculus
from .expansion import polynomial, too_long
from .factored import ONE, Factors, Monomial

Node = Hashable
READABLE = 80  # polynomials with up to this many terms are printed in full


class Slopes(ConvexCalculus[Monomial]):
    """The calculus of factored slope polynomials.

    Nonlinear layers multiply by ``psi``, or by one symbol per activation.
    """

    def __init__(
        self, network: Network, q: Any = None, symbols_by_activation: bool = False
    ) -> None:
        super().__init__(network, q)
        self.factors = Factors()
        self.symbols: dict[Any, sp.Symbol] = {}
        self._by_activation = truth(symbols_by_activation, "symbols_by_activation")

    def start(self) -> Monomial:
        return ONE

    def normalise(self, slope: sp.Expr, state: Monomial) -> Monomial:
        return self.factors.product(state, self.factors.constant(slope))

    def nonlinear(self, op: Post, node: Node, state: Monomial) -> Monomial:
        symbol = self._symbol(op.activation) if self._by_activation else common_slope
        return self.factors.product(state, self.factors.symbol(symbol))

    def _symbol(self, phi: Activation) -> sp.Symbol:
        """Return the slope symbol of an activation; each activation has one symbol.

        Activations that share a name are numbered in order.
        """
        if phi not in self.symbols:
            name, number = phi.name, 2
            symbol, taken = slope_of(name), set(self.symbols.values())
            while symbol in taken:
                symbol, number = slope_of(f"{name}_{number}"), number + 1
            self.symbols[phi] = symbol
        return self.symbols[phi]

    def mix(self, shares: Sequence[sp.Expr], states: Sequence[Monomial]) -> Monomial:
        return self.factors.mix(shares, states)


def polynomial_texts(
    factors: Factors, monomials: Sequence[Monomial], write: Callable[[Any], str] = str
) -> list[str]:
    """Format polynomials in factored form; describe long polynomials by their degree."""
    sizes, degrees = (factors.measure(monomials, largest=flag) for flag in (False, True))
    name = "a polynomial of degree %d" if write is str else r"\text{a polynomial of degree %d}"
    return [
        write(factors.expr(m)) if s <= READABLE else name % d
        for m, s, d in zip(monomials, sizes, degrees, strict=True)
    ]


def slope_texts(network: Network, q: Any = None) -> dict[Node, str]:
    """Return {output: text of its factored slope polynomial}; see :func:`slope_polynomial`."""
    calculus = Slopes(network, q)
    states = calculus.read()
    return dict(
        zip(
            network.outputs,
            polynomial_texts(calculus.factors, [states[node] for node in network.outputs]),
            strict=True,
        )
    )


@overload
def slope_polynomial(
    network: Network,
    q: Any = None,
    *,
    symbols_by_activation: bool = False,
    expand: Literal[False] = False,
) -> sp.Expr: ...
@overload
def slope_polynomial(
    network: Network, q: Any = None, *, symbols_by_activation: bool = False, expand: Literal[True]
) -> sp.Poly: ...
def slope_polynomial(
    network: Network, q: Any = None, *, symbols_by_activation: bool = False, expand: bool = False
) -> sp.Expr | sp.Poly:
    """Compute the slope polynomial ``p(psi)`` of a network.

    Its factors follow the structure of the network.

    If the factored form would have more than 50,000 terms, as in densely connected networks, the
    polynomial is expanded.

    All network inputs share one c value.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    q
        The q value of the inputs, or {node: q value}, for the weights of addends in sums. None
        assumes equal q values, which holds if ``Q(q) = q`` at every nonlinear layer and sums are
        normalised [DKS footnote 10]. With one q value, LayerNorms also have their true slopes
        ``q / (q - m^2)``, where ``m`` is the mean over the channels that they read. Otherwise their
        slope is 1.
    symbols_by_activation
        Whether each activation has a separate symbol ``psi_<name>``.
    expand
        Whether to expand the polynomial, exactly if weights are exact.

    Returns
    -------
    sp.Expr | sp.Poly
        A SymPy expression in ``kc.symbols.psi`` (a ``sympy.Poly`` if ``expand``), or {output:
        expression} for several outputs. Its assumptions are
        ``kc.maximal_slope(network, q).assumptions``.

    Raises
    ------
    NoRule
        For BatchNorm and Opaque.
    KcalcError
        For a Concat that mixes parts with known and unknown channel counts.

    References
    ----------
    [DKS sec. 21.3, eq. 20]

    Examples
    --------
    >>> import kcalc as kc
    >>> kc.slope_polynomial(kc.architectures.vanilla(3, "tanh"))
    psi**3

    """
    calculus = Slopes(network, q, symbols_by_activation)
    states = calculus.read()
    write = polynomial if truth(expand, "expand") else _expression
    return sole({node: write(calculus.factors, states[node]) for node in network.outputs})


def _expression(factors: Factors, monomial: Monomial) -> sp.Expr:
    return (
        polynomial(factors, monomial).as_expr()
        if too_long(factors, monomial)
        else factors.expr(monomial)
    )
