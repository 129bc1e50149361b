"""Rows of attention weights over exchangeable tokens.

Each class of rows contains everything that the kernel calculus needs to know about one normaliser.

Row i of the first sequence has the weights A, row k of the second has the weights B, and:

    X = E sum_j A_ij B_kj                  R = E (sum_j A_ij) (sum_l B_kl).

X and R turn the covariance V of values into ``O_ik = V_d R + (V_s - V_d) X``. The index _s denotes
equal positions, and _d different positions. Softmax has R = 1 and X = S, the overlap of
:mod:`kcalc.gaussian.softmax`. S depends only on the part of scores that differs between keys:
variances ``G_ii (H_s - H_d)`` and covariance ``G_ik (H_s - H_d)``. Weights that are functions f of
single scores have ``X = T F(G_ik H_s)`` and ``R = X + T (T - 1) F(G_ik H_d)``, where F is the
kernel map of f.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...fields import NUMPY
from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...gaussian.expectations.quadrature import gauss_hermite, panel_nodes
from ...gaussian.softmax import Overlap
from ...network import primitives as P
from ..atoms import Atom, Pair
from ..kernel import Kernel
from ..second_moments import Moments
from .overlaps import overlaps_over, sink_overlaps, sink_self_overlaps, value
from .weights import elementwise

Number = Any
Node = Hashable
Array = np.ndarray
SPAN, FINE = 12.0, 400  # half the range of lengths, and the number of grid points in it
# Node counts for the three random variables of two queries at finite key width. For scores of
# variance 27, the overlap of a row with itself has relative errors of about 1e-8 at width 16 and
# 3e-5 at width 4. For two rows it is 5e-4 at width 4 (1e-4 for scores of variance 4).
NODES = (
    8,
    8,
    5,
)


class Scores(NamedTuple):
    """The quantities that rows of one or two sequences depend on.

    The fields are mean squares of queries (g) and keys (h), and gaps ``1 - cosine``.

    ``query_gap``: the gap of the two queries; ``same``, ``other``: the gaps of keys at equal and at
    different positions of the two sequences; ``apart1``, ``apart2``: the gaps of keys at different
    positions of the first and the second sequence.
    """

    g1: Number
    g2: Number
    h1: Number
    h2: Number
    query_gap: Number
    same: Number
    other: Number
    apart1: Number
    apart2: Number


class Sums(NamedTuple):
    """X and R, or a decrease of both."""

    products: Number
    sums: Number


class RowSlopes(NamedTuple):
    """Rows of one sequence at equal or different positions, and the derivatives of their ``O_ik``.

    The derivatives are with respect to the covariance of the queries, and to the covariances of the
    keys, summed over j = l and over j != l.
    """

    rows: Sums
    queries: float
    keys: float
    other_keys: float


class Rows:
    """Base class of the normalisers over ``tokens`` keys; ``kernel`` defines the number system."""

    def __init__(self, op: P.Attend, tokens: int, kernel: Kernel, node: Node) -> None:
        self.op, self.tokens, self.kernel, self.node = op, tokens, kernel, node
        self.factor = factor(op, kernel.field)
        named = getattr(kernel.activations.local, "overlaps", None)  # only for formulas
        self.overlaps: Any = named or overlaps_over(kernel.field, node)

    def own(self, scores: Scores) -> Sums:
        """Return X and R of a row of the first sequence paired with itself."""
        raise NotImplementedError

    def drop(self, scores: Scores, same_place: bool) -> Sums:
        """Return X and R of a row with itself, minus X and R of two rows of equal mean square."""
        raise NotImplementedError

    def crossed(self, scores: Scores, same_place: bool) -> Sums:
        """Return X and R of two rows."""
        raise NotImplementedError

    def slopes(
        self, g: tuple[float, float], h: tuple[float, float], v: tuple[float, float]
    ) -> tuple[RowSlopes, RowSlopes]:
        """Return the derivatives for rows at equal and at different positions of one sequence.

        ``g``, ``h``, ``v``: covariances at equal and at different positions.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ValueMap:
    """The terms of the attention matrix other than softmax.

    ``diagonal`` acts on the token itself, ``spread`` on all tokens, ``mean`` on their mean.
    """

    diagonal: Number
    spread: Number
    mean: Number

    @classmethod
    def of(cls, op: P.Attend, tokens: int, field: Any) -> ValueMap:
        """Return the terms of ``a I + A - c 1 1^T / T``, with a and c from ``op``.

        a is ``op.identity`` and c is ``op.centre``. The terms are ``a^2``,
        ``(2 a (1 - c) + c^2 - 2 c) / T`` and ``(a + 1 - c)^2``.
        """
        a, c = field.number(op.identity), field.number(op.centre)
        return cls(a * a, (2 * a * (1 - c) + c * c - 2 * c) / tokens, (a + 1 - c) ** 2)


class SoftmaxRows(Rows):
    """Rows of ``a I + softmax - c / T``; a common shift of a row's scores has no effect."""

    def __init__(self, op: P.Attend, tokens: int, kernel: Kernel, node: Node) -> None:
        super().__init__(op, tokens, kernel, node)
        self.shape = ValueMap.of(op, tokens, kernel.field)

    def _variance(self, g: Number, h: Number, apart: Number) -> Number:
        return self.overlaps.checked(value(self.factor * g * h * apart), self.node)

    def own(self, scores: Scores) -> Sums:
        alone = self.overlaps.alone(
            self.tokens, self._variance(scores.g1, scores.h1, scores.apart1)
        )
        return Sums(self.shape.diagonal + self.shape.spread + alone, self.shape.mean)

    def drop(self, scores: Scores, same_place: bool) -> Sums:
        g, h, query_gap, same, other, apart = (scores.g1, scores.h1, *scores[4:8])
        below = value(self.factor * g * h * ((apart - other) + same + query_gap * (other - same)))
        lost = self.overlaps.gap(self.tokens, self._variance(g, h, apart), below)
        return Sums(lost if same_place else lost + self.shape.diagonal, 0)

    def crossed(self, scores: Scores, same_place: bool) -> Sums:
        geometric = self.kernel.algebra.moments.geometric
        size = self.factor * geometric(scores.h1, scores.h2) * geometric(scores.g1, scores.g2)
        covariance = size * (1 - scores.query_gap) * (scores.other - scores.same)
        first = self._variance(scores.g1, scores.h1, scores.apart1)
        second = self._variance(scores.g2, scores.h2, scores.apart2)
        joint = self.shape.spread + self.overlaps.pair(self.tokens, first, second, covariance)
        return Sums(joint + self.shape.diagonal if same_place else joint, self.shape.mean)

    def slopes(
        self, g: tuple[float, float], h: tuple[float, float], v: tuple[float, float]
    ) -> tuple[RowSlopes, RowSlopes]:
        keys, values = self.factor * (h[0] - h[1]), v[0] - v[1]
        variance = g[0] * keys
        spread, mean = float(self.shape.spread), float(self.shape.mean)

        def at(g: float, row: Overlap, overlap: float, more: float) -> RowSlopes:
            slope = values * row.by_covariance
            return RowSlopes(
                Sums(more + overlap, mean),
                keys * slope,
                self.factor * g * slope,
                -self.factor * g * slope,
            )

        alone = Overlap(self.tokens, variance, variance, variance)
        other = Overlap(self.tokens, variance, variance, max(-variance, min(variance, g[1] * keys)))
        return (
            at(
                g[0],
                alone,
                self.overlaps.alone(self.tokens, variance),
                spread + float(self.shape.diagonal),
            ),
            at(g[1], other, other.value, spread),
        )


class ValuesOnly(SoftmaxRows):
    """Softmax without derivatives of X and R; gaps below 1e-10 lose digits."""

    what: ClassVar[str]
    remedy: ClassVar[str]

    def __init__(self, op: P.Attend, tokens: int, kernel: Kernel, node: Node) -> None:
        super().__init__(op, tokens, kernel, node)
        if kernel.field is not NUMPY:
            raise KcalcError(
                f"node {node!r}: {self.what} is computed only in double precision: it has no "
                f"formula, certified enclosure or JAX function; {self.remedy}"
            )

    def drop(self, scores: Scores, same_place: bool) -> Sums:
        own, both = self.own(scores), self.crossed(scores, same_place)
        return Sums(*(np.maximum(a - b, 0) for a, b in zip(own, both, strict=True)))

    def slopes(
        self, g: tuple[float, float], h: tuple[float, float], v: tuple[float, float]
    ) -> tuple[RowSlopes, RowSlopes]:
        raise KcalcError(
            f"node {self.node!r}: {self.what} has no exact gradients; sample them with "
            f"sampling=kc.Sampling(), or {self.remedy}"
        )

    def _plain(self, *numbers: Number) -> list[Array]:
        """Return numbers as plain arrays.

        Raises: KcalcError for jets of order 1.
        """
        if any(isinstance(n, Jet) and n.order for n in numbers):
            raise KcalcError(
                f"node {self.node!r}: only the values of {self.what} can be computed, but not "
                f"its derivatives or tangent kernel; {self.remedy}"
            )
        return [np.asarray(n.value if isinstance(n, Jet) else n, dtype=float) for n in numbers]


class Narrow(ValuesOnly):
    """Softmax at a finite key width d.

    Given the queries, scores are Gaussian, and ``W = Q Q^T / d`` replaces G.

    ``W_11 / G_11`` is a chi-squared variable with d degrees of freedom, divided by d. By Bartlett's
    decomposition, W of two queries depends on two such variables and a Gaussian.
    """

    what, remedy = "attention at a finite key width", "use wide=True"

    def own(self, scores: Scores) -> Sums:
        (variance,) = self._plain(self.factor * scores.g1 * scores.h1 * scores.apart1)
        x, weights = chi_squared(self.op.key_width)
        alone = (
            self.overlaps.alone(
                self.tokens, self.overlaps.checked(variance[..., None] * x, self.node)
            )
            @ weights
        )
        return Sums(self.shape.diagonal + self.shape.spread + alone, self.shape.mean)

    def crossed(self, scores: Scores, same_place: bool) -> Sums:
        g1, g2, h1, h2, gap, same, other, apart1, apart2 = (
            n[..., None] for n in self._plain(*scores)
        )
        width = self.op.key_width or 1
        x, z, y, weights = bartlett(width)
        cosine, sine = 1 - gap, np.sqrt(np.maximum(gap * (2 - gap), 0))
        second = cosine * np.sqrt(x) + sine * z / math.sqrt(width)
        v1 = self.overlaps.checked(self.factor * g1 * h1 * apart1 * x, self.node)
        v2 = self.overlaps.checked(
            self.factor * g2 * h2 * apart2 * (second**2 + sine**2 * y), self.node
        )
        size = self.factor * np.sqrt(h1) * np.sqrt(h2) * np.sqrt(g1) * np.sqrt(g2) * (other - same)
        joint = (
            self.shape.spread
            + self.overlaps.pair(self.tokens, v1, v2, size * np.sqrt(x) * second) @ weights
        )
        return Sums(joint + self.shape.diagonal if same_place else joint, self.shape.mean)


class Sink(ValuesOnly):
    """Softmax with an additional score of 0.

    The common part of a row of scores, ``G_ii H_d`` in mean square, no longer cancels.
    """

    what, remedy = "attention with a sink", "use sink=False"

    def own(self, scores: Scores) -> Sums:
        g, h, apart = self._plain(scores.g1, scores.h1, scores.apart1)
        size = self.factor * g * h
        return Sums(
            *sink_self_overlaps(
                self.tokens,
                self.overlaps.checked(size * apart, self.node),
                self._common(size * (1 - apart)),
            )
        )

    def crossed(self, scores: Scores, same_place: bool) -> Sums:
        g1, g2, h1, h2, gap, same, other, apart1, apart2 = self._plain(*scores)
        first, second = self.factor * g1 * h1, self.factor * g2 * h2
        both = np.sqrt(first) * np.sqrt(second) * (1 - gap)
        common = (
            self._common(first * (1 - apart1)),
            self._common(second * (1 - apart2)),
            both * (1 - other),
        )
        if np.any(common[2] ** 2 > common[0] * common[1] * (1 + 1e-9)):
            raise KcalcError(
                f"node {self.node!r}: keys at different positions are more similar between two "
                f"sequences than within one; {self.remedy}"
            )
        v1, v2 = (self.overlaps.checked(v, self.node) for v in (first * apart1, second * apart2))
        return Sums(*sink_overlaps(self.tokens, v1, v2, both * (other - same), common))

    def _common(self, variance: Array) -> Array:
        if np.any(variance < 0):
            raise KcalcError(
                f"node {self.node!r}: with a sink, keys of different tokens must have a cosine >= "
                f"0; {self.remedy}"
            )
        return self.overlaps.checked(variance, self.node)


class ElementwiseRows(Rows):
    """Weights that are each a function of one score."""

    def __init__(self, op: P.Attend, tokens: int, kernel: Kernel, node: Node) -> None:
        super().__init__(op, tokens, kernel, node)
        self.function = elementwise(op, tokens)

    def _moments(self, q1: Number, q2: Number, gap: Number) -> Moments:
        """Return mean squares of the weights of two scores, and the gap between them."""
        gap = gap if isinstance(gap, Jet) else Jet((gap,))
        atom = Atom(self.node, Moments(q1, q2, gap, 0, 0), self.kernel.ledger.bit(), gaussian=True)
        return self.kernel.activations.activated(self.function, Pair.of(atom), self.node).moments

    def own(self, scores: Scores) -> Sums:
        q = value(self.factor * scores.g1 * scores.h1)
        weight, count = self._moments(q, q, scores.apart1), self.tokens
        return Sums(
            count * weight.q1,
            count * weight.q1 + count * (count - 1) * value(weight.q1 * (1 - weight.gap)),
        )

    def _at_keys(self, scores: Scores) -> tuple[Moments, Moments]:
        """Return the moments of two scores with equal keys, and with different keys."""
        q1, q2 = (
            value(self.factor * g * h) for g, h in ((scores.g1, scores.h1), (scores.g2, scores.h2))
        )
        gaps = (
            scores.query_gap + gap - scores.query_gap * gap for gap in (scores.same, scores.other)
        )
        same, other = (self._moments(q1, q2, gap) for gap in gaps)
        return same, other

    def drop(self, scores: Scores, same_place: bool) -> Sums:
        q = value(self.factor * scores.g1 * scores.h1)
        alone, count = self._moments(q, q, scores.apart1), self.tokens
        same, other = self._at_keys(scores)
        products = count * same.q1 * same.gap
        return Sums(
            value(products),
            value(products + count * (count - 1) * (other.q1 * (other.gap - value(alone.gap)))),
        )

    def crossed(self, scores: Scores, same_place: bool) -> Sums:
        size = self.kernel.algebra.moments.geometric
        same, other = (size(m.q1, m.q2) * (1 - m.gap) for m in self._at_keys(scores))
        return Sums(
            self.tokens * same, self.tokens * same + self.tokens * (self.tokens - 1) * other
        )

    def slopes(
        self, g: tuple[float, float], h: tuple[float, float], v: tuple[float, float]
    ) -> tuple[RowSlopes, RowSlopes]:
        count, q = self.tokens, self.factor * g[0] * h[0]
        pairs = count * (count - 1)

        def at(g: float) -> RowSlopes:
            cosines = [self.factor * g * key / q for key in h]
            same, other = (self._moments(q, q, Jet((1 - cosine, -1.0))) for cosine in cosines)
            covariances = [float(m.q1) * (1 - float(m.gap.value)) for m in (same, other)]
            by_score = [
                -float(m.q1) * float(m.gap.coefficients[1]) / q * self.factor for m in (same, other)
            ]
            rows = Sums(count * covariances[0], count * covariances[0] + pairs * covariances[1])
            queries = count * by_score[0] * h[0] * v[0] + pairs * by_score[1] * h[1] * v[1]
            return RowSlopes(
                rows, queries, count * by_score[0] * g * v[0], pairs * by_score[1] * g * v[1]
            )

        return at(g[0]), at(g[1])


def rows_of(op: P.Attend, tokens: int, kernel: Kernel, node: Node) -> Rows:
    """Return the rows of an attention layer over ``tokens`` keys."""
    kind = (
        ElementwiseRows
        if op.normaliser != "softmax"
        else Sink
        if op.sink
        else SoftmaxRows
        if op.wide is not False
        else Narrow
    )
    return kind(op, tokens, kernel, node)


def chi(freedom: int, count: int) -> tuple[Array, Array]:
    """Return a Gauss rule for the norm of a vector of ``freedom`` standard normal variables.

    Stieltjes' procedure on a fine grid gives the nodes and weights. Overlaps are smoother as
    functions of the norm than of its square.
    """
    from scipy.linalg import eigh_tridiagonal

    middle = math.sqrt(freedom)
    low, high = max(middle - SPAN, 0.0), middle + SPAN
    ((grid,), (fine,)) = panel_nodes(np.array([low, high]), FINE)
    logs = (freedom - 1) * np.log(grid) - grid**2 / 2
    density = fine * np.exp(logs - logs.max())
    density /= density.sum()
    diagonal, below = np.zeros(count), np.zeros(count)
    older, newer, norm = np.zeros(FINE), np.ones(FINE), 1.0
    for k in range(count):
        before, norm = norm, density @ newer**2
        below[k] = norm / before
        diagonal[k] = density @ (grid * newer**2) / norm
        older, newer = newer, (grid - diagonal[k]) * newer - below[k] * older
    nodes, vectors = eigh_tridiagonal(diagonal, np.sqrt(below[1:]))
    return nodes, vectors[0] ** 2


@lru_cache(64)
def chi_squared(width: int) -> tuple[Array, Array]:
    """Return quadrature nodes and weights for ``chi^2_d / d``."""
    lengths, weights = chi(width, NODES[0])
    return lengths**2 / width, weights


@lru_cache(64)
def bartlett(width: int) -> tuple[Array, Array, Array, Array]:
    """Return nodes ``(chi^2_d / d, normal, chi^2_(d-1) / d)`` and weights of a product rule."""
    x, first = chi_squared(width)
    z, second = gauss_hermite(NODES[1])
    lengths, third = chi(width - 1, NODES[2])
    weights = first[:, None, None] * second[:, None] * third
    grid = np.broadcast_arrays(x[:, None, None], z[:, None], lengths**2 / width, weights)
    first, second, third, weights = (part.ravel() for part in grid)
    return first, second, third, weights


def factor(op: P.Attend, field: Any = NUMPY) -> Number:
    """Return the factor in the score variance: 1 if scores are divided by ``sqrt(key_width)``."""
    width = op.key_width or 1
    if op.scale == "linear":
        return 0 if op.wide is not False else field.number(1) / width
    return 1 if op.scale == "sqrt" else field.number(op.scale) ** 2 * width
