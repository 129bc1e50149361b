r"""LaTeX for formulas, in the notation of the papers.

Maps are calligraphic with upright indices, numbers are exact, and expectations are integrals.

Names of local maps: Q_phi(q) = E phi^2, M_phi(q) = E phi, C_phi(c, q1, q2). Derivatives with
respect to the first argument have the prefix ``D``, followed by their order if it exceeds 1:
``DC_phi``, ``D2C_phi``, ``DQ_phi``. Overlaps of softmax rows over 12 tokens are ``S_12``; their
derivatives with respect to the variances are ``DvS_12`` and ``DwS_12``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import sympy as sp
from sympy.printing.latex import LatexPrinter

DIGITS = 15
SHORT = 6  # a decimal with at most this many significant digits is assumed to have been typed
DENSITY = r"\frac{e^{-x^{2}/2}}{\sqrt{2\pi}}\,\mathrm{d}x"
PLANE_DENSITY = r"\frac{e^{-(x^{2}+y^{2})/2}}{2\pi}\,\mathrm{d}x\,\mathrm{d}y"
OPERATORS = {name: rf"\{name}" for name in ("tanh", "sin", "cos", "exp", "sinh", "cosh")} | {
    "atan": r"\arctan"
}
_MAP = re.compile(r"(?:D(?P<order>\d*))?(?P<letter>[CQM])_(?P<name>\w+)")
_OVERLAP = re.compile(r"(?P<rate>D?)(?P<by>[vw]?)S_(?P<tokens>\d+)")


def exact(value: Any) -> Any:
    """Convert a float with at most SHORT significant digits to the fraction it represents.

    For example, 1.5 becomes 3/2. Other values are returned unchanged.
    """
    if (
        not isinstance(value, float)
        or not math.isfinite(value)
        or value == 0
        or float(f"{value:.{SHORT}g}") != value
    ):
        return value
    return sp.Rational(f"{value:.{SHORT}g}")


def exact_or_root(value: Any) -> Any:
    """Convert ``value`` with ``exact``, or to the square root of a short decimal.

    A positive float within rounding error of such a root becomes that root (0.75**0.5 is
    sqrt(3)/2).
    """
    found = exact(value)
    if not isinstance(found, float) or not 0 < found < math.inf:
        return found
    square = float(f"{found**2:.{SHORT}g}")
    return (
        sp.sqrt(exact(square))
        if math.isclose(math.sqrt(square), found, rel_tol=10.0**-DIGITS)
        else found
    )


def rounded(expr: Any) -> Any:
    """Replace each Float that agrees with an integer to DIGITS digits with that integer.

    This removes factors of 1.0.
    """
    table = {}
    for number in expr.atoms(sp.Float) if isinstance(expr, sp.Basic) else ():
        whole = round(float(number))
        if abs(float(number) - whole) <= 10.0**-DIGITS * max(abs(whole), 1):
            table[number] = sp.Integer(whole)
    return expr.xreplace(table) if table else expr


class _Printer(LatexPrinter):
    """SymPy's LaTeX printer with the usual notation for local maps."""

    def _print_Function(self, expr: Any, exp: Any = None) -> str:  # noqa: N802  # SymPy's name
        head = map_name(expr.func.__name__)
        if head is None:
            return super()._print_Function(expr, exp)
        body = rf"{head}\left({', '.join(map(self._print, expr.args))}\right)"
        return body if exp is None else f"{body}^{{{exp}}}"


def latex(expr: Any) -> str:
    """Return LaTeX for a SymPy expression, for use with amsmath."""
    return _Printer({"inv_trig_style": "full"}).doprint(rounded(expr))


def map_name(name: str) -> str | None:
    r"""Return the LaTeX name of a C map or of its derivative; None for other functions.

    For example, the name is ``\mathcal{C}_{\mathrm{erf}}`` for ``C_erf`` and
    ``\mathcal{C}'_{\mathrm{erf}}`` for ``DC_erf``.
    """
    overlap = _OVERLAP.fullmatch(name)
    if overlap is not None:
        front = rf"\partial_{{{overlap['by']}}}" if overlap["by"] else ""
        prime = "'" if overlap["rate"] and not front else ""
        return rf"{front}\mathcal{{S}}{prime}_{{{overlap['tokens']}}}"
    found = _MAP.fullmatch(name)
    if found is None:
        return None
    name = activation_name(found["name"])
    return rf"\mathcal{{{found['letter']}}}{_primes(_order(found))}_{{{name}}}"


def _order(found: re.Match[str]) -> int:
    return 0 if found["order"] is None else int(found["order"] or 1)


def _primes(order: int) -> str:
    return "'" * order if order <= 3 else f"^{{({order})}}"


def formula_name(name: str) -> str:
    """Return the word that represents an activation in the names of its local maps.

    The word is the activation's name if that is a single word, otherwise "phi".
    """
    return name if re.fullmatch(r"[A-Za-z]\w*", name) else "phi"


def result_name(letter: str) -> str:
    r"""Return the LaTeX name of a result: ``\mathcal{C}'`` for ``DC``, ``\Theta`` for ``Theta``."""
    order, base = re.fullmatch(r"(D\d*(?=[A-Z]))?(\w+)", letter).groups()  # pyright: ignore[reportOptionalMemberAccess]
    sign = rf"\mathcal{{{base}}}" if len(base) == 1 else rf"\{base}"  # a Greek letter by its name
    return sign + (_primes(int(order[1:] or 1)) if order else "")


def activation_name(name: str) -> str:
    r"""Return the LaTeX name of an activation, such as ``\mathrm{erf}``.

    Functions without a name are called phi, phi2 and so on, with ``\phi`` and ``\phi_{2}`` in
    LaTeX.
    """
    unnamed = re.fullmatch(r"phi(\d*)", name)
    if unnamed:
        return rf"\phi_{{{unnamed[1]}}}" if unnamed[1] else r"\phi"
    return rf"\mathrm{{{name}}}".replace("_", r"\_")


def local_definition(
    name: str, arguments: Sequence[sp.Symbol], closed: Any, activation: Any
) -> str:
    """Return the LaTeX definition of a local map, as a closed form or a Gaussian integral."""
    found = _MAP.fullmatch(name)
    head = latex(sp.Function(name)(*arguments))
    if closed is not None or found is None:
        return f"{head} = {latex(closed)}"
    order, letter = _order(found), found["letter"]
    if letter == "C":
        broken = any(any(activation.jump_sizes(k)) for k in range(order))
        rate = _differential(latex(arguments[0]), order) if broken else ""
        return (
            f"{head} = "
            f"{rate}{_plane_integral(found['name'], arguments, 0 if broken else order, activation)}"
        )
    integral = (
        rf"\int_{{-\infty}}^{{\infty}} "
        rf"{_applied(found['name'], activation, _root(arguments[0]) + ' x', 0)}"
    )
    integral += ("^{2}" if letter == "Q" else "") + rf"\, {DENSITY}"
    return f"{head} = {_differential(latex(arguments[0]), order)}{integral}"


def _differential(symbol: str, order: int) -> str:
    if order == 0:
        return ""
    power = "" if order == 1 else f"^{{{order}}}"
    return rf"\frac{{\mathrm{{d}}{power}}}{{\mathrm{{d}}{symbol}{power}}} "


def _plane_integral(name: str, arguments: Sequence[sp.Symbol], order: int, activation: Any) -> str:
    """Return the n-th derivative of the C map with respect to c, as a Gaussian integral.

    The derivative is E phi^(n)(u) phi^(n)(v) (q1 q2)^(n/2) / sqrt(Q(q1) Q(q2)) for u, v with
    correlation c.
    """
    c, *levels = map(latex, arguments)
    q1, q2 = (levels[0], levels[-1]) if levels else ("1", "1")
    level = rf"\mathcal{{Q}}_{{{activation_name(name)}}}"
    if q1 == q2:
        size = rf"{level}\left({q1}\right)"
        power = "1" if order == 0 else q1 if order == 1 else f"{q1}^{{{order}}}"
    else:
        size = rf"\sqrt{{{level}\left({q1}\right)\, {level}\left({q2}\right)}}"
        power = "1" if order == 0 else rf"\left({q1} {q2}\right)^{{{order}/2}}"
    first = _applied(name, activation, _root_text(q1) + " x", order)
    partner = rf"{c} x + \sqrt{{1 - {c}^{{2}}}}\, y"
    second = _applied(
        name,
        activation,
        partner if q2 == "1" else rf"{_root_text(q2)}\left({partner}\right)",
        order,
    )
    return rf"\frac{{{power}}}{{{size}}} \iint {first}\, {second}\, {PLANE_DENSITY}"


def _root(symbol: sp.Symbol) -> str:
    return _root_text(latex(symbol))


def _root_text(text: str) -> str:
    return "" if text == "1" else rf"\sqrt{{{text}}}\,"


def _applied(name: str, activation: Any, argument: str, order: int) -> str:
    """Return LaTeX for the activation, or its derivative, at an argument."""
    head = _operator(activation) if order == 0 else None
    return rf"{head or _letter(name) + _primes(order)}\left({argument.strip()}\right)"


def _operator(activation: Any) -> str | None:
    r"""Return ``\tanh`` or similar if the activation is a function that LaTeX knows."""
    expr = activation.expr
    return OPERATORS.get(expr.func.__name__) if expr.args and expr.args[0].is_Symbol else None


def _letter(name: str) -> str:
    own = activation_name(name)
    return own if own.startswith(r"\phi") else rf"\phi_{{{own}}}"


def activation_definition(name: str, activation: Any, order: int = 0) -> str | None:
    r"""Return ``\phi(x) = ...`` for an activation that is abbreviated by a letter in integrals.

    Return None if the activation is written out in the integrals.
    """
    if order == 0 and _operator(activation):
        return None
    return rf"{_letter(name)}\left(x\right) = {latex(activation.expr)}"
