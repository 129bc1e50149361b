"""Feature maps as vectors of five kinds, which make equality and independence explicit.

A vector is the input, a fresh product of weights with older vectors, an activation of a fresh
vector, a linear combination, or a stack of two. Equal vectors are the same object. For example, the
same activation applied twice to a pre-activation is one vector.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

Node = Hashable
Number = Any


@dataclass(frozen=True, eq=False)
class Vector:
    """A feature map of ``width`` channels.

    ``rank`` orders vectors by age: every vector that depends on a fresh vector has a greater rank,
    but activations of the fresh vector have the same rank.
    """

    id: int
    rank: int
    width: Any


@dataclass(frozen=True, eq=False)
class InputVector(Vector):
    """The network's input."""

    node: Node = None


@dataclass(frozen=True)
class Fed:
    """The vector ``amplitude * W source`` with random weights W.

    The entries of W have variance ``variance`` and excess kurtosis ``excess``.
    """

    node: Node
    source: Vector
    variance: Number
    excess: Number
    amplitude: Number


@dataclass(frozen=True, eq=False)
class FreshProduct(Vector):
    """``sum_j amplitude_j W_j x_j`` with weights that are used nowhere else.

    Given the x_j, its channels are independent and symmetric.
    """

    fed: tuple[Fed, ...] = ()


@dataclass(frozen=True, eq=False)
class Rectified(Vector):
    """``positive p`` where the fresh vector p is positive, ``negative p`` elsewhere."""

    fresh: FreshProduct = field(default=None)  # type: ignore[assignment]
    negative: Number = 0
    positive: Number = 1


@dataclass(frozen=True, eq=False)
class VectorSum(Vector):
    """A linear combination of vectors of the same width."""

    terms: tuple[tuple[Number, Vector], ...] = ()


@dataclass(frozen=True, eq=False)
class Stacked(Vector):
    """The channels of two scaled vectors; only the left vector may be a stack."""

    left: tuple[Number, Vector] = field(default=None)  # type: ignore[assignment]
    right: tuple[Number, Vector] = field(default=None)  # type: ignore[assignment]


@dataclass(frozen=True)
class ScaledVector:
    """A feature map as ``factor * vector``; ``private`` means that exactly one node reads it."""

    factor: Number
    vector: Vector
    private: bool = False

    def times(self, factor: Number) -> ScaledVector:
        """Return the feature map multiplied by a number."""
        return ScaledVector(self.factor * factor, self.vector, self.private)


class Vectors:
    """All vectors of a network, without duplicates."""

    def __init__(self) -> None:
        self.all: list[Vector] = []
        self._known: dict[Any, Vector] = {}

    @property
    def fresh_ids(self) -> list[int]:
        """The ids of all fresh vectors."""
        return [v.id for v in self.all if isinstance(v, FreshProduct)]

    def source(self, node: Node, width: Any) -> Vector:
        """Return the input vector."""
        return self._kept(InputVector(len(self.all), len(self.all), width, node))

    def fresh(self, fed: tuple[Fed, ...], width: Any) -> FreshProduct:
        """Return a new fresh product."""
        made = FreshProduct(len(self.all), len(self.all), width, fed)
        self.all.append(made)
        return made

    def rectified(self, p: FreshProduct, negative: Number, positive: Number) -> Vector:
        """An activation of a fresh vector, with the same rank."""
        key = ("rectified", p.id, negative, positive)
        if key not in self._known:
            self._known[key] = self._kept(
                Rectified(len(self.all), p.rank, p.width, p, negative, positive)
            )
        return self._known[key]

    def mixed(self, terms: list[tuple[Number, Vector]]) -> ScaledVector | None:
        """A linear combination in which equal vectors are merged; None if all terms cancel."""
        merged: dict[int, tuple[Number, Vector]] = {}
        for factor, vector in terms:
            old = merged.get(vector.id)
            merged[vector.id] = (factor if old is None else old[0] + factor, vector)
        left = tuple(term for term in merged.values() if term[0] != 0)
        if not left:
            return None
        if len(left) == 1:
            return ScaledVector(*left[0])
        key = ("mixed", *((factor, vector.id) for factor, vector in left))
        if key not in self._known:
            self._known[key] = self._kept(
                VectorSum(len(self.all), len(self.all), left[0][1].width, left)
            )
        return ScaledVector(1, self._known[key])

    def stacked(self, parts: list[ScaledVector]) -> ScaledVector:
        """A concatenation, nested to the left to share common beginnings."""
        whole = parts[0]
        for part in parts[1:]:
            for factor, leaf in leaves(part):
                whole = self._pair((whole.factor, whole.vector), (factor, leaf))
        return whole

    def _pair(self, left: tuple[Number, Vector], right: tuple[Number, Vector]) -> ScaledVector:
        key = ("stacked", left[0], left[1].id, right[0], right[1].id)
        if key not in self._known:
            width = left[1].width + right[1].width
            self._known[key] = self._kept(Stacked(len(self.all), len(self.all), width, left, right))
        return ScaledVector(1, self._known[key])

    def _kept(self, vector: Vector) -> Vector:
        self.all.append(vector)
        return vector

    def activated(
        self, feature: ScaledVector, negative: Number, positive: Number
    ) -> ScaledVector | str:
        """Apply an activation with two slopes to a feature map, part by part.

        If there is no rule, the result is a string that describes the vector.
        """
        key: Any = ("activated", negative, positive)
        done: dict[Any, ScaledVector] = self._known.setdefault(key, {})  # pyright: ignore
        chain: list[tuple[Number, Vector]] = []
        factor, vector = feature.factor, feature.vector
        while isinstance(vector, Stacked) and (factor, vector.id) not in done:
            chain.append((factor, vector))
            factor, vector = factor * vector.left[0], vector.left[1]
        found = done.get((factor, vector.id)) or self._activated_leaf(
            factor, vector, negative, positive
        )
        for scale, stack in reversed(chain):
            assert isinstance(stack, Stacked)
            right = self._activated_leaf(scale * stack.right[0], stack.right[1], negative, positive)
            if isinstance(found, str) or isinstance(right, str):
                return found if isinstance(found, str) else str(right)
            found = done[scale, stack.id] = self._pair(
                (found.factor, found.vector), (right.factor, right.vector)
            )
        return found

    def _activated_leaf(
        self, factor: Number, vector: Vector, negative: Number, positive: Number
    ) -> ScaledVector | str:
        sign = _sign(factor)
        if sign == 0:
            return "a multiple of unknown sign"
        if sign < 0:
            factor, negative, positive = -factor, -positive, -negative
        if isinstance(vector, FreshProduct):
            return ScaledVector(factor, self.rectified(vector, negative, positive))
        if isinstance(vector, Rectified):
            below = [
                slope * (positive if _sign(slope) * side > 0 else negative)
                for slope, side in _sides(vector)
            ]
            if below[0] == below[1] == 0:
                return "an activation that it maps to 0"
            if below[0] == below[1]:
                return ScaledVector(factor * below[0], vector.fresh)
            return ScaledVector(factor, self.rectified(vector.fresh, below[0], below[1]))
        return {InputVector: "the network's input", VectorSum: "a sum"}[type(vector)]


def _sides(vector: Rectified) -> tuple[tuple[Number, int], tuple[Number, int]]:
    return (vector.negative, -1), (vector.positive, 1)


def _sign(value: Number) -> int:
    """The sign of a number, or 0 if the number is 0 or symbols leave its sign open."""
    positive, negative = getattr(value, "is_positive", None), getattr(value, "is_negative", None)
    if positive is None and negative is None and not hasattr(value, "free_symbols"):
        return (value > 0) - (value < 0)
    return 1 if positive else -1 if negative else 0


def leaves(feature: ScaledVector) -> list[tuple[Number, Vector]]:
    """The parts of a feature map that are not stacks, in channel order."""
    return list(reversed(list(_backwards(feature.factor, feature.vector))))


def _backwards(factor: Number, vector: Vector) -> Iterator[tuple[Number, Vector]]:
    while isinstance(vector, Stacked):
        yield factor * vector.right[0], vector.right[1]
        factor, vector = factor * vector.left[0], vector.left[1]
    yield factor, vector
