"""Attention in heads as one operation, by following its queries, keys and values up to whole channels.

The scores are measured on numbers drawn at random: their scale, masks, rotary angles and biases follow from the functions of the
operations. Attention that is none of these stays as it is, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ..layout import channel_axes
from ..trace import (  # fmt: skip
    Attend,
    Attention,
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
)
from .editing import Edit
from .numbers import RULES, Numbers, TooLargeError, masked_scores, softmax
from .placing import Placing, example_axes
from .scores import NoAttentionError, Scores, biases_of, measured, turned

Array = np.ndarray
Rows = tuple[int, ...]
MOVES = (Reshape, Transpose, Pass, Part, Repeat, Copies)
FOLLOWED = (*MOVES, Pointwise, Join)
LAYOUTS = ((0, 1), (1, 0))  # channels as (head, width) or as (width, head)
BY_HEAD = "every head of its queries and keys is normalised by itself; read as normalised over all channels, the same for wide heads"
UNFOLLOWED = "its {} are made of whole feature maps in a way that is not followed"
SHARED = "its {} and {} are made by the same weights; kernel maps take those of each as their own"
LARGE = "the scores of all heads are more numbers than are followed; give fewer tokens or examples as example inputs"
OVER_QUERIES = "its softmax is over the queries, not over the keys"
VARYING = "its mask depends on the input; read the model with a mask that is the same for all inputs, or with none"
REORDERED = "its heads are joined in an order that is not followed"


def with_heads(trace: Trace) -> Edit:
    """The operations with every attention in heads as one, between layers that make its queries, keys and values."""
    edit = _Heads(trace)
    for op in list(edit.ops.values()):
        if op.name in edit.ops and isinstance(op, Attend | Contract):
            edit.attempt(edit.ops[op.name])
    edit.settle()
    return edit


@dataclass(frozen=True, eq=False)
class Core:
    """An attention before its heads are joined, with the axes by which each operand is (examples, heads, tokens, width).

    ``scores``: the axes by which the scores are (examples, heads, queries, keys); () where they are in this order.
    """

    op: Any
    reads: tuple[str, str, str]
    orders: tuple[Any, Any, Any]
    out: tuple[int, ...]
    softmax: Softmax | None
    scores: tuple[int, ...]
    rate: float


@dataclass(frozen=True, eq=False)
class Source:
    """Whole channels that queries, keys or values are made of: some ``rows`` of the output of ``op``."""

    op: Op
    axis: int
    rows: Rows
    norm: Normalise | None
    above: str  # where the examples stand first: ``op`` itself, or what is rearranged into its input
    places: Array | None  # the place (example, token) of every place of ``op``, None where they agree


class _Heads(Placing):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.count = next((op.shape[0] for op in self.ops.values() if isinstance(op, Entry) and op.shape), 1)
        self.made: dict[tuple[str, Rows], str] = {}
        self.wished: list[tuple[str, str]] = []
        self._refresh()

    def _refresh(self) -> None:
        """Follow channels, examples and the input through the operations as they are now."""
        self.ops = self.ordered()
        current = replace(self.trace, ops=tuple(self.ops.values()))
        self.axes, self.examples = channel_axes(current), example_axes(self.ops)
        self.facts = Numbers(self.ops, {}, lambda _: None)
        self.moving = dict[str, bool]()
        for name, op in self.ops.items():
            self.moving[name] = isinstance(op, Entry) or any(self.moving[read] for read in op.reads)
        self.order = {name: place for place, name in enumerate(self.ops)}

    def attempt(self, op: Any) -> None:
        """Put one operation in place of an attention; where it is not read, its reason says why."""
        before, reasons = dict(self.ops), list[str]()
        try:
            for core in self._cores(op):
                try:
                    if self._replaced(core):
                        self._refresh()
                    return
                except NoAttentionError as error:
                    reasons.append(str(error))
                    self.ops = dict(before)
        except (NoAttentionError, TooLargeError) as error:
            reasons.append(str(error) or LARGE)
        if reasons:
            self.ops = {**before, op.name: replace(op, reason=reasons[0], what="attention")}

    def settle(self) -> None:
        """Give new operations the names of those whose places they take."""
        live = self.reached()
        for name in [n for n in self.ops if n not in live and not isinstance(self.ops[n], Entry)]:
            del self.ops[name]
        for name, wish in self.wished:
            if name in self.ops and wish not in self.ops:
                self.rename(name, wish)
                self.born[wish] = self.born.pop(name, wish)

    # -- the core ------------------------------------------------------------------------------------------------------

    def _cores(self, op: Any) -> Iterator[Core]:
        """The readings of an operation as an attention: one for every axis that may be that of the queries' tokens."""
        if isinstance(op, Attend):
            plain = tuple(range(len(op.shape)))
            queries, keys, values = op.reads[:3]
            yield Core(op, (queries, keys, values), (plain, plain, plain), plain, None, (), op.rate)
            return
        for side in (0, 1):
            top, rate = self._softmax_above(op.reads[side])
            found = None if top is None else self._product(top.reads[0])
            if top is not None and found is not None:
                yield from self._written_out(op, side, top, *found, rate)
                return

    def _softmax_above(self, name: str) -> tuple[Softmax | None, float]:
        rate = 0.0
        while isinstance(op := self.ops[name], Pass | Drop | Reshape):
            rate = max(rate, op.rate) if isinstance(op, Drop) else rate
            name = op.reads[0]
        return (op if isinstance(op, Softmax) else None), rate

    def _product(self, name: str) -> tuple[Contract, str] | None:
        """The product of queries and keys behind scores, and its letters in the order of their axes."""
        moves: list[Op] = []
        while not isinstance(op := self.ops[name], Contract):
            moving = [read for read in dict.fromkeys(op.reads) if self.moving[read]]
            if isinstance(op, Pointwise) and len([read for read in moving if self._product(read)]) == 1 < len(moving):
                raise NoAttentionError(VARYING)
            if not isinstance(op, Pass | Reshape | Transpose | Masked | Pointwise) or len(moving) != 1:
                return None
            moves.insert(0, op)
            name = moving[0]
        letters = plain = op.terms.split("->")[1]
        for move in moves:
            if isinstance(move, Transpose) and len(move.order) == len(plain):
                letters = "".join(letters[axis] for axis in move.order)
            elif isinstance(move, Transpose) or (isinstance(move, Reshape) and letters != plain):
                return None
        return op, letters

    def _written_out(self, op: Contract, side: int, top: Softmax, scores: Contract, letters: str, rate: float) -> Iterator[Core]:
        """softmax(q k^T) v from the letters of its two products."""
        first, out = scores.terms.split("->")
        pair, alike = first.split(","), len(top.shape) == len(letters)
        if not alike and top.axis != len(top.shape) - 1:
            raise NoAttentionError(OVER_QUERIES)
        seen = letters[top.axis] if alike else letters[-1]
        key = next((n for n in (0, 1) if seen in pair[n] and seen not in pair[1 - n]), None)
        if key is None or len(set(pair[0]) & set(pair[1]) - set(out)) != 1:
            raise NoAttentionError("its scores are no products of queries and keys")
        width = (set(pair[0]) & set(pair[1]) - set(out)).pop()
        names, last = op.terms.split("->")
        mine, data = names.split(",")[side], names.split(",")[1 - side]
        size = dict(zip(letters, top.shape, strict=True)) if alike else {}
        own = [letter for letter in letters if letter in pair[1 - key] and letter not in pair[key]] if alike else [letters[-2]]
        for query in sorted(own, key=lambda letter: size.get(letter) != size.get(seen)):
            heads = "".join(letter for letter in letters if letter not in (query, seen))
            again = _alike(mine, letters, (*heads, query, seen))
            if again is None:
                raise NoAttentionError("its weights multiply values in a way that is not followed")
            *many, row, column = again
            wide = set(data) - set(mine)
            if column in last and row in data:
                raise NoAttentionError(OVER_QUERIES)
            if column not in data or column in last or len(wide) != 1 or not wide < set(last) or row in data:
                raise NoAttentionError("its weights multiply values in a way that is not followed")
            channel = wide.pop()
            orders = (
                _order(pair[1 - key], heads, query, width), _order(pair[key], heads, seen, width), _order(data, many, column, channel),
            )  # fmt: skip
            made = tuple(last.index(letter) for letter in (*many, row, channel))
            order = tuple(letters.index(letter) for letter in (*heads, query, seen)) if alike else ()
            yield Core(op, (scores.reads[1 - key], scores.reads[key], op.reads[1 - side]), orders, made, top, order, rate)

    # -- where queries, keys and values come from ------------------------------------------------------------------------

    def _source(self, name: str, what: str) -> Source:
        """The whole channels that one operand is made of."""
        norm: Normalise | None = None
        path: list[Op] = []
        while True:
            op = self.ops[name]
            moving = [read for read in dict.fromkeys(op.reads) if self.moving[read]]
            above = moving[0] if len(moving) == 1 else self._meeting(name) if isinstance(op, Pointwise | Join) else None
            if isinstance(op, MOVES):
                path.append(op)
            elif isinstance(op, Normalise) and op.kind in ("layer", "rms") and len(op.axes) == 1:
                if self.axes.get(name) == op.axes[0] or norm is not None:
                    break
                norm, path = op, []
            elif isinstance(op, Pointwise | Join) and above is not None and self._homogeneous(op):
                path = []
            else:
                break
            if above is None:
                raise NoAttentionError(UNFOLLOWED.format(what))
            name = above
        axis = op.out_axis if isinstance(op, Linear) else self.axes.get(name)
        if axis is None:
            raise NoAttentionError(UNFOLLOWED.format(what))
        labels = np.broadcast_to(np.arange(op.shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(op.shape))]), op.shape)
        rows = tuple(np.unique(_through(labels, path)).tolist())
        if len(rows) < op.shape[axis] and not (isinstance(op, Linear) and op.groups == 1):
            raise NoAttentionError(f"its {what} are a part of the channels of {name}")
        above, places = self._examples_first(op, axis, what)
        return Source(op, axis, rows, norm, above, places)

    def _meeting(self, name: str) -> str | None:
        """The array of which an operation with several inputs is made, as rotary embeddings are made of one array."""
        front = {name}
        while True:
            last = max(front, key=self.order.__getitem__)
            if len(front) == 1 and last != name:
                return last
            if not isinstance(self.ops[last], FOLLOWED):
                return None
            front.remove(last)
            front |= {read for read in self.ops[last].reads if self.moving[read]}

    def _homogeneous(self, op: Op) -> bool:
        """Whether an elementwise operation is odd and homogeneous: sums, multiples by fixed numbers."""
        if not isinstance(op, Pointwise):
            return True
        random = np.random.default_rng(0)
        arrays = {n: random.standard_normal(self.ops[n].shape) if self.moving[n] else self.facts(n) for n in op.reads}
        if any(array is None for array in arrays.values()):
            return False
        made = [RULES[Pointwise](op, [arrays[n] * (k if self.moving[n] else 1) for n in op.reads]) for k in (1, -2)]
        return made[0] is not None and made[1] is not None and np.allclose(made[1], -2 * made[0], rtol=1e-6, atol=1e-9)

    def _examples_first(self, op: Op, axis: int, what: str) -> tuple[str, Array | None]:
        """Where the examples stand first, and the places of an array that has them elsewhere."""
        if self.examples[op.name] == 0:
            return op.name, None
        path: list[Op] = []
        name = op.reads[0] if isinstance(op, Linear) and not op.kernel else ""
        while name and self.examples[name] != 0 and isinstance(self.ops[name], Reshape | Transpose | Pass):
            path.append(self.ops[name])
            name = self.ops[name].reads[0]
        if not name or self.examples[name] != 0 or axis != len(op.shape) - 1 or self.axes.get(name) != len(self.ops[name].shape) - 1:
            raise NoAttentionError(UNFOLLOWED.format(what))
        shape = self.ops[name].shape
        moved = _through(np.arange(prod(shape)).reshape(shape), path).reshape(-1, shape[-1])
        if not (moved - moved[:, :1] == np.arange(shape[-1])).all():
            raise NoAttentionError(UNFOLLOWED.format(what))
        return name, moved[:, 0] // shape[-1]

    def _whole(self, source: Source, values: Array) -> Array:
        """The channels of a source as (examples, tokens, channels)."""
        flat = np.moveaxis(values, source.axis, -1).reshape(-1, values.shape[source.axis])[:, list(source.rows)]
        if source.places is not None:
            flat = flat[np.argsort(source.places)]
        return flat.reshape(self.count, -1, flat.shape[-1])

    # -- one attention ---------------------------------------------------------------------------------------------------

    def _replaced(self, core: Core) -> bool:
        """Put one operation in the place of a core; whether it attends."""
        sources = [self._source(name, what) for name, what in zip(core.reads, ("queries", "keys", "values"), strict=True)]
        if any(isinstance(s.op, Linear) and not np.any(np.asarray(s.op.weight)[list(s.rows)]) for s in sources[:2]):
            return False  # queries or keys of zero weights mix tokens by fixed numbers
        for a, b in ((0, 1), (0, 2), (1, 2)):
            if sources[a].op is sources[b].op and set(sources[a].rows) & set(sources[b].rows):
                raise NoAttentionError(SHARED.format(*(("queries", "keys", "values")[n] for n in (a, b))))
        draws = [self._drawn(core, sources, seed) for seed in (0, 1)]
        found = measured([draw[0] for draw in draws])
        texts, causal, alibi = biases_of(found)
        turn = found.turn
        rotary, more = (None, ()) if turn is None else turn.base()
        if sources[0].norm is not None or sources[1].norm is not None:
            texts = (*texts, BY_HEAD)
        (scores, values, numbers), width = draws[0], draws[0][0].width
        heads = softmax(scores.actual) @ np.repeat(values, scores.heads // values.shape[1], axis=1)
        made = numbers(core.op.name)
        if made is None or not np.allclose(_arranged(made, core.out, heads.shape), heads, rtol=1e-5, atol=1e-6):
            raise NoAttentionError("its weights multiply values in a way that is not followed")
        fields = {
            "heads": scores.heads, "key_heads": scores.key_heads, "key_width": width, "scale": found.scale, "causal": causal,
            "rotary": rotary, "alibi": alibi, "rate": core.rate, "texts": (*texts, *more),
        }  # fmt: skip
        self._joined(core, sources, heads, numbers, fields)
        return True

    def _drawn(self, core: Core, sources: Sequence[Source], seed: int) -> tuple[Scores, Array, Numbers]:
        """Scores and values on numbers drawn at random at the sources."""
        random = np.random.default_rng(seed)
        given = {name: random.standard_normal(self.ops[name].shape) for name in dict.fromkeys(s.op.name for s in sources)}
        numbers = Numbers(self.ops, given, lambda _: None)
        arrays = [numbers(name) for name in core.reads]
        if any(array is None for array in arrays):
            raise NoAttentionError("its queries, keys or values depend on arrays that are not followed")
        split = [_ordered(array, order, self.count) for array, order in zip(arrays, core.orders, strict=True)]
        whole = [self._whole(source, given[source.op.name]) for source in sources]
        count = max(part.shape[1] for part in split)
        parts = []
        for source, part, channels, what in zip(sources, split, whole, ("queries", "keys", "values"), strict=True):
            parts.append(turned(part, channels, source.norm, what))
        (queries, turn), (keys, other), (values, _) = parts
        if (turn is None) != (other is None) or (turn is not None and other is not None and not turn.like(other)):
            raise NoAttentionError("its queries and keys are turned by rotary embeddings in different ways")
        if keys.shape[1] != values.shape[1]:
            raise NoAttentionError(f"it has {keys.shape[1]} heads of keys and {values.shape[1]} of values")
        raw = queries @ np.swapaxes(np.repeat(keys, count // keys.shape[1], axis=1), -1, -2)
        return Scores(self._actual(core, numbers, split, raw), raw, count, keys.shape[1], turn, queries.shape[-1]), values, numbers

    def _actual(self, core: Core, numbers: Numbers, split: Sequence[Array], raw: Array) -> Array:
        """The scores of the model, before its softmax."""
        if core.softmax is not None:
            found = numbers(core.softmax.reads[0])
            if found is None:
                raise NoAttentionError("its scores depend on arrays that are not followed, such as a mask that depends on the input")
            if found.size != raw.size:
                raise NoAttentionError("its scores are not those of all tokens in every head")
            return (found.transpose(core.scores) if core.scores else found).reshape(raw.shape)
        mask = None
        if len(core.op.reads) > 3:
            mask = numbers(core.op.reads[3])
            if mask is None:
                raise NoAttentionError(VARYING)
        queries, keys = numbers(core.reads[0]), numbers(core.reads[1])
        assert queries is not None and keys is not None
        return masked_scores(core.op, core.op.scale * queries @ np.swapaxes(keys, -1, -2), mask).reshape(raw.shape)

    # -- putting it in -------------------------------------------------------------------------------------------------

    def _joined(self, core: Core, sources: Sequence[Source], heads: Array, numbers: Numbers, fields: dict[str, Any]) -> None:
        """Put the operation where its heads are joined, perhaps with the layer behind it where tokens stand before examples."""
        count, _, tokens, _ = heads.shape
        wanted = [heads.transpose(0, 2, *(1 + 2 * n for n in layout)).reshape(count, tokens, -1) for layout in LAYOUTS]
        channels = wanted[0].shape[-1]
        for name in self._downward_moves(core.op.name):
            array = numbers(name)
            if array is None or array.size != wanted[0].size:
                continue
            for joined in wanted:
                if array.shape[-1] == channels and np.allclose(array.reshape(joined.shape), joined, rtol=1e-5, atol=1e-6):
                    self._installed_at(core, name, self._emitted(core, sources, (count, tokens, channels), 2, fields))
                    return
                if len(array.shape) > 2 and array.shape[1] == channels and np.allclose(
                    array.reshape(count, channels, tokens), joined.swapaxes(1, 2), rtol=1e-5, atol=1e-6
                ):  # fmt: skip
                    self._installed_at(core, name, self._emitted(core, sources, (count, channels, tokens), 1, fields))
                    return
                flat = joined.swapaxes(0, 1).reshape(-1, channels)
                if array.shape[-1] == channels and np.allclose(array.reshape(flat.shape), flat, rtol=1e-5, atol=1e-6):
                    layer = self._only_reader(name)
                    if isinstance(layer, Linear) and not layer.kernel:
                        self._behind(core, layer, self._emitted(core, sources, (count, tokens, channels), 2, fields), tokens)
                        return
        raise NoAttentionError(REORDERED)

    def _only_reader(self, name: str) -> Op | None:
        found = [op for op in self.ops.values() if name in op.reads]
        return found[0] if len(found) == 1 and name not in self.outputs else None

    def _downward_moves(self, name: str) -> Iterator[str]:
        yield name
        while isinstance(op := self._only_reader(name), Reshape | Transpose | Pass):
            name = op.name
            yield name

    def _emitted(self, core: Core, sources: Sequence[Source], shape: tuple[int, ...], axis: int, fields: dict[str, Any]) -> Attention:
        reads = tuple(self._channels(source, fields["heads" if n == 0 else "key_heads"], core) for n, source in enumerate(sources))
        name = self.names(core.op.name)
        self.wished.append((name, core.op.name))
        made = Attention(name=name, shape=shape, reads=reads, source=core.op.source, axis=axis, **fields)
        self.add(made, core.op)
        return made

    def _installed_at(self, core: Core, name: str, made: Attention) -> None:
        old = self.ops[name]
        if name == core.op.name and old.shape == made.shape:
            del self.ops[made.name]
            self.ops[name] = replace(made, name=name)
        else:
            kind = Pass if old.shape == made.shape else Reshape
            self.ops[name] = kind(name=name, shape=old.shape, reads=(made.name,), source=old.source)

    def _behind(self, core: Core, layer: Linear, made: Attention, tokens: int) -> None:
        """The layer that reads tokens before examples as one that reads examples before tokens, up to where these stand first again."""
        shape = (self.count, tokens, layer.shape[-1])
        twin = replace(layer, name=self.names(layer.name), shape=shape, reads=(made.name,), axis=2, out_axis=2)
        self.wished.append((self.add(twin, layer), layer.name))
        there = np.arange(prod(shape)).reshape(shape).swapaxes(0, 1).reshape(layer.shape)
        name = layer.name
        while True:
            if there.size == prod(shape) and (there.ravel() == np.arange(there.size)).all():
                old = self.ops[name]
                kind = Pass if old.shape == shape else Reshape
                self.ops[name] = kind(name=name, shape=old.shape, reads=(twin.name,), source=old.source)
                return
            op = self._only_reader(name)
            if isinstance(op, Drop) or not isinstance(op, Reshape | Transpose | Pass):
                raise NoAttentionError(REORDERED)
            there, name = _through(there, [op]), op.name

    def _channels(self, source: Source, heads: int, core: Core) -> str:
        """The name of an operation that emits the channels of a source alone, the examples first."""
        op = source.op
        key = (op.name, source.rows)
        if key not in self.made or self.made[key] not in self.ops:
            self.made[key] = self._cut(source)
        name = self.made[key]
        return name if source.norm is None else self._normed(source, name, heads)

    def _cut(self, source: Source) -> str:
        op, whole = source.op, len(source.rows) == source.op.shape[source.axis]
        if whole and source.places is None:
            name = op.name
        else:
            assert isinstance(op, Linear)
            rows = list(source.rows)
            shape = tuple(len(rows) if i == source.axis else n for i, n in enumerate(op.shape))
            reads, axes = op.reads, {}
            if source.places is not None:
                above = self.ops[source.above].shape
                shape, reads, axes = (*above[:-1], len(rows)), (source.above,), {"axis": len(above) - 1, "out_axis": len(above) - 1}
            own = tuple(rows) if op.rows is None else tuple(op.rows[i] for i in rows)
            cut = {} if whole else {
                "weight": np.asarray(op.weight)[rows], "bias": None if op.bias is None else np.asarray(op.bias)[rows], "rows": own,
            }  # fmt: skip
            wish = op.name if whole else f"{op.name}[{_span(source.rows)}]"
            name = self.add(replace(op, name=self.names(wish), shape=shape, reads=reads, **axes, **cut), op)
            if whole:
                self.wished.append((name, wish))
        made = self.ops[name]
        if len(made.shape) == 2:
            shape = (self.count, made.shape[0] // self.count, made.shape[1])
            name = self.add(Reshape(name=self.names(f"{name}.tokens"), shape=shape, reads=(name,), source=op.source), op)
        return name

    def _normed(self, source: Source, name: str, heads: int) -> str:
        """A norm of every head as one of all channels."""
        assert source.norm is not None
        key = (source.norm.name, source.rows)
        if key not in self.made or self.made[key] not in self.ops:
            old, shape = source.norm, self.ops[name].shape
            gain, bias = (None if array is None else np.tile(np.asarray(array).reshape(-1), heads) for array in (old.gain, old.bias))
            made = replace(old, name=self.names(old.name), shape=shape, reads=(name,), axes=(len(shape) - 1,), gain=gain, bias=bias)
            self.made[key] = self.add(made, old)
            self.wished.append((made.name, old.name))
        return self.made[key]


def _order(word: str, heads: Sequence[str], token: str, width: str) -> tuple[Any, ...]:
    """The axes of an operand as (examples and heads, tokens, width); None for an axis that it lacks."""
    if set(word) - {*heads, token, width} or token not in word or width not in word:
        raise NoAttentionError("its scores are no products of queries and keys")
    return tuple(word.index(letter) if letter in word else None for letter in (*heads, token, width))


def _alike(word: str, letters: str, wanted: Sequence[str]) -> list[str] | None:
    """The letters of ``word`` for axes that are those of ``letters``, in the order ``wanted``; None where they are not."""
    if len(word) == len(letters):
        return [word[letters.index(letter)] for letter in wanted]
    return list(word) if letters == "".join(wanted) else None


def _ordered(array: Array, order: Sequence[int | None], count: int) -> Array:
    """An operand as (examples, heads, tokens, width), heads that it lacks as one."""
    there = array.transpose([axis for axis in order if axis is not None])
    if order[0] is None or there.shape[0] % count:
        raise NoAttentionError("its scores are no products of queries and keys, example by example")
    tokens, width = there.shape[-2:]
    return there.reshape(count, -1, tokens, width)


def _arranged(array: Array, order: Sequence[int], shape: tuple[int, ...]) -> Array:
    return array.transpose(order).reshape(shape) if array.size == prod(shape) else np.full(shape, np.nan)


def _through(array: Array, path: Sequence[Op]) -> Array:
    """An array behind operations that rearrange it, of which the last comes first."""
    for op in reversed(path):
        array = RULES[type(op)](op, [array])
    return array


def _span(rows: Rows) -> str:
    if len(rows) > 1 and len(steps := {b - a for a, b in pairwise(rows)}) == 1:
        step = steps.pop()
        return f"{rows[0]}:{rows[-1] + 1}" + (f":{step}" if step != 1 else "")
    return str(rows[0]) if len(rows) == 1 else f"{len(rows)} channels"
