"""Recognise multi-head attention and replace it with one operation.

The attention scores are evaluated on random numbers to find their scale, masks, rotary angles and
biases. Attention that kcalc does not recognise stays unchanged, and a note states the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ..internal_errors import internal_error
from ..trace import (
    Attend,
    Attention,
    Contract,
    Drop,
    Entry,
    Held,
    Linear,
    Masked,
    Op,
    Pass,
    Reshape,
    Trace,
    Transpose,
)
from .attention_sources import VARYING, AttentionCore, ChannelSource, Followed, Rows
from .editing import TraceEditor, span
from .mixing_position import MixingPlacement
from .numbers import DoubleEvaluation, TooLargeError, masked_scores, softmax, through
from .scores import EmptyRowError, ModelScores, NoAttentionError, biases_of, measured, turned

Array = np.ndarray
LAYOUTS = ((0, 1), (1, 0))  # channels as (head, width) or as (width, head)
BY_HEAD = (
    "its queries and keys are normalised separately in every head; they are read as normalised "
    "over all channels, which is equivalent for wide heads"
)
SHARED = "its {} and {} come from the same weights, but kernel maps treat them as separate"
UNMADE = "its {} and {} are the same feature map and have no separate weights"
LARGE = (
    "the scores of all heads contain more numbers than kcalc can evaluate; pass example inputs "
    "with fewer tokens or examples"
)
BY_EXAMPLE = (
    "its scores are not products of queries and keys of the same example; the examples must be on "
    "axis 0 (in PyTorch: batch_first=True)"
)
REORDERED = "its heads are joined in an order that kcalc does not follow"


def with_heads(trace: Trace) -> TraceEditor:
    """Replace every multi-head attention with one operation.

    The new operation reads the layers that produce queries, keys and values.
    """
    edit = _Heads(trace)
    left = [op.name for op in edit.ops.values() if isinstance(op, Attend | Contract)]
    while left:
        read = edit.read
        # operations before the attention stay unchanged
        left = [name for name in reversed(left) if edit.refused(name)][::-1]
        if edit.read == read:
            break
        edit.refresh()  # reading this attention may reveal the axes of later operations
    edit.settle()
    return edit


class _Heads(MixingPlacement):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.count = next(
            (op.shape[0] for op in self.ops.values() if isinstance(op, Entry) and op.shape), 1
        )
        self.made: dict[tuple[str, Rows], str] = {}
        self.wished: list[tuple[str, str]] = []
        self.numbers = dict[tuple[int, int, tuple[int, ...]], Array]()
        self.read = 0
        self.refresh()

    def refresh(self) -> None:
        """Recompute the channel and batch axes for the current operations."""
        self.ops = self.ordered()
        self.followed = Followed(self.trace, dict(self.ops), self.count)

    def refused(self, name: str) -> bool:
        """Try to replace attention with one operation, and return whether this failed.

        If so, the reason is attached to the operation ``name``.
        """
        before, op, reasons = dict(self.ops), self.ops.get(name), list[str]()
        try:
            for core in () if op is None else self.followed.cores(op):
                try:
                    self.read += self._replaced(core)
                    return False
                except NoAttentionError as error:
                    reasons.append(str(error))
                    self.ops = dict(before)
                except EmptyRowError as error:
                    place = f" ({op.source})" if op is not None and op.source else ""
                    raise KcalcError(f"attention at {name!r}{place}: {error}") from None
        except (NoAttentionError, TooLargeError) as error:
            reasons.append(LARGE if isinstance(error, TooLargeError) else str(error))
        except KcalcError:
            raise
        except Exception as error:
            reasons.insert(0, internal_error(error, f"the attention at {name!r}"))
        if not reasons:
            return False
        given: Any = before[name]
        self.ops = {**before, name: replace(given, reason=reasons[0], what="attention")}
        return True

    def settle(self) -> None:
        """Give new operations the names of the operations that they replace."""
        live = self.reached()
        for name in [n for n in self.ops if n not in live and not isinstance(self.ops[n], Entry)]:
            del self.ops[name]
        for name, wish in self.wished:
            if name in self.ops and wish not in self.ops:
                self.rename(name, wish)
                self.born[wish] = self.born.pop(name, wish)

    # -- one attention -----------------------------------------------------------------------------

    def _replaced(self, core: AttentionCore) -> bool:
        """Replace attention with one operation.

        Returns False if the attention has fixed weights and therefore stays.
        """
        sources = [
            self.followed.source(name, what)
            for name, what in zip(core.reads, ("queries", "keys", "values"), strict=True)
        ]
        if any(
            isinstance(s.op, Linear) and not np.any(np.asarray(s.op.weight)[list(s.rows)])
            for s in sources[:2]
        ):
            return False  # queries or keys with zero weights mix tokens in fixed proportions
        for (one, a), (two, b) in combinations(
            zip(sources, ("queries", "keys", "values"), strict=True), 2
        ):
            if one.shares(two):
                raise NoAttentionError(
                    (SHARED if isinstance(one.op, Linear) else UNMADE).format(a, b)
                )
        draws = [self._drawn(core, sources, seed) for seed in (0, 1)]
        found = measured([draw[0] for draw in draws])
        biases = biases_of(found)
        texts, tokens = biases.texts, found.masked.shape[-1]
        given = self._mask_given(core) and (found.masked.any() or not biases)
        turn = found.turn
        rotary, more = (None, ()) if turn is None else turn.base()
        if sources[0].norm is not None or sources[1].norm is not None:
            texts = (*texts, BY_HEAD)
        (scores, values, numbers), width = draws[0], draws[0][0].width
        heads = softmax(scores.actual) @ np.repeat(values, scores.heads // values.shape[1], axis=1)
        made = numbers(core.op.name)
        if made is None or not np.allclose(
            _arranged(made, core.out, heads.shape), heads, rtol=1e-5, atol=1e-6
        ):
            raise NoAttentionError(
                "its weights multiply the values in a way that kcalc does not recognise"
            )
        fields = {
            "heads": scores.heads,
            "key_heads": scores.key_heads,
            "key_width": width,
            "scale": found.scale,
            "masks": biases.masks,
            "masked_at": tokens if given else None,
            "rotary": rotary,
            "alibi": biases.alibi,
            "relative": biases.relative,
            "tokens": tokens,
            "rate": core.rate,
            "texts": (*texts, *more),
        }
        self._joined(core, sources, heads, numbers, fields)
        return True

    def _drawn(
        self, core: AttentionCore, sources: Sequence[ChannelSource], seed: int
    ) -> tuple[ModelScores, Array, DoubleEvaluation]:
        """Evaluate attention on random numbers in the channels of its sources.

        Returns: the scores, the values, and the evaluation of the operations.
        """
        given = {
            name: self._random(seed, n, self.ops[name].shape)
            for n, name in enumerate(dict.fromkeys(s.op.name for s in sources))
        }
        numbers = DoubleEvaluation(self.ops, given, lambda _: None)
        arrays = [numbers(name) for name in core.reads]
        known = [array for array in arrays if array is not None]
        if len(known) < 3:
            raise NoAttentionError(
                "its queries, keys or values depend on arrays that kcalc does not track"
            )
        split = [
            _ordered(array, order, self.count)
            for array, order in zip(known, core.orders, strict=True)
        ]
        whole = [self.followed.whole(source, given[source.op.name]) for source in sources]
        count = max(part.shape[1] for part in split)
        parts = []
        for source, part, channels, what in zip(
            sources, split, whole, ("queries", "keys", "values"), strict=True
        ):
            parts.append(turned(part, channels, source.norm, what))
        (queries, turn), (keys, other), (values, moved) = parts
        if moved is not None:
            raise NoAttentionError(
                "rotary embeddings are applied to its values, for which kcalc has no rule"
            )
        if (turn is None) != (other is None) or (
            turn is not None and other is not None and not turn.like(other)
        ):
            raise NoAttentionError(
                "rotary embeddings are applied differently to its queries and to its keys"
            )
        if keys.shape[1] != values.shape[1]:
            raise NoAttentionError(
                f"it has {keys.shape[1]} key heads but {values.shape[1]} value heads"
            )
        raw = queries @ np.swapaxes(np.repeat(keys, count // keys.shape[1], axis=1), -1, -2)
        return (
            ModelScores(
                self._actual(core, numbers, split, raw),
                raw,
                count,
                keys.shape[1],
                turn,
                queries.shape[-1],
            ),
            values,
            numbers,
        )

    def _random(self, seed: int, number: int, shape: tuple[int, ...]) -> Array:
        """Draw random numbers; calls with equal arguments return the same array."""
        key = (seed, number, shape)
        if key not in self.numbers:
            self.numbers[key] = np.random.default_rng((seed, number)).standard_normal(shape)
        return self.numbers[key]

    def _actual(
        self, core: AttentionCore, numbers: DoubleEvaluation, split: Sequence[Array], raw: Array
    ) -> Array:
        """Return the scores that the model passes to its softmax."""
        if core.softmax is not None:
            found = numbers(core.softmax.reads[0])
            if found is None:
                raise NoAttentionError(
                    "its scores depend on arrays that kcalc does not track, such as a mask "
                    "that depends on the input"
                )
            if found.size != raw.size:
                raise NoAttentionError("its scores do not cover all tokens in every head")
            return (found.transpose(core.scores) if core.scores else found).reshape(raw.shape)
        mask = None
        if len(core.op.reads) > 3:
            mask = numbers(core.op.reads[3])
            if mask is None:
                raise NoAttentionError(VARYING)
        queries, keys = numbers(core.reads[0]), numbers(core.reads[1])
        assert queries is not None and keys is not None
        return masked_scores(
            core.op, core.op.scale * queries @ np.swapaxes(keys, -1, -2), mask
        ).reshape(raw.shape)

    def _mask_given(self, core: AttentionCore) -> bool:
        """Whether the scores are masked by an array, whose size fixes the number of tokens."""
        if core.softmax is None:
            return len(core.op.reads) > 3
        left = [core.softmax.reads[0]]
        while left:
            op = self.ops[left.pop()]
            if isinstance(op, Masked) or (isinstance(op, Held) and prod(op.shape) > 1):
                return True
            left += () if isinstance(op, Contract) else op.reads
        return False

    # -- replacement -------------------------------------------------------------------------------

    def _joined(
        self,
        core: AttentionCore,
        sources: Sequence[ChannelSource],
        heads: Array,
        numbers: DoubleEvaluation,
        fields: dict[str, Any],
    ) -> None:
        """Insert the attention operation where the model joins the heads.

        If tokens come before examples at this place, the next layer may have to be replaced too.
        """
        count, _, tokens, _ = heads.shape
        wanted = [
            heads.transpose(0, 2, *(1 + 2 * n for n in layout)).reshape(count, tokens, -1)
            for layout in LAYOUTS
        ]
        channels = wanted[0].shape[-1]
        for name in self._downward_moves(core.op.name):
            array: Any = numbers(name)
            last = array.shape[-1] == channels
            for joined in wanted:
                by_token = (count, tokens, channels), 2
                if last and _equal(array, joined):
                    self._installed_at(core, name, self._emitted(core, sources, *by_token, fields))
                    return
                second = len(array.shape) > 2 and array.shape[1] == channels
                if second and _equal(array, joined.swapaxes(1, 2)):
                    by_channel = (count, channels, tokens), 1
                    made = self._emitted(core, sources, *by_channel, fields)
                    self._installed_at(core, name, made)
                    return
                layer = self._only_reader(name)
                if not last or not isinstance(layer, Linear) or layer.kernel:
                    continue
                if _equal(array, joined.swapaxes(0, 1)):
                    made = self._emitted(core, sources, *by_token, fields)
                    self._behind(core, layer, made, tokens)
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

    def _emitted(
        self,
        core: AttentionCore,
        sources: Sequence[ChannelSource],
        shape: tuple[int, ...],
        axis: int,
        fields: dict[str, Any],
    ) -> Attention:
        reads = tuple(
            self._channels(source, fields["heads" if n == 0 else "key_heads"], core)
            for n, source in enumerate(sources)
        )
        name = self.names(core.op.name)
        self.wished.append((name, core.op.name))
        place = {"name": name, "shape": shape, "reads": reads, "axis": axis}
        made = core.op.become(Attention, **place, **fields)
        self.add(made, core.op)
        return made

    def _installed_at(self, core: AttentionCore, name: str, made: Attention) -> None:
        old = self.ops[name]
        if name == core.op.name and old.shape == made.shape:
            del self.ops[made.name]
            self.ops[name] = replace(made, name=name)
        else:
            self.ops[name] = old.moved(made.shape, made.name)

    def _behind(self, core: AttentionCore, layer: Linear, made: Attention, tokens: int) -> None:
        """Change the input of a layer from (tokens, examples, ...) to (examples, tokens, ...).

        The following operations, up to the operation that restores the order of axes, are dropped.
        """
        shape = (self.count, tokens, layer.shape[-1])
        twin = replace(
            layer, name=self.names(layer.name), shape=shape, reads=(made.name,), axis=2, out_axis=2
        )
        self.wished.append((self.add(twin, layer), layer.name))
        there = np.arange(prod(shape)).reshape(shape).swapaxes(0, 1).reshape(layer.shape)
        name = layer.name
        while True:
            if there.size == prod(shape) and (there.ravel() == np.arange(there.size)).all():
                self.ops[name] = self.ops[name].moved(shape, twin.name)
                return
            op = self._only_reader(name)
            if isinstance(op, Drop) or not isinstance(op, Reshape | Transpose | Pass):
                raise NoAttentionError(REORDERED)
            there, name = through(there, [op]), op.name

    def _channels(self, source: ChannelSource, heads: int, core: AttentionCore) -> str:
        """Return an operation that outputs the channels of a source, with the examples first."""
        op = source.op
        key = (op.name, source.rows)
        if key not in self.made or self.made[key] not in self.ops:
            self.made[key] = self._cut(source)
        name = self.made[key]
        return name if source.norm is None else self._normed(source, name, heads)

    def _cut(self, source: ChannelSource) -> str:
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
                shape = (*above[:-1], len(rows))
                reads = (source.above,)
                axes = {"axis": len(above) - 1, "out_axis": len(above) - 1}
            own = tuple(rows) if op.rows is None else tuple(op.rows[i] for i in rows)
            cut = (
                {}
                if whole
                else {
                    "weight": np.asarray(op.weight)[rows],
                    "bias": None if op.bias is None else np.asarray(op.bias)[rows],
                    "rows": own,
                }
            )
            wish = op.name if whole else f"{op.name}[{span(source.rows)}]"
            name = self.add(
                replace(op, name=self.names(wish), shape=shape, reads=reads, **axes, **cut), op
            )
            if whole:
                self.wished.append((name, wish))
        made = self.ops[name]
        if len(made.shape) == 2:
            shape = (self.count, made.shape[0] // self.count, made.shape[1])
            name = self.add(
                Reshape(
                    name=self.names(f"{name}.tokens"), shape=shape, reads=(name,), source=op.source
                ),
                op,
            )
        return name

    def _normed(self, source: ChannelSource, name: str, heads: int) -> str:
        """Add a norm over all channels in place of a norm over each head."""
        assert source.norm is not None
        key = (source.norm.name, source.rows)
        if key not in self.made or self.made[key] not in self.ops:
            old, shape = source.norm, self.ops[name].shape
            gain, bias = (
                None if array is None else np.tile(np.asarray(array).reshape(-1), heads)
                for array in (old.gain, old.bias)
            )
            made = replace(
                old,
                name=self.names(old.name),
                shape=shape,
                reads=(name,),
                axes=(len(shape) - 1,),
                gain=gain,
                bias=bias,
            )
            self.made[key] = self.add(made, old)
            self.wished.append((made.name, old.name))
        return self.made[key]


def _ordered(array: Array, order: Sequence[int | None], count: int) -> Array:
    """Return an operand with shape (examples, heads, tokens, width), with one head by default."""
    there = array.transpose([axis for axis in order if axis is not None])
    if order[0] is None or there.shape[0] % count:
        raise NoAttentionError(BY_EXAMPLE)
    tokens, width = there.shape[-2:]
    return there.reshape(count, -1, tokens, width)


def _equal(array: Array, wanted: Array) -> bool:
    """Whether two arrays contain the same values in the same order, up to rounding."""
    return np.allclose(array.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-6)


def _arranged(array: Array, order: Sequence[int], shape: tuple[int, ...]) -> Array:
    return (
        array.transpose(order).reshape(shape)
        if array.size == prod(shape)
        else np.full(shape, np.nan)
    )
