"""Phases of waves: arguments of sin and cos that are multiples of one function of x."""

from __future__ import annotations

import math
from typing import Any

import sympy as sp

from ...fields.balls import enclose
from ...fields.expressions import CORNERED
from ...fields.programs import Derivable, Program
from ...foundation.errors import KcalcError
from .ranges import Interval, above

TURN = 2 * math.pi


class Phases:
    """The arguments of sin and cos of the form n u(x) + b for one phase u, n whole, b constant.

    Of several such phases, one that is linear in x is taken, else the one with the most arguments;
    none where the expression has corners.
    """

    def __init__(self, expr: Any, symbol: sp.Symbol) -> None:
        self.symbol = symbol
        self.members: dict[Any, tuple[int, Any]] = {}
        self._phase: Any = sp.S.Zero
        self._program: Program | None = None
        waves = [] if expr.has(*CORNERED) else expr.atoms(sp.sin, sp.cos, sp.sinc)
        groups = _groups({wave.args[0] for wave in waves if wave.has(symbol)}, symbol)
        for unit, group in sorted(groups.items(), key=lambda item: self._worth(*item)):
            self._take(unit, group)

    def _worth(self, unit: Any, group: dict[Any, Any]) -> tuple[bool, int]:
        return not sp.diff(unit, self.symbol).has(self.symbol), len(group)

    def _take(self, unit: Any, group: dict[Any, tuple[Any, Any]]) -> None:
        """Let the arguments of a group have one phase, if their factors are commensurable."""
        first = next(iter(group.values()))[0]
        ratios = {argument: factor / first for argument, (factor, _) in group.items()}
        if not all(ratio.is_Rational for ratio in ratios.values()):
            return
        whole = sp.ilcm(1, *(ratio.q for ratio in ratios.values()))
        phase = unit * first / whole
        try:
            self._program = Derivable([phase], self.symbol)
        except KcalcError:
            return
        self._phase = phase
        self.members = {a: (int(ratio * whole), group[a][1]) for a, ratio in ratios.items()}

    def turns(self, a: float, b: float, balls: Any) -> float:
        """How often the phase may turn on [a, b]; 0 without waves."""
        from flint import arb

        if self._program is None:
            return 0.0
        if math.isinf(a) or math.isinf(b):
            return math.inf
        (phase,) = self._program.run(arb(a).union(arb(b)), balls)
        return 2 * float(phase.rad()) / TURN if phase.is_finite() else math.inf

    def period(self, expr: Any, order: int) -> float | None:
        """A number just above the period of a derivative; None where none is seen."""
        rate = sp.diff(self._phase, self.symbol)
        if rate == 0 or rate.free_symbols:
            return None
        waves = [w for w in expr.atoms(sp.sin, sp.cos) if w.args[0] in self.members]
        rest = expr.xreplace({wave: sp.Dummy() for wave in waves})
        slope = rest.coeff(self.symbol) if order else sp.S.Zero
        if slope.free_symbols or (rest - slope * self.symbol).has(self.symbol):
            return None
        return above(TURN / abs(float(rate)))

    def angle(self, argument: Any, phase: Interval) -> tuple[Any, int] | None:
        """(a ball that holds an argument modulo 2 pi, its rate in the phase), or None."""
        from flint import arb

        if argument not in self.members:
            return None
        factor, offset = self.members[argument]
        return factor * arb(phase[0]).union(arb(phase[1])) + enclose(offset), factor


def _groups(arguments: set[Any], symbol: sp.Symbol) -> dict[Any, dict[Any, tuple[Any, Any]]]:
    """{u: {argument: (factor, offset)}} with argument = factor u + offset."""
    groups: dict[Any, dict[Any, tuple[Any, Any]]] = {}
    for argument in arguments:
        offset, variable = argument.as_independent(symbol, as_Add=True)
        terms = sp.Add.make_args(variable)
        factor = terms[0].as_independent(symbol, as_Add=False)[0]
        unit = sp.Add(*(term / factor for term in terms))
        groups.setdefault(unit, {})[argument] = factor, offset
    return groups
