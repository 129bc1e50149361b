"""Normalisation written by hand.

(x - mean x) / sqrt(var x + epsilon) and x / sqrt(mean x^2 + epsilon), in any order of steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import sympy as sp

from ...foundation.errors import KcalcError
from ..fusion import Fixed
from ..trace import Held, Moment, Normalise, Op, Pass, Pointwise, Pooling, Reshape, Trace
from .editing import Edit

X, M1, M2 = sp.Symbol("x", real=True), sp.Symbol("m", real=True), sp.Symbol("s", positive=True)
V = sp.Symbol("v", positive=True)
DEPTH = 3  # elementwise steps between an array and the moment taken of it
SMALL = 1e-2  # greatest epsilon that is taken for one
Base = tuple[str, tuple[int, ...]]


def with_norms(trace: Trace) -> Edit:
    """The operations with every normalisation by hand as one.

    The factor that an unbiased variance brings in stands behind it.
    """
    edit = _Norms(trace)
    for op in list(edit.ops.values()):
        if edit.starts(op):
            edit.search(op)
    return edit


class _Norms(Edit):
    def __init__(self, trace: Trace) -> None:
        super().__init__({op.name: op for op in trace.ops}, trace.outputs)
        self.order = list(self.ops)
        self.reading: dict[str, list[str]] = {}
        for name, op in self.ops.items():
            for read in op.reads:
                self.reading.setdefault(read, []).append(name)

    def starts(self, op: Op) -> bool:
        """Whether an operation is a moment over whole axes that a normalisation may begin with."""
        if isinstance(op, Pooling):
            return op.kind == "mean" and op.window is None and 0 not in op.axes
        return isinstance(op, Moment) and 0 not in op.axes

    def same(self, name: str) -> str:
        """The array behind operations that only pass it on."""
        while isinstance(op := self.ops[name], Pass):
            name = op.reads[0]
        return name

    def search(self, moment: Any) -> None:
        """Replace the normalisation that begins with a moment by one operation.

        The end of the normalisation is searched from the moment on.
        """
        for base in self._bases(self.same(moment.reads[0])):
            found = self._followed(base, moment.axes)
            if found is not None:
                self._replaced(base, moment.axes, *found)
                return

    def _bases(self, name: str) -> list[str]:
        """The arrays of which the moment may be taken, the nearest last."""
        found, level = [name], [name]
        for _ in range(DEPTH):
            level = [
                self.same(r)
                for n in level
                if isinstance(self.ops[n], Pointwise)
                for r in self.ops[n].reads
            ]
            level = [
                n
                for n in level
                if self.ops[n].shape == self.ops[name].shape and not isinstance(self.ops[n], Held)
            ]
            found += [n for n in level if n not in found]
        return found[::-1]

    def _cone(self, base: str) -> Iterable[Op]:
        """The operations of a possible normalisation that depend on an array, in order."""
        seen, queue = set[str](), [base]
        while queue and len(seen) < 40:
            for name in self.reading.get(queue.pop(0), ()):
                if name not in seen and isinstance(
                    self.ops[name], Pointwise | Pooling | Moment | Reshape | Pass
                ):
                    seen.add(name)
                    queue.append(name)
        places = {name: i for i, name in enumerate(self.order)}
        return [self.ops[name] for name in sorted(seen, key=lambda n: places[n])]

    def _followed(self, base: str, axes: tuple[int, ...]) -> tuple[Op, str, float, float] | None:
        """(last operation, kind, factor, epsilon) of a normalisation of ``base`` over ``axes``."""
        kept = tuple(1 if i in axes else n for i, n in enumerate(self.ops[base].shape))
        exprs: dict[str, Any] = {base: X}
        for op in self._cone(base):
            expr = self._expression(
                op, exprs, axes, kept, prod(self.ops[base].shape[a] for a in axes)
            )
            if expr is None:
                continue
            exprs[op.name] = expr
            if (
                op.shape == self.ops[base].shape
                and expr.has(X)
                and expr.has(M1, M2)
                and (found := _normal(expr)) is not None
            ):
                return op, *found
        return None

    def _expression(
        self,
        op: Op,
        exprs: dict[str, Any],
        axes: tuple[int, ...],
        kept: tuple[int, ...],
        count: int,
    ) -> Any:
        try:
            if isinstance(op, Pass):
                return exprs.get(op.reads[0])
            if isinstance(op, Reshape):
                inner = exprs.get(op.reads[0])
                shapes = (kept, tuple(n for i, n in enumerate(kept) if i not in axes))
                return (
                    inner if inner is not None and not inner.has(X) and op.shape in shapes else None
                )
            if isinstance(op, Pooling | Moment):
                inner = exprs.get(op.reads[0])
                if (
                    inner is None
                    or not inner.has(X)
                    or op.axes != axes
                    or (isinstance(op, Pooling) and not self.starts(op))
                ):
                    return None
                return _moment(op, inner, count)
            full = any(n in exprs and exprs[n].has(X) for n in op.reads)
            narrow = [
                n
                for n in op.reads
                if n in exprs and not exprs[n].has(X) and self.ops[n].shape != kept
            ]
            return None if full and narrow else self._elementwise(op, exprs)
        except (
            KcalcError,
            TypeError,
            ValueError,
            ArithmeticError,
            AttributeError,
            sp.PolynomialError,
        ):
            return None

    def _elementwise(self, op: Op, exprs: dict[str, Any]) -> Any:
        values = []
        for name in op.reads:
            read = self.ops[name]
            if name in exprs:
                values.append(exprs[name])
            elif isinstance(read, Held) and (number := Fixed(read).number) is not None:
                values.append(number)
            else:
                return None
        assert isinstance(op, Pointwise)
        expr = op.function(*values)
        return _without_floor(expr) if isinstance(expr, sp.Expr) else None

    def _replaced(
        self, base: str, axes: tuple[int, ...], last: Op, kind: str, factor: float, epsilon: float
    ) -> None:
        plain = abs(factor - 1) < 1e-7
        name = last.name if plain else self.names(f"{last.name}.norm")
        norm = Normalise(
            name=name,
            shape=last.shape,
            reads=(base,),
            source=last.source,
            kind=kind,
            axes=axes,
            epsilon=epsilon,
        )
        if plain:
            self.ops[name] = norm
            return
        self.add(norm, last)
        number = sp.Float(factor)
        self.ops[last.name] = Pointwise(
            name=last.name,
            shape=last.shape,
            reads=(name,),
            source=last.source,
            function=lambda x: number * x,
            label="mul",
        )


def _moment(op: Pooling | Moment, inner: Any, count: int) -> Any:
    """The moment of a polynomial in X, by the mean M1 of X and the mean M2 of its square."""
    if isinstance(op, Pooling):
        return _mean(inner)
    if op.kind == "norm":
        return sp.sqrt(count * _mean(sp.expand(inner**2)))
    if count <= op.correction:
        return None
    share = sp.Integer(count) / (count - sp.nsimplify(op.correction))
    variance = share * sp.expand(_mean(sp.expand(inner**2)) - _mean(inner) ** 2)
    return variance if op.kind == "var" else sp.sqrt(variance)


def _mean(expr: Any) -> Any:
    poly = sp.Poly(sp.expand(expr), X)
    if poly.degree() > 2:
        raise ValueError
    c = [poly.coeff_monomial(X**k) for k in range(3)]
    return c[0] + c[1] * M1 + c[2] * M2


def _without_floor(expr: Any) -> Any:
    """Max(x, tiny) as x: it keeps a length from being 0."""
    for top in expr.atoms(sp.Max):
        numbers = [a for a in top.args if a.is_number and 0 <= float(a) <= SMALL]
        rest = [a for a in top.args if a not in numbers]
        if len(rest) == 1 and numbers and rest[0].has(M1, M2):
            expr = expr.subs(top, rest[0])
    return expr


def _normal(expr: Any) -> tuple[str, float, float] | None:
    """(kind, factor, epsilon) if the expression is a normalisation, else None.

    The form is factor (X - M1) / sqrt(M2 - M1^2 + epsilon), or that without the mean.
    """
    expr = sp.expand(expr.subs(M2, V + M1**2)) if expr.has(M1) else expr
    slope = sp.diff(expr, X)
    if slope.has(X) or slope == 0:
        return None
    kind, spread = ("layer", V) if expr.has(M1) else ("rms", M2)
    shift = sp.simplify(expr.subs(X, M1 if kind == "layer" else 0))
    inverse = sp.simplify(1 / slope)
    if shift != 0 or inverse.has(M1) or inverse.free_symbols != {spread}:
        return None
    floor = inverse.subs(spread, 0)
    for root in (inverse, inverse - floor):  # epsilon under the root, or added to it
        line = sp.expand(sp.simplify(root**2))
        if line.is_polynomial(spread) and sp.Poly(line, spread).degree() == 1:
            scale, rest = (float(line.coeff(spread, k)) for k in (1, 0))
            epsilon = rest / scale if scale > 0 else -1.0
            if scale > 0 and 0 <= epsilon <= SMALL and abs(float(floor)) / scale**0.5 <= SMALL**0.5:
                at_one = float(inverse.subs(spread, 1))
                return kind, float(np.sign(at_one)) / scale**0.5, epsilon
    return None
