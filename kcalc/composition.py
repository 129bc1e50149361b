"""Symbolic maps as named compositions: straight-line programs that repeat where the network repeats, never a wall."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mpmath
import sympy as sp
from sympy.core.function import AppliedUndef

from .errors import KcalcError
from .fields import mpmath_field
from .plain_arguments import mapping
from .repetition import repetition
from .threads import decimal_digits, lambdify

CLOSED_SIZE = 1500
MOST_SYMBOLS = 5000  # of a formula in a notebook, some 40 kB of LaTeX


@dataclass(frozen=True)
class Stage:
    """The definitions made between two cut points; ``exits`` are the symbols that carry the state onward."""

    definitions: tuple[tuple[sp.Symbol, sp.Expr], ...]
    exits: tuple[sp.Symbol, ...]

    def code(self, entry: Sequence[sp.Symbol]) -> Any:
        """The stage with its entry symbols and its own names replaced by standard ones: equal codes, equal functions."""
        own = {symbol: sp.Dummy(f"own{i}", dummy_index=1000 + i) for i, (symbol, _) in enumerate(self.definitions)}
        start = {symbol: sp.Dummy(f"in{i}", dummy_index=2000 + i) for i, symbol in enumerate(entry)}
        table = {**start, **own}
        return tuple(expr.xreplace(table) for _, expr in self.definitions), tuple(own.get(s, s) for s in self.exits)

    def follows(self, entry: Sequence[sp.Symbol]) -> bool:
        """True if the stage reads nothing but the entry symbols."""
        own = {symbol for symbol, _ in self.definitions}
        return all(expr.free_symbols <= own | set(entry) for _, expr in self.definitions)


@dataclass(frozen=True)
class LocalFunction:
    """A local map that a composition names: ``function(*arguments)``, its closed form or None, and its activation."""

    function: Any
    arguments: tuple[sp.Symbol, ...]
    closed: sp.Expr | None
    activation: Any

    def latex(self) -> str:
        """``name(arguments) = closed form``, or a pointer to the activation."""
        head = sp.latex(self.function(*self.arguments))
        body = sp.latex(self.closed) if self.closed is not None else rf"\text{{local map of }}\; {sp.latex(self.activation.expr)}"
        return f"{head} = {body}"


@dataclass(frozen=True)
class Composition:
    """``result`` as a function of ``arguments`` through named intermediate values.

    ``definitions`` lists (symbol, expression) in order, each in terms of arguments and earlier symbols.
    """

    arguments: tuple[sp.Symbol, ...]
    stages: tuple[Stage, ...]
    result: sp.Expr
    letter: str = "C"
    functions: tuple[LocalFunction, ...] = ()

    @property
    def definitions(self) -> tuple[tuple[sp.Symbol, sp.Expr], ...]:
        """All definitions in order."""
        return tuple(item for stage in self.stages for item in stage.definitions)

    @property
    def closed_form(self) -> sp.Expr | None:
        """One SymPy expression, or None where a map has no closed form or the expression would be a wall."""
        table: dict[Any, Any] = {}
        sizes: dict[sp.Symbol, int] = {}

        def size(expr: sp.Expr) -> int:
            return sum(sizes.get(leaf, 1) for leaf in sp.preorder_traversal(expr))  # type: ignore[call-overload]

        for symbol, named in (*self.definitions, (sp.Dummy("result"), self.result)):
            expr = self._opened(named)
            if expr is None:
                return None
            sizes[symbol] = size(expr)
            if sizes[symbol] > CLOSED_SIZE:
                return None
            table[symbol] = expr.xreplace(table)
        return table[symbol]

    def _opened(self, expr: Any) -> Any:
        """The expression with local maps replaced by their closed forms; None where one has none."""
        table = {(f.function, len(f.arguments)): f for f in self.functions}
        while applied := expr.atoms(AppliedUndef):
            inner = [a for a in applied if not any(b is not a and b in applied for b in sp.preorder_traversal(a))]
            known = {}
            for call in inner:
                local = table.get((call.func, len(call.args)))
                if local is None or local.closed is None:
                    return None
                known[call] = local.closed.xreplace(dict(zip(local.arguments, call.args, strict=True)))
            expr = expr.xreplace(known)
        return expr

    def evaluate(self, values: Mapping[Any, Any], digits: int = 30) -> Any:
        """The value at given numbers, {argument or its name: number}, in mpmath with ``digits`` digits.

        Raises: KcalcError if an argument has no value or an activation has no closed form.
        """
        names = {s.name: s for s in self.arguments}
        given = {names.get(str(k) if isinstance(k, sp.Symbol) else k, k): v for k, v in mapping(values, "values").items()}
        field = mpmath_field(digits)
        missing = [s.name for s in self.arguments if s not in given]
        if missing:
            raise KcalcError(f"no value is given for {', '.join(missing)}")
        with decimal_digits(field.digits + 10):
            table: dict[Any, Any] = {s: mpmath.mpf(field.number(given[s])) for s in self.arguments}
            functions = self._numeric()
            for symbol, expr in (*self.definitions, (None, self.result)):
                free = sorted(expr.free_symbols, key=str)
                table[symbol] = lambdify(free, expr, [functions, "mpmath"])(*(table[s] for s in free))
            out = mpmath.mpf(table[None])
        return out

    def _numeric(self) -> dict[str, Callable[..., Any]]:
        """The local maps by name as functions of numbers: put into one another as expressions, they keep SymPy busy without end."""
        forms: dict[str, dict[int, Any]] = {}
        for local in self.functions:
            made = None if local.closed is None else lambdify(local.arguments, local.closed, "mpmath")
            forms.setdefault(str(local.function), {})[len(local.arguments)] = made
        return {name: partial(_applied, name, by_count) for name, by_count in forms.items()}

    # -- display ---------------------------------------------------------------------------------------------------

    def _runs(self) -> list[tuple[int, int, int]]:
        """(start, period, count) of repeated stages."""
        codes: list[int] = []
        known: dict[Any, int] = {}
        entry: Sequence[sp.Symbol] = self.arguments
        for i, stage in enumerate(self.stages):
            code = stage.code(entry) if stage.follows(entry) else ("alone", i)
            codes.append(known.setdefault(code, len(known)))
            entry = stage.exits
        runs: list[tuple[int, int, int]] = []
        start = 0
        while start < len(codes):
            period, count = repetition(codes, start)
            runs.append((start, period, count))
            start += period * count
        return runs

    def rows(self) -> list[tuple[str, int]]:
        """LaTeX of each distinct run of definitions with the number of times it is applied in a row."""
        out: list[tuple[str, int]] = []
        for start, period, count in self._runs():
            stages = self.stages[start : start + period]
            entry = self.arguments if start == 0 else self.stages[start - 1].exits
            rename = _display_names(entry, stages) if count > 1 else {}
            named = [(s.xreplace(rename), e.xreplace(rename)) for stage in stages for s, e in stage.definitions]
            lines = [f"{sp.latex(symbol)} = {sp.latex(expr)}" for symbol, expr in named]
            out.append((r",\; ".join(lines), count))
        return out

    def latex(self) -> str:
        """The composition as a LaTeX array: one row per definition, repeated ones with their count."""
        rows = []
        for text, count in self.rows():
            rows.append(text if count == 1 else rf"\bigl[\,{text}\,\bigr]^{{\circ {count}}}")
        name = rf"\mathcal{{{self.letter}}}" if len(self.letter) == 1 else rf"\{self.letter}"  # a Greek letter by its name
        closing = f"{name} = {sp.latex(self.result)}"
        rows = [*(f.latex() for f in self.functions), *rows, closing]
        return closing if len(rows) == 1 else r"\begin{array}{l}" + r"\\ ".join(rows) + r"\end{array}"

    def shown(self) -> str | None:
        """The LaTeX array for a notebook; None where it is too long to read and to set, as in densely connected networks."""
        stages = (stage for start, period, _ in self._runs() for stage in self.stages[start : start + period])
        symbols = sum(1 for stage in stages for _, expr in stage.definitions for _ in sp.preorder_traversal(expr))
        return self.latex() if symbols <= MOST_SYMBOLS else None

    def _repr_latex_(self) -> str | None:
        text = self.shown()
        return None if text is None else f"${text}$"

    def __str__(self) -> str:
        bodies = [f.closed if f.closed is not None else f"local map of {f.activation.name}" for f in self.functions]
        lines = [f"{f.function(*f.arguments)} = {body}" for f, body in zip(self.functions, bodies, strict=True)]
        for start, period, count in self._runs():
            body = "; ".join(f"{s} = {e}" for stage in self.stages[start : start + period] for s, e in stage.definitions)
            lines.append(body if count == 1 else f"{count} times: {body}")
        return "\n".join([*lines, f"{self.letter} = {self.result}"])

    def __repr__(self) -> str:
        return f"Composition({self.letter}({', '.join(map(str, self.arguments))}), {len(self.definitions)} definitions)"


def _applied(name: str, forms: Mapping[int, Any], *values: Any) -> Any:
    """A local map at numbers. Raises: KcalcError where it has no closed form."""
    form = forms.get(len(values))
    if form is None:
        raise KcalcError(f"{name} has no closed form; evaluate the map itself with numbers")
    return form(*map(mpmath.mpf, values))  # numbers of Python would be divided as floats


def _display_names(entry: Sequence[sp.Symbol], stages: Sequence[Stage]) -> dict[sp.Symbol, sp.Symbol]:
    """Inside a repetition the state is renamed: what enters keeps its letter, what leaves gets a prime."""
    table = {symbol: sp.Symbol(symbol.name.split("_")[0]) for symbol in entry}
    last = stages[-1].exits
    for i, symbol in enumerate(s for stage in stages for s, _ in stage.definitions):
        letter = symbol.name.split("_")[0]
        table[symbol] = sp.Symbol(f"{letter}'") if symbol in last else sp.Symbol(f"{letter}_{{{'abcdefghijklmnop'[i % 16]}}}")
    return table
