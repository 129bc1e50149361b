"""What a feature map is made of, so that a kernel rule knows when its hypothesis holds.

At infinite width one channel of any feature map is a function of independent Gaussian variables, one per affine
layer (distinct weights give independent variables even when one layer feeds the other). kcalc keeps each feature
map as a linear expression ``shift + sum_k a_k A_k`` in *atoms* ``A_k``: raw inputs, Gaussian pre-activations,
activations of one Gaussian, and sums that need not be opened as long as nothing overlaps. Second moments of such
expressions are exact: identical atoms merge, disjoint ones contribute products of means, a Gaussian against an
activation follows Stein's formula, two activations a two-dimensional Gaussian expectation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from ..activations import Activation
from ..errors import FreshnessError, KcalcError
from ..fields import NUMPY
from ..fields.jets import Jet
from .atoms import Atom, Pair, Term, disjoint, merged
from .checks import CANCELLED
from .crossing import dropped, expected, lessened
from .products import Products, plus
from .second_moments import Moments, Part, is_zero

Number = Any
Node = Hashable


class Algebra(Products):
    """Exact second moments of linear expressions in atoms, over one number system."""

    # -- sums ------------------------------------------------------------------------------------------------------

    def weighted_sum(self, pairs: Sequence[Pair], weights: Sequence[Number], node: Node) -> Pair:
        """``sum_i w_i f_i`` with every cross term; raises FreshnessError where one is not known."""
        terms = merged([Term(w * t.a1, w * t.a2, t.atom) for pair, w in zip(pairs, weights, strict=True) for t in pair.terms])
        shift1 = sum((w * p.shift1 for p, w in zip(pairs, weights, strict=True)), 0)
        shift2 = sum((w * p.shift2 for p, w in zip(pairs, weights, strict=True)), 0)
        if not terms:
            raise KcalcError(f"node {node!r}: the addends cancel, so its output is the same for all inputs; change the weights of the Sum")
        apart = disjoint([pair.support for pair in pairs])
        windows = {pair.window for pair in pairs}
        if len(windows) > 1 and not apart:
            raise FreshnessError(
                f"node {node!r} adds different channels of one feature map (concatenations whose parts do not line up); "
                "put an Affine on the addends, or line the parts up"
            )
        if apart:
            self.check_raw([t.atom for pair in pairs for t in pair.terms], node)
            parts = self._independent(pairs, weights)
        else:
            parts = self._overlapping(terms, shift1, shift2, node)
        mean1, mean2 = self._means(terms, shift1, shift2)
        q1, q2, gap = self.mix(parts)
        if self.field is NUMPY:
            _check_digits(q1, [part.first for part in parts], lambda: _still(terms, False), node)
            _check_digits(q2, [part.second for part in parts], lambda: _still(terms, True), node)
        moments = Moments(q1, q2, gap, mean1, mean2)
        window = windows.pop() if len(windows) == 1 else None
        pair = Pair(moments, terms, shift1, shift2, window or (0, 1))
        return pair if len(terms) == 1 else self.sealed(pair, node, patched=window is None)

    def sealed(self, pair: Pair, node: Node, patched: bool = False) -> Pair:
        """The same feature map as one atom; left open where it has a shift, unless it is patched."""
        if not (is_zero(pair.shift1) and is_zero(pair.shift2)) and not patched:
            return pair
        gaussian = all(t.atom.gaussian for t in pair.terms)
        raw = any(t.atom.raw for t in pair.terms)
        gaussian = gaussian and pair.gaussian
        return replace(Pair.of(Atom(node, pair.moments, pair.support, gaussian, raw, pair.terms, patched=patched)), window=pair.window)

    def _means(self, terms: Sequence[Term], shift1: Number, shift2: Number) -> tuple[Number, Number]:
        first, second = shift1, shift2
        for t in terms:
            first = first + t.a1 * t.atom.moments.mean1
            second = second + t.a2 * t.atom.moments.mean2
        return first, (first if self.uniform else second)

    def _independent(self, pairs: Sequence[Pair], weights: Sequence[Number]) -> list[Part]:
        parts = [self.own(p.moments).times(w * w) for p, w in zip(pairs, weights, strict=True)]
        means = [(w * p.moments.mean1, w * p.moments.mean2) for p, w in zip(pairs, weights, strict=True) if not self._centred(p)]
        if len(means) > 1 and self.field is NUMPY and not self.uniform:
            total = Part.of_means(sum(m for m, _ in means), sum(m for _, m in means))
            return [*parts, total, *(Part.of_means(*pair, sign=-1) for pair in means)]
        for (m1, m2), (n1, n2) in combinations(means, 2):
            parts.append(Part(2 * m1 * n1, 2 * m2 * n2, m1 * n2 + m2 * n1))
        return parts

    @staticmethod
    def _centred(pair: Pair) -> bool:
        return is_zero(pair.moments.mean1) and is_zero(pair.moments.mean2)

    def _overlapping(self, terms: Sequence[Term], shift1: Number, shift2: Number, node: Node) -> list[Part]:
        parts = [Part.of_means(shift1, shift2)]
        for t in terms:
            m = t.atom.moments
            parts.append(self.own(m).scaled(t.a1 * t.a1, t.a2 * t.a2, t.a1 * t.a2))
            parts.append(
                Part(
                    2 * shift1 * t.a1 * m.mean1,
                    2 * shift2 * t.a2 * m.mean2,
                    shift1 * t.a2 * m.mean2 + shift2 * t.a1 * m.mean1,
                )
            )
        for s, t in combinations(terms, 2):
            ahead, back = self.product(s.atom, t.atom, node)
            parts.append(
                Part(
                    2 * s.a1 * t.a1 * ahead.first,
                    2 * s.a2 * t.a2 * ahead.second,
                    s.a1 * t.a2 * ahead.joint + s.a2 * t.a1 * back.joint,
                    s.a1 * t.a2 * ahead.deficit + s.a2 * t.a1 * back.deficit,
                )
            )
        return parts

    # -- products of atoms -----------------------------------------------------------------------------------------

    def product(self, a: Atom, b: Atom, node: Node) -> tuple[Part, Part]:
        """``E a_i b_j``: a part with (11, 22, 12) and one with (11, 22, 21)."""
        if a is b:
            own = self.own(a.moments)
            return own, own
        m, n = a.moments, b.moments
        if not a.support & b.support:
            self.check_raw([a, b], node)
            first, second = m.mean1 * n.mean1, m.mean2 * n.mean2
            return Part(first, second, m.mean1 * n.mean2), Part(first, second, m.mean2 * n.mean1)
        if a.patched or b.patched:
            raise FreshnessError(f"node {node!r} adds {a.node!r} and {b.node!r}, which hold different channels of one feature map")
        if a.factors or b.factors:
            return self._of_products(a, b, node)
        if a.gaussian and b.activation is not None:
            return self._stein(a, b, node)
        if b.gaussian and a.activation is not None:
            ahead, back = self._stein(b, a, node)
            return back, ahead
        if a.terms:
            return self._opened(a, b, node)
        if b.terms:
            ahead, back = self._opened(b, a, node)
            return back, ahead
        return self._crossed(a, b, node)

    def _opened(self, a: Atom, b: Atom, node: Node) -> tuple[Part, Part]:
        zero = Part(0, 0, 0)
        ahead, back = zero, zero
        for t in a.terms:
            forth, reverse = self.product(t.atom, b, node)
            ahead = plus(ahead, forth.scaled(t.a1, t.a2, t.a1))
            back = plus(back, reverse.scaled(t.a1, t.a2, t.a2))
        return ahead, back

    def _stein(self, gaussian: Atom, post: Atom, node: Node) -> tuple[Part, Part]:
        """``E[g phi(s h)] = Cov(g, h) s E phi'(s h)`` [DKS App. B, corrected sign]."""
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
        """``E[phi(g) psi(h)]`` of two activations of dependent Gaussians, numerically."""
        if a.activation is None or b.activation is None or a.source is None or b.source is None:
            raise FreshnessError(f"node {node!r} adds {a.node!r} and {b.node!r}, which share weights in a way that kcalc cannot follow")
        if self.field is not NUMPY:
            raise FreshnessError(
                f"node {node!r} adds {a.activation.name} at {a.node!r} and {b.activation.name} at {b.node!r}, which share weights; "
                "their cross moment is known numerically only. Evaluate the map with numbers"
            )
        m, n = a.source.moments, b.source.moments
        phi, psi = _rescaled(a), _rescaled(b)
        if isinstance(m.q1, Jet) or isinstance(n.q1, Jet):
            return self._crossed_in_q(phi, psi, a, b, node)
        if a.source is b.source:
            return self._crossed_alike(phi, psi, m)
        ahead, back = self.product(a.source, b.source, node)
        first = expected(phi, psi, m.q1, n.q1, ahead.first)
        second = first if self.uniform else expected(phi, psi, m.q2, n.q2, ahead.second)
        joint, drop = lessened(phi, psi, m.q1, n.q2, ahead.joint, ahead.deficit)
        other = (joint, drop) if self.uniform else lessened(phi, psi, m.q2, n.q1, back.joint, back.deficit)
        return Part(first, second, joint, drop), Part(first, second, *other)

    def _crossed_alike(self, phi: Activation, psi: Activation, m: Moments) -> tuple[Part, Part]:
        """The same for one Gaussian under both activations: the deficit keeps its digits."""
        first = phi.cross(psi, m.q1, m.q1, 1.0)[0]
        second = first if self.uniform else phi.cross(psi, m.q2, m.q2, 1.0)[0]
        joint, drop = dropped(phi, psi, m.q1, m.q2, m.gap)
        back = (joint, drop) if self.uniform else dropped(phi, psi, m.q2, m.q1, m.gap)
        return Part(first, second, joint, drop), Part(first, second, *back)

    def _crossed_in_q(self, phi: Activation, psi: Activation, a: Atom, b: Atom, node: Node) -> tuple[Part, Part]:
        """The same when q is followed with its derivatives: for one Gaussian, the q series of the product."""
        if a.source is not b.source or a.source is None:
            raise KcalcError(f"node {node!r} adds activations of dependent Gaussians; derivatives in q are not available there")
        q = a.source.moments.q1
        value = q.compose(phi.q_product_series(psi, q.value, q.order))
        part = Part(value, value, value)
        return part, part


def _rescaled(post: Atom) -> Activation:
    assert post.activation is not None
    return post.activation.transformed(input_scale=post.scale) if post.scale != 1 else post.activation


def _check_digits(q: Number, parts: Sequence[Number], still: Callable[[], Any], node: Node) -> None:
    """Raises: KcalcError where second moments of addends cancel so far that few digits of the sum's are left.

    ``still``: where the sum is a number whatever the weights; exactly 0 is right there.
    """
    size = sum(np.abs(_value(part)) for part in parts)
    lost = _value(q) < CANCELLED * size
    if np.any(lost) and np.any(lost & ~((_value(q) == 0) & still())):
        raise KcalcError(
            f"node {node!r}: its addends cancel to less than {CANCELLED:g} of their mean squares, which leaves too few digits of its q; "
            "write the sum as one activation, take larger inputs, or ask the map's ball(...) for certified digits"
        )


def _still(terms: Sequence[Term], second: bool) -> Any:
    """Where terms are functions of what is 0 there, as at black pixels without biases."""
    found: Any = True
    for atom in (t.atom for t in terms):
        inner = [Term(1, 1, atom.source)] if atom.source is not None else [*atom.terms, *(t for pair in atom.factors for t in pair.terms)]
        found = found & (_still(inner, second) if inner else _value(atom.moments.q2 if second else atom.moments.q1) == 0)
    return found


def _value(number: Number) -> Any:
    return np.asarray(number.value if isinstance(number, Jet) else number, dtype=float)
