"""Moments of the router weights for two tokens whose logits have correlation rho.

Given both thresholds t and t', every other expert lies in one of four quadrants: selected for both
tokens, only for the first, only for the second, or for neither. The numbers of experts per quadrant
are multinomial, and powers of both sums of scores are Laplace integrals, as for one token. Either a
single expert is at both thresholds, or two different experts are.

With g = sqrt(rho) c + sqrt(1 - rho) e and g' = sqrt(rho) c + sqrt(1 - rho) e', the two logits of an
expert are independent given c. An expectation over a quadrant is therefore a product of two
matrices. If rho < 0, g' uses -c. Integrals over c and the thresholds are trapezoidal sums, because
the integrands are as smooth as a Gaussian.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, ndtr

from .nodes import LOG_ROOT, density, laplace_sum, panels, quantiles, trapezoid
from .scores import Score

Array = np.ndarray
THRESHOLD = 0.88  # step, in standard deviations of the threshold
COMMON = 0.9  # step in c, in standard deviations of the integrand
FINE = 0.8  # factor of both steps without a Laplace variable; more digits are cheap then
STEP = 0.44  # step in the logarithm of the Laplace variable
SHARP = 1.2  # width of the logit panels, in standard deviations of a logit given c
TINY = 1e-300
ENTRIES = 1 << 19  # largest size of a block
LARGEST = 6.0  # larger logits are ignored
FARTHEST = 7.5  # a standard Gaussian exceeds this value with probability 3e-14
BAND = 7.0  # largest difference between two thresholds, in standard deviations
RARE = 1e-13  # probability of the omitted thresholds, on each side
Sides = tuple[bool, bool]
SIDES: tuple[Sides, ...] = ((True, True), (True, False), (False, True), (False, False))


def shared(experts: int, selected: int, sigma: float, rho: float, score: Score | None) -> float:
    """Return W = E sum_(selected for both) w_i w_i', or the expected count if ``score`` is None."""
    return _Pair(experts, selected, sigma, rho, score).total([Term("s", "s")])


def slopes(experts: int, selected: int, sigma: float, rho: float, score: Score) -> float:
    """Return R = E sum_ij (d w_i / d l_j) (d w_i' / d l_j') over i selected for both tokens."""
    terms = [Term("d", "d")]
    if score.total is not None:
        terms += [Term("d", "sd", 1, 2, -1.0), Term("sd", "d", 2, 1, -1.0), Term("sd", "sd", 2, 2)]
        terms += [Term("s", "s", 2, 2, others="s" if score.total == "all" else "d")]
    return _Pair(experts, selected, sigma, rho, score).total(terms)


class Term(NamedTuple):
    """``sign`` E sum_i f(g_i) f'(g_i') / (Z^m Z'^m') over the experts i selected for both.

    ``first`` and ``second`` name f and f', which are products of the score s and its slope d;
    ``power`` and ``power2`` are m and m'. If ``others`` names a function h, each term i is
    multiplied by the sum of h(g_j) h(g_j') over the other experts j selected for both. If the sum
    of scores includes all experts, j runs over all other experts.
    """

    first: str
    second: str
    power: int = 1
    power2: int = 1
    sign: float = 1.0
    others: str | None = None


class _Pair:
    """Matrices indexed by (threshold, Laplace node) of the first token and of the second token."""

    def __init__(
        self, experts: int, selected: int, sigma: float, rho: float, score: Score | None
    ) -> None:
        self.experts, self.k, self.sigma, self.score = experts, selected, sigma, score
        self.correlation, self.rho, self.flip = rho, abs(rho), -1 if rho < 0 else 1
        self.spread = np.sqrt(1 - self.rho)
        ratio = (1 - self.rho) / max(self.rho, 1e-12)
        fine = 1.0 if score is not None and score.total is not None else FINE
        step = fine * COMMON * np.sqrt(ratio / (ratio + 2))
        self.c, step = trapezoid(-FARTHEST, FARTHEST, step)
        self.pc = step * np.exp(-(self.c**2) / 2 - LOG_ROOT)
        self.all = score is not None and score.total == "all"
        if selected == experts:  # no threshold
            self.t, step = np.array([-FARTHEST]), 1.0
        else:
            low, high = quantiles(experts, selected, RARE)
            left, right = quantiles(experts, selected, 0.1587)  # one standard deviation
            finest = min(1.0, 1.4 * self.spread)
            step = fine * THRESHOLD * finest * (right - left) / 2
            self.t, step = trapezoid(low, high, step)
        nodes = [self._laplace(t) for t in self.t]
        counts = [len(x) for x, _ in nodes]
        self.owner = np.repeat(np.arange(len(counts)), counts)
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.x = np.concatenate([x for x, _ in nodes])
        self.weights = np.concatenate([step * weights for _, weights in nodes])
        if self.all:  # the scores at both thresholds are part of the sums
            self.weights = self.weights * np.exp(-self.x * self.scores(self.t)[self.owner])

    def scores(self, z: Array) -> Array:
        """Return the scores of standard logits z."""
        return np.ones_like(z) if self.score is None else self.score.value(self.sigma * z)

    def _laplace(self, t: float) -> tuple[Array, Array]:
        """Return Laplace nodes and weights of a token with threshold t."""
        if self.score is None or self.score.total is None:
            return np.zeros(1), np.ones(1)
        edge, top = self.scores(np.array([t, max(t, LARGEST)]))
        return laplace_sum(self.k * edge, (self.experts if self.all else self.k) * top, STEP)

    def total(self, terms: Sequence[Term]) -> float:
        """Sum the terms over all rows and columns, in blocks that fit into memory."""
        names = {name for term in terms for name in (term.first, term.second, term.others)}
        tables = _Tables(self, {"one", *names} - {None})
        found = 0.0
        for mine, theirs in self._blocks():
            block = _Block(self, tables, mine, theirs)
            found += sum(term.sign * block.total(term) for term in terms)
        return found * (1.0 if self.k == self.experts else self.experts / (2 * np.pi))

    def _blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of row thresholds, each with its column thresholds.

        The column thresholds of a block are nearby thresholds that are not less than its first row
        threshold.
        """
        count, first = len(self.t), 0
        band = BAND * np.sqrt(2) * self.spread if self.flip > 0 else np.inf
        ends = np.searchsorted(self.t, self.t + band)
        while first < count:
            last = first + 1
            while last < count and self._entries(first, last + 1, ends[last]) <= ENTRIES:
                last += 1
            yield slice(first, last), slice(first, int(ends[last - 1]))
            first = last

    def _entries(self, first: int, last: int, end: int) -> int:
        starts = self.starts
        return int((starts[last] - starts[first]) * (starts[end] - starts[first]))

    def rows(self, thresholds: slice) -> slice:
        """Return the rows that belong to the thresholds."""
        return slice(int(self.starts[thresholds.start]), int(self.starts[thresholds.stop]))


class _Tables:
    """Expectations of functions of a logit, given c or the logit at the other threshold.

    ``given`` is {(name, above): array (rows, c)}. The array contains the mean of the named function
    for a logit on one side of the row's threshold, times exp(-x score) if the sum of scores
    includes this score. ``sides`` is {(name, above): array (rows, thresholds)}, with the same mean
    given that the other token's logit is at the other threshold.
    """

    def __init__(self, pair: _Pair, names: Collection[str]) -> None:
        self.pair = pair
        self.given: dict[tuple[str, bool], Array] = {}
        self.sides: dict[tuple[str, bool], Array] = {}
        found: dict[Any, list[Array]] = {}
        for place in range(len(pair.t)):
            for above in (True, False):
                for key, values in self._at(place, above, names).items():
                    found.setdefault(key, []).append(values)
        for (name, above, table), parts in found.items():
            getattr(self, table)[name, above] = np.concatenate(parts)

    def _at(self, place: int, above: bool, names: Collection[str]) -> dict[Any, Array]:
        """Compute the rows of one threshold."""
        pair, t = self.pair, self.pair.t[place]
        x = pair.x[pair.rows(slice(place, place + 1))]
        means = {"given": np.sqrt(pair.rho) * pair.c, "sides": pair.correlation * pair.t}
        variances = {"given": 1 - pair.rho, "sides": (1 - pair.rho) * (1 + pair.rho)}
        if not above and not pair.all:  # neither the sum nor the terms include its score
            return {
                ("one", above, table): np.tile(
                    ndtr((t - mean) / np.sqrt(variances[table])), (len(x), 1)
                )
                for table, mean in means.items()
            }
        ends = (t, max(FARTHEST, t + 2)) if above else (-FARTHEST, t)
        z, dz = panels(*ends, SHARP * pair.spread)
        scores = pair.scores(z)
        laws = {
            table: density(z[:, None] - mean, variances[table]) for table, mean in means.items()
        }
        faded = np.exp(-np.outer(x, scores)) * dz
        functions = {"one": np.ones_like(z), "s": scores}
        if pair.score is not None:
            slope = pair.score.slope(pair.sigma * z)
            functions |= {"d": slope, "sd": scores * slope}
        return {
            (name, above, table): (faded * functions[name]) @ law
            for table, law in laws.items()
            for name in names & functions.keys()
        }


class _Block:
    """A block of rows of the matrices, with the columns of the same thresholds and all later ones.

    The sums are symmetric under an exchange of the tokens, so the later columns count twice.
    """

    def __init__(self, pair: _Pair, tables: _Tables, mine: slice, theirs: slice) -> None:
        self.pair, self.tables = pair, tables
        self.rows, self.columns = pair.rows(mine), pair.rows(theirs)
        self.first, self.second = pair.owner[self.rows], pair.owner[self.columns]
        self.twice = np.full(len(self.second), 2.0)
        self.twice[: len(self.first)] = 1
        self.quadrants = {sides: self._product("one", "one", *sides) for sides in SIDES}
        self.logs = {
            sides: np.log(np.maximum(part, TINY)) for sides, part in self.quadrants.items()
        }

    def _product(self, name: str, name2: str, above: bool, above2: bool) -> Array:
        """Return E f(g) f'(g') over a quadrant."""
        left = self.tables.given[name, above][self.rows] * self.pair.pc
        right = self.tables.given[name2, above2][self.columns, :: self.pair.flip]
        return left @ right.T

    def total(self, term: Term) -> float:
        """Sum the term, multiplied by the densities of both thresholds, over rows and columns."""
        pair = self.pair
        both = self._product(term.first, term.second, True, True)
        others = {}
        if term.others is not None:
            sides = SIDES if pair.all else SIDES[:1]
            others = {side: self._product(term.others, term.others, *side) for side in sides}
        power = (term.power - 1, term.power2 - 1)
        rows = pair.weights[self.rows] * pair.x[self.rows] ** power[0]
        columns = pair.weights[self.columns] * pair.x[self.columns] ** power[1] * self.twice
        if pair.k == pair.experts:
            found = self._counted(both, others, pair.experts, pair.k, pair.k)
        else:
            found = self._with_thresholds(both, others, term.others)
        return float(rows @ found @ columns)

    def _with_thresholds(
        self, both: Array, others: Mapping[Sides, Array], name: str | None
    ) -> Array:
        pair, tables = self.pair, self.tables
        counted, k = self._counted, pair.k
        t, u = pair.t[self.first][:, None], pair.t[self.second]
        gap = (1 - pair.rho) * (1 + pair.rho)
        near = np.exp(-(t**2 - 2 * pair.correlation * t * u + u**2) / (2 * gap)) / np.sqrt(gap)
        whole = counted(both, others, pair.experts - 1, k, k)
        if others and pair.all:  # the expert at both thresholds is among the others
            edge, edge2 = pair.scores(t), pair.scores(u)
            whole = whole + edge * edge2 * counted(both, {}, pair.experts - 1, k, k)
        found = near * whole
        # Two experts: for the first token, the logit of the expert at the second threshold is on
        # either side of the first threshold; the same holds with the tokens exchanged.
        apart = (pair.experts - 1) * np.exp(-(t**2 + u**2) / 2)
        for above in (False, True):
            row = tables.sides["one", above][self.rows][:, self.second]
            for above2 in (False, True):
                column = tables.sides["one", above2][self.columns][:, self.first].T
                given = (pair.experts - 2, k - above, k - above2)
                part = row * column * counted(both, others, *given)
                if others and pair.all and name is not None:
                    at_second = tables.sides[name, above][self.rows][:, self.second] * edge2
                    at_first = tables.sides[name, above2][self.columns][:, self.first].T * edge
                    mixed = at_second * column + row * at_first
                    part = part + mixed * counted(both, {}, *given)
                found = found + apart * part
        return found

    def _counted(
        self, both: Array, others: Mapping[Sides, Array], count: int, k: int, k2: int
    ) -> Array | float:
        """Sum over the number n of experts selected for both tokens, out of ``count`` experts.

        The tokens select k and k2 of these experts. One of the n experts contributes the factor
        ``both`` instead of the probability of its quadrant. ``others`` contains, for each quadrant,
        the mean of the function h of :class:`Term`.
        """
        n = max(1, k + k2 - count)
        if n > min(k, k2):
            return 0.0
        aa, ab, ba, bb = SIDES
        sizes = (n - 1, k - n, k2 - n, count - k - k2 + n)
        log = gammaln(count + 1) - gammaln(n) - sum(gammaln(m + 1) for m in sizes[1:])
        for side, m in zip(SIDES, sizes, strict=True):
            log = log + m * self.logs[side] if m else log
        means = {s: f / np.maximum(self.quadrants[s], TINY) for s, f in others.items()}
        term, total = both * np.exp(log), 0.0
        quadrants = self.quadrants
        ratio = quadrants[aa] * quadrants[bb] / np.maximum(quadrants[ab] * quadrants[ba], TINY)
        while True:
            sizes = (n - 1, k - n, k2 - n, count - k - k2 + n)
            if others:
                parts = zip(SIDES, sizes, strict=True)
                total = total + term * sum(m * means[s] for s, m in parts if s in means)
            else:
                total = total + term
            if n == min(k, k2):
                return total
            term = term * ratio * ((k - n) * (k2 - n) / (n * (count - k - k2 + n + 1)))
            n += 1
