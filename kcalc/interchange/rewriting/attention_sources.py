"""Find the layers that produce the queries, keys and values of attention.

The operands of the two products are traced back to arrays whose channels are not split into heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..layout import channel_axes
from ..trace import (  # fmt: skip
    Attend,
    Contract,
    Copies,
    Drop,
    Entry,
    Join,
    Linear,
    Masked,
    Normalise,
    Op,
    Part,
    Pass,
    Pointwise,
    Repeat,
    Reshape,
    Softmax,
    Trace,
    Transpose,
    computed,
)
from .mixing_position import example_axes
from .numbers import RULES, DoubleEvaluation, subsamples, through
from .scores import NoAttentionError

Array = np.ndarray
Rows = tuple[int, ...]
MOVES = (Reshape, Transpose, Pass, Part, Repeat, Copies)
FOLLOWED = (*MOVES, Pointwise, Join)
OVER_QUERIES = "its softmax runs over the queries, not over the keys"
VARYING = (
    "its mask depends on the input; read the model without a mask, or with the same mask for all "
    "inputs"
)
UNFOLLOWED = "its {} are computed from feature maps in a way that kcalc does not follow"


@dataclass(frozen=True, eq=False)
class AttentionCore:
    """The attention operations before the heads are joined.

    ``orders``: for queries, keys and values, the order of axes that gives (examples, heads, tokens,
    width). ``scores``: the order of axes that gives (examples, heads, queries, keys), or () if the
    scores already have this order.
    """

    op: Any
    reads: tuple[str, str, str]
    orders: tuple[Any, Any, Any]
    out: tuple[int, ...]
    softmax: Softmax | None
    scores: tuple[int, ...]
    rate: float


@dataclass(frozen=True, eq=False)
class ChannelSource:
    """The channels ``rows`` of the output of ``op``, which become queries, keys or values."""

    op: Op
    axis: int
    rows: Rows
    norm: Normalise | None
    above: (
        # an operation with the examples on axis 0: ``op`` itself, or one whose output is
        # rearranged into the input of ``op``
        str
    )
    # for every (example, token) of ``op``, the place in ``above``; None if the places agree
    places: Array | None

    @property
    def own_rows(self) -> set[int]:
        """Return the rows of the layer's parameter that produce the channels."""
        rows = self.op.rows if isinstance(self.op, Linear) else None
        return set(self.rows if rows is None else (rows[row] for row in self.rows))

    def shares(self, other: ChannelSource) -> bool:
        """Whether two sources share channels, or weights that produce them."""
        same = self.op is other.op
        if isinstance(self.op, Linear) and isinstance(other.op, Linear):
            same = self.op.parameter == other.op.parameter
        return same and bool(self.own_rows & other.own_rows)


class Followed:
    """The operations of a trace, with the channel axis and the batch axis of each.

    The class also records which operations depend on the input.
    """

    def __init__(self, trace: Trace, ops: Mapping[str, Op], count: int) -> None:
        self.ops, self.count = ops, count
        self.axes = channel_axes(replace(trace, ops=tuple(ops.values())))
        self.examples = example_axes(dict(ops))
        self.facts = DoubleEvaluation(ops, {}, lambda _: None)
        self.moving = dict[str, bool]()
        for name, op in ops.items():
            self.moving[name] = isinstance(op, Entry) or any(self.moving[read] for read in op.reads)
        self.order = {name: place for place, name in enumerate(ops)}
        self.products = dict[str, tuple[Contract, str] | str | None]()
        for name, op in ops.items():
            self.products[name] = self._product(op)

    def cores(self, op: Any) -> Iterator[AttentionCore]:
        """Yield the possible interpretations of an operation as attention.

        There is one interpretation for every axis that may be the token axis of the queries.
        """
        if isinstance(op, Attend):
            plain = tuple(range(len(op.shape)))
            queries, keys, values = op.reads[:3]
            yield AttentionCore(
                op, (queries, keys, values), (plain, plain, plain), plain, None, (), op.rate
            )
            return
        for side in (0, 1):
            top, rate = self._softmax_above(op.reads[side])
            found = None if top is None else self.products[top.reads[0]]
            if isinstance(found, str):
                raise NoAttentionError(found)
            if top is not None and found is not None:
                yield from self._written_out(op, side, top, *found, rate)
                return

    def _softmax_above(self, name: str) -> tuple[Softmax | None, float]:
        rate = 0.0
        while isinstance(op := self.ops[name], Pass | Drop | Reshape):
            rate = max(rate, op.rate) if isinstance(op, Drop) else rate
            name = op.reads[0]
        return (op if isinstance(op, Softmax) else None), rate

    def _product(self, op: Op) -> tuple[Contract, str] | str | None:
        """Return the product of queries and keys that gives the scores, and its einsum letters.

        If there is no such product, return a reason.
        """
        if isinstance(op, Contract):
            return op, op.terms.split("->")[1]
        moving = [read for read in dict.fromkeys(op.reads) if self.moving[read]]
        if not isinstance(op, Pass | Reshape | Transpose | Masked | Pointwise):
            return None
        found = [product for read in moving if (product := self.products[read]) is not None]
        if len(moving) > 1 or not found or isinstance(found[0], str):
            return VARYING if len(found) == 1 else None
        product, letters = found[0]
        if isinstance(op, Transpose) and len(op.order) == len(letters):
            return product, "".join(letters[axis] for axis in op.order)
        moved = isinstance(op, Transpose) or (
            isinstance(op, Reshape) and letters != product.terms.split("->")[1]
        )
        return None if moved else (product, letters)

    def _written_out(
        self, op: Contract, side: int, top: Softmax, scores: Contract, letters: str, rate: float
    ) -> Iterator[AttentionCore]:
        """Read softmax(q k^T) v from the einsum letters of its two products."""
        first, out = scores.terms.split("->")
        pair, alike = first.split(","), len(top.shape) == len(letters)
        if not alike and top.axis != len(top.shape) - 1:
            raise NoAttentionError(OVER_QUERIES)
        seen = letters[top.axis] if alike else letters[-1]
        key = next((n for n in (0, 1) if seen in pair[n] and seen not in pair[1 - n]), None)
        if key is None or len(set(pair[0]) & set(pair[1]) - set(out)) != 1:
            raise NoAttentionError("its scores are not products of queries and keys")
        width = (set(pair[0]) & set(pair[1]) - set(out)).pop()
        names, last = op.terms.split("->")
        mine, data = names.split(",")[side], names.split(",")[1 - side]
        size = dict(zip(letters, top.shape, strict=True)) if alike else {}
        own = (
            [letter for letter in letters if letter in pair[1 - key] and letter not in pair[key]]
            if alike
            else [letters[-2]]
        )
        for query in sorted(own, key=lambda letter: size.get(letter) != size.get(seen)):
            heads = "".join(letter for letter in letters if letter not in (query, seen))
            again = _alike(mine, letters, (*heads, query, seen))
            if again is None:
                raise NoAttentionError(
                    "its weights multiply the values in a way that kcalc does not recognise"
                )
            *many, row, column = again
            wide = set(data) - set(mine)
            if column in last and row in data:
                raise NoAttentionError(OVER_QUERIES)
            if (
                column not in data
                or column in last
                or len(wide) != 1
                or not wide < set(last)
                or row in data
            ):
                raise NoAttentionError(
                    "its weights multiply the values in a way that kcalc does not recognise"
                )
            channel = wide.pop()
            orders = (
                _order(pair[1 - key], heads, query, width),
                _order(pair[key], heads, seen, width),
                _order(data, many, column, channel),
            )
            made = tuple(last.index(letter) for letter in (*many, row, channel))
            order = (
                tuple(letters.index(letter) for letter in (*heads, query, seen)) if alike else ()
            )
            yield AttentionCore(
                op,
                (scores.reads[1 - key], scores.reads[key], op.reads[1 - side]),
                orders,
                made,
                top,
                order,
                rate,
            )

    # -- where queries, keys and values come from --------------------------------------------------

    def source(self, name: str, what: str) -> ChannelSource:
        """Return the channels from which queries, keys or values (``what``) are computed."""
        if not self.moving[name]:
            raise NoAttentionError(f"its {what} are the same for all inputs")
        norm: Normalise | None = None
        path: list[Op] = []
        while True:
            op = self.ops[name]
            moving = [read for read in dict.fromkeys(op.reads) if self.moving[read]]
            above = (
                moving[0]
                if len(moving) == 1
                else self._meeting(name)
                if isinstance(op, Pointwise | Join) or computed(op)
                else None
            )
            if isinstance(op, MOVES) or subsamples(op):
                path.append(op)
            elif isinstance(op, Normalise) and op.kind in ("layer", "rms") and len(op.axes) == 1:
                if norm is not None or (
                    self.axes.get(name) == op.axes[0] and not self._of_heads(op)
                ):
                    break
                norm, path = op, []
            elif above is not None and self._mixes(op, len(moving)) and self._homogeneous(op):
                path = []
            else:
                break
            assert above is not None  # rearrangements have one input, which moves
            name = above
        axis = self._channel_axis(op)
        if axis is None or getattr(op, "is_complex", False):
            raise NoAttentionError(UNFOLLOWED.format(what))
        rows = _rows(op, axis, path)
        if len(rows) < op.shape[axis] and not (isinstance(op, Linear) and op.groups == 1):
            raise NoAttentionError(f"its {what} are only some of the channels of {name}")
        above, places = self._examples_first(op, axis, what)
        return ChannelSource(op, axis, rows, norm, above, places)

    def _mixes(self, op: Op, moving: int) -> bool:
        """Whether an operation may be part of a rotary embedding, judging by its kind."""
        fixed = isinstance(op, Contract) and moving == 1  # every pair has its own fixed matrix
        return isinstance(op, Pointwise | Join) or computed(op) or fixed

    def _channel_axis(self, op: Op) -> int | None:
        return op.out_axis if isinstance(op, Linear) else self.axes.get(op.name)

    def _of_heads(self, norm: Normalise) -> bool:
        """Whether a norm covers only the channels of a head."""
        path, op = list[Op](), self.ops[norm.reads[0]]
        while isinstance(op, MOVES):
            path.append(op)
            op = self.ops[op.reads[0]]
        axis = self._channel_axis(op)
        return axis is not None and len(_rows(op, axis, path)) > norm.shape[norm.axes[0]]

    def _meeting(self, name: str) -> str | None:
        """Return the single array from which an operation is computed, or None.

        Rotary embeddings, for example, apply several operations to one array.
        """
        front = {name}
        while True:
            last = max(front, key=self.order.__getitem__)
            if len(front) == 1 and last != name:
                return last
            if not _followed(self.ops[last]):
                return None
            front.remove(last)
            front |= {read for read in self.ops[last].reads if self.moving[read]}

    def _homogeneous(self, op: Op) -> bool:
        """Whether multiplying all inputs by any real number multiplies the output by this number.

        Examples of such operations are sums, and products with a fixed number.
        """
        if isinstance(op, Join):
            return True
        random = np.random.default_rng(0)
        arrays = {n: self._drawn(n, random) if self.moving[n] else self.facts(n) for n in op.reads}
        known = {name: array for name, array in arrays.items() if array is not None}
        if len(known) < len(arrays):
            return False
        one, two = (
            RULES[type(op)](op, [known[n] * (k if self.moving[n] else 1) for n in op.reads])
            for k in (1, -2)
        )
        return (
            one is not None and two is not None and np.allclose(two, -2 * one, rtol=1e-6, atol=1e-9)
        )

    def _drawn(self, name: str, random: np.random.Generator) -> Array:
        """Draw random numbers in place of an operation's output."""
        op = self.ops[name]
        drawn = random.standard_normal(op.shape)
        imaginary = getattr(op, "is_complex", False)
        return drawn + 1j * random.standard_normal(op.shape) if imaginary else drawn

    def _examples_first(self, op: Op, axis: int, what: str) -> tuple[str, Array | None]:
        """Find an operation with the examples on axis 0 from which ``op`` gets its entries.

        Returns: the fields ``above`` and ``places`` of a ChannelSource. Raises: NoAttentionError if
        there is no such operation; ``what`` describes the channels in the message.
        """
        if self.examples[op.name] == 0:
            return op.name, None
        path: list[Op] = []
        name = op.reads[0] if isinstance(op, Linear) and not op.kernel else ""
        while (
            name
            and self.examples[name] != 0
            and isinstance(self.ops[name], Reshape | Transpose | Pass)
        ):
            path.append(self.ops[name])
            name = self.ops[name].reads[0]
        if (
            not name
            or self.examples[name] != 0
            or axis != len(op.shape) - 1
            or self.axes.get(name) != len(self.ops[name].shape) - 1
        ):
            raise NoAttentionError(UNFOLLOWED.format(what))
        shape = self.ops[name].shape
        moved = through(np.arange(prod(shape)).reshape(shape), path).reshape(-1, shape[-1])
        if not (moved - moved[:, :1] == np.arange(shape[-1])).all():
            raise NoAttentionError(UNFOLLOWED.format(what))
        return name, moved[:, 0] // shape[-1]

    def whole(self, source: ChannelSource, values: Array) -> Array:
        """Return the channels of a source with shape (examples, tokens, channels)."""
        flat = np.moveaxis(values, source.axis, -1).reshape(-1, values.shape[source.axis])[
            :, list(source.rows)
        ]
        if source.places is not None:
            flat = flat[np.argsort(source.places)]
        return flat.reshape(self.count, -1, flat.shape[-1])


def _followed(op: Op) -> bool:
    return isinstance(op, FOLLOWED) or computed(op) or subsamples(op)


def _order(word: str, heads: Sequence[str], token: str, width: str) -> tuple[Any, ...]:
    """Return the order of an operand's axes that gives (examples and heads, tokens, width).

    The order contains None for a missing axis.
    """
    if set(word) - {*heads, token, width} or token not in word or width not in word:
        raise NoAttentionError("its scores are not products of queries and keys")
    return tuple(
        word.index(letter) if letter in word else None for letter in (*heads, token, width)
    )


def _alike(word: str, letters: str, wanted: Sequence[str]) -> list[str] | None:
    """Return the letters of ``word`` in the order that ``wanted`` defines for ``letters``.

    Return None if the two words do not correspond.
    """
    if len(word) == len(letters):
        return [word[letters.index(letter)] for letter in wanted]
    return list(word) if letters == "".join(wanted) else None


def _rows(op: Op, axis: int, path: Sequence[Op]) -> Rows:
    """Return the channels of an operation that are left after the operations in ``path``."""
    channels = np.arange(op.shape[axis]).reshape(
        [-1 if i == axis else 1 for i in range(len(op.shape))]
    )
    return tuple(np.unique(through(np.broadcast_to(channels, op.shape), path)).tolist())
