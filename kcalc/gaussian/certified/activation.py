"""Activations for certified integrals: smooth pieces, kinks as balls, growth bounds, saturation.

If a polynomial has degree 2 or more, the poles of its tanh come too close to the real axis. Such a
tanh is therefore replaced by +-1 where it equals +-1 to far more than the required digits.
``slack`` bounds the error of this replacement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import sympy as sp
from sympy.core.function import AppliedUndef

from kcalc.fields.balls import Ball, enclose, working
from kcalc.fields.expressions import Rewriting, inside, rational
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.evaluate import Bound, Smooth, compile_smooth, symbol_of
from kcalc.gaussian.certified.growth import Growth, derive
from kcalc.gaussian.certified.kinks import certain_kinks
from kcalc.gaussian.certified.ranges import above, constant, span

ONE, ZERO = partial(enclose, sp.S.One), partial(enclose, sp.S.Zero)


@dataclass(frozen=True, eq=False)
class CertifiedActivation:
    """A piecewise smooth function.

    ``kinks[i]()`` is the point between pieces i and i + 1, as a ball at the current precision.
    ``growth`` bounds the function on the whole line. If the tanh in a piece was replaced by +-1,
    ``slack`` bounds the resulting error for |x| <= ``reach``. ``centre`` is a guess for the point
    at which a function without kinks is most curved.
    """

    name: str
    kinks: tuple[Bound, ...]
    pieces: tuple[Smooth, ...]
    growth: Growth
    slack: float = 0.0
    reach: float = math.inf
    centre: Bound | None = None

    def mirrored(self) -> CertifiedActivation:
        """Return the function x -> phi(-x)."""

        def negated(kink: Bound) -> Bound:
            return lambda: -kink()

        kinks = tuple(negated(kink) for kink in reversed(self.kinks))
        centre = self.centre and negated(self.centre)
        return replace(
            self,
            kinks=kinks,
            centre=centre,
            pieces=tuple(piece.mirrored() for piece in reversed(self.pieces)),
        )

    def check_reach(self, x: float) -> None:
        """Raise KcalcError if ``x`` is beyond the reach."""
        if self.slack and x > self.reach:
            raise KcalcError(
                f"the bounds on {self.name} hold only for |x| <= {self.reach:.4g}, but they are "
                f"needed at {x:.4g}"
            )

    def piece_at(self, x: Ball) -> Smooth:
        """Return the piece at the ball x.

        Raises KcalcError if x may be a kink.
        """
        for kink, piece in zip(self.kinks, self.pieces, strict=False):
            if x < kink():
                return piece
            if not x > kink():
                raise KcalcError(
                    f"{self.name} is evaluated at a kink, or too close to a kink for this precision"
                )
        return self.pieces[-1]


@lru_cache(maxsize=256)
def certified_within(
    phi: Any, order: int = 0, reach: float = math.inf, digits: int = 30
) -> CertifiedActivation:
    """Return an activation or one of its derivatives, with proven bounds for |x| <= reach.

    ``order`` is the order of the derivative, which excludes delta functions at kinks.

    Raises KcalcError for functions that ball arithmetic does not support, for growth that is not
    proven, and for kinks that are not known exactly.
    """
    base, constants = phi.base, phi.transformation
    if constants is None:
        return _plain(phi, order, reach, digits)
    a, b = rational(constants.input_scale), rational(constants.input_shift)
    scale, shift = rational(constants.output_scale), rational(constants.output_shift)
    (a_low, a_high), (b_low, b_high) = constant(a), constant(b)
    size, offset = max(abs(a_low), abs(a_high)), max(abs(b_low), abs(b_high))
    inner = _plain(base, order, above(size * reach + offset), digits)
    return _transformed(phi.name, inner, order, a, b, scale, shift, (size, offset))


def _transformed(
    name: str,
    inner: CertifiedActivation,
    order: int,
    a: sp.Expr,
    b: sp.Expr,
    scale: sp.Expr,
    shift: sp.Expr,
    sizes: tuple[float, float],
) -> CertifiedActivation:
    """Return scale (phi(a x + b) + shift), or its derivative of the given order.

    ``inner`` is phi, or its derivative of that order.
    """
    slope, offset = partial(enclose, a), partial(enclose, b)
    factor = partial(enclose, scale * a**order)
    added = partial(enclose, shift) if order == 0 else ZERO
    upward = constant(a)[0] > 0

    def moved(kink: Bound) -> Bound:
        return lambda: (kink() - offset()) / slope()

    kinks = tuple(moved(kink) for kink in inner.kinks)
    pieces = tuple(piece.affine(slope, offset, factor, added) for piece in inner.pieces)
    growth = inner.growth.after(*sizes)
    if order == 0:
        growth = growth + _size(shift)
    growth = growth * _size(scale * a**order)
    slack = above(inner.slack * math.exp(_size(scale * a**order).log_scale)) if inner.slack else 0.0
    if not upward:
        kinks, pieces = kinks[::-1], pieces[::-1]
    return CertifiedActivation(
        name,
        kinks,
        pieces,
        growth,
        slack,
        (inner.reach - sizes[1]) / sizes[0] * (1 - 1e-12),
        inner.centre and moved(inner.centre),
    )


def _size(value: sp.Expr) -> Growth:
    low, high = constant(value)
    return Growth(-math.inf if low == high == 0 else above(math.log(max(abs(low), abs(high)))))


def _plain(phi: Any, order: int, reach: float, digits: int) -> CertifiedActivation:
    known = getattr(phi, "reach", math.inf)
    if known < math.inf:
        raise KcalcError(
            f"{phi.name} has infinitely many kinks, but they are known only for |x| <= "
            f"{known:g}, so nothing can be proven about it"
        )
    pieces: list[Any] = [
        _Tidied()(sp.diff(piece, *([symbol_of(piece)] * order))) if order else piece
        for piece in phi.pieces
    ]
    if order and any(piece.has(sp.DiracDelta, sp.Derivative, sp.Subs) for piece in pieces):
        raise KcalcError(f"{phi.name} has no derivative of order {order} away from its kinks")
    if any(piece.atoms(AppliedUndef) for piece in pieces):
        raise KcalcError(
            f"{phi.name} is a plain callable, so nothing can be proven about it; pass a "
            "SymPy expression for certified results"
        )
    for piece in pieces:
        # raises an error that names a function without enclosures
        compile_smooth(piece)
    kinks = certain_kinks(phi)
    growth = (
        _growth(phi, pieces, kinks)
        if order == 0 or getattr(phi, "growth", None) is None
        else _declared(phi, order)
    )
    cut = [
        _saturated(piece, *_ends(kinks, i), reach, digits, phi.name)
        for i, piece in enumerate(pieces)
    ]
    all_kinks: list[Bound] = []
    all_pieces: list[Smooth] = []
    for index, (inner_kinks, parts) in enumerate(cut):
        all_kinks += [*inner_kinks, *kinks[index : index + 1]]
        all_pieces += [compile_smooth(part) for part, _ in parts]
    slack = max(loss for _, parts in cut for _, loss in parts)
    return CertifiedActivation(
        phi.name,
        tuple(all_kinks),
        tuple(all_pieces),
        growth,
        slack,
        reach,
        None if all_kinks else ZERO,
    )


class _Tidied(Rewriting):
    """Rewrite the terms sinh g/cosh g and e^g/(1 + e^g) in derivatives.

    In the new form, tanh g and 1/(1 + e^-g), balls stay narrow for large g.
    """

    def visit(self, expr: Any) -> Any:
        return super().visit(expr) if expr.has(sp.sinh, sp.exp) else expr

    def product(self, factors: Sequence[Any]) -> Any:
        return _ratio(super().product(factors))


def _ratio(product: Any) -> Any:
    powers = product.as_powers_dict()
    for factor, n in list(powers.items()):
        is_sinh = isinstance(factor, sp.sinh)
        if not (is_sinh or isinstance(factor, sp.exp)) or not (n.is_Integer and n > 0):
            continue
        inner = inside(factor)
        below = sp.cosh(inner) if is_sinh else 1 + factor
        if powers.get(below, 0) == -n:
            better = sp.tanh(inner) if is_sinh else 1 / (1 + sp.exp(-inner))
            return _ratio(product / (factor / below) ** n) * better**n
    return product


def _declared(phi: Any, order: int) -> Growth:
    raise KcalcError(
        f"the growth bound declared for {phi.name} does not cover its derivative of order {order}"
    )


def _growth(phi: Any, pieces: list[sp.Expr], kinks: tuple[Bound, ...]) -> Growth:
    declared = getattr(phi, "growth", None)
    if declared is not None:
        size, power, rate, *gauss = (float(value) for value in declared)
        return Growth(above(math.log(size)), power, rate, *gauss)
    total = Growth(-math.inf)
    for index, piece in enumerate(pieces):
        low, high = _ends(kinks, index)
        try:
            total = total | derive(piece, symbol_of(piece), low, high)
        except KcalcError as error:
            raise KcalcError(
                f"{phi.name}: {error}; pass growth=(A, p, B) with |phi(x)| <= A (1+|x|)^p "
                "exp(B|x|) to certify its integrals"
            ) from None
    return total


def _ends(kinks: tuple[Bound, ...], index: int) -> tuple[float, float]:
    """Return floats that enclose the interval of a piece."""
    with working(80):
        low = math.nextafter(float(kinks[index - 1]().lower()), -math.inf) if index else -math.inf
        high = (
            math.nextafter(float(kinks[index]().upper()), math.inf)
            if index < len(kinks)
            else math.inf
        )
    return (0.0 if abs(low) < 1e-300 else low), (0.0 if abs(high) < 1e-300 else high)


# --- saturation -----------------------------------------------------------------------------------


def _saturated(
    piece: sp.Expr, low: float, high: float, reach: float, digits: int, name: str
) -> tuple[list[Bound], list[tuple[sp.Expr, float]]]:
    """Split a piece where its tanh(polynomial) is almost +-1, and replace the tanh by +-1 there.

    Returns the new kinks, and (expression, slack) for each part. The slack is valid for |x| <=
    reach.
    """
    symbol = symbol_of(piece)
    atoms: Any = piece.atoms(sp.tanh)
    curved: list[Any] = [
        t
        for t in atoms
        if inside(t).is_polynomial(symbol) and sp.Poly(inside(t), symbol).degree() > 1
    ]
    if len(curved) != 1 or not math.isfinite(reach):
        return [], [(piece, 0.0)]
    (function,) = curved
    mark = sp.Dummy()
    opened = piece.subs(function, mark)
    factor = sp.diff(opened, mark)
    if factor.has(mark):
        return [], [(piece, 0.0)]
    inner = inside(function)
    start, middle, end = [], (piece, 0.0), []
    for side in (-1, 1):
        edge = high if side > 0 else low
        place = _cut(inner, factor, symbol, side, edge, reach, digits)
        if place is None:
            continue
        point, sign, loss = place
        part = (sp.expand(opened.subs(mark, sign)), loss)
        (end if side > 0 else start).append((point, part))
    kinks = [point for point, _ in start + end]
    return [partial(enclose, sp.Rational(k)) for k in kinks], [
        *(p for _, p in start),
        middle,
        *(p for _, p in end),
    ]


def _cut(
    inner: sp.Expr,
    factor: sp.Expr,
    symbol: sp.Symbol,
    side: int,
    edge: float,
    reach: float,
    digits: int,
) -> tuple[float, int, float] | None:
    """Return (x0, sign, slack) of a saturated tanh, or None for an unsaturated tanh.

    From x0 outwards, up to reach, factor tanh(inner) differs from factor * sign by at most the
    slack.
    """
    far = side * min(abs(edge), reach) if edge * side > 0 else edge
    allowed = -(digits + 12) * math.log(10)
    for step in range(1, 41):
        point = float(side * 0.25 * step)
        if point * side >= far * side:
            return None
        low, high = sorted((point, far))
        bottom, top = span(inner, symbol, low, high)
        least, sign = (bottom, 1) if bottom > 0 else (-top, -1)
        weights = span(factor, symbol, low, high)
        loss = math.log(2 * max(abs(weights[0]), abs(weights[1]), 1e-300)) - 2 * least
        if least > 0 and loss < allowed:
            return point, sign, above(math.exp(above(loss)))
    return None
