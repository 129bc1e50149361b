"""Moments of the weights that a router gives two tokens whose logits have correlation rho.

Given both thresholds t and t', every other expert lies in one of four quadrants: selected for both
tokens, for one of them, or for none. The counts are multinomial, and powers of both sums of scores
are Laplace integrals, as for one token. The expert at t is also the one at t', or there are two.

With g = sqrt(rho) c + sqrt(1 - rho) e and g' = sqrt(rho) c + sqrt(1 - rho) e', the two logits of an
expert are independent given c, so an expectation over a quadrant is a product of two matrices. For
rho < 0, g' has -c.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import gammaln

from .nodes import LOG_ROOT, REACH, laplace, panels, thresholds
from .scores import Score

Array = np.ndarray
THRESHOLDS = 3  # panels at rho = 0
STEP = 0.5  # of the logarithm of the Laplace variable
SHARP = 0.9  # panels of logits, in standard deviations of a logit given c
TINY = 1e-300
ENTRIES = 1 << 20  # of a block
LARGEST = 7.0  # logits beyond it do not count
TAIL = 21.0  # exp(-TAIL) is below the error of the integrals


def shared(experts: int, selected: int, sigma: float, rho: float, score: Score | None) -> float:
    """W = E sum_(selected for both) w_i w_i'; without a score, the expected number of them."""
    return _Pair(experts, selected, sigma, rho, score).total()


class _Pair:
    """Rows and columns of its matrices: a threshold and a Laplace node of either token."""

    def __init__(
        self, experts: int, selected: int, sigma: float, rho: float, score: Score | None
    ) -> None:
        self.experts, self.k, self.sigma, self.score = experts, selected, sigma, score
        self.rho, self.flip = abs(rho), -1 if rho < 0 else 1
        self.spread = np.sqrt(1 - self.rho)
        width = self.spread / np.sqrt(max(self.rho, 1e-12))
        self.c, dc = panels(-REACH, REACH, min(1.5, 1.5 * width))
        self.pc = dc * np.exp(-(self.c**2) / 2 - LOG_ROOT)
        self.all = score is not None and score.total == "all"
        count = THRESHOLDS * np.sqrt((1 + self.rho) / (1 - self.rho))
        if selected == experts:  # no threshold
            self.t, weights = np.array([-REACH]), np.ones(1)
        else:
            self.t, weights = thresholds(experts, selected, 1 / count)
        tables = [_Threshold(self, t, rho) for t in self.t]
        self.owner = np.repeat(np.arange(len(tables)), [len(table.x) for table in tables])
        self.weights = np.concatenate(
            [weight * table.weights for weight, table in zip(weights, tables, strict=True)]
        )
        self.by_common = {
            name: np.concatenate([table.by_common[name] for table in tables]) for name in "sab"
        }
        self.sides = {
            above: np.concatenate([table.sides[above] for table in tables])
            for above in (False, True)
        }
        gap = (1 - self.rho) * (1 + self.rho)
        t, u = self.t[:, None], self.t
        self.joint = np.exp(-(t**2 - 2 * rho * t * u + u**2) / (2 * gap)) / np.sqrt(gap)
        self.apart = np.exp(-(t**2 + u**2) / 2)

    def total(self) -> float:
        """The sum over all rows and columns, in blocks that fit into memory."""
        size = len(self.owner)
        step = max(ENTRIES // size, 1)
        blocks = (self._block(slice(i, min(i + step, size))) for i in range(0, size, step))
        return self.experts / (2 * np.pi) * float(sum(blocks))

    def _block(self, rows: slice) -> float:
        """The densities of both thresholds times the moments given both, summed.

        The matrix is symmetric: columns after the block count twice.
        """
        columns = slice(rows.start, None)

        def product(name: str, name2: str) -> Array:
            left = self.by_common[name][rows] * self.pc
            return left @ self.by_common[name2][columns, :: self.flip].T

        weights = np.full(len(self.owner[columns]), 2.0)
        weights[: rows.stop - rows.start] = 1
        weights *= self.weights[columns]
        if self.k == self.experts:
            every = product("s", "s") * product("a", "a") ** (self.experts - 1)
            return 2 * np.pi * float(self.weights[rows] @ every @ weights)
        quadrants = [product(*pair) for pair in ("ss", "aa", "ab", "ba", "bb")]
        first, second = self.owner[rows], self.owner[columns]
        found = self.joint[np.ix_(first, second)] * self._counted(
            quadrants, self.experts - 1, self.k, self.k
        )
        apart = (self.experts - 1) * self.apart[np.ix_(first, second)]
        # Two experts: the one at the second threshold has a logit of the first token, and the one
        # at the first threshold a logit of the second token, on either side.
        for above in (False, True):
            row = apart * self.sides[above][rows][:, second]
            for above2 in (False, True):
                rest = self._counted(quadrants, self.experts - 2, self.k - above, self.k - above2)
                found = found + row * self.sides[above2][columns][:, first].T * rest
        return float(self.weights[rows] @ found @ weights)

    def _counted(self, quadrants: list[Array], others: int, k: int, k2: int) -> Array | float:
        """The sum over n experts that are selected for both tokens, of k and k2 selected ones."""
        both, aa, ab, ba, bb = quadrants
        n = max(1, k + k2 - others)
        if n > min(k, k2):
            return 0.0
        counts = (n - 1, k - n, k2 - n, others - k - k2 + n)
        log = gammaln(others + 1) - gammaln(n) - sum(gammaln(m + 1) for m in counts[1:])
        for part, m in zip((aa, ab, ba, bb), counts, strict=True):
            log = log + m * np.log(np.maximum(part, TINY))
        term = both * np.exp(log)
        total, ratio = term, aa * bb / np.maximum(ab * ba, TINY)
        while n < min(k, k2):
            term = term * ratio * ((k - n) * (k2 - n) / (n * (others - k - k2 + n + 1)))
            total, n = total + term, n + 1
        return total


class _Threshold:
    """What depends on the threshold ``t`` of one token only; rows belong to Laplace nodes x."""

    def __init__(self, pair: _Pair, t: float, rho: float) -> None:
        self.pair = pair
        edge, top = self._score(np.array([t, max(t, LARGEST)]))
        if pair.score is None or pair.score.total is None:
            self.x, self.weights = np.zeros(1), np.ones(1)
        else:
            count = pair.experts if pair.all else pair.k
            self.x, self.weights = laplace(pair.k * edge, count * top, STEP, TAIL)
        if pair.all:
            self.weights = self.weights * np.exp(-self.x * edge)
        parts = {True: self._nodes(t, REACH, True), False: self._nodes(-REACH, t, pair.all)}
        self.by_common = self._given_common(parts)
        mean, variance = rho * pair.t, (1 - rho) * (1 + rho)
        self.sides = {
            above: faded @ (dz[:, None] * _density(z[:, None] - mean, variance))
            for above, (z, dz, _, faded) in parts.items()
        }

    def _score(self, z: Array) -> Array:
        """Scores of standard logits z."""
        score = self.pair.score
        return np.ones_like(z) if score is None else score.value(self.pair.sigma * z)

    def _nodes(self, low: float, high: float, counted: bool) -> tuple[Array, Array, Array, Array]:
        """Logits z, their weights, their scores, and exp(-x score) where the sum has them."""
        z, dz = panels(low, high, SHARP * self.pair.spread)
        scores = self._score(z)
        return z, dz, scores, np.exp(-np.outer(self.x, scores if counted else 0 * scores))

    def _given_common(self, parts: Mapping[bool, tuple[Array, ...]]) -> dict[str, Array]:
        """Expectations given c.

        ``a``: above the threshold; ``b``: below it; ``s``: above it, times the score.
        """
        common = np.sqrt(self.pair.rho) * self.pair.c
        laws = {
            above: dz[:, None] * _density(z[:, None] - common, self.pair.spread**2)
            for above, (z, dz, _, _) in parts.items()
        }
        _, _, scores, faded = parts[True]
        return {
            "a": faded @ laws[True],
            "s": (faded * scores) @ laws[True],
            "b": parts[False][3] @ laws[False],
        }


def _density(z: Array, variance: float) -> Array:
    return np.exp(-(z**2) / (2 * variance) - LOG_ROOT) / np.sqrt(variance)
