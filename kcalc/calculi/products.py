"""Cross moments ``E a_i b_j`` of two atoms a, b at two inputs i, j.

The cross moment of a Gaussian and an activation follows from Stein's formula. The cross moment of
two activations is a two-dimensional Gaussian expectation. For products of independent factors,
``E (f g)(f' g') = E f f' E g g'``, where f, f' are independent of g, g'. A factor that shares no
weights with the other atom contributes its mean.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ..activations import Activation
from ..fields import NUMPY
from ..fields.jets import Jet
from ..foundation.errors import FreshnessError, KcalcError
from . import crossing
from .atoms import Atom, Pair, raw_inputs
from .second_moments import Part, SecondMoments, is_zero

Number = Any
Node = Hashable
Both = tuple[Part, Part]  # parts with E a_i b_j for (i, j) in (11, 22, 12) and in (11, 22, 21)
NOTHING = Part(0, 0, 0)  # the cross moments of independent centred atoms


class Products:
    """``E a_i b_j`` of two atoms, over the number system of ``moments``.

    ``crossing`` computes cross moments of activations in that number system.
    """

    crossing: Any = crossing

    def __init__(self, moments: SecondMoments) -> None:
        self.moments, self.field, self.uniform = moments, moments.field, moments.uniform
        # {newer atom: {older atom: their cross moments}}, while the newer atom is in use
        self._known: WeakKeyDictionary[Atom, dict[Atom, Both]] = WeakKeyDictionary()

    def product(self, a: Atom, b: Atom, node: Node) -> Both:
        """Return ``E a_i b_j`` as two parts, for (i, j) = 11, 22, 12 and for (i, j) = 11, 22, 21.

        Cross moments are cached, because sums of sums need the cross moments of their addends
        repeatedly. Raises: FreshnessError if the dependence of a and b has no rule.
        """
        if a is b:
            own = self.moments.own(a.moments)
            return own, own
        older, newer = by_age(a, b)
        known = self._known.get(newer)
        if known is None or older not in known:
            for one, two in self._missing(older, newer):
                self._known.setdefault(two, {})[one] = self._made(one, two, node)
            known = self._known[newer]
        ahead, back = known[older]
        return (ahead, back) if older is a else (back, ahead)

    def _missing(self, older: Atom, newer: Atom) -> list[tuple[Atom, Atom]]:
        """Return the pairs of atoms whose cross moments must be computed, oldest first.

        These are the given pair and, if sums or products are opened, all pairs that it needs. Pairs
        with known cross moments are left out. The list avoids deep recursion along chains of sums.
        """
        found: dict[tuple[Atom, Atom], None] = {}
        waiting = [(older, newer)]
        while waiting:
            pair = waiting.pop()
            one, two = pair
            if one is two or pair in found or one in self._known.get(two, ()):
                continue
            found[pair] = None
            waiting.extend(by_age(*asked) for asked in self._asked(one, two))
        return sorted(found, key=lambda pair: pair[0].age + pair[1].age)

    def _asked(self, a: Atom, b: Atom) -> list[tuple[Atom, Atom]]:
        """Return the pairs of atoms whose cross moments the rule for a and b needs."""
        if a.live or b.live:
            return [(a.live or a, b.live or b)]
        if not a.support & b.support or a.patched or b.patched:
            return []
        if a.factors or b.factors:
            return [
                (s.atom, t.atom)
                for f in a.factors or (Pair.of(a),)
                for g in b.factors or (Pair.of(b),)
                if f is not g and f.support & g.support
                for s in f.terms
                for t in g.terms
            ]
        if _steins(a, b) or _steins(b, a):
            return []
        top, other = (b, a) if b.terms else (a, b)
        return [(t.atom, other) for t in top.terms]

    def _made(self, a: Atom, b: Atom, node: Node) -> Both:
        """Return the cross moments of two atoms; b is the newer atom, so it is opened first."""
        if a.live or b.live:
            ahead, back = self.product(a.live or a, b.live or b, node)
            return ahead.fixed, back.fixed
        m, n = a.moments, b.moments
        if not a.support & b.support:
            check_raw([a, b], node)
            first, second = m.mean1 * n.mean1, m.mean2 * n.mean2
            ahead, back = m.mean1 * n.mean2, m.mean2 * n.mean1
            if all(map(_is_nothing, (first, second, ahead, back))):
                return NOTHING, NOTHING
            return Part(first, second, ahead), Part(first, second, back)
        if a.patched or b.patched:
            raise FreshnessError(
                f"node {node!r} adds {a.node!r} and {b.node!r}, which contain different channels "
                "of one feature map"
            )
        if a.factors or b.factors:
            return self._of_products(a, b, node)
        if _steins(a, b):
            return self._stein(a, b, node)
        if _steins(b, a):
            ahead, back = self._stein(b, a, node)
            return back, ahead
        if b.terms:
            ahead, back = self._opened(b, a, node)
            return back, ahead
        if a.terms:
            return self._opened(a, b, node)
        if a.noise or b.noise:
            return NOTHING, NOTHING
        return self._crossed(a, b, node)

    def _opened(self, a: Atom, b: Atom, node: Node) -> Both:
        ahead = back = NOTHING
        for t in a.terms:
            forth, reverse = self.product(t.atom, b, node)
            if forth is NOTHING:
                continue
            if self.uniform:
                ahead = back = plus(ahead, forth.times(t.a1))
                continue
            ahead = plus(ahead, forth.scaled(t.a1, t.a2, t.a1))
            back = plus(back, reverse.scaled(t.a1, t.a2, t.a2))
        return ahead, back

    def _stein(self, gaussian: Atom, post: Atom, node: Node) -> tuple[Part, Part]:
        """Return ``E[g phi(s h)] = Cov(g, h) s E phi'(s h)`` [DKS App. B, corrected sign]."""
        assert post.activation is not None and post.source is not None
        ahead, back = self.product(gaussian, post.source, node)
        q, s = post.source.moments, post.scale
        slope1 = s * self._mean_slope(post.activation, s * s * q.q1)
        slope2 = slope1 if q.q1 is q.q2 else s * self._mean_slope(post.activation, s * s * q.q2)
        return ahead.scaled(slope1, slope2, slope2), back.scaled(slope1, slope2, slope1)

    def _mean_slope(self, phi: Activation, q: Number) -> Number:
        if isinstance(q, Jet):
            return q.compose(phi.mean_slope_series(q.value, q.order))
        return phi.mean_slope(q, self.field)

    def _crossed(self, a: Atom, b: Atom, node: Node) -> tuple[Part, Part]:
        """Return ``E[phi(g) psi(h)]`` of two activations of dependent Gaussians, numerically."""
        if a.activation is None or b.activation is None or a.source is None or b.source is None:
            raise FreshnessError(
                f"node {node!r} adds {a.node!r} and {b.node!r}, which share weights in a way "
                "that kcalc cannot track; put an Affine layer behind one of them"
            )
        phi, psi = self._functions(a, b, node)
        m, n = a.source.moments, b.source.moments
        if isinstance(m.q1, Jet) or isinstance(n.q1, Jet):
            return self._crossed_in_q(phi, psi, a, b, node)
        if a.source is b.source:  # this keeps the digits of the deficit
            first = self.crossing.alike(phi, psi, m.q1)
            second = first if self.uniform else self.crossing.alike(phi, psi, m.q2)
            one = self.crossing.dropped(phi, psi, m.q1, m.q2, m.gap)
            two = one if self.uniform else self.crossing.dropped(phi, psi, m.q2, m.q1, m.gap)
            return Part(first, second, *one), Part(first, second, *two)
        ahead, back = self.product(a.source, b.source, node)
        first = self.crossing.expected(phi, psi, m.q1, n.q1, ahead.first)
        second = (
            first if self.uniform else self.crossing.expected(phi, psi, m.q2, n.q2, ahead.second)
        )
        one = self.crossing.cross_moment_and_drop(phi, psi, m.q1, n.q2, ahead.joint, ahead.deficit)
        two = (
            one
            if self.uniform
            else self.crossing.cross_moment_and_drop(phi, psi, m.q2, n.q1, back.joint, back.deficit)
        )
        return Part(first, second, *one), Part(first, second, *two)

    def _functions(self, a: Atom, b: Atom, node: Node) -> tuple[Any, Any]:
        """Return the activations of two atoms as functions of their Gaussians."""
        if self.field is not NUMPY:
            names = (
                f"{post.activation.name} at {post.node!r}"
                for post in (a, b)
                if post.activation is not None
            )
            raise FreshnessError(
                f"node {node!r} adds {' and '.join(names)}, which share weights; their cross "
                "moment is known only numerically. Evaluate the map with numbers"
            )
        return _rescaled(a), _rescaled(b)

    def _crossed_in_q(
        self, phi: Activation, psi: Activation, a: Atom, b: Atom, node: Node
    ) -> tuple[Part, Part]:
        """Return ``E[phi(g) psi(g)]`` for one Gaussian as a series in q, if q is a Jet."""
        if a.source is not b.source or a.source is None:
            raise KcalcError(
                f"node {node!r} adds activations of dependent Gaussians, for which derivatives in "
                "q are not available. Evaluate the map without derivatives, or put an Affine "
                "after one of the activations"
            )
        q = a.source.moments.q1
        value = q.compose(phi.q_product_series(psi, q.value, q.order))
        part = Part(value, value, value)
        return part, part

    def _of_products(self, a: Atom, b: Atom, node: Node) -> Both:
        """Return ``E a_i b_j`` if a or b is a product: factors that share weights are paired."""
        left, right = list(a.factors or (Pair.of(a),)), list(b.factors or (Pair.of(b),))
        total: Both | None = None
        while left:
            f = left.pop()
            meets = [g for g in right if f.support & g.support]
            if len(meets) > 1 or any(other.support & g.support for g in meets for other in left):
                raise FreshnessError(
                    f"node {node!r} adds {a.node!r} and {b.node!r}, which share weights in a way "
                    "that kcalc cannot track; put an Affine layer behind one of them"
                )
            right = [g for g in right if not any(g is met for met in meets)]
            total = _joined(
                total, self._common(f, meets[0], node) if meets else _means(f, left=True)
            )
        for g in right:
            total = _joined(total, _means(g, left=False))
        assert total is not None
        return total

    def _common(self, f: Pair, g: Pair, node: Node) -> Both:
        """Return ``E f_i g_j`` of two feature maps, from the cross moments of their terms."""
        if f is g:
            own = self.moments.own(f.moments)
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


def by_age(a: Atom, b: Atom) -> tuple[Atom, Atom]:
    """Return two atoms, the older atom first."""
    return (a, b) if a.age < b.age else (b, a)


def _is_nothing(number: Number) -> bool:
    """Whether a number is exactly the Python number 0, not an array."""
    return isinstance(number, int | float) and number == 0


def _steins(a: Atom, b: Atom) -> bool:
    """Whether a is a Gaussian and b is an activation of a Gaussian."""
    return a.gaussian and b.activation is not None


def check_raw(atoms: Sequence[Atom], node: Node, verb: str = "adds") -> None:
    """Reject atoms of two different network inputs.

    Raises: FreshnessError.
    """
    raw = raw_inputs(atoms)
    if len(raw) > 1:
        raise FreshnessError(
            f"node {node!r} {verb} the inputs {raw[0].node!r} and {raw[1].node!r} directly, but "
            "the correlation of their channels is unknown; put a separate Affine after each input"
        )


def _rescaled(post: Atom) -> Activation:
    assert post.activation is not None
    return (
        post.activation.transformed(input_scale=post.scale) if post.scale != 1 else post.activation
    )


def _means(pair: Pair, left: bool) -> Both:
    m1, m2 = pair.moments.mean1, pair.moments.mean2
    return (Part(m1, m2, m1), Part(m1, m2, m2)) if left else (Part(m1, m2, m2), Part(m1, m2, m1))


def _joined(a: Both | None, b: Both) -> Both:
    """Return the product of two pairs of expectations of independent factors; None counts as 1."""
    if a is None:
        return b
    return _multiplied(a[0], b[0]), _multiplied(a[1], b[1])


def _multiplied(a: Part, b: Part) -> Part:
    deficit = a.joint * b.deficit + a.deficit * b.joint - a.deficit * b.deficit
    return Part(a.first * b.first, a.second * b.second, a.joint * b.joint, deficit)


def plus(a: Part, b: Part) -> Part:
    """Return the sum of two contributions."""
    return Part(a.first + b.first, a.second + b.second, a.joint + b.joint, a.deficit + b.deficit)
