"""Feature maps as linear expressions in atoms, which kernel rules use to check their hypotheses.

At infinite width, a channel of a feature map is a function of independent Gaussian variables, one
per affine layer (layers with different weights give independent variables even if one layer feeds
the other). kcalc represents each feature map as a linear expression ``shift + sum_k a_k A_k`` in
*atoms* ``A_k``. Atoms are raw inputs, Gaussian pre-activations, activations of one Gaussian, and
sums. A sum is replaced with its addends only if it shares weights with another addend. Second
moments of such expressions are exact: identical atoms merge, atoms without common weights
contribute products of means, and all other pairs of atoms have the cross moments of
:mod:`kcalc.calculi.products`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import reduce
from itertools import combinations
from operator import and_
from typing import Any

import numpy as np

from ..fields import NUMPY, SYMPY
from ..fields.jets import Jet
from ..foundation.errors import FreshnessError, KcalcError
from .atoms import Atom, Pair, Term, disjoint, merged, with_all_below
from .checks import CANCELLED, LostDigits, is_one
from .products import NOTHING, Products, check_raw
from .second_moments import Moments, Part, SecondMoments, is_zero
from .tape import recordable

Number = Any
Node = Hashable


class Algebra:
    """Exact second moments of sums and products of feature maps.

    It uses the number system of ``moments``.
    """

    def __init__(self, moments: SecondMoments, products: Products | None = None) -> None:
        self.moments, self.field, self.uniform = moments, moments.field, moments.uniform
        self.products = Products(moments) if products is None else products

    def weighted_sum(self, pairs: Sequence[Pair], weights: Sequence[Number], node: Node) -> Pair:
        """Return ``sum_i w_i f_i`` with every cross term.

        Raises: FreshnessError if a cross moment has no rule, KcalcError if addends cancel.
        """
        terms = merged(
            [
                Term(w * t.a1, w * t.a2, t.atom)
                for pair, w in zip(pairs, weights, strict=True)
                for t in pair.terms
            ]
        )
        shift1 = sum((w * p.shift1 for p, w in zip(pairs, weights, strict=True)), 0)
        shift2 = sum((w * p.shift2 for p, w in zip(pairs, weights, strict=True)), 0)
        if not terms:
            raise KcalcError(
                f"node {node!r}: the addends cancel, so its output is the same for all inputs; "
                "change the weights of the Sum. Pooling and resizing are treated as the identity "
                "here, but kc.ntk(net, spatial='exact', image_shape=...) takes mean pooling into "
                "account"
            )
        apart = disjoint([pair.support for pair in pairs])
        windows = {pair.window for pair in pairs}
        if len(windows) > 1 and not apart:
            raise FreshnessError(
                f"node {node!r} adds different channels of one feature map (concatenations whose "
                "parts do not line up); apply an Affine to the addends, or align the parts"
            )
        if apart:
            check_raw([t.atom for pair in pairs for t in pair.terms], node)
            parts = self._independent(pairs, weights)
        else:
            parts = self._overlapping(terms, shift1, shift2, node)
        mean1, mean2 = self._means(terms, shift1, shift2)
        q1, q2, gap = self.moments.mix(parts)
        if self.field is NUMPY:
            _check_digits(
                q1, [part.first for part in parts], lambda: _constant_at_zero(terms, False), node
            )
            if not self.uniform:
                seconds = [part.second for part in parts]
                _check_digits(q2, seconds, lambda: _constant_at_zero(terms, True), node)
        moments = Moments(q1, q2, gap, mean1, mean2)
        window = windows.pop() if len(windows) == 1 else None
        pair = Pair(moments, terms, shift1, shift2, window or (0, 1))
        return pair if len(terms) == 1 else self.sealed(pair, node, patched=window is None)

    def sealed(self, pair: Pair, node: Node, patched: bool = False) -> Pair:
        """Return the same feature map as one atom.

        A feature map with a shift is returned unchanged, unless it is ``patched``, which means that
        its addends contain different windows of channels.
        """
        if not (is_zero(pair.shift1) and is_zero(pair.shift2)) and not patched:
            return pair
        gaussian = all(t.atom.gaussian for t in pair.terms)
        gaussian = gaussian and pair.gaussian
        return Pair.of(
            Atom(node, pair.moments, pair.support, gaussian, pair.raw, pair.terms, patched=patched)
        ).at(pair.window)

    def _means(
        self, terms: Sequence[Term], shift1: Number, shift2: Number
    ) -> tuple[Number, Number]:
        first, second = shift1, shift2
        for t in terms:
            first = first + t.a1 * t.atom.moments.mean1
            second = second + t.a2 * t.atom.moments.mean2
        return first, (first if self.uniform else second)

    def _independent(self, pairs: Sequence[Pair], weights: Sequence[Number]) -> list[Part]:
        parts = [
            self.moments.own(p.moments).times(w * w) for p, w in zip(pairs, weights, strict=True)
        ]
        means = [
            (w * p.moments.mean1, w * p.moments.mean2)
            for p, w in zip(pairs, weights, strict=True)
            if not self._centred(p)
        ]
        if len(means) > 1 and self.field is NUMPY and not self.uniform:
            total = Part.of_means(sum(m for m, _ in means), sum(m for _, m in means))
            return [*parts, total, *(Part.of_means(*pair, sign=-1) for pair in means)]
        for (m1, m2), (n1, n2) in combinations(means, 2):
            parts.append(Part(2 * m1 * n1, 2 * m2 * n2, m1 * n2 + m2 * n1))
        return parts

    @staticmethod
    def _centred(pair: Pair) -> bool:
        return is_zero(pair.moments.mean1) and is_zero(pair.moments.mean2)

    def _overlapping(
        self, terms: Sequence[Term], shift1: Number, shift2: Number, node: Node
    ) -> list[Part]:
        shifted = not (is_zero(shift1) and is_zero(shift2))
        parts = [Part.of_means(shift1, shift2)] if shifted else []
        for t in terms:
            m = t.atom.moments
            parts.append(self.moments.own(m).scaled(t.a1 * t.a1, t.a2 * t.a2, t.a1 * t.a2))
            if shifted:
                parts.append(
                    Part(
                        2 * shift1 * t.a1 * m.mean1,
                        2 * shift2 * t.a2 * m.mean2,
                        shift1 * t.a2 * m.mean2 + shift2 * t.a1 * m.mean1,
                    )
                )
        for s, t in combinations(terms, 2):
            ahead, back = self.products.product(s.atom, t.atom, node)
            if ahead is NOTHING:
                continue
            if self.uniform:
                parts.append(ahead.times(2 * s.a1 * t.a1))
                continue
            parts.append(
                Part(
                    2 * s.a1 * t.a1 * ahead.first,
                    2 * s.a2 * t.a2 * ahead.second,
                    s.a1 * t.a2 * ahead.joint + s.a2 * t.a1 * back.joint,
                    s.a1 * t.a2 * ahead.deficit + s.a2 * t.a1 * back.deficit,
                )
            )
        return parts

    def independent_product(self, pairs: Sequence[Pair], node: Node) -> Pair:
        """Return the product of independent feature maps: q values, c values and means multiply.

        ``1 - c`` is computed without cancellation.
        """
        first = pairs[0].moments
        q1 = first.q1
        q2 = first.q2
        gap = first.gap
        mean1 = first.mean1
        mean2 = first.mean2
        support = pairs[0].support
        for pair in pairs[1:]:
            m = pair.moments
            q1 = q1 * m.q1
            q2 = q1 if self.uniform else q2 * m.q2
            mean1 = _times(mean1, m.mean1)
            mean2 = mean1 if self.uniform else _times(mean2, m.mean2)
            gap = 1 - (1 - gap) * (1 - m.gap) if self.field is SYMPY else _gap_of_both(gap, m.gap)
            support |= pair.support
        windows = {pair.window for pair in pairs}
        factors = tuple(f for pair in pairs for f in _factors(pair))
        moments = Moments(q1, q2, gap, mean1, mean2)
        atom = Atom(
            node, moments, support, gaussian=False, patched=len(windows) > 1, factors=factors
        )
        return Pair(
            moments, (Term(1, 1, atom),), window=windows.pop() if len(windows) == 1 else (0, 1)
        )


@recordable
def _gap_of_both(one: Number, two: Number) -> Number:
    """Return ``1 - C1 C2`` from ``1 - C1`` and ``1 - C2``.

    Derivatives are computed for ``C1 C2``, in which an infinite derivative at ``c = 1`` is not
    multiplied by 0.
    """
    if not isinstance(one, Jet) or not isinstance(two, Jet):
        return one + (1 - one) * two
    rates = ((1 - one) * (1 - two)).coefficients[1:]
    return Jet((one.value + (1 - one.value) * two.value, *(-rate for rate in rates)))


def _factors(pair: Pair) -> tuple[Pair, ...]:
    """Return the factors of a feature map, or the feature map itself if it is not a product."""
    (term, *others) = pair.terms
    whole = (
        not others
        and is_one(term.a1)
        and is_one(term.a2)
        and is_zero(pair.shift1)
        and is_zero(pair.shift2)
    )
    return term.atom.factors if whole and term.atom.factors else (pair,)


def _times(a: Number, b: Number) -> Number:
    return 0 if is_zero(a) or is_zero(b) else a * b


def _check_digits(q: Number, parts: Sequence[Number], still: Callable[[], Any], node: Node) -> None:
    """Reject a sum whose addends cancel, because its ``q`` would have few correct digits.

    Raises: LostDigits, naming the node. ``still()`` is a mask of the locations where the sum
    is the same constant for all weights, so q may be exactly 0.
    """
    size = sum(np.abs(_value(part)) for part in parts)
    lost = _value(q) < CANCELLED * size
    if np.any(lost) and np.any(lost & ~((_value(q) == 0) & still())):
        raise LostDigits(
            f"node {node!r}: the addends cancel to less than {CANCELLED:g} of their mean "
            "squares, so too few digits of the q value remain; write the sum as one activation, "
            "use larger inputs, or call the map's ball(...) for certified digits"
        )


def _constant_at_zero(terms: Sequence[Term], second: bool) -> Any:
    """Return the mask of the locations where every term depends only on a zero pre-activation.

    This happens for black pixels in a network without biases.
    """
    known: dict[Atom, Any] = {}
    for atom in with_all_below(t.atom for t in terms):
        q = atom.moments.q2 if second else atom.moments.q1
        known[atom] = _all(known[part] for part in atom.parts) if atom.parts else _value(q) == 0
    return _all(known[t.atom] for t in terms)


def _all(masks: Iterable[Any]) -> Any:
    return reduce(and_, masks, True)


def _value(number: Number) -> Any:
    return np.asarray(number.value if isinstance(number, Jet) else number, dtype=float)
