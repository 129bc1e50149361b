"""Second moments of products of independent feature maps.

``E (f g)(f' g') = E f f' E g g'`` for f, f' independent of g, g'; a product meets another feature map through those factors that share
weights with it, the others by their means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

from ..errors import FreshnessError
from ..fields import SYMPY
from .atoms import Atom, Pair, Term
from .checks import is_one
from .second_moments import Moments, Part, SecondMoments, is_zero

Number = Any
Node = Hashable
Both = tuple[Part, Part]  # (11, 22, 12) and (11, 22, 21)


class Products(SecondMoments, ABC):
    """Products of feature maps; what two atoms have in common is a matter of the subclass."""

    @abstractmethod
    def product(self, a: Atom, b: Atom, node: Node) -> Both:
        """``E a_i b_j``: a part with (11, 22, 12) and one with (11, 22, 21)."""

    def independent_product(self, pairs: Sequence[Pair], node: Node) -> Pair:
        """``prod_i f_i`` of independent feature maps: q values, c values and means multiply, ``1 - c`` without cancellation."""
        self.check_raw([t.atom for pair in pairs for t in pair.terms], node, "multiplies")
        first = pairs[0].moments
        q1, q2, gap, mean1, mean2, support = first.q1, first.q2, first.gap, first.mean1, first.mean2, pairs[0].support
        for pair in pairs[1:]:
            m = pair.moments
            q1 = q1 * m.q1
            q2 = q1 if self.uniform else q2 * m.q2
            mean1 = _times(mean1, m.mean1)
            mean2 = mean1 if self.uniform else _times(mean2, m.mean2)
            gap = 1 - (1 - gap) * (1 - m.gap) if self.field is SYMPY else gap + (1 - gap) * m.gap
            support |= pair.support
        windows, factors = {pair.window for pair in pairs}, tuple(f for pair in pairs for f in _factors(pair))
        moments = Moments(q1, q2, gap, mean1, mean2)
        atom = Atom(node, moments, support, gaussian=False, patched=len(windows) > 1, factors=factors)
        return Pair(moments, (Term(1, 1, atom),), window=windows.pop() if len(windows) == 1 else (0, 1))

    def _of_products(self, a: Atom, b: Atom, node: Node) -> Both:
        """``E a_i b_j`` of products: factors that share weights are paired."""
        left, right = list(a.factors or (Pair.of(a),)), list(b.factors or (Pair.of(b),))
        total: Both | None = None
        while left:
            f = left.pop()
            meets = [g for g in right if f.support & g.support]
            if len(meets) > 1 or any(other.support & g.support for g in meets for other in left):
                raise FreshnessError(f"node {node!r} adds {a.node!r} and {b.node!r}, which share weights in a way that kcalc cannot follow")
            right = [g for g in right if not any(g is met for met in meets)]
            total = _joined(total, self._common(f, meets[0], node) if meets else _means(f, left=True))
        for g in right:
            total = _joined(total, _means(g, left=False))
        assert total is not None
        return total

    def _common(self, f: Pair, g: Pair, node: Node) -> Both:
        """``E f_i g_j`` of two feature maps by their terms."""
        if f is g:
            own = self.own(f.moments)
            return own, own
        m, n = f.moments, g.moments
        ahead = Part(f.shift1 * n.mean1, f.shift2 * n.mean2, f.shift1 * n.mean2)
        back = Part(ahead.first, ahead.second, f.shift2 * n.mean1)
        if not (is_zero(g.shift1) and is_zero(g.shift2)):
            rest1, rest2 = m.mean1 - f.shift1, m.mean2 - f.shift2
            ahead = plus(ahead, Part(rest1 * g.shift1, rest2 * g.shift2, rest1 * g.shift2))
            back = plus(back, Part(0, 0, rest2 * g.shift1))
            back = Part(ahead.first, ahead.second, back.joint)
        for s in f.terms:
            for t in g.terms:
                forth, reverse = self.product(s.atom, t.atom, node)
                ahead = plus(ahead, forth.scaled(s.a1 * t.a1, s.a2 * t.a2, s.a1 * t.a2))
                back = plus(back, reverse.scaled(s.a1 * t.a1, s.a2 * t.a2, s.a2 * t.a1))
        return ahead, back

    @staticmethod
    def check_raw(atoms: Sequence[Atom], node: Node, verb: str = "adds") -> None:
        """Refuse two network inputs side by side. Raises: FreshnessError."""
        raw = list({id(a): a for a in atoms if a.raw}.values())
        if len(raw) > 1:
            raise FreshnessError(
                f"node {node!r} {verb} the inputs {raw[0].node!r} and {raw[1].node!r} directly, and nothing is known of how "
                "their channels correlate; give each its own Affine first"
            )


def _factors(pair: Pair) -> tuple[Pair, ...]:
    """What a feature map is the product of: itself, if it is none."""
    (term, *others) = pair.terms
    whole = not others and is_one(term.a1) and is_one(term.a2) and is_zero(pair.shift1) and is_zero(pair.shift2)
    return term.atom.factors if whole and term.atom.factors else (pair,)


def _times(a: Number, b: Number) -> Number:
    return 0 if is_zero(a) or is_zero(b) else a * b


def _means(pair: Pair, left: bool) -> Both:
    m1, m2 = pair.moments.mean1, pair.moments.mean2
    return (Part(m1, m2, m1), Part(m1, m2, m2)) if left else (Part(m1, m2, m2), Part(m1, m2, m1))


def _joined(a: Both | None, b: Both) -> Both:
    """Expectations of independent parts multiplied."""
    if a is None:
        return b
    return _multiplied(a[0], b[0]), _multiplied(a[1], b[1])


def _multiplied(a: Part, b: Part) -> Part:
    deficit = a.joint * b.deficit + a.deficit * b.joint - a.deficit * b.deficit
    return Part(a.first * b.first, a.second * b.second, a.joint * b.joint, deficit)


def plus(a: Part, b: Part) -> Part:
    """The contributions of both."""
    return Part(a.first + b.first, a.second + b.second, a.joint + b.joint, a.deficit + b.deficit)
