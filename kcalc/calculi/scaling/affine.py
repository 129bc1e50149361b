"""The forward rule of an Affine layer: sums over channels and taps, per location."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from ...foundation.errors import NoRule
from ...network.primitives import Fresh
from ..windows import TapWindow
from .levels import Level
from .state import ChannelPart, State

Node = Hashable
Number = Any
FEW = 10  # up to this many rectified values are all 0 with a probability of at least 2^-10


@dataclass(frozen=True)
class Weight:
    """The data of an Affine that the backward pass needs.

    ``inputs``, ``outputs``: channels; ``variance`` = E W^2; ``window``: None for a dense layer;
    ``read``: the sum over channels and taps of the second moments of its input, per output
    location; ``read_pairs``: the same for pairs of output locations, or None if they are not
    followed.
    """

    inputs: Number
    outputs: Number
    groups: int
    taps: int
    variance: Number
    window: TapWindow | None
    read: Level
    read_pairs: Level | None


def check_groups(op: Fresh, node: Node, below: State) -> None:
    """Check that a layer's groups read equal channels. Raises: NoRule if channels differ."""
    if op.groups == 1:
        return
    if below.flat or len(below.parts) > 1:
        raise NoRule(
            f"node {node!r}: groups of flattened or concatenated channels are not supported; use "
            "groups=1, or split the layer"
        )


def channel_sum(op: Fresh, below: State, number: Callable[[Any], Number]) -> ChannelPart:
    """The sum over the channels that one output reads."""
    parts = [replace(p.scaled(number(p.channels) / op.groups), channels=1) for p in below.parts]
    return reduce(ChannelPart.plus, parts)


def gathered(
    one: ChannelPart, below: State, window: TapWindow | None, pairs: bool
) -> tuple[Level, Level | None]:
    """The sums over taps, per output location, and for pairs of output locations if ``pairs``."""
    if window is None:
        return (one.level.total(below.size) if below.flat else one.level), None
    if one.level.symbolic:
        return one.level.scaled(window.taps), None
    level = one.level if window.trivial else one.level.mapped(window.summed)
    if not pairs or one.pairs is None:
        return level, None
    return level, one.pairs if window.trivial else one.pairs.mapped(window.summed_pairs)


def emitted(part: ChannelPart, variance: Number, bias: Number, followed: bool) -> ChannelPart:
    """The moments of the output, E[W^2] ``part`` + ``bias``; ``bias`` is the variance of a bias b.

    All locations share b, so ``bias`` is also added to their covariances. ``followed``: whether
    pairs of locations are followed here.
    """
    out = part.scaled(variance)
    if bias == 0:
        return out
    own = out.level.filled(bias)
    pairs, level = None, out.level.plus(own)
    if out.pairs is not None or (followed and level.values.size > 1):
        pairs = out.pair_values()
        pairs = pairs.plus(pairs.filled(bias))
    share = own.over(level)
    mean = (
        share.values if level.symbolic else float(np.mean(np.ldexp(share.values, share.exponent)))
    )
    return ChannelPart(out.channels, level, pairs, out.rho * (1 - mean) + mean)


def atoms(below: State, fan: float, read: Level) -> list[str]:
    """Return violations caused by pre-activations that are 0 with non-negligible probability.

    ``fan``: the number of values that one output reads.
    """
    found = []
    if np.any(read.values == 0):
        found.append(
            "some locations read only padding, so b includes gradients there that reach no weight"
        )
    rectified = below.law.kind == "post" and below.sides is not None and 0 in below.sides
    if rectified and fan <= FEW:
        found.append(
            f"an output reads at most {fan:g} rectified values, which are all 0 with probability "
            f"2^-{fan:g}, so b before it is smaller by this fraction"
        )
    return found
