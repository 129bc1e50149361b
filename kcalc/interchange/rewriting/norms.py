"""Recognise normalisation that a model writes out as several steps, in any order.

Its form is (x - mean x) / sqrt(var x + epsilon) or x / sqrt(mean x^2 + epsilon). The operations
compute F(x, m, s) from a feature map x and the means m of x and s of x^2 over some axes. F is a
normalisation if it is linear in x with slope factor / sqrt(v + epsilon), where v is the variance
s - m^2 and F(m, m, s) = 0, or v is s and F(0, m, s) = 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from ...fields.degrees import expandable
from ...foundation.errors import KcalcError
from ...foundation.process_state import lambdify
from ..fusion import Constant, simplified
from ..internal_errors import internal_error
from ..trace import (
    Array,
    Copies,
    Held,
    Moment,
    Normalise,
    NotRead,
    Op,
    Pass,
    Pointwise,
    Pooling,
    Repeat,
    Reshape,
    Trace,
)
from .editing import TraceEditor

X, Z = sp.Symbol("x", real=True), sp.Symbol("z", real=True)
M1, M2 = sp.Symbol("m", real=True), sp.Symbol("s", positive=True)
V = sp.Symbol("v", positive=True)
DEPTH = 3  # maximum number of elementwise steps between an array and its moment
STEPS = 60  # maximum number of operations in a normalisation
LARGEST = 300  # maximum number of operations in an expression
PLAIN = 1e-7  # factors this close to 1 count as 1
SMALL = 1e-2  # largest number that counts as an epsilon
REFUSED = (KcalcError, TypeError, ValueError, ArithmeticError, AttributeError, sp.PolynomialError)


@dataclass(frozen=True)
class FoundNorm:
    """A normalisation that ends at the operation ``end``.

    ``gain`` and ``bias`` are expressions whose symbols represent constant arrays.
    """

    end: str
    kind: str
    epsilon: float
    factor: float
    gain: Any
    bias: Any


def with_norms(trace: Trace) -> TraceEditor:
    """Combine every written-out normalisation into one operation, and leave gains separate.

    If the variance is the unbiased estimate, a factor follows.
    """
    return Norms({op.name: op for op in trace.ops}, trace.outputs).run()


class Norms(TraceEditor):
    """Operations in which each written-out normalisation becomes a Normalise.

    ``channel_axis``: the channel axis of images. If given, gains and biases become part of the
    normalisation, and BatchNorm is recognised too.
    """

    def __init__(
        self, ops: Mapping[str, Op], outputs: Sequence[str], channel_axis: int | None = None
    ) -> None:
        super().__init__(ops, outputs)
        self.channel_axis, self.whole = channel_axis or 0, channel_axis is not None
        self.places = {name: i for i, name in enumerate(self.ops)}
        self.behind = self.readers()

    def run(self) -> Norms:
        """Replace all normalisations."""
        for name in self.places:
            before = dict(self.ops)
            try:
                self._attempt(name)
            except Exception as error:
                reason = internal_error(error, f"the normalisation that may begin at {name!r}")
                told = {"what": "a normalisation", "reason": reason}
                self.ops = {**before, name: before[name].become(NotRead, **told)}
        return self

    def _attempt(self, name: str) -> None:
        """If an operation is part of a normalisation, replace that normalisation."""
        op: Any = self.ops[name]
        if self._starts(op):
            any(self._replaced(base, op.axes) for base in self._bases(op.reads[0]))
        elif self.whole and isinstance(op, Normalise) and op.gain is None and op.bias is None:
            self._replaced(name, op.axes)

    def _starts(self, op: Any) -> bool:
        """Whether an operation is a moment over whole axes that may begin a normalisation."""
        mean = isinstance(op, Pooling) and op.kind == "mean" and op.window is None
        return (mean or isinstance(op, Moment)) and (self.whole or 0 not in op.axes)

    def _bases(self, name: str) -> list[str]:
        """Return the arrays that ``name`` may be a moment of, nearest first."""
        found = level = [self._same(name)]
        shape = self.ops[name].shape
        for _ in range(DEPTH):
            steps = [op for n in level if isinstance(op := self.ops[n], Pointwise)]
            level = [self._same(name) for op in steps for name in op.reads]
            level = [n for n in level if self.ops[n].shape == shape]
            level = [n for n in level if not isinstance(self.ops[n], Held)]
            found = [*found, *(n for n in level if n not in found)]
        return found

    def _same(self, name: str) -> str:
        """Skip operations that only return their input."""
        while isinstance(op := self.ops[name], Pass):
            name = op.reads[0]
        return name

    def _cone(self, base: str) -> Iterable[Op]:
        """Return, in order, the operations after ``base`` that may be part of a normalisation."""
        seen, queue = set[str](), [base]
        while queue and len(seen) < STEPS:
            for name in self.behind.get(queue.pop(0), ()):
                kinds = Pointwise | Pooling | Moment | Reshape | Pass | Copies | Repeat
                if name and name not in seen and isinstance(self.ops[name], kinds):
                    seen.add(name)
                    queue.append(name)
        return [self.ops[name] for name in sorted(seen, key=self.places.__getitem__)]

    def _replaced(self, base: str, axes: tuple[int, ...]) -> bool:
        """Replace the longest normalisation of ``base``; return whether there is one."""
        found = self._followed(Steps(self, base, axes))
        return any(self._written(base, axes, form) for form in reversed(found))

    def _followed(self, steps: Steps) -> list[FoundNorm]:
        """Return the normalisations that start at an array, from shortest to longest.

        The normalisations differ in their gains and biases. A gain or bias does not belong to a
        normalisation if another operation reads the values before it.
        """
        found: list[FoundNorm] = []
        for op in self._cone(steps.base):
            expr = steps.expression(op)
            if expr is None:
                continue
            steps.known[op.name] = expr
            whole = expr.has(Z) or (expr.has(X) and expr.has(M1, M2))
            end = found[-1].end if found else steps.base
            further = found or expr.has(Z)
            alone = not further or (end in op.reads and len(self.behind[end]) == 1)
            if not whole or not alone or op.shape != self.ops[steps.base].shape:
                continue
            form = self._form(steps.base, op.name, expr)
            found += [] if form is None else [form]
            if found and not self.whole:
                break
        return found

    def _form(self, base: str, name: str, expr: Any) -> FoundNorm | None:
        norm = self.ops[base]
        if isinstance(norm, Normalise):
            if not expandable(expr):
                return None
            gain, bias = (sp.expand(expr).coeff(Z, power) for power in (1, 0))
            plain = sp.expand(expr - gain * Z - bias) == 0 and not gain.has(Z)
            known = (norm.kind, norm.epsilon, 1.0, gain, bias) if plain else None
        else:
            try:
                known = _normal(expr)
            except REFUSED:
                return None
        found = None if known is None else FoundNorm(name, *known)
        if found is None or (found.bias.is_number and found.bias != 0):
            return None
        if not self.whole:
            return found if found.epsilon <= SMALL else None
        plain = abs(found.factor - 1) < PLAIN and (not found.gain.is_number or found.gain == 1)
        return found if plain else None

    # -- writing -----------------------------------------------------------------------------------

    def _written(self, base: str, axes: tuple[int, ...], found: FoundNorm) -> bool:
        """Replace a normalisation with one operation; return False if that is not possible."""
        end, before = self.ops[found.end], self.ops[base]
        if not self.whole:
            self._alone(_norm(end, base, found.kind, axes, 1, found.epsilon), found.factor)
            return True
        grouped = _grouped(self.ops, base, axes, found, self.outputs)
        if grouped is not None and found.gain.is_number and found.bias.is_number:
            name, source, groups, over = grouped
            self.ops[name] = _norm(self.ops[name], source, "group", over, groups, found.epsilon)
            return True
        rank = len(end.shape)
        if isinstance(before, Normalise):
            norm = replace(before, name=end.name, source=end.source)
        else:
            named = kind_over(found.kind, before.shape, axes, self.channel_axis % rank)
            if named is None:
                return False
            norm = _norm(end, base, *named, found.epsilon)
        channels = axes if norm.kind in ("layer", "rms") else (self.channel_axis % rank,)
        arrays = {
            key: _array(self.ops, expr, rank, channels)
            for key, expr in (("gain", found.gain), ("bias", found.bias))
            if not expr.is_number
        }
        fits = all(array is not None for array in arrays.values())
        if fits:
            self.ops[found.end] = replace(norm, **arrays)
        return fits

    def _alone(self, norm: Normalise, factor: float) -> None:
        """Replace a normalisation with one operation, followed by a factor if it differs from 1."""
        if abs(factor - 1) < PLAIN:
            self.ops[norm.name] = norm
            return
        last, number = self.ops[norm.name], sp.Float(factor)
        name = self.names(f"{norm.name}.norm")
        self.add(replace(norm, name=name), last)
        times = {"function": lambda x: number * x, "label": "mul"}
        self.ops[last.name] = last.become(Pointwise, reads=(name,), **times)


class Steps:
    """Express the operations after ``base`` as functions of its output.

    The symbol of this output is X, or Z if ``base`` is a Normalise.
    """

    def __init__(self, norms: Norms, base: str, axes: tuple[int, ...]) -> None:
        self.ops, self.held, self.base, self.axes = norms.ops, norms.whole, base, axes
        self.shape = norms.ops[base].shape
        self.count = prod(self.shape[a] for a in axes)
        self.kept = tuple(1 if a in axes else size for a, size in enumerate(self.shape))
        self.reduced = tuple(size for a, size in enumerate(self.shape) if a not in axes)
        leading = axes == tuple(range(len(axes)))  # then reduced means broadcast too
        self.beside = (self.kept, self.reduced) if leading else (self.kept,)
        self.known: dict[str, Any] = {base: Z if isinstance(norms.ops[base], Normalise) else X}

    def expression(self, op: Op) -> Any:
        """Return the expression of an operation, or None if there is none."""
        inner = self.known.get(op.reads[0])
        try:
            if isinstance(op, Pass):
                return inner
            if isinstance(op, Reshape | Copies | Repeat):
                mean = inner is not None and not inner.has(X, Z)
                spread = (self.kept, self.reduced, self.shape)
                return inner if mean and op.shape in spread else None
            if isinstance(op, Pooling | Moment):
                mean = isinstance(op, Moment) or (op.kind == "mean" and op.window is None)
                there = inner is not None and inner.has(X) and op.axes == self.axes
                return _moment(op, inner, self.count) if mean and there else None
            return self._elementwise(op) if isinstance(op, Pointwise) else None
        except REFUSED:
            return None

    def _elementwise(self, op: Pointwise) -> Any:
        inside = [n for n in op.reads if n in self.known]
        means = [n for n in inside if not self.known[n].has(X, Z)]
        full = len(means) < len(inside)
        if full and any(self.ops[n].shape not in (*self.beside, self.shape) for n in means):
            return None
        values = [self._value(name) for name in op.reads]
        if any(v is None for v in values) or sum(map(sp.count_ops, values)) > LARGEST:
            return None
        expr = simplified(op.function(*values))
        return _without_floor(expr) if isinstance(expr, sp.Expr) else None

    def _value(self, name: str) -> Any:
        if name in self.known:
            return self.known[name]
        read = self.ops[name]
        if not isinstance(read, Held):
            return None
        return sp.Symbol(f"held:{name}", real=True) if self.held else Constant(read).number


def _moment(op: Pooling | Moment, inner: Any, count: int) -> Any:
    """Return the moment of a polynomial in X in terms of M1 = mean X and M2 = mean X^2."""
    if isinstance(op, Pooling):
        return _mean(inner)
    if op.kind == "norm":
        return sp.sqrt(count * _mean(inner**2))
    if count <= op.correction:
        return None
    share = sp.Integer(count) / (count - sp.nsimplify(op.correction))
    variance = share * sp.expand(_mean(inner**2) - _mean(inner) ** 2)
    return variance if op.kind == "var" else sp.sqrt(variance)


def _mean(expr: Any) -> Any:
    """Return the mean of a polynomial in X of degree at most 2 with constant coefficients."""
    if not expandable(expr):
        raise ValueError
    poly = sp.Poly(sp.expand(expr), X)
    if poly.degree() > 2 or any(str(s).startswith("held:") for s in expr.free_symbols):
        raise ValueError
    c = [poly.coeff_monomial(X**k) for k in range(3)]
    return sp.expand(c[0] + c[1] * M1 + c[2] * M2)


def _without_floor(expr: Any) -> Any:
    """Replace max(y, tiny) with y for functions of means; the floor only prevents division by 0."""
    for top in expr.atoms(sp.Max):
        numbers = [a for a in top.args if a.is_number and 0 <= float(a) <= SMALL]
        rest = [a for a in top.args if a not in numbers]
        if len(rest) == 1 and numbers and rest[0].has(M1, M2) and not rest[0].has(X, Z):
            expr = expr.subs(top, rest[0])
    return expr


@lru_cache(maxsize=1024)
def _normal(expr: Any) -> tuple[str, float, float, Any, Any] | None:
    """Return (kind, epsilon, factor, gain, bias) if the expression is a normalisation, else None.

    The form is factor * gain * (X - M1) / sqrt(M2 - M1^2 + epsilon) + bias, or the same with 0 in
    place of M1. Gain and bias depend only on constant arrays.
    """
    expr = expr.subs(M2, V + M1**2) if expr.has(M1) else expr
    if not expandable(expr):
        return None
    expr = sp.expand(expr) if expr.has(M1) else expr
    slope = sp.diff(expr, X)
    if slope.has(X) or slope == 0:
        return None
    kind, spread = ("layer", V) if expr.has(M1) else ("rms", M2)
    bias = sp.simplify(expr.subs(X, M1 if kind == "layer" else 0))
    gain, rest = sp.simplify(slope).as_independent(spread, as_Add=False)
    number, gain = (gain, sp.Integer(1)) if gain.is_number else (sp.Integer(1), gain)
    inverse = sp.simplify(1 / (number * rest))
    if bias.has(M1, spread) or gain.has(M1) or inverse.free_symbols != {spread}:
        return None
    floor = inverse.subs(spread, 0)
    for added in (sp.Integer(0), floor):  # epsilon inside the root, or added to it
        line = sp.expand(sp.simplify((inverse - added) ** 2))
        if line.is_polynomial(spread) and sp.Poly(line, spread).degree() == 1:
            scale, left = (float(line.coeff(spread, k)) for k in (1, 0))
            epsilon = left / scale if scale > 0 else -1.0
            if epsilon >= 0 and abs(float(added)) / scale**0.5 <= SMALL**0.5:
                at_one = float(inverse.subs(spread, 1))
                return kind, epsilon, float(np.sign(at_one)) / scale**0.5, gain, bias
    return None


def kind_over(
    kind: str, shape: tuple[int, ...], axes: tuple[int, ...], channels: int
) -> tuple[str, tuple[int, ...], int] | None:
    """Return (kind, axes, groups) of a normalisation over some axes, or None if it has no name."""
    rank = len(shape)
    kept = [a for a in range(rank) if a not in axes]
    if 0 in axes:
        return ("batch", axes, 1) if len(kept) == 1 and kind == "layer" else None
    if len(kept) == 2 and channels == kept[1] and rank > 3:
        return ("group", tuple(range(1, rank)), shape[channels]) if kind == "layer" else None
    return kind, axes, 1


def _norm(
    op: Op, source: str, kind: str, axes: tuple[int, ...], groups: int, epsilon: float
) -> Normalise:
    fields = {"kind": kind, "axes": axes, "groups": groups, "epsilon": epsilon}
    return op.become(Normalise, reads=(source,), **fields)


def _array(ops: dict[str, Op], expr: Any, rank: int, channels: Sequence[int]) -> Array | None:
    """Evaluate an expression of constant arrays, and drop axes of size 1.

    Return None if the values vary along axes other than ``channels``.
    """
    symbols = sorted(expr.free_symbols, key=str)
    held: list[Any] = [ops[str(symbol).removeprefix("held:")] for symbol in symbols]
    values = [np.asarray(op.value, dtype=np.float64) for op in held]
    array = np.asarray(lambdify(symbols, expr, "numpy")(*values))
    wide = [axis + rank - array.ndim for axis, size in enumerate(array.shape) if size != 1]
    return np.squeeze(array) if set(wide) <= set(channels) else None


def _grouped(ops: dict[str, Op], base: str, axes: tuple[int, ...], found: FoundNorm,
             outputs: tuple[str, ...]) -> tuple[str, str, int, tuple[int, ...]] | None:  # fmt: skip
    """Read group normalisation between reshapes that split channels into groups and merge them.

    Returns: (last operation, source, groups, axes), or None.
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
