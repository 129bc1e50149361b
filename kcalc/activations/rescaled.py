"""Rescaled activations s phi(a x): sin(30 x), for example, uses the closed forms of sin x."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import sympy as sp

from kcalc.activations.base import Activation, Transformed, X
from kcalc.activations.periodic import gabor
from kcalc.activations.transformation import Transformation
from kcalc.fields.degrees import expandable
from kcalc.fields.expressions import rational


@dataclass(frozen=True, eq=False, repr=False)
class Rescaled(Transformed):
    """The activation s phi(a x), with Q(q) = s^2 Q_phi(a^2 q) and C(c, q) = C_phi(c, a^2 q).

    Its ``base`` is s phi(a x), not phi, so shaping constants are relative to s phi(a x).
    """

    @property
    def base(self) -> Activation:
        return self

    @property
    def transformation(self) -> None:  # type: ignore[override]
        return None


def rescaled(candidate: Activation, known: Iterable[Activation]) -> Activation | None:
    """Return the candidate with the closed forms of a known smooth activation phi.

    Returns None unless the candidate is s phi(a x) for numbers s and a.
    """
    if candidate.kinks or candidate.numeric_only or candidate.expr.is_polynomial(X):
        return None
    if not expandable(candidate.expr):
        return None
    for phi in (*known, *_gabors(candidate.expr)):
        if not phi.closed_in_numpy or phi.kinks or phi.expr.is_polynomial(X):
            continue
        for scale in _input_scales(candidate.expr, phi.expr):
            factor = _factor(candidate.expr, phi.expr.xreplace({X: scale * X}))
            if factor is not None:
                constants = Transformation(scale, sp.Integer(0), factor, sp.Integer(0))
                return Rescaled(candidate.name, candidate.expr, original=phi, constants=constants)
    return None


def _gabors(expr: Any) -> Iterator[Activation]:
    """Yield the Gabor function exp(-a x^2) cos(w x) of which ``expr`` may be a multiple."""
    found: list[Any] = []
    for kind, power in ((sp.exp, 2), (sp.cos, 1)):
        arguments = (_monomial(f.args[0]) for f in expr.atoms(kind))
        found.append(
            [abs(factor) for factor, its in arguments if its == power and factor.is_nonzero]
        )
    if len(found[0]) == len(found[1]) == 1:
        yield gabor(*found[0], *found[1])


def _monomial(expr: Any) -> tuple[Any, Any]:
    """Return (c, n) for c x^n, with floats as exact rationals; (nan, n) if c is not real."""
    factor, power = expr.as_coeff_exponent(X)
    if not factor.is_number or not factor.is_real:
        return sp.nan, power
    return rational(factor), power


def _input_scales(expr: sp.Expr, known: sp.Expr) -> Iterator[sp.Expr]:
    """Yield candidates for a in ``expr`` = s ``known``(a x).

    The candidates are ratios of the arguments of a function that occurs in both expressions.
    """
    inner = min(known.atoms(sp.Function, sp.exp), key=sp.default_sort_key)
    start, power = _monomial(inner.args[0])
    for outer in sorted(expr.atoms(type(inner)), key=sp.default_sort_key):
        factor, its = _monomial(outer.args[0])
        ratio: Any = factor / start
        if its == power and ratio.is_nonzero and (ratio.is_positive or power % 2):
            yield sp.sign(ratio) * abs(ratio) ** (1 / power)


def _factor(expr: Any, known: Any) -> Any:
    """Return the number s for which ``expr`` = s ``known``, or None if there is none."""
    if expr.has(sp.Float):
        known = known.xreplace(
            {r: sp.Float(r) for r in known.atoms(sp.Rational) if not r.is_Integer}
        )
    number, rest = sp.Add.make_args(sp.expand(known))[-1].as_independent(X)
    for term in sp.Add.make_args(sp.expand(expr)):
        its, same = term.as_independent(X)
        factor: Any = its / number
        if same == rest and sp.expand(expr - factor * known) == 0:
            return factor
    return None
