"""The exact recursion of second and fourth moments at finite width, by rewriting monomials.

A pair (v, w) represents E <v, w>. A quadruple represents the mean of a product of four vectors, or
of four Jacobians M_1, ..., M_4, summed over their rows (channels of the vectors) and columns
(variables of differentiation). Columns are always summed in the pairs (12)(34). The kind of a
quadruple says how rows are summed: in the pairs (12)(34), (13)(24) or (14)(23), or as a CORNER,
with one row common to all four. Vectors are Jacobians with one column, and their quadruples give E
|y|^4. For four equal Jacobians M, with Q = M M^T, kind (12)(34) is T = E (tr Q)^2, the two other
pairings are S = E tr Q^2, and CORNER is D = E sum_i Q_ii^2.

A rewriting step averages over the newest weights. If these have variance c and excess kurtosis e,
and if all four vectors are the same fresh W x with n channels, the step is:

    F_R    -> n (n - 1) c^2 F_R + n (c^2 sum_R' F_R' + e c^2 CORNER)
    CORNER -> n (c^2 sum_R' F_R' + e c^2 CORNER).

For activations of W x with slopes a and b, the terms are multiplied by means of products of slopes.
The step is exact at every width.
[The theory of per-layer gradients, Lemmas 2 and 3, Theorem 1; the recursion for T, S, D is derived
here]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ...foundation.errors import NoRule
from .reading import INSTEAD
from .vectors import Fed, FreshProduct, InputVector, Rectified, Stacked, Vector, VectorSum

Number = Any
Node = Hashable
Key = tuple[int, ...]  # two vectors, or a kind and four vectors
Terms = list[tuple[Number, Key]]

PAIRINGS = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))
CORNER = 3


def pairing_of(i: int, j: int) -> int:
    """The index in PAIRINGS of the pairing that joins the slots i and j."""
    low, high = (i, j) if i < j else (j, i)
    return high - 1 if low == 0 else 5 - low - high if (low, high) != (2, 3) else 0


def fresh_of(vector: Vector) -> FreshProduct:
    """The fresh vector itself, or the fresh vector to which an activation is applied."""
    fresh = vector.fresh if isinstance(vector, Rectified) else vector
    assert isinstance(fresh, FreshProduct)
    return fresh


def slots_of(key: Key) -> tuple[int, ...]:
    """The vectors of a monomial."""
    return key if len(key) == 2 else key[1:]


class Monomials:
    """Rewriting steps over one network's vectors, in one number system.

    ``columns=False`` is for vectors, which have one column. Slots are then permuted so that rows
    are paired as (12)(34), which leaves fewer monomials.
    """

    def __init__(
        self, vectors: Sequence[Vector], names: Sequence[Node], field: Any, columns: bool
    ) -> None:
        self.vectors, self.names, self.field, self.columns = vectors, names, field, columns
        self._numbers: dict[Any, Number] = {}
        self._codes: dict[Any, int] = {}
        self._shapes: dict[int, int] = {}
        self._twos: dict[Any, list[Number]] = {}
        self._fours: dict[Any, list[tuple[Number, int, tuple[int, ...]]]] = {}
        self._same: dict[Any, list[tuple[Number, int]]] = {}
        self._seeds: dict[Any, Number] = {}

    # -- keys --------------------------------------------------------------------------------------

    def quad(self, kind: int, slots: Sequence[int]) -> Key:
        """The key of a quadruple; quadruples that are equal by symmetry have one key."""
        a, b, c, d = slots
        if a == b == c == d:
            return (kind if kind == CORNER else min(kind, 1) if self.columns else 0), a, a, a, a
        if kind == CORNER and not self.columns:
            return (CORNER, *sorted(slots))
        if not self.columns:
            (i, j), (k, m) = PAIRINGS[kind]
            a, b, c, d, kind = slots[i], slots[j], slots[k], slots[m], 0
        if a > b:
            a, b, kind = b, a, 3 - kind if kind in (1, 2) else kind
        if c > d:
            c, d, kind = d, c, 3 - kind if kind in (1, 2) else kind
        if (a, b) > (c, d):
            a, b, c, d = c, d, a, b
        if kind == 2 and (a == b or c == d):
            kind = 1
        return kind, a, b, c, d

    def pair(self, a: int, b: int) -> Key:
        """The key of a pair."""
        return (a, b) if a <= b else (b, a)

    def constant(self, value: Any) -> Number:
        """Convert a number of the network to this number system; each number is converted once."""
        key = (type(value), value)
        if key not in self._numbers:
            self._numbers[key] = self.field.number(value)
        return self._numbers[key]

    def given(self, key: Key) -> bool:
        """True for monomials that contain only the input."""
        return all(isinstance(self.vectors[i], InputVector) for i in slots_of(key))

    # -- steps -------------------------------------------------------------------------------------

    def expand(self, key: Key) -> Terms:
        """Expand a monomial into [(factor, older monomial)]; the list is empty if it is 0.

        Monomials that contain only the input have no expansion. Raises: NoRule if the mean over the
        newest weights is not a combination of monomials.
        """
        slots = slots_of(key)
        kind = None if len(key) == 2 else key[0]
        if slots.count(slots[0]) == len(slots):
            quick = self._alike(kind, self.vectors[slots[0]])
            if quick is not None:
                return quick
        held = [self.vectors[i] for i in slots]
        newest = max(v.rank for v in held)
        place = next(i for i, v in enumerate(held) if v.rank == newest)
        top = held[place]
        if isinstance(top, VectorSum):
            return self._mixed(kind, slots, top)
        if isinstance(top, Stacked):
            return self._stacked(kind, slots, held, place)
        taken = [i for i, v in enumerate(held) if v.rank == newest]
        return self._averaged(kind, slots, held, taken)

    def _alike(self, kind: int | None, vector: Vector) -> Terms | None:
        """Return the step for a monomial with one vector in all slots, or None if there is no rule.

        There is a rule for a fresh vector that one matrix produces, and for an activation of such a
        vector.
        """
        if not isinstance(vector, FreshProduct | Rectified):
            return None
        fed = (vector.fresh if isinstance(vector, Rectified) else vector).fed
        if len(fed) > 1:
            return None
        x, code = fed[0].source.id, (kind, self.shape(vector))  # pyright: ignore[reportGeneralTypeIssues]
        known: Any = self._same.get(code)
        if known is None:
            fresh = fresh_of(vector)
            if kind is None:
                known = [(self._two(fresh, vector, vector, True)[0], -1)]
            else:
                known = [
                    (factor, pairing)
                    for factor, pairing, _ in self._template(kind, fresh, [vector] * 4)
                ]
            self._same[code] = known
        if kind is None:
            return [(known[0][0], (x, x))]
        return [(factor, (pairing, x, x, x, x)) for factor, pairing in known]

    def _gathered(self, kind: int | None, rows: list[tuple[Number, Sequence[int]]]) -> Terms:
        """Add up the terms with equal monomials."""
        found: dict[Key, Number] = {}
        for factor, slots in rows:
            key = self.pair(slots[0], slots[1]) if kind is None else self.quad(kind, slots)
            found[key] = found[key] + factor if key in found else factor
        return [(factor, key) for key, factor in found.items()]

    def _mixed(self, kind: int | None, slots: Sequence[int], top: VectorSum) -> Terms:
        """Expand a linear combination in every slot that contains it."""
        parts = [(self.constant(factor), vector.id) for factor, vector in top.terms]
        rows: list[tuple[Number, Sequence[int]]] = [(1, ())]
        for slot in slots:
            if slot == top.id:
                rows = [(factor * f, (*row, i)) for factor, row in rows for f, i in parts]
            else:
                rows = [(factor, (*row, slot)) for factor, row in rows]
        return self._gathered(kind, rows)

    def _stacked(
        self, kind: int | None, slots: Sequence[int], held: list[Vector], place: int
    ) -> Terms:
        """Split stacks, in slots that share a row, into their left and right parts."""
        if kind is None:
            together: tuple[int, ...] = (0, 1)
        elif kind == CORNER:
            together = (0, 1, 2, 3)
        else:
            together = next(pair for pair in PAIRINGS[kind] if place in pair)
        for i in together:
            if isinstance(held[i], VectorSum):
                return self._mixed(kind, slots, held[i])  # pyright: ignore[reportArgumentType]
        stacks = [held[i] for i in together]
        if (
            not all(isinstance(s, Stacked) for s in stacks)
            or len({s.right[1].width for s in stacks}) > 1  # type: ignore[attr-defined]
        ):
            raise NoRule(
                f"{self._called(slots)}: a concatenation is added to (or compared with) a "
                "feature map with differently aligned parts, and exact moments cannot track "
                f"individual channels; put an Affine before the Sum. {INSTEAD}"
            )
        rows = []
        for side in ("left", "right"):
            factor, row = self.constant(1), list(slots)
            for i in together:
                scale, vector = getattr(held[i], side)
                factor, row[i] = factor * self.constant(scale), vector.id
            rows.append((factor, row))
        return self._gathered(kind, rows)

    def _averaged(
        self, kind: int | None, slots: Sequence[int], held: list[Vector], taken: list[int]
    ) -> Terms:
        """The mean over the weights of the newest fresh vector.

        The slots ``taken`` contain that vector or activations of it.
        """
        first = held[taken[0]]
        if isinstance(first, InputVector):
            raise AssertionError("the moments of the input are specified, not derived")
        fresh = fresh_of(first)
        curved = [i for i in taken if isinstance(held[i], Rectified)]
        if len(taken) % 2:
            if curved:
                raise self._biased(slots, held[curved[0]])
            return []
        if len(taken) == 4:
            return self._all_four(kind, fresh, held)  # pyright: ignore[reportArgumentType]
        i, j = taken
        together = kind is None or (kind != CORNER and pairing_of(i, j) == kind)
        if not together and kind != CORNER and len(curved) == 2:
            raise self._biased(slots, held[curved[0]])
        factors = self._two(fresh, held[i], held[j], together)
        rows: list[tuple[Number, Sequence[int]]] = []
        for factor, fed in zip(factors, fresh.fed, strict=True):
            row = list(slots)
            row[i] = row[j] = fed.source.id
            rows.append((factor, row))
        return self._gathered(
            None if kind is None else kind if together else pairing_of(i, j), rows
        )

    def shape(self, vector: Vector) -> int:
        """An id shared by fresh vectors or activations with equal width, slopes and weights."""
        known = self._shapes.get(vector.id)
        if known is None:
            fresh = fresh_of(vector)
            own = (vector.negative, vector.positive) if isinstance(vector, Rectified) else (1, 1)
            code = (fresh.width, own, tuple((f.variance, f.excess, f.amplitude) for f in fresh.fed))
            known = self._shapes[vector.id] = self._codes.setdefault(code, len(self._codes))
        return known

    def _two(self, fresh: FreshProduct, one: Vector, other: Vector, together: bool) -> list[Number]:
        """Return the factors for a fresh vector in two slots, one factor per weight matrix.

        ``together``: whether the two slots share a row.
        """
        code = (self.shape(one), self.shape(other), together)
        if code not in self._twos:
            mean = self.slope_mean([one, other])
            factor = mean * self.constant(fresh.width) if together else mean
            self._twos[code] = [factor * self.amount(fed) for fed in fresh.fed]
        return self._twos[code]

    def _all_four(self, kind: int, fresh: FreshProduct, held: list[Vector]) -> Terms:
        """The step for a quadruple that contains a single fresh vector."""
        code = (kind, *(self.shape(v) for v in held))
        if code not in self._fours:
            self._fours[code] = self._template(kind, fresh, held)
        sources = [fed.source.id for fed in fresh.fed]
        if len(sources) == 1:
            (x,) = sources
            return [(factor, (pairing, x, x, x, x)) for factor, pairing, _ in self._fours[code]]
        rows: dict[Key, Number] = {}
        for factor, pairing, places in self._fours[code]:
            key = self.quad(pairing, [sources[i] for i in places])
            rows[key] = rows[key] + factor if key in rows else factor
        return [(factor, key) for key, factor in rows.items()]

    def _template(
        self, kind: int, fresh: FreshProduct, held: list[Vector]
    ) -> list[tuple[Number, int, tuple[int, ...]]]:
        """The terms of a quadruple that contains a single fresh vector.

        Each term is (factor, kind, indices). There is one index per slot, the index of the matrix
        whose input replaces the vector.
        """
        n = self.constant(fresh.width)
        same = self.slope_mean(held) * n
        found: dict[tuple[int, tuple[int, ...]], Number] = {}
        for pairing, ((i, j), (k, m)) in enumerate(PAIRINGS):
            factor = same
            if pairing == kind:
                factor = factor + n * (n - 1) * self.slope_mean(
                    [held[i], held[j]]
                ) * self.slope_mean([held[k], held[m]])
            for one, fed in enumerate(fresh.fed):
                for two, other in enumerate(fresh.fed):
                    row = [0, 0, 0, 0]
                    row[i] = row[j] = one
                    row[k] = row[m] = two
                    kept, *places = self.quad(pairing, row)
                    found[kept, tuple(places)] = found.get(
                        (kept, tuple(places)), 0
                    ) + factor * self.amount(fed) * self.amount(other)
        for one, fed in enumerate(fresh.fed):
            if fed.excess != 0:
                found[CORNER, (one,) * 4] = same * self.constant(fed.excess) * self.amount(fed) ** 2
        return [(factor, pairing, places) for (pairing, places), factor in found.items()]

    def seed(self, key: Key) -> tuple[int, Number] | None:
        """Return (id of a fresh vector p, value) for a monomial that contains only p, else None.

        The Jacobian d p / d p is 1.
        """
        slots = slots_of(key)
        first = self.vectors[slots[0]]
        if not isinstance(first, FreshProduct | Rectified) or any(
            self.vectors[i].rank != first.rank for i in set(slots)
        ):
            return None
        held = [self.vectors[i] for i in slots]
        code = (0 if len(key) == 2 else key[0], *map(self.shape, held))
        if code not in self._seeds:
            n = self.constant(first.width)
            value = n * self.slope_mean(held)
            if len(key) == 5 and key[0] == 0:
                value = value + n * (n - 1) * self.slope_mean(held[:2]) * self.slope_mean(held[2:])
            self._seeds[code] = value
        return fresh_of(first).id, self._seeds[code]

    def amount(self, fed: Fed) -> Number:
        """Return ``amplitude^2`` times the variance of the weights' entries."""
        return self.constant(fed.amplitude) ** 2 * self.constant(fed.variance)

    def slope_mean(self, vectors: Sequence[Vector]) -> Number:
        """The mean of a product of slopes over the two signs of a fresh vector's channel."""
        below = above = self.constant(1)
        for v in vectors:
            if isinstance(v, Rectified):
                below, above = below * self.constant(v.negative), above * self.constant(v.positive)
        return (below + above) / 2

    # -- errors ------------------------------------------------------------------------------------

    def _called(self, slots: Sequence[int]) -> str:
        return "nodes " + ", ".join(dict.fromkeys(repr(self.names[i]) for i in slots))

    def _biased(self, slots: Sequence[int], activated: Vector) -> NoRule:
        return NoRule(
            f"{self._called(slots)}: a Sum adds the activation {self.names[activated.id]!r} to "
            "an addend without separate weights; the mean of the activation is not 0, so cross "
            "terms do not vanish. All but one of the addends of a Sum must end in separate "
            f"Affine layers. {INSTEAD}"
        )
