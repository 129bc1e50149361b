"""Enclosures of a smooth expression and its derivatives, by balls or, on long intervals, germs."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import sympy as sp

from ...fields.expressions import CORNERED, rational
from ...fields.jets import Jet
from ...fields.programs import Derivable
from ...foundation.errors import KcalcError
from ...foundation.process_state import cached_property
from .asymptotics import Germs
from .germs import Germ
from .phases import Phases
from .ranges import ALL, Interval, above, below, meet, plus, times
from .scales import LEAST, Stretch, bounds_of
from .taylor import Balls, Jets, Waves, ends

ORDER = 2  # the highest derivative that is bounded
_DEAREST = 50  # steps that an evaluation counts at most, so that long expressions have some too
_CENTRES = 12
_GRID = [2.0**k for k in range(-6, 7)]
_MANY = 16.0  # turns of waves, within which cells are short from the start
_Edge = tuple[Any, float]
"""(exact end of a piece, or None where it need not be known; a float at or beyond that end)."""


class Piece:
    """A smooth expression in one symbol on an interval, which may be infinite.

    ``steps`` and ``products`` count the operations on balls and germs.
    """

    def __init__(self, expr: sp.Expr, symbol: sp.Symbol, left: _Edge, right: _Edge) -> None:
        self.symbol, self.low, self.high = symbol, left[1], right[1]
        self.exact_ends = left[0], right[0]
        self.expr = rational(expr)
        self.is_cornered = self.expr.has(*CORNERED)
        self.balls = Balls()
        self.phases = Phases(self.expr, symbol)
        self.steps = self.products = 0
        self._known: dict[tuple[float, float], list[Interval]] = {}
        self._plain: dict[Any, dict[int, Any]] = {}
        self._centred: dict[Any, Interval] = {}
        try:
            self.near: Any = Derivable([self.expr], symbol)
            quotient = self.expr.replace(sp.sinc, lambda u: sp.sin(u) / u)
            self.far: Any = Derivable([quotient], symbol)
        except KcalcError:  # nothing is known of one of its functions
            self.near, self.far = None, None

    def derivatives(self, a: float, b: float) -> list[Interval]:
        """Enclosures of f, f', f'', f''' on [a, b] by balls; ALL where nothing is known."""
        from flint import arb

        if (a, b) not in self._known:
            found = [ALL] * (ORDER + 2)
            if self.near is not None and math.isfinite(a) and math.isfinite(b):
                ball = arb(a) if a == b else arb(a).union(arb(b))
                self.steps += 1 + min(len(self.near.steps), _DEAREST)
                x = Jet.variable(ball, ORDER + 1)
                (jet,) = self.near.run(x, Jets(self.balls, ORDER + 1))
                found = [ends(c * math.factorial(k)) for k, c in enumerate(jet.coefficients)]
            self._known[a, b] = found
        return self._known[a, b]

    def stretched(self, a: float, b: float, order: int, angle: Interval | None) -> Interval:
        """An enclosure of a derivative on [a, b] by germs, for waves with a phase in ``angle``."""
        x: Any = self._variable(a, b) if self.far is not None else None
        if self.far is None or x is None:
            return ALL
        if angle is None:
            (jet,) = self.far.run(Jet.variable(x, order), Jets(Germs(), order))
            found = jet.coefficients[order].span
        else:
            found = self._in_phase(x, (a, b, order), angle)
        self.products += x.stretch.work + 10
        scale = float(math.factorial(order))
        return times((scale, scale), found)

    def _variable(self, a: float, b: float) -> Germ | None:
        """x on [a, b] as a function of y; None if [a, b] holds all centres.

        p +- 1/y next to an end p of the piece, if f is singular there, else c +- s y with the
        nearest centre c.
        """
        gaps = ((b - self.low, self.low, 1), (self.high - a, self.high, -1))
        for p, (reach, end, side) in zip(self.exact_ends, gaps, strict=True):
            if p is not None and 0 < reach <= 1 / LEAST and ALL in self.derivatives(end, end):
                stretch = Stretch(below(1 / reach), math.inf)
                return Germ.variable(stretch, p, sp.Integer(side), -1)
        centre = self._nearest(a, b)
        low, high = _distances(a, b, centre)
        if low <= 0:
            return None
        factor = 2.0 ** max(math.floor(math.log2(low)) - 2, -1000)
        if math.isinf(high) and low >= LEAST:
            factor = 1.0
        side = 1 if b > float(centre) else -1
        rate = side * sp.Rational(*factor.as_integer_ratio())
        return Germ.variable(Stretch(low / factor, high / factor), centre, rate, 1)

    def _nearest(self, a: float, b: float) -> Any:
        """0, or a centre that a finite interval is far closer to."""
        centre, near = sp.S.Zero, max(a, -b)
        for c, place in self.centres if math.isfinite(b - a) else []:
            gap = max(a - place, place - b)
            if gap > 0 and (gap < near / 4 or near <= 0):
                centre, near = c, gap
        return centre

    def _in_phase(self, x: Germ, place: tuple[float, float, int], angle: Interval) -> Interval:
        """A Taylor coefficient for phases in ``angle``, by the mean value theorem in the phase."""
        order, middle = place[2], (angle[0] + angle[1]) / 2
        known = self._plain.setdefault(place, {})

        def coefficient(phase: Interval) -> tuple[Germ, Germ]:
            """(a Taylor coefficient, its derivative in the phase)."""
            waves = Waves(Germs(), lambda argument: self.phases.angle(argument, phase))
            (jet,) = self.far.run(Jet.variable(Jet((x, x * 0)), order), Jets(waves, order), known)
            return jet.coefficients[order].coefficients

        if (place, middle) not in self._centred:
            self._centred[place, middle] = coefficient((middle, middle))[0].span
        centred = self._centred[place, middle]
        if angle[0] == angle[1]:
            return centred
        found, rate = (part.span for part in coefficient(angle))
        half = above(max(-rate[0], rate[1]) * (angle[1] - angle[0]) / 2)
        return meet(found, plus(centred, (-half, half)))

    # --- where to look ------------------------------------------------------------------------

    def cuts(self) -> list[float]:
        """Ends of the first cells: centres and powers of 2, unless waves turn often in between."""
        short = [t for t in _GRID if self.phases.turns(0.0, t, self.balls) <= _MANY]
        grid = short or _GRID[:1]
        places = [place for _, place in self.centres]
        beyond = [16 * max(map(abs, places))] if places else []
        inside = {*(-t for t in (*grid, *beyond)), 0.0, *grid, *beyond, *places}
        middle = sorted(x for x in inside if self.low < x < self.high)
        return [self.low, *middle, self.high]

    @cached_property
    def centres(self) -> list[tuple[Any, float]]:
        """Symmetry points, exact and as floats, where f may be steep.

        They are those of arguments of functions and bases of powers that are polynomials of
        degree 1 or 2.
        """
        found: dict[Any, bool] = {}
        for part in self.expr.atoms(sp.Function, sp.exp, sp.Pow):
            level: Any = part.args[0]
            if level.is_polynomial(self.symbol) and level.has(self.symbol):
                poly = sp.Poly(level, self.symbol)
                if poly.degree() <= 2:
                    found[-poly.nth(poly.degree() - 1) / poly.LC() / poly.degree()] = True
        places = [(c, float(c)) for c in found if c != 0]
        return sorted(places, key=lambda place: abs(place[1]))[:_CENTRES]

    def reduced(self, order: int, shift: float) -> Piece:
        """A piece with equal |f^(order) + shift|: one period, or half of a symmetric interval."""
        part = copy(self)
        part.steps = part.products = 0
        period = self.phases.period(self.expr, order)
        if period is not None and self.high - self.low > period:
            part.low, part.high = 0.0, period
        elif self.low == -self.high and (order or not shift) and self._is_symmetric:
            part.low = 0.0
        return part

    @cached_property
    def _is_symmetric(self) -> bool:
        """Whether the expression is seen to be even or odd."""
        mirrored = self.expr.xreplace({self.symbol: -self.symbol})
        return mirrored in (self.expr, -self.expr)


def _distances(a: float, b: float, centre: Any) -> Interval:
    """Floats around the distances of the points of [a, b] from a number, <= 0 if it is inside."""
    low, high = bounds_of(centre)
    if a > high:
        return (a, b) if centre == 0 else (below(a - high), above(b - low))
    return (-b, -a) if centre == 0 else (below(low - b), above(high - a))
