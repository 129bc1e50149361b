"""Symbolic tangent kernels: a composition of named cosines ``c_k`` and tangents ``t_k``.

``t_k`` is the tangent kernel of a feature map divided by sqrt(q1 q2).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any

import sympy as sp
from sympy.core.function import AppliedUndef

from ..activations import Activation
from ..fields import SYMPY
from ..fields.arguments import formula_symbols
from ..fields.jets import Jet
from ..foundation import symbols
from ..maps.composition import Composition
from ..network.compose import interpret
from ..network.network import Network
from ..network.primitives import Post, Primitive
from .channels import Channels
from .kernel import kernel_over
from .second_moments import Moments
from .symbolic import (
    NAMED_SIZE,
    Letters,
    NamedMaps,
    Namer,
    P,
    collected,
    cosine,
    cosine_inputs,
    tidy,
    unscaled,
    with_exact_numbers,
)
from .tangent import Tangent, unseen_nodes

Node = Hashable


def symbolic_kernels(
    network: Network,
    q1: Any = 1,
    q2: Any = None,
    seeds: Mapping[Node, Any] | None = None,
    fan_in: Mapping[Node, int] | None = None,
    assume_independent: bool = False,
) -> dict[Node, tuple[Composition, Composition]]:
    """Return {output: (NNGP, NTK)} as compositions in ``c`` (``c_<input>`` for several inputs)."""
    network = with_exact_numbers(network)
    cosines, first, second = cosine_inputs(network, q1, q2)
    others = network.free_symbols | first.free_symbols | second.free_symbols
    arguments = formula_symbols(tuple(cosines.values()), others)
    maps = NamedSlopes()
    plain = kernel_over(SYMPY, second == first, True, assume_independent, maps)
    kernel = Tangent(plain, seeds, fan_in, unseen_nodes(network))
    namer = TangentNamer(network, kernel, maps, arguments)
    start = {n: kernel.start(n, first, second, Jet((1 - c, sp.S.Zero))) for n, c in cosines.items()}
    states = interpret(network, namer, start)
    namer.finish()
    out = {}
    for node in network.outputs:
        covariance, tangent = kernel.kernels(states[node])
        parts = ((covariance, "K"), (tangent, "Theta"))
        first_, second_ = (
            namer.composition(arguments, sp.expand_mul(value), letter) for value, letter in parts
        )
        out[node] = (first_, second_)
    return out


class NamedSlopes(NamedMaps):
    """Local maps ``C_phi`` and their derivatives ``DC_phi`` as named functions."""

    def gap(self, phi: Activation, gap: Jet, q1: sp.Expr, q2: sp.Expr) -> Jet:
        """The Jet (1 - C, its coefficient of e) after phi, in terms of the named functions."""
        (value,) = super().gap(phi, gap, q1, q2).coefficients
        phi, _ = unscaled(phi)
        uniform = q1 == q2
        slope, by_q = _closed_slope(phi, uniform)
        c = cosine(gap.value)
        places = ((symbols.q,) if uniform else (symbols.q, P)) if by_q else ()
        given = ((q1,) if uniform else (q1, q2)) if by_q else ()
        local = self.function("DC", phi, (symbols.c, *places), slope)
        return Jet((value, local(c, *given) * gap.coefficients[1]))


@lru_cache(maxsize=256)
def _closed_slope(phi: Activation, uniform: bool) -> tuple[sp.Expr, bool]:
    """Return dC/dc as a function of ``symbols.c`` and q values, and whether it depends on q."""
    two = (symbols.q, symbols.q) if uniform else (symbols.q, P)
    gap = phi.taylor(1 - symbols.c, *two, 0, SYMPY)[0]
    unknown = bool(gap.atoms(AppliedUndef))
    closed = (
        sp.Function("DC")(symbols.c, *two)
        if unknown
        else sp.factor_terms(tidy(-sp.diff(gap, symbols.c)))
    )
    return closed, unknown or bool(closed.free_symbols & set(two))


def recursion(c: sp.Expr, gap: sp.Expr, tangent: sp.Expr) -> sp.Expr:
    """Write a tangent as the cosine plus a remainder, c + C' t, if this makes it shorter."""
    whole = collected(tangent)
    rest = collected(tangent - (1 - gap))
    if len(sp.Add.make_args(rest)) < len(sp.Add.make_args(whole)):
        return c + rest
    return whole


class TangentNamer(Namer):
    """Name tangents and cosines that have at least 6 operations, because NNGP and NTK share them.

    The values of activations are not named, but the values of the layers that read them are. The
    formulas then look like formulas in papers: Theta = K + sigma_w^2 K' Theta, or t_2 = c_2 +
    C'(c_1) t_1 for cosines.
    """

    long = 6

    def rule(self, op: Primitive, node: Node, inputs: list[Any]) -> Any:
        """As in :class:`Namer`, except that after an activation only long values are named."""
        self.activated = isinstance(op, Post)
        self.long = NAMED_SIZE if self.activated else TangentNamer.long
        return super().rule(op, node, inputs)

    def _all_named(self, state: Channels, node: Node, cut: bool, letters: Letters) -> Channels:
        return super()._all_named(state, node, cut and not self.activated, letters)

    def _named_gap(self, gap: Jet, cut: bool) -> Jet:
        value, tangent = gap.coefficients
        c = self._name("c", cosine(value), cut, real=True)
        return Jet((1 - c, -self._name("t", recursion(c, value, -tangent), cut, real=True)))

    def _values(self, m: Moments) -> list[sp.Expr]:
        return [*super()._values(m), -m.gap.coefficients[1]]
