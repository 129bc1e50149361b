"""Stages of a composition, and runs of equal blocks of stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy as sp

from ..foundation.formulas import latex
from ..foundation.repetition import repetition


@dataclass(frozen=True)
class Stage:
    """The definitions between two cut points of a composition.

    ``exits`` are the symbols that carry the state to the next stage.
    """

    definitions: tuple[tuple[sp.Symbol, sp.Expr], ...]
    exits: tuple[sp.Symbol, ...]

    def code(self, entry: Sequence[sp.Symbol]) -> Any:
        """Return the stage with standard symbol names and with decimals rounded to 12 digits.

        Stages with equal codes are equal functions.
        """
        start = {symbol: sp.Dummy(f"in{i}", dummy_index=2000 + i) for i, symbol in enumerate(entry)}
        own = {
            symbol: sp.Dummy(f"own{i}", dummy_index=1000 + i)
            for i, (symbol, _) in enumerate(self.definitions)
        }
        names: dict[Any, Any] = {**start, **own}
        bodies = [expr.xreplace(names) for _, expr in self.definitions]
        short = {x: sp.Float(f"{float(x):.12g}") for body in bodies for x in body.atoms(sp.Float)}
        return tuple(body.xreplace(short) for body in bodies), tuple(
            names.get(s, s) for s in self.exits
        )


@dataclass(frozen=True)
class RepeatedStages:
    """A block of stages applied ``count`` times.

    ``entry`` contains the symbols before the first application, ``exits`` those after the last.
    """

    block: tuple[Stage, ...]
    count: int
    entry: tuple[sp.Symbol, ...]
    exits: tuple[sp.Symbol, ...]

    @property
    def definitions(self) -> tuple[tuple[sp.Symbol, sp.Expr], ...]:
        """Return the definitions of the block, in order."""
        return tuple(item for stage in self.block for item in stage.definitions)

    @property
    def _changing(self) -> list[tuple[sp.Symbol, sp.Symbol]]:
        """Return (value before the run, value after it) for the symbols that the block changes."""
        return [
            (first, last)
            for first, last in zip(self.entry, self.exits, strict=False)
            if first != last
        ]

    @property
    def has_distinct_letters(self) -> bool:
        """Whether each changing value of the block can have its own letter.

        The letters must differ from each other and from the other symbols of the block. The result
        is False if no value changes.
        """
        first = [symbol for symbol, _ in self._changing]
        own = {symbol for symbol, _ in self.definitions}
        others = {
            str(s) for _, expr in self.definitions for s in expr.free_symbols - own - set(first)
        }
        letters = {_letter(symbol) for symbol in first}
        return 0 < len(letters) == len(first) and not letters & others

    def body(self) -> str:
        """Return the LaTeX of the definitions.

        In a repeated block, a letter is the value before the block, and the letter with a prime is
        the value after it. Other values have indices a, b, ...
        """
        rename: dict[Any, Any] = {}
        if self.count > 1:
            rename = {first: sp.Symbol(_letter(first)) for first, _ in self._changing}
            for i, (symbol, _) in enumerate(self.definitions):
                leaves = symbol in self.block[-1].exits
                rename[symbol] = sp.Symbol(
                    f"{_letter(symbol)}prime" if leaves else f"{_letter(symbol)}_{{{suffix(i)}}}"
                )
        return r",\; ".join(
            f"{latex(s.xreplace(rename))} = {latex(e.xreplace(rename))}"
            for s, e in self.definitions
        )

    def latex(self) -> str:
        r"""Return the definitions, or ``(q_5, c_5) = [q' = ..., c' = ...]^{\circ 4}(q_1, c_1)``."""
        if self.count == 1:
            return self.body()
        before, after = (", ".join(latex(pair[side]) for pair in self._changing) for side in (0, 1))
        after = after if "," not in after else rf"\left({after}\right)"
        return (
            rf"{after} = \bigl[\,{self.body()}\,\bigr]^{{\circ {self.count}}}\left({before}\right)"
        )

    def __str__(self) -> str:
        text = "; ".join(f"{symbol} = {expr}" for symbol, expr in self.definitions)
        if self.count == 1:
            return text
        return (
            f"{self.count} times, finally giving "
            f"{', '.join(str(last) for _, last in self._changing)}: {text}"
        )


def runs(stages: Sequence[Stage], arguments: Sequence[sp.Symbol]) -> list[RepeatedStages]:
    """Return the stages in order, with consecutive equal blocks combined into runs."""
    read = [
        {symbol for _, expr in stage.definitions for symbol in expr.free_symbols}
        for stage in stages
    ]
    first = set().union(*read[:1]) - set().union(*read[1:])
    entries = [tuple(s for s in arguments if s in first), *(stage.exits for stage in stages)]
    known: dict[Any, int] = {}
    codes = [
        known.setdefault(stage.code(entry), len(known))
        for stage, entry in zip(stages, entries, strict=False)
    ]
    found: list[RepeatedStages] = []
    start = 0
    while start < len(codes):
        period, count = repetition(codes, start)
        run = RepeatedStages(
            tuple(stages[start : start + period]),
            count,
            entries[start],
            entries[start + period * count],
        )
        if count > 1 and not run.has_distinct_letters:
            period, count = 1, 1
            run = RepeatedStages((stages[start],), 1, entries[start], entries[start + 1])
        found.append(run)
        start += period * count
    return found


def suffix(number: int) -> str:
    """Return ``a`` ... ``z``, ``a1`` ... ``z1``, ``a2`` ... for 0, 1, 2, ..."""
    return "abcdefghijklmnopqrstuvwxyz"[number % 26] + str(number // 26 or "")


def _letter(symbol: sp.Symbol) -> str:
    return symbol.name.split("_")[0]
