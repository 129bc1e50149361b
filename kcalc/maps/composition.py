"""Symbolic maps as chains of named definitions.

A chain repeats a block of definitions if the network repeats a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mpmath
import sympy as sp
from sympy.core.function import AppliedUndef

from ..fields import mpmath_field
from ..fields.arguments import derivative_order
from ..foundation.errors import KcalcError
from ..foundation.formulas import activation_definition, latex, local_definition, result_name
from ..foundation.plain_arguments import mapping
from ..foundation.plain_arguments import text as plain_text
from ..foundation.printing import latex_text
from ..foundation.process_state import decimal_digits, lambdify
from .stages import RepeatedStages, Stage, runs

if TYPE_CHECKING:
    from mpmath.ctx_mp_python import _mpf as Mpf

CLOSED_SIZE = 1500
MOST_SYMBOLS = 5000  # limit for formulas in a notebook, about 40 kB of LaTeX


@dataclass(frozen=True)
class LocalFunction:
    """A local map with a name in a composition.

    It stores the symbolic call ``function(*arguments)``, the closed form (or None) and the
    activation.
    """

    function: Any
    arguments: tuple[sp.Symbol, ...]
    closed: sp.Expr | None
    activation: Any

    def latex(self) -> str:
        """Return ``name(arguments) = closed form``, or the Gaussian integral."""
        return local_definition(str(self.function), self.arguments, self.closed, self.activation)

    @property
    def letter(self) -> str:
        """Return ``C``, ``Q``, ``M``, or a name such as ``DC`` for derivatives."""
        return str(self.function).split("_", 1)[0]

    @property
    def own_name(self) -> str:
        """Return the name of the activation in the formula."""
        return str(self.function).split("_", 1)[1]

    several = False  # whether the map has derivatives with respect to all arguments

    @property
    def body(self) -> Any:
        """Return the closed form, or a description if the map has no closed form."""
        return self.closed if self.closed is not None else f"local map of {self.activation.name}"

    @property
    def obstacle(self) -> str:
        """Return the reason why there is no closed form."""
        return (
            f"the activation {self.activation.name!r} has no closed form for its {self.letter} "
            "map; .expr contains the Gaussian integral"
        )

    def definition(self) -> str | None:
        """Return the definition of an activation that formulas write as a letter, or None."""
        if self.closed is not None and not self.own_name.startswith("phi"):
            return None
        return activation_definition(self.own_name, self.activation)

    def numeric(self, digits: int) -> Callable[..., Any] | None:
        """Return the map as a function of mpmath numbers, or None if it has no closed form."""
        return None if self.closed is None else lambdify(self.arguments, self.closed, "mpmath")

    def derived(self, place: int) -> LocalFunction:
        """Return the derivative with respect to the first argument."""
        order, letter = (
            (1, self.letter)
            if not self.letter.startswith("D")
            else (int(self.letter[1:-1] or 1) + 1, self.letter[-1])
        )
        function = sp.Function(f"D{order if order > 1 else ''}{letter}_{self.own_name}")
        closed = None if self.closed is None else sp.diff(self.closed, self.arguments[0])
        return replace(self, function=function, closed=closed)


@dataclass(frozen=True)
class Composition:
    """A function as a chain of named intermediate values.

    Attributes
    ----------
    arguments
        The symbols of the arguments.
    definitions
        Pairs (symbol, expression) in order. Each expression uses arguments and earlier symbols.
    result
        The expression for the result.

    """

    arguments: tuple[sp.Symbol, ...]
    stages: tuple[Stage, ...]
    result: sp.Expr
    letter: str = "C"
    functions: tuple[LocalFunction, ...] = ()

    @property
    def definitions(self) -> tuple[tuple[sp.Symbol, sp.Expr], ...]:
        """Return all definitions in order."""
        return tuple(item for stage in self.stages for item in stage.definitions)

    def pruned(self) -> Composition:
        """Return the composition with only the local maps that occur in it.

        Q is also kept for an activation whose maps are Gaussian integrals, because these integrals
        contain Q.
        """
        expressions = (self.result, *(expr for _, expr in self.definitions))
        used = {call.func for expr in expressions for call in expr.atoms(AppliedUndef)}
        integrals = {
            f.activation for f in self.functions if f.function in used and f.closed is None
        }
        kept = (
            f
            for f in self.functions
            if f.function in used or (f.letter == "Q" and f.activation in integrals)
        )
        return replace(self, functions=tuple(kept))

    def derivative(self, order: int = 1) -> Composition:
        """Return the derivative with respect to the first argument.

        The derivative is a composition too. Dots over the name of a value mark the value's
        derivatives.

        Parameters
        ----------
        order
            The order of the derivative, an integer >= 1.

        Returns
        -------
        Composition
            The derivative as a formula.

        Raises
        ------
        KcalcError
            If the order exceeds 4.

        """
        return differentiated(self, order)

    @property
    def closed_form(self) -> sp.Expr | None:
        """The composition as one SymPy expression, or None; see ``closed_form_obstacle``."""
        return None if isinstance(found := self._closed(), str) else found

    @property
    def closed_form_obstacle(self) -> str | None:
        """The reason why ``closed_form`` is None, or None if there is a closed form."""
        return found if isinstance(found := self._closed(), str) else None

    def _closed(self) -> sp.Expr | str:
        """Return the closed form, or the reason why there is none."""
        table: dict[Any, Any] = {}
        sizes: dict[sp.Symbol, int] = {}

        def size(expr: sp.Expr) -> int:
            return sum(sizes.get(leaf, 1) for leaf in sp.preorder_traversal(expr))  # type: ignore[call-overload]

        for symbol, named in (*self.definitions, (sp.Dummy("result"), self.result)):
            expr = self._opened(named)
            if expr is None:
                return self._without_closed_form(named)
            sizes[symbol] = size(expr)
            if sizes[symbol] > CLOSED_SIZE:
                return (
                    f"a single expression would have more than {CLOSED_SIZE} terms and operations; "
                    "use .expr, which names its parts"
                )
            table[symbol] = expr.xreplace(table)
        return table[symbol]

    def _without_closed_form(self, expr: sp.Expr) -> str:
        names = {call.func for call in expr.atoms(AppliedUndef)}
        return next(f for f in self.functions if f.closed is None and f.function in names).obstacle

    def _opened(self, expr: Any) -> Any:
        """Replace local maps in an expression by their closed forms.

        Return None if a local map has no closed form.
        """
        table = {(f.function, len(f.arguments)): f for f in self.functions}
        while applied := expr.atoms(AppliedUndef):
            inner = [
                a
                for a in applied
                if not any(b is not a and b in applied for b in sp.preorder_traversal(a))
            ]
            known = {}
            for call in inner:
                local = table.get((call.func, len(call.args)))
                if local is None or local.closed is None:
                    return None
                known[call] = local.closed.xreplace(
                    dict(zip(local.arguments, call.args, strict=True))
                )
            expr = expr.xreplace(known)
        return expr

    def evaluate(self, values: Mapping[Any, Any], digits: int = 30) -> Mpf:
        """Evaluate the composition in mpmath with ``digits`` digits.

        Parameters
        ----------
        values
            {argument or its name: number}.
        digits
            The number of decimal digits.

        Returns
        -------
        Mpf
            The value, as an mpmath number.

        Raises
        ------
        KcalcError
            If an argument has no value or an activation has no closed form.

        """
        names = {s.name: s for s in self.arguments}
        given = {
            names.get(str(k) if isinstance(k, sp.Symbol) else k, k): v
            for k, v in mapping(values, "values").items()
        }
        field = mpmath_field(digits)
        missing = [s.name for s in self.arguments if s not in given]
        if missing:
            raise KcalcError(f"some values are missing; pass numbers for {', '.join(missing)}")
        with decimal_digits(field.digits + 10):
            table: dict[Any, Any] = {s: mpmath.mpf(field.number(given[s])) for s in self.arguments}
            functions = self._numeric(field.digits + 5)
            for symbol, expr in (*self.definitions, (None, self.result)):
                free = sorted(expr.free_symbols, key=str)
                table[symbol] = lambdify(free, expr, [functions, "mpmath"])(
                    *(table[s] for s in free)
                )
            return mpmath.mpf(table[None])

    def _numeric(self, digits: int) -> dict[str, Callable[..., Any]]:
        """Return the local maps by name as functions of numbers.

        SymPy would take too long to evaluate nested expressions.
        """
        forms: dict[str, dict[int, Any]] = {}
        for local in self.functions:
            forms.setdefault(str(local.function), {})[len(local.arguments)] = local.numeric(digits)
        return {name: partial(_applied, name, by_count) for name, by_count in forms.items()}

    # -- display -----------------------------------------------------------------------------------

    def _runs(self) -> list[RepeatedStages]:
        return runs(self.stages, self.arguments)

    @property
    def rows(self) -> list[tuple[str, int]]:
        """Return (LaTeX, count) for each distinct run of definitions.

        The count is the number of consecutive applications of the run.
        """
        return [(run.body(), run.count) for run in self._runs()]

    def latex(self, remark: str = "") -> str:
        """Return the composition as a LaTeX array, for math mode with amsmath.

        The array has one row per definition, or one row for a run of equal blocks.

        Parameters
        ----------
        remark
            Text below the formula. The result gets a dagger that refers to it.

        Returns
        -------
        str
            LaTeX source for math mode.

        """
        remark = plain_text(remark, "remark", empty=True)
        mark = r"^{\dagger}" if remark else ""
        closing = f"{result_name(self.letter)}{mark} = {latex(self.result)}"
        rows = [
            *self._activations(),
            *(f.latex() for f in self.functions),
            *(run.latex() for run in self._runs()),
            closing,
        ]
        if remark:
            rows.append(rf"{{}}^{{\dagger}}\,\text{{{latex_text(remark)}}}")
        return (
            closing if len(rows) == 1 else r"\begin{array}{l}" + r"\\ ".join(rows) + r"\end{array}"
        )

    def _activations(self) -> list[str]:
        """Return definitions of the activations that formulas write as letters.

        Letters represent unnamed activations, and activations in Gaussian integrals.
        """
        texts = {f.own_name: f.definition() for f in self.functions}
        return [text for text in texts.values() if text]

    def _latex(self, printer: Any) -> str:
        """Return the LaTeX that :func:`sympy.latex` uses."""
        return self.latex()

    def shown(self, remark: str = "") -> str | None:
        """Return the LaTeX array for a notebook.

        Return None if it is too long to read, as for densely connected networks.
        """
        symbols = sum(
            1
            for run in self._runs()
            for _, expr in run.definitions
            for _ in sp.preorder_traversal(expr)
        )
        return self.latex(remark) if symbols <= MOST_SYMBOLS else None

    def _repr_latex_(self) -> str | None:
        text = self.shown()
        return None if text is None else f"${text}$"

    def __str__(self) -> str:
        lines = [f"{f.function(*f.arguments)} = {f.body}" for f in self.functions]
        return "\n".join([*lines, *map(str, self._runs()), f"{self.letter} = {self.result}"])

    def __repr__(self) -> str:
        return (
            f"Composition({self.letter}({', '.join(map(str, self.arguments))}), "
            f"{len(self.definitions)} definitions)"
        )


class Formula:
    """Base class of results that have a symbolic form.

    The method ``symbolic`` of the result returns a composition, or {output: composition}.
    """

    symbolic: Callable[..., Any]

    @property
    def expr(self) -> Composition:
        """The symbolic form as a named composition, or {output: composition} for several outputs.

        For C maps and kernels, the inputs have q = 1.
        """
        return self.symbolic()

    @property
    def closed_form(self) -> sp.Expr | None:
        """The result as one SymPy expression.

        It is None if there is no such expression; ``closed_form_obstacle`` gives the reason.
        """
        return self.expr.closed_form if isinstance(self.expr, Composition) else None

    @property
    def closed_form_obstacle(self) -> str | None:
        """The reason why ``closed_form`` is None, or None if there is a closed form."""
        composition = self.symbolic()
        if isinstance(composition, Composition):
            return composition.closed_form_obstacle
        return f"there are {len(composition)} outputs; use .expr[output].closed_form"

    def latex(self) -> str:
        """Return the formula in LaTeX, for math mode with amsmath.

        Several outputs are written one below the other.

        A heuristic result is marked with a dagger, which the last line explains.

        Returns
        -------
        str
            LaTeX source for math mode.

        Raises
        ------
        KcalcError
            If there is no symbolic form.

        """
        composition = self.symbolic()
        if isinstance(composition, Composition):
            return composition.latex(self._remark())
        return _stacked({node: part.latex(self._remark()) for node, part in composition.items()})

    def _remark(self) -> str:
        notes = [note for note in getattr(self, "assumptions", ()) if note.kind == "heuristic"]
        return f"heuristic: {notes[0].node}: {notes[0].text}" if notes else ""

    def _repr_latex_(self) -> str | None:
        try:
            composition = self.symbolic()
        except KcalcError:  # no symbolic form, so a notebook shows the plain repr
            return None
        if isinstance(composition, Composition):
            text = composition.shown(self._remark())
        else:
            parts = {node: part.shown(self._remark()) for node, part in composition.items()}
            text = None if None in parts.values() else _stacked(parts)
        return None if text is None else f"${text}$"


def _stacked(parts: Mapping[Any, Any]) -> str:
    rows = r"\\ ".join(rf"\text{{{latex_text(node)}}}: {text}" for node, text in parts.items())
    return rf"\begin{{array}}{{l}}{rows}\end{{array}}"


def _applied(name: str, forms: Mapping[int, Any], *values: Any) -> Any:
    """Return the value of a local map at the given numbers.

    Raises KcalcError if it has no closed form.
    """
    form = forms.get(len(values))
    if form is None:
        raise KcalcError(f"{name} has no closed form; evaluate the map at numbers instead")
    return form(*map(mpmath.mpf, values))  # Python integers would be divided as floats


# -- derivatives -----------------------------------------------------------------------------------

DOTS = ("", "dot", "ddot", "dddot", "ddddot")


def differentiated(composition: Composition, order: int) -> Composition:
    """Return the derivative of the given order with respect to the first argument.

    Raises KcalcError for orders that have no notation.
    """
    if derivative_order(order) >= len(DOTS):
        raise KcalcError(
            f"derivatives have formulas only up to order {len(DOTS) - 1}, but order {order} was "
            "requested; evaluate the derivative at numbers instead"
        )
    rate = _Rate(composition)
    stages = tuple(rate.stage(stage, order) for stage in composition.stages)
    result = composition.result
    for _ in range(order):
        result = rate(result)
    letter = (
        composition.letter if not order else f"D{order if order > 1 else ''}{composition.letter}"
    )
    return Composition(
        composition.arguments, stages, result, letter, tuple(rate.functions.values())
    ).pruned()


class _Rate:
    """Compute d/dx of expressions in a composition, where x is its first argument."""

    def __init__(self, composition: Composition) -> None:
        self.rates: dict[Any, Any] = {composition.arguments[0]: sp.S.One}
        self.functions = {(f.function, len(f.arguments)): f for f in composition.functions}

    def stage(self, stage: Stage, order: int) -> Stage:
        """Return a stage with the derivatives of its values up to the given order."""
        definitions: list[Any] = []
        for symbol, expr in stage.definitions:
            definitions.append((symbol, expr))
            letter, _, index = symbol.name.partition("_")
            last = symbol
            for dots in DOTS[1 : order + 1]:
                expr = self(expr)
                named = expr if expr.is_Atom else sp.Symbol(f"{letter}{dots}_{index}", real=True)
                self.rates[last], last = named, named
                if expr.is_Atom:
                    break
                definitions.append((named, expr))
        exits: list[Any] = [*stage.exits]
        for symbol in exits:  # the list grows by the rate of each value until the rates are numbers
            if isinstance(rate := self.rates.get(symbol), sp.Symbol) and rate not in exits:
                exits.append(rate)
        return Stage(tuple(definitions), tuple(exits))

    def __call__(self, expr: Any) -> Any:
        calls: dict[Any, Any] = {call: sp.Dummy() for call in expr.atoms(AppliedUndef)}
        plain = expr.xreplace(calls)  # replaces outer calls, including the calls inside them
        back: dict[Any, Any] = {dummy: call for call, dummy in calls.items()}
        parts = []
        for symbol in plain.free_symbols:
            rate = (
                self._rate_of_call(back[symbol])
                if symbol in back
                else self.rates.get(symbol, sp.S.Zero)
            )
            parts.append(sp.diff(plain, symbol) * rate)
        return sp.Add(*parts).xreplace(back)

    def _rate_of_call(self, call: Any) -> Any:
        local, rates = self.functions[call.func, len(call.args)], list(map(self, call.args))
        if not local.several and any(rate != 0 for rate in rates[1:]):
            raise KcalcError(
                f"{call.func} depends on the argument through several values, so its derivative "
                "has no formula"
            )
        return sp.Add(
            *(
                self._derived(local, place)(*call.args) * rate
                for place, rate in enumerate(rates)
                if rate != 0
            )
        )

    def _derived(self, local: LocalFunction, place: int) -> Any:
        """Return the derivative of a local map with respect to an argument, as a local map."""
        made = local.derived(place)
        self.functions.setdefault((made.function, len(made.arguments)), made)
        return made.function
