"""Second moments of sums with every cross term, for feature maps and for gradients.

Feature maps and gradients are linear combinations of *leaves*. A leaf is the output of weights, or
an activation applied to such an output (for gradients, the product with the activation's
derivative). Leaves with different last weights are uncorrelated, because flipping the sign of the
weights of one leaf flips only that leaf.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import combinations
from typing import Any

from ...foundation.errors import FreshnessError
from .state import ChannelPart, refined

Number = Any
Item = Any  # a State or a Message: parts, terms, source, gate, sides, slopes, serial
Apart = Callable[[Item, Item], bool]


def combined(
    items: Sequence[Item], weights: Sequence[Number], apart: Apart, where: str
) -> tuple[ChannelPart, ...]:
    """Return the second moments of ``sum_i w_i x_i``.

    ``apart(x, y)`` says whether E x y = 0 because of different weights; ``where`` names the sum in
    messages. Raises: FreshnessError if a cross term has no rule.
    """
    if all(apart(one, two) for one, two in combinations(items, 2)):
        return _summed(
            [
                tuple(p.scaled(w * w) for p in parts)
                for w, parts in zip(weights, refined(items, where), strict=True)
            ]
        )
    leaves = expanded(list(zip(weights, items, strict=True)))
    if not leaves:
        raise FreshnessError(f"{where}: the addends cancel to 0; change the weights of the Sum")
    first = leaves[0][1].parts
    if any(
        tuple(p.channels for p in leaf.parts) != tuple(p.channels for p in first)
        for _, leaf in leaves
    ):
        raise FreshnessError(
            f"{where}: the addends are misaligned parts of one feature map; apply an Affine to "
            "each addend"
        )
    rows = [tuple(p.scaled(w * w) for p in leaf.parts) for w, leaf in leaves]
    for (v, one), (w, two) in combinations(leaves, 2):
        cross = _product(one, two, apart, where)
        if cross is not None:
            rows.append(tuple(p.scaled(2 * v * w) for p in cross))
    return _summed(rows)


def _summed(rows: Sequence[tuple[ChannelPart, ...]]) -> tuple[ChannelPart, ...]:
    return tuple(reduce(ChannelPart.plus, column) for column in zip(*rows, strict=True))


def expanded(given: Sequence[tuple[Number, Item]]) -> list[tuple[Number, Item]]:
    """Return the leaves of a linear combination, with their nonzero amplitudes."""
    amplitude: dict[int, Number] = {}
    known: dict[int, Item] = {}
    queue: list[int] = []

    def add(weight: Number, item: Item) -> None:
        if item.serial not in known:
            known[item.serial], amplitude[item.serial] = item, 0
            heapq.heappush(queue, -item.serial)
        amplitude[item.serial] = amplitude[item.serial] + weight

    for weight, item in given:
        add(weight, item)
    leaves: list[tuple[Number, Item]] = []
    while queue:  # newest first, so that amplitudes are complete when a sum is opened
        serial = -heapq.heappop(queue)
        weight, item = amplitude[serial], known[serial]
        if weight == 0:
            continue
        if not item.terms:
            leaves.append((weight, item))
        for own, inner in item.terms:
            add(weight * own, inner)
    return leaves


def _product(one: Item, two: Item, apart: Apart, where: str) -> tuple[ChannelPart, ...] | None:
    """Return E x y of two leaves, or None for 0.

    For Gaussians z and s, E z phi(s) = E z s E phi'(s). Raises: FreshnessError if no rule applies.
    """
    if one is two:
        return one.parts
    if apart(one, two):
        return None
    if one.source is not None and two.source is not None:
        return _alike(one, two, apart, where)
    if two.source is not None:
        return _stein(one, two, apart, where)
    if one.source is not None:
        return _stein(two, one, apart, where)
    raise _unknown(where)


def _stein(leaf: Item, post: Item, apart: Apart, where: str) -> tuple[ChannelPart, ...] | None:
    found = _expectation(leaf, post.source, apart, where)
    return (
        None
        if found is None
        else tuple(p.scaled(slope) for p, slope in zip(found, post.slopes, strict=True))
    )


def _alike(one: Item, two: Item, apart: Apart, where: str) -> tuple[ChannelPart, ...] | None:
    """Return E x y = E x' y' (a c + b d) / 2 for rectifiers x of x' and y of y'.

    The rectifiers act on the same feature map, with slopes (a, b) and (c, d). For gradients x' and
    y', the factors are the rectifiers' derivatives at that feature map.
    """
    if one.gate is None or one.gate != two.gate or one.sides is None or two.sides is None:
        raise _unknown(where)
    (a, b), (c, d) = one.sides, two.sides
    found = (
        one.source.parts
        if one.source is two.source
        else _expectation(one.source, two.source, apart, where)
    )
    return (
        None
        if found is None
        else tuple(
            ChannelPart(p.channels, p.level.scaled((a * c + b * d) / 2), None, p.rho) for p in found
        )
    )


def _expectation(one: Item, two: Item, apart: Apart, where: str) -> tuple[ChannelPart, ...] | None:
    """Return E x y of two linear combinations."""
    rows: list[tuple[ChannelPart, ...]] = []
    for v, left in expanded([(1, one)]):
        for w, right in expanded([(1, two)]):
            cross = _product(left, right, apart, where)
            if cross is not None:
                rows.append(tuple(p.scaled(v * w) for p in cross))
    return _summed(rows) if rows else None


def _unknown(where: str) -> FreshnessError:
    return FreshnessError(
        f"{where}: the addends (feature maps or their gradients) share weights, and their "
        "correlation is unknown; end all but one of the addends of the Sum in separate Affine "
        "layers"
    )
