"""Symbolic kernel maps: the kernel calculus with named local maps and intermediate values."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import sympy as sp
from sympy.core.function import AppliedUndef

from ..activations import Activation
from ..activations.base import transform
from ..activations.local_map import SYMBOLIC
from ..fields import SYMPY
from ..fields.arguments import formula_symbols, read_pair, symbolic_q
from ..fields.jets import Jet
from ..foundation import symbols
from ..foundation.formulas import exact, exact_or_root, formula_name, rounded
from ..maps.composition import Composition, LocalFunction
from ..maps.maps import Assumption, sole
from ..maps.stages import Stage, suffix
from ..network.compose import interpret
from ..network.network import Network
from ..network.primitives import Primitive
from .atoms import Atom, Pair, Term
from .channels import Channels
from .kernel import kernel_over
from .second_moments import Moments

Node = Hashable
NAMED_SIZE = 60
# letters of the two q values and the cosine of a pair of feature maps
Letters = tuple[str, str, str]
LETTERS: Letters = ("q", "p", "c")
P = sp.Symbol("p", positive=True)  # the q value of the second input, as p_k in a composition


class SymbolicInputs(NamedTuple):
    """A network with exact numbers, and the symbolic q values and cosines of its inputs.

    ``own``: the symbols of the inputs; ``others``: all other symbols; ``gap``: None for Q maps.
    """

    network: Network
    own: Sequence[sp.Symbol]
    others: set[Any]
    first: dict[Node, Any]
    second: dict[Node, Any]
    gap: dict[Node, Jet] | None

    @property
    def uniform(self) -> bool:
        """Whether both inputs have the same q values."""
        return self.first == self.second

    @property
    def taken(self) -> set[Any]:
        """The symbols that already have a meaning."""
        return {*self.own, *self.others}


class SymbolicReading(NamedTuple):
    """The symbolic result for a network: its namer, and the state of every node."""

    inputs: SymbolicInputs
    namer: Namer
    states: dict[Node, Any]

    def composed(self, letter: str) -> Any:
        """The map of an output, or {output: its map} for several outputs; "Q" means the Q map."""
        arguments = formula_symbols(self.inputs.own, self.inputs.others)
        parts = {}
        for node in self.inputs.network.outputs:
            whole_q, _, whole_gap = self.namer.kernel.whole(self.states[node])
            value = whole_q if letter == "Q" else cosine(whole_gap.value)
            parts[node] = self.namer.composition(arguments, value, letter)
        return sole(parts)

    @property
    def notes(self) -> tuple[Assumption, ...]:
        """The assumptions made so far."""
        return tuple(self.namer.kernel.notes.values())


def symbolic_map(
    network: Network, q1: Any, q2: Any, letter: str, assume_independent: bool = False
) -> Any:
    """Return the global C map (``letter`` "C") or Q map ("Q") as a :class:`Composition`.

    For several outputs, the result is {output: composition}. With ``q1=None`` (Q maps only), the q
    value of every input is a symbol.
    """
    return _read(network, q1, q2, letter, assume_independent).composed(letter)


def symbolic_notes(network: Network, assume_independent: bool = False) -> tuple[Assumption, ...]:
    """Return the assumptions of the kernel calculus for a network with symbols in its layers."""
    return _read(network, 1, None, "C", assume_independent).notes


def _read(network: Network, q1: Any, q2: Any, letter: str, assume: bool) -> SymbolicReading:
    given = symbolic_inputs(network, q1, q2, None if letter == "Q" else symbols.c)
    maps = NamedMaps()
    kernel = kernel_over(SYMPY, given.uniform, given.gap is not None, assume, maps)
    start = {
        n: kernel.start(
            n, given.first[n], given.second[n], 0 if given.gap is None else given.gap[n]
        )
        for n in given.network.inputs
    }
    return read_symbols(given, Namer(given.network, kernel, maps, given.taken), start)


def read_symbols(given: SymbolicInputs, namer: Namer, start: dict[Node, Any]) -> SymbolicReading:
    """Read a network with a namer, starting from the states of its inputs."""
    states = interpret(given.network, namer, start)
    namer.finish()
    return SymbolicReading(given, namer, states)


def symbolic_inputs(network: Network, q1: Any, q2: Any, single: sp.Symbol | None) -> SymbolicInputs:
    """The symbolic inputs of a map; ``single`` is the cosine of a single input, None for Q maps."""
    network = with_exact_numbers(network)
    others: set[Any] = set(network.free_symbols)
    if single is not None:
        cosines, one, two = cosine_inputs(network, q1, q2, single)
        first, second = dict.fromkeys(cosines, one), dict.fromkeys(cosines, two)
        others = others | one.free_symbols | two.free_symbols
        gap = {n: Jet((1 - c,)) for n, c in cosines.items()}
        return SymbolicInputs(network, tuple(cosines.values()), others, first, second, gap)
    if q1 is None:
        letters = input_symbols(network, "q", symbols.q)
        return SymbolicInputs(network, tuple(letters.values()), others, letters, letters, None)
    value = symbolic_q(exact(q1), "q", "symbolic(q)")
    level = dict.fromkeys(network.inputs, value)
    return SymbolicInputs(network, (), others | value.free_symbols, level, level, None)


def with_exact_numbers(network: Network) -> Network:
    """Convert short decimals and their square roots in a network to exact numbers.

    sigma_w = 1.5 becomes 3/2, 2**0.5 becomes sqrt(2).
    """
    return network.map_layers(lambda _, layer: layer.mapped(exact_or_root))


def input_symbols(network: Network, letter: str, single: sp.Symbol) -> dict[Node, sp.Symbol]:
    """Return {input: its symbol}: ``single`` for a single input, otherwise ``letter_input``."""
    if len(network.inputs) == 1:
        return {network.inputs[0]: single}
    positive = single.is_positive
    return {n: sp.Symbol(f"{letter}_{n}", real=True, positive=positive) for n in network.inputs}


def cosine_inputs(
    network: Network, q1: Any, q2: Any, single: sp.Symbol = symbols.c
) -> tuple[dict[Node, Any], sp.Expr, sp.Expr]:
    """Return {input: its c value as a symbol}, and the q values of all inputs."""
    cosines = input_symbols(network, single.name, single)
    one, two = read_pair(
        lambda given, what: symbolic_q(exact(given), what, SYMBOLIC, cosines.values()), q1, q2
    )
    return cosines, one, one if two is None else two


def cosine(gap: sp.Expr) -> sp.Expr:
    """Return ``1 - gap``, simplified.

    A gap ``sum_i a_i (1 - c_i)`` with ``sum_i a_i = 1`` gives ``sum_i a_i c_i``; a gap that is a
    fraction gives a single fraction.
    """
    mixed = _mixed(gap)
    if mixed is not None:
        return mixed
    if _nested(gap):
        gap = sp.cancel(gap)
    above, below = sp.fraction(gap)
    if below.is_number:
        return tidy(1 - gap)
    return collected(below - above) / below


_VALUE = re.compile(r"[ct](_.*)?|D*\d*C_.*")  # names of cosines, tangents, C maps and their slopes


def collected(expr: sp.Expr) -> sp.Expr:
    """Collect a sum into one term for each cosine or tangent, as in w^2 c + (1 - w^2) C."""
    weights: dict[sp.Expr, list[sp.Expr]] = {}
    terms = [part for term in sp.Add.make_args(expr) for part in sp.Add.make_args(tidy(term))]
    for term in terms:
        factors = sp.Mul.make_args(term)
        value = sp.Mul(*(factor for factor in factors if _is_value(factor)))
        weights.setdefault(value, []).append(term / value)
    return sp.Add(*(value * sp.factor_terms(sp.Add(*part)) for value, part in weights.items()))


def _is_value(factor: sp.Expr) -> bool:
    """Whether a factor of a term is a cosine, a tangent or a local map of them."""
    base, _ = factor.as_base_exp()
    name = str(base.func) if isinstance(base, AppliedUndef) else getattr(base, "name", "")
    return _VALUE.fullmatch(name) is not None


def _mixed(gap: sp.Expr) -> sp.Expr | None:
    """Return sum_i a_i c_i for a gap sum_i a_i (1 - c_i) whose weights a_i add up to 1.

    The gap must have two or more terms; the result is None for other gaps.
    """
    parts = [_weight_and_cosine(term) for term in sp.Add.make_args(gap)]
    known = [part for part in parts if part is not None]
    if (
        len(known) < len(parts)
        or len(parts) < 2
        or sp.expand(sum(weight for weight, _ in known) - 1) != 0
    ):
        return None
    return sp.Add(*(weight * value for weight, value in known))


def _weight_and_cosine(term: sp.Expr) -> tuple[sp.Expr, sp.Expr] | None:
    """Return (a, c) for a term a (1 - c), where c is a symbol or a local map."""
    for factor in sp.Mul.make_args(term):
        value = 1 - factor
        if isinstance(value, sp.Symbol | AppliedUndef):
            return term / factor, value
    return None


def _nested(expr: sp.Expr) -> bool:
    """Whether a denominator contains denominators, as after two consecutive LayerNorms."""
    below = [
        p.base for p in expr.atoms(sp.Pow) if p.exp.is_Rational and p.exp < 0 and p.base.is_Add
    ]
    return any(
        p.exp.is_Rational and p.exp < 0 and p.base.is_Add
        for base in below
        for p in base.atoms(sp.Pow)
    )


def tidy(expr: sp.Expr) -> sp.Expr:
    """Multiply out products of sums, leaving the arguments of functions unchanged."""
    return sp.expand(expr, deep=False, power_base=False, power_exp=False, log=False)


def _shorter(expr: sp.Expr) -> sp.Expr:
    """The shorter of an expression and its expansion, as in q w^2 + q (1 - w^2) = q."""
    expanded = sp.Add(*(tidy(term) for term in sp.Add.make_args(expr)))
    return min(expr, expanded, key=sp.count_ops)


class NamedMaps:
    """Local maps in SymPy, with ``Q_phi``, ``C_phi`` and ``M_phi`` kept as functions.

    Trivial maps are replaced by their values.
    """

    def __init__(self) -> None:
        self.functions: dict[tuple[str, Any], LocalFunction] = {}
        self.reserved: frozenset[str] = frozenset()  # names of the symbols of the network
        self._names: dict[str, Activation] = {}

    def q(self, phi: Activation, q: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
        phi, scale = unscaled(phi)
        second, mean = self._unit_q(phi, q)
        square = scale**2 * second
        return sp.cancel(square) if phi.free_symbols and not square.atoms(
            AppliedUndef
        ) else square, scale * mean

    def _unit_q(self, phi: Activation, q: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
        """Return E phi^2 and E phi at a q value, as named functions."""
        second, mean = _closed_moments(phi)
        if not sp.cancel(second / symbols.q).has(symbols.q):
            second = second.subs(symbols.q, q)
        else:
            second = self.function("Q", phi, (symbols.q,), second)(q)
        if not mean.atoms(AppliedUndef) and sp.count_ops(mean) < NAMED_SIZE / 4:
            return second, mean.subs(symbols.q, q)
        return second, self.function("M", phi, (symbols.q,), mean)(q)

    def gap(self, phi: Activation, gap: Any, q1: sp.Expr, q2: sp.Expr) -> Any:
        c = cosine(gap.value)
        phi, _ = unscaled(phi)
        uniform = q1 == q2
        closed, by_q = _closed_cosine(phi, uniform)
        if not by_q:
            return Jet((1 - self.function("C", phi, (symbols.c,), closed)(c),))
        if uniform:
            return Jet((1 - self.function("C", phi, (symbols.c, symbols.q), closed)(c, q1),))
        return Jet((1 - self.function("C", phi, (symbols.c, symbols.q, P), closed)(c, q1, q2),))

    def function(
        self, letter: str, phi: Activation, arguments: Sequence[sp.Symbol], closed: sp.Expr
    ) -> Any:
        key = (letter + str(len(arguments)), phi)
        if key not in self.functions:
            own = {symbol: self._parameter(symbol) for symbol in arguments}
            known: Any = None if closed.atoms(AppliedUndef) else closed.xreplace(own)
            function = sp.Function(f"{letter}_{self._name(phi)}")
            self.functions[key] = LocalFunction(function, tuple(own.values()), known, phi)
            if known is None and letter == "C":  # the Gaussian integral of C divides by Q
                self.function("Q", phi, (symbols.q,), _closed_moments(phi)[0])
        return self.functions[key].function

    def _parameter(self, symbol: sp.Symbol) -> sp.Symbol:
        """The parameter of a local map, primed if a symbol of the network has the same name."""
        name = symbol.name
        while sp.latex(sp.Symbol(name)) in self.reserved:
            name += "'"
        return symbol if name == symbol.name else sp.Symbol(name, **symbol.assumptions0)

    def _name(self, phi: Activation) -> str:
        """Return a short name for an activation, distinct from the names of other activations."""
        word = formula_name(phi.name)
        number, name = 1, word
        while self._names.setdefault(name, phi) != phi:
            number += 1
            name = f"{word}{number}"
        return name


def unscaled(phi: Activation) -> tuple[Activation, sp.Expr]:
    """Return (psi, a) with phi = a psi, where psi has no output scale."""
    constants = phi.transformation
    if constants is None or constants.output_scale == 1:
        return phi, sp.S.One
    kept = replace(constants, output_scale=sp.S.One)
    return transform(phi.base, kept), constants.output_scale


@lru_cache(maxsize=256)
def _closed_moments(phi: Activation) -> tuple[sp.Expr, sp.Expr]:
    """Return Q and the mean as functions of ``symbols.q``."""
    return phi.second_moment(symbols.q, SYMPY), phi.mean(symbols.q, SYMPY)


@lru_cache(maxsize=256)
def _closed_cosine(phi: Activation, uniform: bool) -> tuple[sp.Expr, bool]:
    """Return C as a function of ``symbols.c`` and q values, and whether it depends on q."""
    two = (symbols.q, symbols.q) if uniform else (symbols.q, P)
    value = 1 - phi.taylor(1 - symbols.c, *two, 0, SYMPY)[0]
    # a single fraction stays a fraction
    closed = value if sp.fraction(value)[1].is_Add else tidy(value)
    return closed, bool(closed.free_symbols & set(two) or closed.atoms(AppliedUndef))


class Namer:
    """The calculus ``kernel`` with the states' values replaced by named symbols.

    Values are named at nodes that lie on every path; elsewhere they are named only if they have at
    least ``long`` operations.
    """

    long = NAMED_SIZE

    def __init__(
        self,
        network: Network,
        kernel: Any,
        maps: NamedMaps,
        taken: Iterable[sp.Symbol],
    ) -> None:
        self.cuts = set(network.cut_nodes())
        self.kernel, self.maps = kernel, maps
        self.stages: list[Stage] = []
        self.pending: list[tuple[sp.Symbol, sp.Expr]] = []
        self.count = 1
        self.names = set(map(sp.latex, taken))
        self.named: set[Any] = set()
        self.letters = LETTERS
        maps.reserved = frozenset(map(sp.latex, network.free_symbols))

    def rule(self, op: Primitive, node: Node, inputs: list[Any]) -> Any:
        """The state that the kernel's rule returns, with named values."""
        state = self.kernel.rule(op, node, inputs)
        parts = self.parts(state)
        cut = node in self.cuts and all(len(part.groups) == 1 for part in parts.values())
        made = {
            letters: self._all_named(part, node, cut, letters) for letters, part in parts.items()
        }
        if cut and self.pending:
            moments = [part.pairs[0].moments for part in made.values()]
            self.stages.append(Stage(tuple(self.pending), self._carried(moments)))
            self.pending = []
            self.count += 1
        return self.joined(state, made)

    def parts(self, state: Any) -> dict[Letters, Channels]:
        """The parts of a state, keyed by the letters of their values."""
        return {LETTERS: state}

    def joined(self, state: Any, made: dict[Letters, Channels]) -> Any:
        """Rebuild a state from its parts."""
        return made[LETTERS]

    def _all_named(self, state: Channels, node: Node, cut: bool, letters: Letters) -> Channels:
        self.letters = letters
        return state.map(lambda pair: self._named(pair, node, cut))

    def finish(self) -> None:
        """Move the definitions after the last cut node to a separate stage."""
        if self.pending:
            self.stages.append(Stage(tuple(self.pending), ()))
            self.pending = []

    def composition(
        self, arguments: tuple[sp.Symbol, ...], value: sp.Expr, letter: str
    ) -> Composition:
        """Return ``value`` as a composition, with the definitions and local maps that it uses."""
        value = rounded(value)
        return Composition(
            arguments, tuple(self.stages), value, letter, tuple(self.maps.functions.values())
        ).pruned()

    def _fresh_name(self, letter: str) -> str:
        """Return ``c_7`` or, if it is taken, the first free name of ``c_{7a}``, ``c_{7b}``, ..."""
        name, tail = f"{letter}_{self.count}", 0
        while sp.latex(sp.Symbol(name)) in self.names:
            name, tail = f"{letter}_{self.count}{suffix(tail)}", tail + 1
        self.names.add(sp.latex(sp.Symbol(name)))
        return name

    def _carried(self, moments: Sequence[Moments]) -> tuple[sp.Symbol, ...]:
        """The symbols that occur in the state."""
        found = (
            {v} if isinstance(v, sp.Symbol) else self.named & v.free_symbols
            for m in moments
            for v in self._values(m)
        )
        return tuple(
            dict.fromkeys(symbol for symbols in found for symbol in sorted(symbols, key=str))
        )

    def _values(self, m: Moments) -> list[sp.Expr]:
        return [m.q1, m.q2, *([cosine(m.gap.value)] if isinstance(m.gap, Jet) else [])]

    def _named(self, pair: Pair, node: Node, cut: bool) -> Pair:
        m = pair.moments
        q1 = self._name(self.letters[0], m.q1, cut, positive=True)
        q2 = (
            q1
            if self.kernel.uniform or m.q1 == m.q2
            else self._name(self.letters[1], m.q2, cut, positive=True)
        )
        gap = self._named_gap(m.gap, cut) if isinstance(m.gap, Jet) else m.gap
        same_gap = not isinstance(gap, Jet) or gap.coefficients == m.gap.coefficients
        if q1 is m.q1 and q2 is m.q2 and same_gap:
            return pair
        moments = Moments(q1, q2, gap, m.mean1, m.mean2)
        if pair.shift1 != 0 or pair.shift2 != 0:
            return replace(pair, moments=moments)
        gaussian = all(t.atom.gaussian for t in pair.terms)
        atom = Atom(node, moments, pair.support, gaussian, pair.raw, pair.terms)
        return Pair(moments, (Term(1, 1, atom),), window=pair.window)

    def _named_gap(self, gap: Jet, cut: bool) -> Jet:
        return Jet((1 - self._name(self.letters[2], cosine(gap.value), cut, real=True),))

    def _name(self, letter: str, expr: sp.Expr, cut: bool, **assumptions: bool) -> sp.Expr:
        known = {value: symbol for symbol, value in self.pending if value.is_Add}
        expr = rounded(expr).xreplace(known)  # a cosine divides by the q value, which is named
        if letter != self.letters[2]:
            expr = _shorter(expr)
        if isinstance(expr, sp.Symbol) or expr.is_Rational:
            return expr
        trivial = not expr.atoms(AppliedUndef) and sp.count_ops(expr) <= 3
        if trivial or (not cut and sp.count_ops(expr) < self.long):
            return expr
        return self.symbol(letter, expr, **assumptions)

    def symbol(self, letter: str, expr: sp.Expr, **assumptions: bool) -> sp.Symbol:
        """Create a symbol for a value."""
        symbol = sp.Symbol(self._fresh_name(letter), **assumptions)
        self.named.add(symbol)
        self.pending.append((symbol, expr))
        return symbol
