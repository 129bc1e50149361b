"""The channels of a feature map as groups of identically distributed channels, in order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import sympy as sp

from ..foundation.errors import FreshnessError
from .atoms import Pair

Number = Any
Node = Hashable


@dataclass(frozen=True)
class Channels:
    """The state of a feature map: (share of the channels, pair) in channel order.

    Shares sum to one.
    """

    groups: tuple[tuple[Any, Pair], ...]

    @classmethod
    def one(cls, pair: Pair) -> Channels:
        """Return a state with a single group of channels."""
        return cls(((Fraction(1), pair),))

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs without their shares."""
        return tuple(pair for _, pair in self.groups)

    @property
    def edges(self) -> list[Any]:
        """Positions where groups begin, followed by 1, the end of the last group."""
        return list(accumulate((share for share, _ in self.groups), initial=Fraction(0)))

    def map(self, change: Callable[[Pair], Pair]) -> Channels:
        """Return the state after changing every group separately.

        A pair that occurs several times is changed only once.
        """
        done: dict[int, Pair] = {}
        for pair in self.pairs:
            if id(pair) not in done:
                done[id(pair)] = change(pair)
        return Channels(tuple((share, done[id(pair)]) for share, pair in self.groups))

    def split_by(self, groups: int) -> bool:
        """Whether each of ``groups`` equal groups of channels lies in one feature map."""
        return len(self.groups) == 1 or all(
            isinstance(edge, Fraction | int) and edge * groups == int(edge * groups)
            for edge in self.edges
        )

    def normalised(self, groups: int, change: Callable[[Channels], Channels]) -> Channels:
        """Apply a change that uses statistics over each of ``groups`` groups of channels.

        The change applies to every feature map separately if no group mixes several of them, and
        otherwise to all channels at once.
        """
        if groups == 1 or not self.split_by(groups):
            return change(self)
        return self.map(lambda pair: change(Channels.one(pair)).pairs[0])

    def divisors(self, groups: int) -> list[Channels]:
        """For each feature map, the channels whose statistics normalise it."""
        if groups == 1 or not self.split_by(groups):
            return [self] * len(self.groups)
        return [Channels.one(pair) for pair in self.pairs]

    def average(self, value: Callable[[Pair], Number], field: Any) -> Number:
        """Return the mean of a value over all channels, in a number field."""
        if len(self.groups) == 1:
            return value(self.pairs[0])
        return sum((field.number(share) * value(pair) for share, pair in self.groups), 0)

    @classmethod
    def joined(cls, states: Sequence[Channels], channels: Sequence[Any], node: Node) -> Channels:
        """Return the concatenation of feature maps with the given channel counts."""
        total = sum(channels)
        shares = [_ratio(k, total) for k in channels]
        return cls(
            tuple(
                (_simple(outer * inner), pair)
                for outer, s in zip(shares, states, strict=True)
                for inner, pair in s.groups
            )
        )


def _ratio(part: Any, whole: Any) -> Any:
    if isinstance(part, int) and isinstance(whole, int):
        return Fraction(part, whole)
    return sp.sympify(part, strict=True) / whole


def _simple(share: Any) -> Any:
    return sp.cancel(share) if isinstance(share, sp.Basic) else share


def combine_channel_groups(
    states: Sequence[Channels], combine: Callable[[Sequence[Pair]], Pair], node: Node
) -> Channels:
    """Combine feature maps channel by channel; groups are split at all boundaries.

    Each part of a split group keeps its ``window`` of the atoms' channels, so that different
    channels of one feature map are never confused. Raises: FreshnessError if boundaries are
    symbolic and do not coincide.
    """
    if all(len(s.groups) == 1 for s in states):
        return Channels.one(combine([s.pairs[0] for s in states]))
    shares = [[share for share, _ in s.groups] for s in states]
    if all(own == shares[0] for own in shares):
        rows = zip(*(s.groups for s in states), strict=True)
        return Channels(tuple((row[0][0], combine([pair for _, pair in row])) for row in rows))
    if any(isinstance(share, sp.Basic) for own in shares for share in own):
        raise FreshnessError(
            f"node {node!r} adds concatenations with symbolic channel counts that differ; "
            "substitute numbers with net.subs"
        )
    edges = sorted({edge for s in states for edge in s.edges})
    return Channels(
        tuple(
            (high - low, combine([_slice(s, low, high) for s in states]))
            for low, high in pairwise(edges)
        )
    )


def _slice(state: Channels, low: Fraction, high: Fraction) -> Pair:
    """Return the part of a feature map between two channel positions in the same group."""
    edges = state.edges
    (_, pair), start, stop = next(
        (g, a, b) for g, a, b in zip(state.groups, edges, edges[1:], strict=False) if low < b
    )
    begin, length = pair.window
    size = stop - start
    return pair.at((begin + length * (low - start) / size, length * (high - low) / size))
