"""Normalisation written out in sums and square roots: proved to be one, or left as it is.

An operation computes ``F(x, m1, m2)`` from a feature map x and its means m1 of x and m2 of x^2 over
some axes. It normalises if, put ``x = m1 + s z`` and ``m2 = m1^2 + s^2 - epsilon``, it is
``gain z + bias`` for all m1 and s (without m1: ``x = s z``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from ...foundation.errors import KcalcError
from ...foundation.process_state import lambdify
from ..fusion import tidied
from ..trace import Array, Held, Normalise, Op, Pass, Pointwise, Pooling, Reshape

X, Z = sp.Symbol("x", real=True), sp.Symbol("z", real=True)
M1 = sp.Symbol("m1", real=True)
M2 = sp.Symbol("m2", positive=True)
S = sp.Symbol("s", positive=True)
FAR = 60  # operations within which a normalisation is written
LARGEST = 300


@dataclass(frozen=True)
class Found:
    """A normalisation: its last operation.

    ``gain`` and ``bias`` are expressions in the symbols of held arrays.
    """

    end: str
    kind: str
    epsilon: float
    gain: Any
    bias: Any


def with_norms(ops: dict[str, Op], outputs: tuple[str, ...], channel_axis: int) -> dict[str, Op]:
    """The operations, the last of every written-out normalisation replaced by a Normalise.

    Gains and biases behind a Normalise without any become its own.
    """
    ops = dict(ops)
    for name in list(ops):
        op = ops[name]
        if isinstance(op, Pooling) and op.kind == "mean" and op.window is None:
            _replace_norm(ops, op, outputs, channel_axis)
        elif isinstance(op, Normalise) and op.gain is None and op.bias is None:
            _written(ops, name, op.axes, outputs, channel_axis)
    return ops


def _replace_norm(
    ops: dict[str, Op], mean: Pooling, outputs: tuple[str, ...], channel_axis: int
) -> None:
    for base in _bases(ops, mean):
        if _written(ops, base, mean.axes, outputs, channel_axis):
            return


def _bases(ops: dict[str, Op], mean: Pooling) -> Iterator[str]:
    """Candidates for the array of whose power this is the mean.

    Its input, and the inputs of that.
    """
    name = mean.reads[0]
    for _ in range(4):
        yield name
        op = ops[name]
        before = [r for r in dict.fromkeys(op.reads) if not isinstance(ops[r], Held)]
        if not isinstance(op, Pointwise | Pass) or len(before) != 1:
            return
        name = before[0]


def _written(
    ops: dict[str, Op], base: str, axes: tuple[int, ...], outputs: tuple[str, ...], channels: int
) -> bool:
    """Write the longest normalisation of ``base`` that can be; whether there was any."""
    found = Search(ops, base, axes, outputs).run()
    return any(_write(ops, base, axes, form, outputs, channels) for form in reversed(found))


class Search:
    """Follows the expressions of operations behind ``base`` until one is a normalisation."""

    def __init__(
        self,
        ops: dict[str, Op],
        base: str,
        axes: tuple[int, ...],
        outputs: tuple[str, ...],
    ) -> None:
        self.ops, self.base, self.axes = ops, base, axes
        self.shape = ops[base].shape
        self.reduced = tuple(size for a, size in enumerate(self.shape) if a not in axes)
        self.kept = tuple(1 if a in axes else size for a, size in enumerate(self.shape))
        leading = axes == tuple(range(len(axes)))
        self.beside = (self.kept, self.reduced) if leading else (self.kept,)
        self.expr: dict[str, Any] = {base: Z if isinstance(ops[base], Normalise) else X}
        self.readers = Counter(r for op in ops.values() for r in op.reads) + Counter(outputs)

    def run(self) -> list[Found]:
        """The normalisation, and the same with its gain and bias; empty where there is none.

        Gain and bias are left out where other operations read the values before them.
        """
        found: list[Found] = []
        names = list(self.ops)
        start = names.index(self.base)
        for name in names[start + 1 : start + 1 + FAR]:
            expr = self._expression(self.ops[name])
            if expr is None:
                continue
            self.expr[name] = expr
            whole = expr.has(Z) or (expr.has(X) and expr.has(M2))
            if self.ops[name].shape != self.shape or not whole:
                continue
            end = found[-1].end if found else self.base
            further = found or expr.has(Z)
            if further and (end not in self.ops[name].reads or self.readers[end] != 1):
                continue
            form = self._normalisation(name, expr)
            found += [] if form is None else [form]
        return found

    def _expression(self, op: Op) -> Any:
        if isinstance(op, Held):
            return None
        if isinstance(op, Pooling):
            same = (
                op.kind == "mean"
                and op.window is None
                and op.axes == self.axes
                and self.ops[op.reads[0]].shape == self.shape
            )
            return self._mean(self.expr[op.reads[0]]) if same and op.reads[0] in self.expr else None
        if isinstance(op, Reshape | Pass):
            inner = self.expr.get(op.reads[0])
            return (
                inner
                if inner is not None and not inner.has(X) and op.shape in (self.kept, self.reduced)
                else None
            )
        inside = [r for r in op.reads if r in self.expr]
        means = [r for r in inside if not self.expr[r].has(X, Z)]
        shifted = len(means) < len(inside) and any(
            self.ops[r].shape not in self.beside for r in means
        )
        if not isinstance(op, Pointwise) or not inside or shifted:
            return None
        values = [
            self.expr[r] if r in self.expr else sp.Symbol(f"held:{r}", real=True) for r in op.reads
        ]
        if (
            any(r not in self.expr and not isinstance(self.ops[r], Held) for r in op.reads)
            or sum(map(sp.count_ops, values)) > LARGEST
        ):
            return None
        try:
            expr = tidied(op.function(*values))
        except (KcalcError, TypeError, ValueError, ArithmeticError):
            return None
        return _unguarded(expr) if isinstance(expr, sp.Expr) else None

    def _mean(self, expr: Any) -> Any:
        """The mean of a polynomial in x of degree at most 2.

        Means in it count as constants, as they are the same for all values averaged over.
        """
        if any(str(s).startswith("held:") for s in expr.free_symbols):
            return None
        try:
            poly = sp.Poly(sp.expand(expr), X)
        except sp.PolynomialError:
            return None
        if poly.degree() > 2 or poly.degree() < 1:
            return None
        return sp.expand(sum(c * (1, M1, M2)[power] for (power,), c in poly.terms()))

    def _normalisation(self, name: str, expr: Any) -> Found | None:
        norm = self.ops[self.base]
        if isinstance(norm, Normalise) and expr.has(Z):
            return self._affine(name, norm.kind, norm.epsilon, expr)
        for root in expr.atoms(sp.Pow):
            if not (root.exp.is_Rational and root.exp.q == 2 and root.base.has(M2)):
                continue
            base = sp.expand(root.base)
            centred = sp.expand(base - M2 + M1**2)
            plain = sp.expand(base - M2)
            for kind, epsilon in (("layer", centred), ("rms", plain)):
                if epsilon.is_number and epsilon >= 0:
                    found = self._proved(name, expr, kind, epsilon)
                    if found is not None:
                        return found
        return None

    def _proved(self, name: str, expr: Any, kind: str, epsilon: Any) -> Found | None:
        mean = M1 if kind == "layer" else sp.Integer(0)
        if kind == "rms" and expr.has(M1):
            return None
        moved = expr.xreplace({M2: S**2 - epsilon + mean**2})
        moved = sp.cancel(sp.expand(_settled(moved).subs(X, mean + S * Z)))
        if moved.has(S) or moved.has(M1) or not moved.has(Z):
            return None
        return self._affine(name, kind, float(epsilon), moved)

    def _affine(self, name: str, kind: str, epsilon: float, expr: Any) -> Found | None:
        """The normalisation whose output z is in an expression ``gain z + bias``."""
        gain, bias = (sp.expand(expr).coeff(Z, power) for power in (1, 0))
        numbers = (gain.is_number and gain != 1) or (bias.is_number and bias != 0)
        if sp.expand(expr - gain * Z - bias) != 0 or gain.has(Z) or numbers:
            return None
        return Found(name, kind, epsilon, gain, bias)


def _settled(expr: Any) -> Any:
    """Powers with their bases expanded, so that roots of s^2 show."""
    return expr.replace(
        lambda e: e.is_Pow and e.exp.is_Rational and e.exp.q == 2,
        lambda e: sp.Pow(sp.expand(e.base), e.exp),
    )


def _unguarded(expr: Any) -> Any:
    """Without ``max(0, variance)``: variances are not negative."""
    variance = M2 - M1**2

    def is_guard(e: Any) -> bool:
        return (
            isinstance(e, sp.Max)
            and len(e.args) == 2
            and 0 in e.args
            and sp.expand(sum(e.args) - variance) == 0  # pyright: ignore
        )

    return expr.replace(is_guard, lambda e: variance)


def _write(
    ops: dict[str, Op],
    base: str,
    axes: tuple[int, ...],
    found: Found,
    outputs: tuple[str, ...],
    channel_axis: int,
) -> bool:
    """Put one operation in the place of a normalisation; whether its gains go by channel."""
    end, before = ops[found.end], ops[base]
    rank = len(before.shape)
    kept = [a for a in range(rank) if a not in axes]
    grouped = _grouped(ops, base, axes, found, outputs)
    own = found.gain.is_number and found.bias.is_number
    if grouped is not None and own:
        name, source, groups, over = grouped
        ops[name] = _norm(ops[name], source, "group", over, groups, found.epsilon)
        return True
    if isinstance(before, Normalise):
        norm = replace(before, name=end.name, source=end.source)
    else:
        kind, groups = found.kind, 1
        if 0 in axes:
            kind = "batch"
            if len(kept) != 1 or found.kind != "layer":
                return False
        elif len(kept) == 2 and channel_axis % rank == kept[1] and rank > 3:
            if kind != "layer":
                return False
            kind, groups, axes = "group", before.shape[kept[1]], tuple(range(1, rank))
        norm = _norm(end, base, kind, axes, groups, found.epsilon)
    channels = axes if norm.kind in ("layer", "rms") else (channel_axis % rank,)
    arrays = {
        key: _array(ops, expr, rank, channels)
        for key, expr in (("gain", found.gain), ("bias", found.bias))
        if not expr.is_number
    }
    fits = all(array is not None for array in arrays.values())
    if fits:
        ops[found.end] = replace(norm, **arrays)
    return fits


def _norm(
    op: Op, source: str, kind: str, axes: tuple[int, ...], groups: int, epsilon: float
) -> Normalise:
    told = {"name": op.name, "shape": op.shape, "source": op.source}
    fields = {"kind": kind, "axes": axes, "groups": groups, "epsilon": epsilon}
    return Normalise(**told, reads=(source,), **fields)


def _array(ops: dict[str, Op], expr: Any, rank: int, channels: Sequence[int]) -> Array | None:
    """The values of an expression in held arrays, without axes of size 1.

    None where they differ along other axes than those of the channels.
    """
    symbols = sorted(expr.free_symbols, key=str)
    held: list[Any] = [ops[str(symbol).removeprefix("held:")] for symbol in symbols]
    values = [np.asarray(op.value, dtype=np.float64) for op in held]
    array = np.asarray(lambdify(symbols, expr, "numpy")(*values))
    wide = [axis + rank - array.ndim for axis, size in enumerate(array.shape) if size != 1]
    return np.squeeze(array) if set(wide) <= set(channels) else None


def _grouped(ops: dict[str, Op], base: str, axes: tuple[int, ...], found: Found,
             outputs: tuple[str, ...]) -> tuple[str, str, int, tuple[int, ...]] | None:  # fmt: skip
    """Group normalisation: channels split in two axes before, joined again after.

    (last operation, source, groups, axes).
    """
    split = ops[base]
    if not isinstance(split, Reshape):
        return None
    before, after = ops[split.reads[0]].shape, split.shape
    places = [
        a
        for a in range(len(before))
        if before[:a] == after[:a] and before[a + 1 :] == after[a + 2 :] and a + 1 < len(after)
    ]
    places = [
        a
        for a in places
        if len(after) == len(before) + 1
        and prod(after[a : a + 2]) == before[a]
        and a + 1 in axes
        and a not in axes
    ]
    readers = [op for op in ops.values() if found.end in op.reads]
    if (
        not places
        or len(readers) != 1
        or not isinstance(readers[0], Reshape)
        or readers[0].shape != before
        or found.end in outputs
    ):
        return None
    place = places[0]
    over = tuple(sorted({a if a < place else a - 1 for a in axes if a != place}))
    return readers[0].name, split.reads[0], after[place], tuple(a for a in over if a != 0)
