"""Exact moments as factored SymPy expressions, with powers for repeated blocks.

If all paths of feature maps cross one vector v, the moments of |v|^2 are a factor of all later
moments, and (for Gaussian weights) E (tr Q)^2 of the Jacobian splits into two modes that do not
mix: T = S, and S = -T/2, with T and S of :mod:`kcalc.calculi.moments.monomials`. At such vectors,
an expression is stored as a new factor multiplied by an earlier product, and equal factors become
powers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import sympy as sp

from ...foundation.errors import KcalcError
from .evaluation import (
    InputMoments,
    VectorMoments,
    jacobian_moments,
    monomials,
    node_moments,
    reached,
)
from .moment import Moment
from .monomials import CORNER, Key, Monomials, Terms, slots_of
from .numbers import Symbolic
from .reading import Compiled
from .vectors import FreshProduct, Rectified, Stacked, Vector, VectorSum

Node = Hashable
Modes = dict[int, sp.Expr]
Found = tuple[dict[Node, Moment], dict[Node, Moment] | None]  # for nodes, and for Jacobians
PLUS, MINUS = 1, -1
MOST_LAYERS = 10


@lru_cache(maxsize=4096)
def tidied(expr: sp.Expr) -> sp.Expr:
    """Rewrite an expression as a product of simple factors."""
    return sp.factor(expr)  # type: ignore[return-value]


def sources_of(vector: Vector) -> list[Vector]:
    """The vectors that a vector is computed from.

    For an activation of a fresh vector these are the vectors that its weights multiply.
    """
    if isinstance(vector, VectorSum):
        return [part for _, part in vector.terms]
    if isinstance(vector, Stacked):
        return [vector.left[1], vector.right[1]]
    fresh = vector.fresh if isinstance(vector, Rectified) else vector
    return [fed.source for fed in fresh.fed] if isinstance(fresh, FreshProduct) else []


def crossings(out: Vector) -> set[int]:
    """The ids of the vectors that all paths from the input to ``out`` cross."""
    seen: dict[int, Vector] = {}
    stack = [out]
    while stack:
        vector = stack.pop()
        if vector.id not in seen:
            seen[vector.id] = vector
            stack += sources_of(vector)
    order = sorted(seen.values(), key=lambda v: (v.rank, v.id), reverse=True)
    place = {v.id: i for i, v in enumerate(order)}
    found: set[int] = set()
    furthest = 0
    for i, vector in enumerate(order):
        if furthest <= i:
            found.add(vector.id)
        furthest = max([furthest, *(place[s.id] for s in sources_of(vector))])
    return found


class ClosedForward(VectorMoments):
    """E |v|^2 and E |v|^4 of vectors as factored expressions.

    ``commit``: store products at crossings, as Gaussian weights allow.
    """

    def __init__(self, compiled: Compiled, out: Vector, entry: InputMoments, commit: bool) -> None:
        super().__init__(compiled, Symbolic(), entry)
        self.products: dict[Key, sp.Expr] = self.values
        self.split = crossings(out)
        self.cuts = self.split if commit else set()
        self.values = {key: {key: sp.Integer(1)} for key in self.products}

    def _value(self, key: Key) -> sp.Expr:
        return self._total(super()._value(key))

    def _total(self, parts: Mapping[Key, sp.Expr]) -> sp.Expr:
        """Return the sum of factor times product over ``parts``, {key of the product: factor}."""
        return sp.Add(*(tidied(factor) * self.products[base] for base, factor in parts.items()))

    def _summed(self, key: Key, terms: Terms) -> dict[Key, sp.Expr]:
        found: dict[Key, sp.Expr] = {}
        for factor, child in terms:
            for base, inner in self.values[child].items():
                found[base] = found.get(base, sp.Integer(0)) + factor * inner
        alike = is_alike(key)
        if key[-1] in self.cuts and alike and found:
            self.products[key] = self._total(found)
            return {key: sp.Integer(1)}
        if key[-1] in self.split and alike:
            return {base: tidied(factor) for base, factor in found.items()}
        return found


class ClosedBackward:
    """The second and fourth moments of the Jacobians d out / d v for every fresh vector v.

    ``seconds``: {fresh id: E |M|^2}; ``fourths``: {fresh id: {mode: expression}}, whose sum over
    modes is E (tr Q)^2; ``entry``: {mode: factor} of the Jacobian with respect to the network's
    input.
    """

    def __init__(self, compiled: Compiled, out: Vector, commit: bool) -> None:
        self.steps: Monomials = monomials(compiled, Symbolic(), columns=True)
        self.cuts = crossings(out) if commit else set()
        zero = sp.Integer(0)
        self.seconds: dict[int, sp.Expr] = dict.fromkeys(compiled.vectors.fresh_ids, zero)
        self.fourths: dict[int, Modes] = {i: {PLUS: zero, MINUS: zero} for i in self.seconds}
        self.entry: Modes = {PLUS: zero, MINUS: zero}
        self._second(out.id)
        self._fourth(out.id)

    def fourth(self, fresh: int) -> sp.Expr:
        """Return E (tr Q)^2 of the Jacobian with respect to a fresh vector."""
        return sp.Add(*self.fourths[fresh].values())

    def _ordered(self, roots: Iterable[Key]) -> Iterable[tuple[Key, Terms]]:
        """Yield the monomials with their steps, newest monomial first."""
        order, found = reached(self.steps, roots)
        rank = {key: max(self.steps.vectors[i].rank for i in slots_of(key)) for key in order}
        order.reverse()  # stable sorting keeps parents before children of equal rank
        for key in sorted(order, key=lambda k: -rank[k]):
            yield key, found[key]

    def _second(self, out: int) -> None:
        adjoint: dict[Key, sp.Expr] = {(out, out): sp.Integer(1)}
        product: sp.Expr = sp.Integer(1)
        for key, terms in self._ordered([(out, out)]):
            own = adjoint.get(key)
            if own is None:
                continue
            if key[0] in self.cuts and is_alike(key):
                product, own = product * tidied(own), sp.Integer(1)
            seed = self.steps.seed(key)
            if seed is not None:
                self.seconds[seed[0]] += tidied(own * seed[1]) * product
            for factor, child in terms:
                adjoint[child] = adjoint.get(child, sp.Integer(0)) + own * factor

    def _fourth(self, out: int) -> None:
        roots: list[Key] = [(kind, *(v,) * 4) for v in sorted(self.cuts | {out}) for kind in (0, 1)]
        adjoint: dict[Key, Modes] = {key: _none() for key in roots}
        if self.cuts:
            adjoint[0, *(out,) * 4], adjoint[1, *(out,) * 4] = _both()  # type: ignore[index]
        else:
            adjoint[0, *(out,) * 4] = {PLUS: sp.Integer(1), MINUS: sp.Integer(0)}  # type: ignore[index]
        product: Modes = {PLUS: sp.Integer(1), MINUS: sp.Integer(1)}
        pending, seeds = set(self.cuts), {i: _none() for i in self.fourths}
        for key, terms in self._ordered(roots):
            if key[1] in pending and is_alike(key):
                pending.discard(key[1])
                self._commit(key[1], adjoint, product)
            own = adjoint.get(key)
            if own is None:
                continue
            seed = self.steps.seed(key)
            if seed is not None:
                held = seeds[seed[0]] = _plus(seeds[seed[0]], own, seed[1])
                self.fourths[seed[0]] = {mode: tidied(held[mode]) * product[mode] for mode in held}
            if self.steps.given(key):
                self.entry = dict(product)
            for factor, child in terms:
                adjoint[child] = _plus(adjoint.get(child, _none()), own, factor)

    def _commit(self, vector: int, adjoint: dict[Key, Modes], product: Modes) -> None:
        """At a crossing, replace the adjoints of T and S by the adjoints of the two modes.

        The factors of the modes are moved into ``product``.
        """
        total, square = (adjoint[kind, *(vector,) * 4] for kind in (0, 1))  # type: ignore[index]
        product[PLUS] = product[PLUS] * tidied(total[PLUS] + square[PLUS])
        product[MINUS] = product[MINUS] * tidied(total[MINUS] - square[MINUS] / 2)
        if _nonzero(total[MINUS] + square[MINUS]) or _nonzero(total[PLUS] - square[PLUS] / 2):
            raise AssertionError(f"the two modes mix at vector {vector}")
        adjoint[0, *(vector,) * 4], adjoint[1, *(vector,) * 4] = _both()  # type: ignore[index]


def is_alike(key: Key) -> bool:
    """Whether a monomial, other than a CORNER, contains only one vector."""
    return len(set(slots_of(key))) == 1 and (len(key) == 2 or key[0] != CORNER)


def _none() -> Modes:
    return {PLUS: sp.Integer(0), MINUS: sp.Integer(0)}


def _both() -> tuple[Modes, Modes]:
    """The adjoints of T and S in units of the two modes.

    T = (plus + 2 minus)/3, S = 2 (plus - minus)/3.
    """
    third = sp.Rational(1, 3)
    return {PLUS: third, MINUS: 2 * third}, {PLUS: 2 * third, MINUS: -2 * third}


def _plus(modes: Modes, more: Modes, factor: Any) -> Modes:
    return {mode: modes[mode] + more[mode] * factor for mode in modes}


@lru_cache(maxsize=4096)
def _nonzero(expr: sp.Expr) -> bool:
    found = tidied(expr)
    if found.has(sp.Float):
        return False
    return found != 0


def closed_moments(compiled: Compiled, output: Node, entry: InputMoments, jacobian: bool) -> Found:
    """Compute the moments of all nodes and weights as expressions.

    Raises: KcalcError for deep networks whose weights are not Gaussian.
    """
    gaussian = all(fed.excess == 0 for fresh in compiled.owners.values() for fed in fresh.fed)
    if not gaussian and len(compiled.owners) > MOST_LAYERS:
        raise KcalcError(
            f"with symbols and non-Gaussian weights, expressions are limited to {MOST_LAYERS} "
            f"layers, but this network has {len(compiled.owners)}; substitute numbers with "
            "net.subs and features=, or use Gaussian weights"
        )
    out = compiled.features[output]
    square, fourth = (sp.sympify(value, strict=True) for value in (entry.square, entry.fourth))
    forward = ClosedForward(compiled, out.vector, InputMoments(square, fourth), gaussian)
    nodes = {
        node: Moment.of_expressions(*two) for node, two in node_moments(compiled, forward).items()
    }
    if not jacobian:
        return nodes, None
    found = jacobian_moments(compiled, forward, ClosedBackward(compiled, out.vector, gaussian), out)
    return nodes, {node: Moment.of_expressions(*two) for node, two in found.items()}
