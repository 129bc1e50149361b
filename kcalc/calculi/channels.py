"""The channels of a feature map as groups that behave alike, in channel order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import sympy as sp

from ..errors import FreshnessError
from .freshness import Pair

Number = Any
Node = Hashable


@dataclass(frozen=True)
class Channels:
    """The state of a feature map: (share of the channels, pair) in channel order; shares sum to one."""

    groups: tuple[tuple[Any, Pair], ...]

    @classmethod
    def one(cls, pair: Pair) -> Channels:
        """All channels alike."""
        return cls(((Fraction(1), pair),))

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs without their shares."""
        return tuple(pair for _, pair in self.groups)

    def map(self, change: Callable[[Pair], Pair]) -> Channels:
        """Every group changed on its own; a pair that occurs twice is computed once."""
        done: dict[int, Pair] = {}
        for pair in self.pairs:
            if id(pair) not in done:
                done[id(pair)] = change(pair)
        return Channels(tuple((share, done[id(pair)]) for share, pair in self.groups))

    def average(self, value: Callable[[Pair], Number]) -> Number:
        """The mean over all channels."""
        if len(self.groups) == 1:
            return value(self.pairs[0])
        return sum((_times(share, value(pair)) for share, pair in self.groups), 0)

    @classmethod
    def joined(cls, states: Sequence[Channels], channels: Sequence[Any], node: Node) -> Channels:
        """The concatenation of feature maps with the given channel counts."""
        total = sum(channels)
        shares = [_ratio(k, total) for k in channels]
        return cls(tuple((_simple(outer * inner), pair) for outer, s in zip(shares, states, strict=True) for inner, pair in s.groups))


def _ratio(part: Any, whole: Any) -> Any:
    if isinstance(part, int) and isinstance(whole, int):
        return Fraction(part, whole)
    return sp.sympify(part, strict=True) / whole


def _simple(share: Any) -> Any:
    return sp.cancel(share) if isinstance(share, sp.Basic) else share


def _times(share: Any, value: Any) -> Any:
    if not isinstance(share, Fraction) or isinstance(value, int | Fraction):
        return share * value
    return sp.Rational(share.numerator, share.denominator) * value if isinstance(value, sp.Basic) else float(share) * value


def overlaid(states: Sequence[Channels], combine: Callable[[Sequence[Pair]], Pair], node: Node) -> Channels:
    """Combine feature maps channel by channel: groups are cut at all their boundaries.

    Raises: FreshnessError where boundaries are symbolic and do not coincide.
    """
    if all(len(s.groups) == 1 for s in states):
        return Channels.one(combine([s.pairs[0] for s in states]))
    many = [s for s in states if len(s.groups) > 1]
    if all([share for share, _ in s.groups] == [share for share, _ in many[0].groups] for s in many):
        rows = range(len(many[0].groups))
        return Channels(tuple((many[0].groups[i][0], combine([s.pairs[i if len(s.groups) > 1 else 0] for s in states])) for i in rows))
    if any(isinstance(share, sp.Basic) for s in states for share, _ in s.groups):
        raise FreshnessError(f"node {node!r} adds concatenations with symbolic channel counts that differ; give numbers with net.subs")
    edges = sorted({edge for s in states for edge in _edges(s)})
    groups = [(high - low, combine([_at(s, low) for s in states])) for low, high in pairwise(edges)]
    return Channels(tuple(groups))


def _edges(state: Channels) -> list[Fraction]:
    edges = [Fraction(0)]
    for share, _ in state.groups:
        edges.append(edges[-1] + share)
    return edges


def _at(state: Channels, position: Fraction) -> Pair:
    edges = _edges(state)
    return next(pair for (_, pair), high in zip(state.groups, edges[1:], strict=True) if position < high)
