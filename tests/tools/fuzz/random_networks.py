"""Random networks: valid ones by construction, from any source of randomness.

The generator keeps, per group of channels, just enough provenance to know which moves are legal:
which affine layers it depends on and at which channel, whether it is a centred Gaussian, and
whether it is a function of one Gaussian.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import sympy as sp

from kcalc.network.layers import (
    Affine,
    Concat,
    Dropout,
    Flatten,
    Identity,
    Input,
    LayerNorm,
    Nonlinear,
    RMSNorm,
    Scale,
    Sum,
)


@dataclass(frozen=True)
class Piece:
    """A group of channels.

    ``leaves``: (affine layer or input, its channel at the start of this group).
    """

    width: int
    leaves: frozenset[tuple[str, int]]
    raw: frozenset[str] = frozenset()
    gaussian: bool = False  # linear in Gaussian pre-activations
    centred: bool = True  # channel mean 0
    shifted: bool = False  # a constant has been added (LayerNorm of something with a mean)
    uneven: bool = False  # scaled differently for the two inputs
    source: str | None = None  # the one Gaussian it is a function of

    def cut(self, start: int, stop: int) -> Piece:
        """Channels ``start`` to ``stop``."""
        return replace(
            self,
            width=stop - start,
            leaves=frozenset((leaf, at + start) for leaf, at in self.leaves),
        )

    @property
    def names(self) -> frozenset[str]:
        """The leaves without their channels."""
        return frozenset(leaf for leaf, _ in self.leaves)


Pieces = tuple[Piece, ...]


def width_of(pieces: Pieces) -> int:
    """All channels."""
    return sum(p.width for p in pieces)


def overlay(states: Sequence[Pieces]) -> list[tuple[Piece, ...]]:
    """Feature maps cut at all boundaries of any of them.

    Per stretch of channels, one piece of each.
    """
    edges = {0} | {e for pieces in states for e in accumulate(p.width for p in pieces)}
    return [
        tuple(_between(pieces, low, high) for pieces in states)
        for low, high in pairwise(sorted(edges))
    ]


def _between(pieces: Pieces, low: int, high: int) -> Piece:
    start = 0
    for p in pieces:
        if low < start + p.width:
            return p.cut(low - start, high - start)
        start += p.width
    raise AssertionError("out of range")


@dataclass(frozen=True)
class Recipe:
    """What a random network may contain.

    ``overlaps``: sums whose addends share weights non-linearly, and activations of functions of one
    Gaussian. ``uniform``: the network will be read at equal q values only. ``unit``: channel counts
    are multiples of it. ``reckless``: "phi" or "sum", the moves that are never refused, so that
    hypotheses are broken.
    """

    size: tuple[int, int]
    activations: Sequence[Any]
    inputs: int
    unit: int
    overlaps: bool
    uniform: bool = False
    exact: bool = False  # rational numbers in layers
    reckless: str = ""


@dataclass
class Builder:
    """A network under construction: steps, and the provenance of every node."""

    rng: random.Random
    recipe: Recipe
    steps: list[tuple[str, Any, tuple[str, ...]]] = field(default_factory=list)
    state: dict[str, Pieces] = field(default_factory=dict)
    tokens: int = 0

    def token(self) -> str:
        """A name for a Gaussian that nothing else is known to be a function of."""
        self.tokens += 1
        return f"t{self.tokens}"

    def number(self, low: float, high: float) -> Any:
        """A positive number, rational if the recipe says so."""
        k = sp.Rational(self.rng.randint(round(8 * low), round(8 * high)), 8)
        return k if self.recipe.exact else float(k) + self.rng.randint(0, 99) / 1000

    def put(self, layer: Any, parents: tuple[str, ...], pieces: Pieces) -> bool:
        """Add a node."""
        name = f"n{len(self.steps)}"
        self.steps.append((name, layer, parents))
        self.state[name] = pieces
        return True

    def pick(self, bias_to_new: bool = True) -> str:
        """A node, more often a recent one."""
        names = list(self.state)
        if bias_to_new and self.rng.random() < 0.6:
            return names[-1 - self.rng.randrange(min(len(names), 5))]
        return self.rng.choice(names)

    # -- moves: each returns whether it could be made ----------------------------------------------

    def add_input(self) -> bool:
        name = f"n{len(self.steps)}"
        width = self.recipe.unit * self.rng.randint(1, 3)
        piece = Piece(width, frozenset({(name, 0)}), frozenset({name}))
        return self.put(Input(width), (), (piece,))

    def affine(self, parent: str | None = None) -> bool:
        parent = parent or self.pick()
        below, unit = self.state[parent], self.recipe.unit
        name, width = f"n{len(self.steps)}", unit * self.rng.randint(1, 3)
        bias = self.number(0.25, 0.75) if self.rng.random() < 0.4 else 0
        groups, gaussian = 1, True
        if len(below) == 1 and not below[0].raw and self.rng.random() < 0.2:
            depthwise = self.rng.random() < 0.6
            groups, gaussian = (below[0].width, False) if depthwise else (2, True)
            width = below[0].width if depthwise else width
        layer = Affine(width, groups=groups, sigma_w=self.number(0.75, 1.5), sigma_b=bias)
        piece = Piece(
            width,
            frozenset({(name, 0)}),
            gaussian=gaussian,
            source=self.token() if gaussian else None,
        )
        return self.put(layer, (parent,), (piece,))

    def phi(self) -> bool:
        parent = self.pick()
        below = self.state[parent]
        if self.recipe.reckless != "phi" and not all(map(self._activable, below)):
            return False
        out = tuple(
            replace(
                p,
                gaussian=False,
                centred=False,
                shifted=False,
                source=self.token() if p.uneven or p.source is None else p.source,
                uneven=False,
            )
            for p in below
        )
        return self.put(Nonlinear(self.rng.choice(list(self.recipe.activations))), (parent,), out)

    def _activable(self, p: Piece) -> bool:
        if p.gaussian and not p.shifted:
            return True
        return (
            self.recipe.overlaps
            and p.source is not None
            and not p.uneven
            and (self.recipe.uniform or not p.shifted)
        )

    def sum(self) -> bool:
        first = self.pick()
        fitting = [
            n for n, pieces in self.state.items() if width_of(pieces) == width_of(self.state[first])
        ]
        parents = (first, *(self.rng.choice(fitting) for _ in range(self.rng.randint(1, 3))))
        merged = []
        for row in overlay([self.state[p] for p in parents]):
            piece = self._added(row)
            if piece is None:
                return False
            merged.append(piece)
        weights = tuple(
            self.number(0.25, 1.25)
            * self.rng.choice([1, 1, -1] if len(set(parents)) == len(parents) else [1])
            for _ in parents
        )
        return self.put(Sum(weights if self.rng.random() < 0.8 else None), parents, tuple(merged))

    def _added(self, row: Sequence[Piece]) -> Piece | None:
        leaves: frozenset[tuple[str, int]] = frozenset().union(*(p.leaves for p in row))
        raw: frozenset[str] = frozenset().union(*(p.raw for p in row))
        shared = len(raw) > 1 or len({leaf for leaf, _ in leaves}) < len(leaves)
        if shared and self.recipe.reckless != "sum":
            return None
        linear = all(p.gaussian for p in row)
        disjoint = sum(len(p.leaves) for p in row) == len(leaves)
        if not (linear or disjoint or self.recipe.overlaps):
            return None
        shifted, uneven = any(p.shifted for p in row), any(p.uneven for p in row)
        sources = {p.source for p in row}
        source = (
            sources.pop()
            if len(sources) == 1 and not uneven
            else self.token()
            if linear and not shifted
            else None
        )
        return Piece(
            row[0].width, leaves, raw, linear, all(p.centred for p in row), shifted, uneven, source
        )

    def concat(self) -> bool:
        parents = tuple(self.pick() for _ in range(self.rng.randint(2, 3)))
        pieces = tuple(piece for p in parents for piece in self.state[p])
        if width_of(pieces) > 6 * self.recipe.unit or len(pieces) > 5:
            return False
        return self.put(Concat(tuple(width_of(self.state[p]) for p in parents)), parents, pieces)

    def turned(self) -> bool:
        """A concatenation added to itself with its parts in the opposite order.

        Channels that do not belong together meet.
        """
        found = [step for step in self.steps if isinstance(step[1], Concat)]
        if self.recipe.reckless != "sum" or not found:
            return False
        name, layer, parents = self.rng.choice(found)
        pieces = tuple(piece for p in parents[::-1] for piece in self.state[p])
        self.put(Concat(layer.channels[::-1]), parents[::-1], pieces)
        rows = overlay([self.state[name], pieces])
        merged = tuple(self._added(row) for row in rows)
        return None not in merged and self.put(Sum(), (name, f"n{len(self.steps) - 1}"), merged)

    def norm(self) -> bool:
        parent = self.pick()
        below = self.state[parent]
        centring = self.rng.random() < 0.7
        moved = centring and not all(p.centred for p in below)

        def change(p: Piece) -> Piece:
            source = p.source if self.recipe.uniform or p.gaussian else None
            return replace(
                p,
                shifted=p.shifted or moved,
                centred=p.centred and not moved,
                uneven=not self.recipe.uniform,
                source=source,
            )

        return self.put(
            LayerNorm() if centring else RMSNorm(), (parent,), tuple(map(change, below))
        )

    def plain(self) -> bool:
        parent = self.pick()
        layer = self.rng.choice(
            [
                Scale(-self.number(0.5, 1)),
                Scale(self.number(1, 2)),
                Dropout(0.3),
                Identity(),
                Flatten(),
            ]
        )
        return self.put(layer, (parent,), self.state[parent])


MOVES: dict[Callable[[Builder], bool], int] = {
    Builder.affine: 7,
    Builder.phi: 8,
    Builder.sum: 6,
    Builder.concat: 2,
    Builder.norm: 2,
    Builder.plain: 1,
    Builder.turned: 2,
}
