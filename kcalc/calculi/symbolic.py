"""Kernel maps in symbols: the kernel calculus with local maps as named functions and intermediate values named."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy as sp
from sympy.core.function import AppliedUndef

from .. import symbols
from ..activations import Activation
from ..compose import fold
from ..composition import Composition, LocalFunction, Stage
from ..fields import SYMPY
from ..fields.jets import Jet
from ..layers import Layer
from ..maps import Assumption
from ..network import Network, channel_widths, concat_channels
from .atoms import Atom, Pair, Term
from .channels import Channels
from .kernel import Kernel
from .second_moments import Moments

Node = Hashable
NAMED_SIZE = 60
Q1, Q2 = sp.symbols("q_1 q_2", positive=True)


def symbolic_map(network: Network, q1: Any, q2: Any, letter: str, assume_independent: bool = False) -> Any:
    """The global C map (``letter`` "C") or Q map ("Q") as a :class:`Composition`, {output: composition} for several outputs."""
    kernel, namer, states, arguments = _read(network, q1, q2, letter, assume_independent)
    parts = {}
    for node in network.outputs:
        whole_q, _, whole_gap = kernel.whole(states[node])
        value = whole_q if letter == "Q" else cosine(whole_gap.value)
        used = {f.func for e in (value, *(e for stage in namer.stages for _, e in stage.definitions)) for f in e.atoms(AppliedUndef)}
        functions = tuple(f for f in kernel.functions.values() if f.function in used)
        parts[node] = Composition(arguments, tuple(namer.stages), value, letter, functions)
    return parts[network.outputs[0]] if len(parts) == 1 else parts


def symbolic_notes(network: Network, assume_independent: bool = False) -> tuple[Assumption, ...]:
    """What the kernel calculus assumes on a network whose layers have symbols."""
    return tuple(_read(network, 1, None, "C", assume_independent)[0].notes.values())


def _read(
    network: Network, q1: Any, q2: Any, letter: str, assume: bool
) -> tuple[NamingKernel, Namer, dict[Node, Channels], tuple[Any, ...]]:
    many = len(network.inputs) > 1
    gap: dict[Node, Any]
    if letter == "C":
        cosines = {n: sp.Symbol(f"c_{n}", real=True) if many else symbols.c for n in network.inputs}
        first = {n: SYMPY.number(q1) for n in network.inputs}
        arguments: tuple[Any, ...] = tuple(cosines.values())
        gap = {n: Jet((1 - c,)) for n, c in cosines.items()}
    else:
        first = {n: sp.Symbol(f"q_{n}", positive=True) if many else q1 for n in network.inputs}
        arguments, gap = tuple(first.values()), dict.fromkeys(network.inputs, 0)
    second = first if q2 is None else {n: SYMPY.number(q2) for n in network.inputs}
    free = set().union(network.free_symbols, *(v.free_symbols for v in (*first.values(), *second.values())))
    extra = sorted(free - set(arguments), key=str)
    kernel = NamingKernel(SYMPY, second is first, letter == "C", concat_channels(network), assume, channel_widths(network))
    namer = Namer(network, kernel)
    states = fold(network, namer, {n: kernel.start(n, first[n], second[n], gap[n]) for n in network.inputs})
    namer.finish()
    return kernel, namer, states, (*arguments, *extra)


def cosine(gap: sp.Expr) -> sp.Expr:
    """``1 - gap``, over one denominator where the gap has one."""
    if _nested(gap):
        gap = sp.cancel(gap)
    above, below = sp.fraction(gap)
    if below.is_number:
        return tidy(1 - gap)
    return sp.expand_mul(below - above) / below


def _nested(expr: sp.Expr) -> bool:
    """Whether a denominator has denominators of its own, as where a LayerNorm divides by what it has divided."""
    below = [p.base for p in expr.atoms(sp.Pow) if p.exp.is_Rational and p.exp < 0 and p.base.is_Add]
    return any(p.exp.is_Rational and p.exp < 0 and p.base.is_Add for base in below for p in base.atoms(sp.Pow))


def tidy(expr: sp.Expr) -> sp.Expr:
    """Linear mixes multiplied out; functions left as they are."""
    return sp.expand(expr, deep=False, power_base=False, power_exp=False, log=False)


@dataclass
class NamingKernel(Kernel):
    """The kernel calculus in SymPy with ``Q_phi``, ``C_phi`` and ``M_phi`` kept as functions where they are not trivial."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.functions: dict[tuple[str, Activation], LocalFunction] = {}
        self._names: dict[str, Activation] = {}

    def _local_q(self, phi: Activation, q: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
        second, mean = _closed_moments(phi)
        if sp.cancel(second / symbols.q).is_number:
            second = second.subs(symbols.q, q)
        else:
            second = self._function("Q", phi, (symbols.q,), second)(q)
        if not mean.atoms(AppliedUndef) and sp.count_ops(mean) < NAMED_SIZE / 4:
            return second, mean.subs(symbols.q, q)
        return second, self._function("M", phi, (symbols.q,), mean)(q)

    def _local_gap(self, phi: Activation, gap: Any, q1: sp.Expr, q2: sp.Expr) -> Any:
        if not self.follow_c:
            return 0
        c = cosine(gap.value)
        uniform = q1 == q2
        closed, by_q = _closed_cosine(phi, uniform)
        if not by_q:
            return Jet((1 - self._function("C", phi, (symbols.c,), closed)(c),))
        if uniform:
            return Jet((1 - self._function("C", phi, (symbols.c, symbols.q), closed)(c, q1),))
        return Jet((1 - self._function("C", phi, (symbols.c, Q1, Q2), closed)(c, q1, q2),))

    def _function(self, letter: str, phi: Activation, arguments: Sequence[sp.Symbol], closed: sp.Expr) -> Any:
        key = (letter + str(len(arguments)), phi)
        if key not in self.functions:
            known = None if closed.atoms(AppliedUndef) else closed
            self.functions[key] = LocalFunction(sp.Function(f"{letter}_{self._name(phi)}"), tuple(arguments), known, phi)
        return self.functions[key].function

    def _name(self, phi: Activation) -> str:
        """A short word for an activation, distinct from those of other activations."""
        word = re.sub(r"[^A-Za-z0-9]+", "", re.split(r"[\[( ]", phi.name)[0]) or "phi"
        number, name = 1, word
        while self._names.setdefault(name, phi) != phi:
            number += 1
            name = f"{word}{number}"
        return name


@lru_cache(maxsize=256)
def _closed_moments(phi: Activation) -> tuple[sp.Expr, sp.Expr]:
    """Q and the mean as functions of ``symbols.q``."""
    return phi.second_moment(symbols.q, SYMPY), phi.mean(symbols.q, SYMPY)


@lru_cache(maxsize=256)
def _closed_cosine(phi: Activation, uniform: bool) -> tuple[sp.Expr, bool]:
    """C as a function of ``symbols.c`` and q values, and whether it depends on q."""
    two = (symbols.q, symbols.q) if uniform else (Q1, Q2)
    closed = tidy(1 - phi.taylor(1 - symbols.c, *two, 0, SYMPY)[0])
    return closed, bool(closed.free_symbols & set(two) or closed.atoms(AppliedUndef))


class Namer:
    """The naming kernel as a calculus that also names the state at cut points, and elsewhere where expressions are ``long``."""

    long = NAMED_SIZE

    def __init__(self, network: Network, kernel: NamingKernel) -> None:
        self.cuts = set(network.cut_nodes())
        self.kernel = kernel
        self.stages: list[Stage] = []
        self.pending: list[tuple[sp.Symbol, sp.Expr]] = []
        self.count = 1
        self.names: set[str] = set()

    def rule(self, layer: Layer, node: Node, inputs: list[Channels]) -> Channels:
        """The kernel's rule, its result renamed."""
        state = self.kernel.rule(layer, node, inputs)
        cut = node in self.cuts and len(state.groups) == 1
        state = state.map(lambda pair: self._named(pair, node, cut))
        if cut and self.pending:
            self.stages.append(Stage(tuple(self.pending), self._carried(state.pairs[0].moments)))
            self.pending = []
            self.count += 1
        return state

    def finish(self) -> None:
        """Keep the definitions made after the last cut."""
        if self.pending:
            self.stages.append(Stage(tuple(self.pending), ()))
            self.pending = []

    def _fresh_name(self, letter: str) -> str:
        """``c_7``, or ``c_{7a}``, ``c_{7b}`` ... where that is taken."""
        name, tail = f"{letter}_{self.count}", 0
        while name in self.names:
            name, tail = f"{letter}_{self.count}{'abcdefghijklmnopqrstuvwxyz'[tail % 26]}{tail // 26 or ''}", tail + 1
        self.names.add(name)
        return name

    @staticmethod
    def _carried(m: Moments) -> tuple[sp.Symbol, ...]:
        values = [m.q1, m.q2] + ([cosine(m.gap.value)] if isinstance(m.gap, Jet) else [])
        return tuple(dict.fromkeys(v for v in values if isinstance(v, sp.Symbol)))

    def _named(self, pair: Pair, node: Node, cut: bool) -> Pair:
        m = pair.moments
        q1 = self._name("q", m.q1, cut, positive=True)
        q2 = q1 if self.kernel.uniform or m.q1 == m.q2 else self._name("p", m.q2, cut, positive=True)
        gap = self._named_gap(m.gap, cut) if isinstance(m.gap, Jet) else m.gap
        same_gap = not isinstance(gap, Jet) or gap.coefficients == m.gap.coefficients
        if q1 is m.q1 and q2 is m.q2 and same_gap:
            return pair
        moments = Moments(q1, q2, gap, m.mean1, m.mean2)
        if pair.shift1 != 0 or pair.shift2 != 0:
            return replace(pair, moments=moments)
        gaussian = all(t.atom.gaussian for t in pair.terms)
        atom = Atom(node, moments, pair.support, gaussian, any(t.atom.raw for t in pair.terms), pair.terms)
        return Pair(moments, (Term(1, 1, atom),), window=pair.window)

    def _named_gap(self, gap: Jet, cut: bool) -> Jet:
        return Jet((1 - self._name("c", cosine(gap.value), cut, real=True),))

    def _name(self, letter: str, expr: sp.Expr, cut: bool, **assumptions: bool) -> sp.Expr:
        if isinstance(expr, sp.Symbol) or expr.is_Rational:
            return expr
        trivial = not expr.atoms(AppliedUndef) and sp.count_ops(expr) <= 3
        if trivial or (not cut and sp.count_ops(expr) < self.long):
            return expr
        symbol = sp.Symbol(self._fresh_name(letter), **assumptions)
        self.pending.append((symbol, expr))
        return symbol
