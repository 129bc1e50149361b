"""Replace attention that has fixed weights with a fixed mixing of tokens.

The attention weights are fixed if, for example, the query or key weights are zero.

The mixing matrix is computed from the known values of queries, keys and masks. If heads split the
channels but all heads have the same matrix, the reshapes around the mixing are dropped. The
replacement is compared with the model on random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..internal_errors import internal_error
from ..trace import (
    Attend,
    Contract,
    Drop,
    Entry,
    Masked,
    Mixed,
    NotRead,
    Pass,
    Pointwise,
    Reshape,
    Softmax,
    Trace,
    Transpose,
    needed,
)
from .editing import TraceEditor
from .mixing_position import MixingPlacement
from .numbers import TooLargeError, attention_weights, elementwise, masked_scores, softmax

TEXT = (
    "its query or key weights are 0, so it mixes the tokens of every input in the same way; this "
    "is exact for kernel maps at initialisation, but tangent kernels and gradients leave out its "
    "query and key weights"
)
FIXED = "it mixes the locations with fixed weights that are the same for all heads"
PER_HEAD = (
    "its heads (or examples) mix tokens with different matrices, but a layer mixes all channels "
    "in the same way"
)
ATTENTION = (
    "the weights of its sums are computed from the input in a way that kcalc does not follow"
)
CLOSE = 1e-9
MASKED = 1e3  # scores this far below the largest count as masked; their weight is 0 in float64
SHIFTS = (-31.7, -2.3, 0.6, 1.9, 47.1)


def with_mixing(trace: Trace) -> TraceEditor:
    """Replace attention with a Mixed if it mixes the tokens of all inputs in the same way."""
    edit = _Mixing(trace)
    for op in list(edit.ops.values()):
        if op.name in edit.ops and isinstance(op, Attend | Contract):
            before = dict(edit.ops)
            try:
                edit.attempt(op)
            except TooLargeError:
                continue
            except Exception as error:
                reason = internal_error(error, f"the mixing of tokens at {op.name!r}")
                edit.ops = edit.facts.ops = {**before, op.name: replace(op, reason=reason)}
    return edit


@dataclass(frozen=True, eq=False)
class FoundMixing:
    """Weights (..., T, S) that mix ``values`` along ``axis``.

    ``order``: the order of the result's axes in the operation's output.
    """

    weights: np.ndarray
    values: str
    axis: int
    order: tuple[int, ...]
    rate: float
    text: str = TEXT


class _Mixing(MixingPlacement):
    # -- the matrix --------------------------------------------------------------------------------

    def attempt(self, op: Any) -> None:
        """Replace attention with a Mixed if the same matrix mixes all heads and inputs."""
        found = self._attended(op) if isinstance(op, Attend) else self._contracted(op)
        if found is None:
            self._named_attention(op)
            return
        matrix = found.weights.reshape(-1, *found.weights.shape[-2:])
        if not np.isfinite(matrix).all():
            return
        if abs(matrix - matrix[:1]).max() > CLOSE:
            told = {"what": "attention", "reason": PER_HEAD}
            self.ops[op.name] = op.become(NotRead, reads=(found.values,), **told)
            return
        before = dict(self.ops)
        shape = list(self.ops[found.values].shape)
        shape[found.axis] = len(matrix[0])
        whole = found.order == tuple(range(len(shape))) and tuple(shape) == op.shape
        core = op.become(
            Mixed,
            name=op.name if whole else self._named(op.name),
            shape=tuple(shape),
            reads=(found.values,),
            matrix=matrix[0],
            axis=found.axis,
            text=_said(found.text, found.rate),
            level="approximate" if found.rate else "exact",
        )
        if not whole:
            turned = Transpose(
                name=self._named(op.name),
                shape=tuple(shape[i] for i in found.order),
                reads=(core.name,),
                order=found.order,
            )
            self.add(core, op)
            self.add(turned, op)
            self.ops[op.name] = op.become(Reshape, reads=(turned.name,))
        if not self._placed(core):
            self.ops = before
            self.facts.ops = self.ops

    def _named_attention(self, op: Any) -> None:
        """Report a product with the softmax of a product as attention.

        Masks and factors in between count as parts of the attention.
        """
        for side in (0, 1) if isinstance(op, Contract) else ():
            top = self._softmax_of(op.reads[side])
            scores = None if top is None else self._product_of(top.reads[0])
            if scores is not None:
                reads = tuple(dict.fromkeys((*scores.reads, op.reads[1 - side])))
                reason = op.reason if op.what == "attention" else ATTENTION
                made = op.become(NotRead, reads=reads, what="attention", reason=reason)
                self.ops[op.name] = made
                return

    def _softmax_of(self, name: str) -> Softmax | None:
        while isinstance(op := self.ops[name], Pass | Drop | Reshape | Transpose):
            name = op.reads[0]
        return op if isinstance(op, Softmax) else None

    def _product_of(self, name: str) -> Contract | None:
        while not isinstance(op := self.ops[name], Contract):
            moving = [read for read in op.reads if self.facts(read) is None]
            if (
                not isinstance(op, Pass | Drop | Reshape | Transpose | Masked | Pointwise)
                or len(moving) != 1
            ):
                return None
            name = moving[0]
        return op

    def _attended(self, op: Attend) -> FoundMixing | None:
        queries, keys, values, *rest = op.reads
        mask = self.facts(rest[0]) if rest else None
        if rest and mask is None:
            return None
        q, k, text = self.facts(queries), self.facts(keys), TEXT
        shape = (*op.shape[:-1], self.ops[keys].shape[-2])
        if q is not None and k is not None:
            weights = attention_weights(op, q, k, mask)
            if not any(isinstance(self.ops[n], Entry) for n in needed(self.ops, (queries, keys))):
                text = FIXED
        elif (q is not None and not q.any()) or (k is not None and (k == k[..., :1, :]).all()):
            weights = softmax(masked_scores(op, np.zeros(shape), mask))
        else:
            return None
        return FoundMixing(
            np.broadcast_to(weights, shape),
            values,
            len(op.shape) - 2,
            tuple(range(len(op.shape))),
            op.rate,
            text,
        )

    def _contracted(self, op: Contract) -> FoundMixing | None:
        """Read a product of known attention weights and an array that depends on the input.

        The attention weights are the result of a softmax, or fixed for each head.
        """
        terms, out = op.terms.split("->")
        names = terms.split(",")
        known = [self._weights(name) for name in op.reads]
        if sum(k is not None for k in known) != 1 or any(
            len(set(word)) != len(word) for word in (*names, out)
        ):
            return None
        side = 0 if known[0] is not None else 1
        mine, data, weights = names[side], names[1 - side], known[side]
        assert weights is not None
        gone, new = set(data) - set(out), set(out) - set(data)
        for letter in [
            c for c in new if op.shape[out.index(c)] == 1 and len(new) > 1 and c in mine
        ]:
            new.remove(letter)
            weights = weights.take(0, axis=mine.index(letter))
            mine, out = mine.replace(letter, ""), out.replace(letter, "")
        if len(gone) != 1 or len(new) != 1 or not gone | new <= set(mine):
            return None
        old, fresh = gone.pop(), new.pop()
        made = data.replace(old, fresh)
        rest = [c for c in mine if c not in (old, fresh)]
        weights = weights.transpose([mine.index(c) for c in (*rest, fresh, old)])
        order = tuple(made.index(c) for c in out)
        text = FIXED if self._softmax_of(op.reads[side]) is None else TEXT
        return FoundMixing(
            weights, op.reads[1 - side], data.index(old), order, self._dropped(op.reads[side]), text
        )

    def _weights(self, name: str) -> np.ndarray | None:
        """Return the values of an operation if they do not depend on the input.

        A softmax is known if its scores are known up to a constant per row.
        """
        array = self.facts(name)
        if array is not None:
            return array
        top = self._softmax_of(name)
        if top is None:
            return None
        scores = self._scores(top.reads[0], top.axis)
        if scores is None:
            return None
        self.facts.known[top.name] = softmax(scores, top.axis)
        self._forget(name, top.name)
        return self.facts(name)

    def _forget(self, name: str, until: str) -> None:
        while name != until:
            self.facts.known.pop(name, None)
            name = self.ops[name].reads[0]

    def _scores(self, name: str, axis: int) -> np.ndarray | None:
        """Return scores up to terms that are constant along ``axis``.

        The scores are 0 if the keys of all tokens are equal.
        """
        op = self.ops[name]
        if isinstance(op, Pass):
            return self._scores(op.reads[0], axis)
        if isinstance(op, Masked):
            scores = self._scores(op.reads[0], axis)
            return None if scores is None else np.where(op.mask, op.value, scores)
        if isinstance(op, Pointwise):
            return self._affine(op, axis)
        if not isinstance(op, Contract):
            return None
        terms, out = op.terms.split("->")
        for letters, read in zip(terms.split(","), op.reads, strict=True):
            array = self.facts(read)
            other = [t for t in terms.split(",") if t is not letters]
            if array is None or out[axis] not in letters or (other and out[axis] in other[0]):
                continue
            first = array.take([0], axis=letters.index(out[axis]))
            if (array == first).all():
                return np.zeros(op.shape)
        return None

    def _affine(self, op: Pointwise, axis: int) -> np.ndarray | None:
        """Apply an elementwise function to scores that are known up to a shift of each row.

        A shift of a row of scores must shift the whole row of function values, except for strongly
        negative entries. Otherwise, the result is None.
        """
        moving = [i for i, name in enumerate(op.reads) if self.facts(name) is None]
        if len(moving) != 1 or self.ops[op.reads[moving[0]]].shape != op.shape:
            return None
        scores = self._scores(op.reads[moving[0]], axis)
        if scores is None:
            return None

        def at(shift: float) -> np.ndarray | None:
            return elementwise(
                op,
                [
                    scores + shift if i == moving[0] else self.facts(name)
                    for i, name in enumerate(op.reads)
                ],
            )

        start = at(0.0)
        if start is None or np.isnan(start).any():
            return None
        seen = start > start.max(axis=axis, keepdims=True) - MASKED
        if not seen.any(axis=axis).all():  # a row contains only infinities
            return None
        for shift in SHIFTS:
            there = at(shift)
            if there is None or np.isnan(there[seen]).any():
                return None
            change = np.where(seen, there - np.where(seen, start, 0), np.inf)
            low = change.min(axis=axis, keepdims=True)
            if not (np.abs(np.where(seen, change - low, 0)) < CLOSE * (1 + abs(shift))).all():
                return None
        return np.where(seen, start, -np.inf)

    def _dropped(self, name: str) -> float:
        rates = []
        while isinstance(op := self.ops[name], Pass | Drop | Reshape | Transpose):
            rates += [op.rate] if isinstance(op, Drop) else []
            name = op.reads[0]
        return max(rates, default=0.0)


def _said(text: str, rate: float) -> str:
    return text + (f"; the dropout of its weights (rate {rate:g}) is ignored" if rate else "")
