"""The tangent kernel in symbols: a named composition in which ``c_k`` are cosines and ``t_k`` their tangents, kernels over sqrt(q1 q2)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy as sp
from sympy.core.function import AppliedUndef

from .. import symbols
from ..activations import Activation
from ..compose import fold
from ..composition import Composition
from ..fields import SYMPY
from ..fields.jets import Jet
from ..network import Network, channel_widths, concat_channels
from .second_moments import Moments
from .symbolic import Q1, Q2, Namer, NamingKernel, cosine, tidy
from .tangent import Tangent

Node = Hashable


def symbolic_kernels(
    network: Network,
    q1: Any = 1,
    q2: Any = None,
    seeds: Mapping[Node, Any] | None = None,
    fan_in: Mapping[Node, int] | None = None,
    assume_independent: bool = False,
) -> dict[Node, tuple[Composition, Composition]]:
    """{output: (NNGP, NTK)} as compositions in the symbol ``c`` (one ``c_input`` each where there are several inputs)."""
    many = len(network.inputs) > 1
    cosines = {n: sp.Symbol(f"c_{n}", real=True) if many else symbols.c for n in network.inputs}
    first = SYMPY.number(q1)
    second = first if q2 is None else SYMPY.number(q2)
    channels, widths = concat_channels(network), channel_widths(network)
    kernel = NamingTangent(SYMPY, second == first, True, channels, assume_independent, widths, seeds, fan_in)
    namer = TangentNamer(network, kernel)
    start = {n: kernel.start(n, first, second, Jet((1 - c, sp.S.Zero))) for n, c in cosines.items()}
    states = fold(network, namer, start)
    namer.finish()
    free: Any = sorted(set().union(network.free_symbols, first.free_symbols, second.free_symbols), key=str)
    out = {}
    for node in network.outputs:
        covariance, tangent = kernel.kernels(states[node])
        parts = []
        for value, letter in ((covariance, "K"), (tangent, "Theta")):
            value = sp.expand_mul(value)
            used = {f.func for e in (value, *(e for stage in namer.stages for _, e in stage.definitions)) for f in e.atoms(AppliedUndef)}
            functions = tuple(f for f in kernel.functions.values() if f.function in used)
            parts.append(Composition((*cosines.values(), *free), tuple(namer.stages), value, letter, functions))
        out[node] = (parts[0], parts[1])
    return out


@dataclass
class NamingTangent(Tangent, NamingKernel):
    """The tangent calculus in SymPy; ``C_phi`` and its slope ``D_phi`` are kept as functions."""

    def _local_gap(self, phi: Activation, gap: Jet, q1: sp.Expr, q2: sp.Expr) -> Jet:
        (value,) = super()._local_gap(phi, gap, q1, q2).coefficients
        uniform = q1 == q2
        slope, by_q = _closed_slope(phi, uniform)
        c = cosine(gap.value)
        places = ((symbols.q,) if uniform else (Q1, Q2)) if by_q else ()
        given = ((q1,) if uniform else (q1, q2)) if by_q else ()
        local = self._function("D", phi, (symbols.c, *places), slope)
        return Jet((value, local(c, *given) * gap.coefficients[1]))


@lru_cache(maxsize=256)
def _closed_slope(phi: Activation, uniform: bool) -> tuple[sp.Expr, bool]:
    """dC/dc as a function of ``symbols.c`` and q values, and whether it depends on q."""
    two = (symbols.q, symbols.q) if uniform else (Q1, Q2)
    gap = phi.taylor(1 - symbols.c, *two, 0, SYMPY)[0]
    unknown = bool(gap.atoms(AppliedUndef))
    closed = sp.Function("D")(symbols.c, *two) if unknown else sp.factor_terms(tidy(-sp.diff(gap, symbols.c)))
    return closed, unknown or bool(closed.free_symbols & set(two))


class TangentNamer(Namer):
    """Names cosines and tangents alike, and early: each is used in both."""

    long = 6

    def _named_gap(self, gap: Jet, cut: bool) -> Jet:
        value, tangent = gap.coefficients
        return Jet((1 - self._name("c", cosine(value), cut, real=True), -self._name("t", tidy(-tangent), cut, real=True)))

    @staticmethod
    def _carried(m: Moments) -> tuple[sp.Symbol, ...]:
        carried = Namer._carried(m)
        tangent = -m.gap.coefficients[1]
        return (*carried, tangent) if isinstance(tangent, sp.Symbol) else carried
