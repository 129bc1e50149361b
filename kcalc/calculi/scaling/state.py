"""States of the forward calculus: second moments per channel and location, and their origin."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate, count
from math import prod
from typing import Any

import numpy as np

from ...activations import Activation
from ...foundation.errors import KcalcError
from .levels import Level

Node = Hashable
Number = Any
Array = np.ndarray
SERIAL = count()


@dataclass(frozen=True)
class ChannelPart:
    """Channels with the same second moments.

    ``level``: E x^2 per location. ``pairs``: E x_p x_r for pairs of locations, or None if they are
    uncorrelated or not followed. ``rho``: a single value of E x_p x_r / sqrt(E x_p^2 E x_r^2) for
    all pairs of locations, neglecting borders.
    """

    channels: Number
    level: Level
    pairs: Level | None = None
    rho: Number = 0

    def scaled(self, factor: Number) -> ChannelPart:
        """Return the moments of the feature map multiplied by ``sqrt(factor)``."""
        return replace(
            self,
            level=self.level.scaled(factor),
            pairs=None if self.pairs is None else self.pairs.scaled(factor),
        )

    def masked(self, keep: Number) -> ChannelPart:
        """The moments of the feature map after a random mask.

        With probability ``keep`` an entry is divided by ``keep``; otherwise it becomes 0.
        """
        level = self.level.scaled(1 / keep)
        return replace(
            self,
            level=level,
            pairs=None if self.pairs is None else with_diagonal(self.pairs, level),
            rho=self.rho * keep,
        )

    def pair_values(self) -> Level:
        """The matrix of pairs, which is diagonal if ``pairs`` is None."""
        return (
            Level(np.diag(self.level.values), self.level.exponent)
            if self.pairs is None
            else self.pairs
        )

    def plus(self, other: ChannelPart) -> ChannelPart:
        """The moments of a sum of two feature maps whose cross terms are 0."""
        pairs = None
        if self.pairs is not None or other.pairs is not None:
            pairs = self.pair_values().plus(other.pair_values())
        return ChannelPart(
            self.channels,
            self.level.plus(other.level),
            pairs,
            mixed((self.level, self.rho), (other.level, other.rho)),
        )


def with_diagonal(pairs: Level, level: Level) -> Level:
    """A matrix of pairs of locations with the second moments ``level`` on its diagonal."""
    values = pairs.values.copy()
    np.fill_diagonal(values, np.ldexp(level.values, level.exponent - pairs.exponent))
    return Level(values, pairs.exponent)


def mixed(*given: tuple[Level, Number]) -> Number:
    """The mean of correlations, weighted by second moments."""
    rhos = [rho for _, rho in given]
    if all(rho == rhos[0] for rho in rhos):
        return rhos[0]
    if given[0][0].symbolic:
        return sum(level.values * rho for level, rho in given) / sum(
            level.values for level, _ in given
        )
    top = max(level.exponent for level, _ in given)
    sizes = [
        float(np.mean(level.values)) * 2.0 ** max(level.exponent - top, -1000) for level, _ in given
    ]
    return sum(s * r for s, r in zip(sizes, rhos, strict=True)) / sum(sizes)


@dataclass(frozen=True)
class EntryLaw:
    """The distribution of the entries of a feature map.

    ``kind`` is "normal" (symmetric, and Gaussian in the limit of large widths), "symmetric", "post"
    (an activation of a normal), "max" or "mixed" (unknown, and not assumed to be symmetric). "max"
    is the maximum of ``counts`` normals with mean squares ``levels`` and correlation ``rho``.
    """

    kind: str
    activation: Activation | None = None
    node: Node = None
    levels: tuple[Level, ...] = ()
    counts: Array | None = None
    rho: float = 0.0

    @property
    def symmetric(self) -> bool:
        """Whether x and -x have the same distribution."""
        return self.kind in ("normal", "symmetric")


@dataclass(frozen=True, eq=False)
class State:
    """A feature map.

    ``locations``: its spatial shape, or None if it has no locations or they are flattened into
    channels; ``size``: the number of locations. ``support``: the bits of the inputs and Affine
    layers that it depends on. ``final``: the bits of the Affine layers if it is a linear
    combination of their outputs, otherwise 0. ``terms``: the terms [(factor, state)] of this
    combination. For the output of an activation, ``source`` is the pre-activation, ``sides`` are
    the slopes (for x >= 0, for x < 0) of a rectifier, and ``slopes`` is E phi' per part.
    """

    parts: tuple[ChannelPart, ...]
    locations: tuple[int, ...] | None
    size: int
    law: EntryLaw
    support: int
    final: int = 0
    terms: tuple[tuple[Number, State], ...] = ()
    source: State | None = None
    sides: tuple[Number, Number] | None = None
    slopes: tuple[Number, ...] = ()
    serial: int = field(default_factory=lambda: next(SERIAL))

    @property
    def gate(self) -> int | None:
        """The serial number of the pre-activation; activations of one feature map share it."""
        return None if self.source is None else self.source.serial

    @property
    def flat(self) -> bool:
        """True if locations have become channels."""
        return self.locations is None and self.size > 1

    @property
    def channels(self) -> Number:
        """The number of channels, including flattened locations."""
        own = sum(part.channels for part in self.parts)
        return own * self.size if self.flat else own

    def moment(self) -> Level:
        """Return E x^2 per location, averaged over channels."""
        return weighted([(part.channels, part.level) for part in self.parts])

    def with_parts(
        self, parts: Sequence[ChannelPart], factor: Number = 1, law: EntryLaw | None = None
    ) -> State:
        """Return the state multiplied by ``factor``, with the moments ``parts``."""
        return replace(
            self,
            parts=tuple(parts),
            law=law or self.law,
            terms=((factor, self),),
            source=None,
            serial=next(SERIAL),
        )


def weighted(given: Sequence[tuple[Number, Level]]) -> Level:
    """The weighted mean of levels, from pairs (weight, level)."""
    if len(given) == 1:
        return given[0][1]
    total = sum(weight for weight, _ in given)
    return reduce(Level.plus, (level.scaled(weight / total) for weight, level in given))


def locations_of(shape: Sequence[int] | None) -> int:
    """The number of locations, or 1 if there are none."""
    return 1 if shape is None else prod(shape)


# -- channels --------------------------------------------------------------------------------------


def edges(parts: Sequence[Any]) -> tuple[Number, ...]:
    """The channel index after the last channel of each part."""
    return tuple(accumulate(part.channels for part in parts))


def refined(states: Sequence[State], where: str) -> list[tuple[ChannelPart, ...]]:
    """Split the parts of several states at the boundaries of all of them.

    Raises: KcalcError if symbolic boundaries differ.
    """
    ends = [edges(state.parts) for state in states]
    if all(one == ends[0] for one in ends):
        return [state.parts for state in states]
    if any(getattr(end, "free_symbols", None) for one in ends for end in one):
        raise KcalcError(
            f"{where}: the addends are misaligned concatenations; pass the widths as numbers"
        )
    union = sorted({end for one in ends for end in one})
    return [_cut(state.parts, union) for state in states]


def _cut(parts: Sequence[ChannelPart], ends: Sequence[int]) -> tuple[ChannelPart, ...]:
    out, start, own = [], 0, edges(parts)
    for end in ends:
        index = next(i for i, e in enumerate(own) if start < e)
        out.append(replace(parts[index], channels=end - start))
        start = end
    return tuple(out)
