"""Rewrite scalar expressions so that they are stable in floating point.

A stable expression neither overflows nor loses its gradient.

The result uses SymPy's functions and the functions below. For each of the latter, every framework
has a version that does not overflow, or its writer provides such a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import sympy as sp
from sympy.core.function import AppliedUndef

from ...activations import Activation, X
from ...fields.expressions import CORNERED, ELEMENTARY, Rewriting, inside
from ...foundation.errors import KcalcError
from ...foundation.process_state import lambdify

REACH = 30.0
FAR = (100.0, 709.0, 1e3, 1e4)
AGREEMENT = 1e-13


class Logistic(sp.Function):
    """1 / (1 + exp(-u))."""


class Softplus(sp.Function):
    """log(1 + exp(u))."""


class LogAddExp(sp.Function):
    """log(exp(u) + exp(v))."""


class Expm1(sp.Function):
    """exp(u) - 1."""


class Log1p(sp.Function):
    """log(1 + u)."""


class Modulus(sp.Function):
    """|u| in an expression that is smooth at u = 0.

    In such an expression, the gradient of |u| at u = 0 does not matter.
    """


FUNCTIONS: dict[Any, str] = {
    kind: kind.__name__.lower() for kind in (Logistic, Softplus, LogAddExp, Expm1, Log1p, Modulus)
} | {getattr(sp, name): name for name in ELEMENTARY}
"""{function that every writer supports: its key in the tables of writers}."""


def stable_form(phi: Activation) -> sp.Expr:
    """Return an expression in ``X`` that equals ``phi`` and does not overflow.

    The result agrees with ``phi`` to double precision for |x| <= 30. For |x| up to 1e4, it is
    finite wherever ``phi`` is finite.

    Raises: KcalcError if ``phi`` is a callable, if frameworks lack one of its functions, or if no
    form without overflow is found.
    """
    phi.refuse_numeric_only("exported code")
    candidates = [
        lambda: phi.expr,
        *(lambda form=form: form for form in phi.stable[:1]),
        lambda: sp.simplify(phi.expr),
    ]
    for candidate in candidates:
        form = _softened(phi, stable(candidate()))
        check_functions(form, phi.name)
        if _agrees(form, phi):
            return form
    raise KcalcError(
        f"activation {phi.name!r} cannot be exported: {str(phi.expr)[:80]} overflows or "
        "loses its precision in floating point; rewrite it with tanh, log(1 + exp(...)), "
        "1/(1 + exp(...)) or a Piecewise"
    )


def constants(phi: Activation) -> tuple[float, float, float, float]:
    """Return (input scale, input shift, output scale, output shift) from ``phi.base`` to phi."""
    t = phi.transformation
    if t is None:
        return 1.0, 0.0, 1.0, 0.0
    return float(t.input_scale), float(t.input_shift), float(t.output_scale), float(t.output_shift)


def check_functions(expr: sp.Expr, name: str) -> None:
    """Raise KcalcError if frameworks lack a function in an expression."""
    for part in sp.preorder_traversal(expr):
        known = (
            type(part) in FUNCTIONS
            or isinstance(part, CORNERED)
            or not isinstance(part, sp.Function)
        )
        if (
            isinstance(part, AppliedUndef)
            or not known
            or part in (sp.nan, sp.zoo, sp.I, sp.oo, -sp.oo)
        ):
            names = ", ".join(
                sorted(
                    {
                        *(f.__name__ for f in FUNCTIONS if f.__module__ != __name__),
                        *(f.__name__ for f in CORNERED),
                    }
                )
            )
            raise KcalcError(
                f"activation {name!r}: {str(part)[:60]} cannot be exported; the supported "
                f"functions are {names}"
            )


def _softened(phi: Activation, expr: sp.Expr) -> sp.Expr:
    """Replace Abs by Modulus if phi is continuously differentiable.

    In this case, no gradient depends on the derivative of Abs at 0.
    """
    if not expr.has(sp.Abs) or any(phi.jump_sizes(0)) or any(phi.jump_sizes(1)):
        return expr
    return expr.replace(sp.Abs, Modulus)  # pyright: ignore[reportReturnType]


# --- rewriting ------------------------------------------------------------------------------------


def stable(expr: Any) -> Any:
    """Rewrite sums of exponentials in an expression with the functions above.

    Such sums occur in logarithms, quotients and differences.
    """
    return _Stable()(expr)


class _Stable(Rewriting):
    def function(self, kind: Any, *arguments: Any) -> Any:
        return _log(*arguments) if kind is sp.log else super().function(kind, *arguments)

    def power(self, base: Any, exponent: Any) -> Any:
        return _power(base, exponent)

    def product(self, factors: Sequence[Any]) -> Any:
        return _product(list(factors))

    def sum(self, terms: Sequence[Any]) -> Any:
        return _sum(list(terms))


def _exponentials(expr: Any) -> list[tuple[Any, Any]] | None:
    """Return [(c, w), ...] for a sum of terms c exp(w) with c > 0; a number has w = 0.

    Returns None for other expressions.
    """
    out: list[tuple[Any, Any]] = []
    for term in sp.Add.make_args(expr):
        number, rest = term.as_coeff_Mul()
        if rest.is_number:
            number, rest = term, sp.S.One
        if not (rest == 1 or isinstance(rest, sp.exp)) or not number.is_positive:
            return None
        out.append((number, sp.S.Zero if rest == 1 else inside(rest)))
    return out if len(out) > 1 and any(w != 0 for _, w in out) else None


def _log(argument: Any) -> Any:
    number, rest = argument.as_coeff_Mul()
    if isinstance(rest, sp.cosh) and number.is_positive:
        w = stable(inside(rest))
        return LogAddExp(w, -w) + sp.log(number / 2)
    terms = _exponentials(argument)
    if terms is not None:
        constants = sp.Add(*(c for c, w in terms if w == 0))
        unit = constants if constants != 0 else sp.S.One
        first, *others = [stable(w) + sp.log(c / unit) for c, w in terms if w != 0]
        for other in others:
            first = LogAddExp(first, other)
        return sp.log(constants) + Softplus(first) if constants != 0 else first
    if argument.is_Add and argument.as_coeff_Add()[0] == 1:
        return Log1p(stable(argument - 1))
    return sp.log(stable(argument))


def _logistic_argument(base: Any) -> tuple[Any, Any] | None:
    """Return (c, w) if ``base`` is c (1 + exp(w)), else None."""
    terms = _exponentials(base)
    if terms is None or len(terms) != 2 or all(w != 0 for _, w in terms):
        return None
    constant = next(c for c, w in terms if w == 0)
    c, w = next((c, w) for c, w in terms if w != 0)
    return constant, w + sp.log(c / constant)


def _power(base: Any, exponent: Any) -> Any:
    if exponent.is_number and exponent.is_negative:
        found = _logistic_argument(base)
        if found is not None:
            return found[0] ** exponent * Logistic(stable(-found[1])) ** -exponent
        if isinstance(base, sp.cosh):
            size: Any = Modulus(stable(inside(base)))
            return (2 * sp.exp(-size) * Logistic(2 * size)) ** -exponent
    return sp.Pow(stable(base), stable(exponent))


def _product(factors: list[Any]) -> Any:
    """Write exp(k w) / (1 + exp(w))^n as powers of logistic functions, and sinh/cosh as tanh.

    Other products are rewritten factor by factor.
    """
    for power in factors:
        base, exponent = power.as_base_exp()
        if not (exponent.is_Integer and exponent.is_negative):
            continue
        n = -int(exponent)
        found = _logistic_argument(base)
        partner = (
            next((f for f in factors if _exponent(f, found[1]) in range(1, n + 1)), None)
            if found
            else None
        )
        if found and partner is not None:
            k, w = _exponent(partner, found[1]), stable(found[1])
            rest = sp.Mul(*(f for f in factors if f is not power and f is not partner))
            up, down = cast("Any", Logistic(w)), cast("Any", Logistic(-w))
            return found[0] ** -n * up**k * down ** (n - k) * stable(rest)
        if isinstance(base, sp.cosh) and sp.sinh(inside(base)) in factors:
            rest = sp.Mul(
                *(f for f in factors if f is not power and f != sp.sinh(inside(base))),
                base ** (1 - n),
            )
            return sp.tanh(stable(inside(base))) * stable(rest)
    return sp.Mul(*map(stable, factors))


def _exponent(factor: Any, w: Any) -> int:
    """Return k if the factor is exp(k w), else 0."""
    ratio = sp.cancel(inside(factor) / w) if isinstance(factor, sp.exp) else sp.S.Zero
    return int(ratio) if ratio.is_Integer else 0


def _sum(terms: list[Any]) -> Any:
    """Rewrite polynomials by Horner's rule, c exp(w) - c with expm1, other sums term by term."""
    expr: Any = sp.Add(*terms)
    if expr.is_polynomial(X) and sp.Poly(expr, X).degree() > 2:
        return sp.horner(expr, X)
    constant = next((term for term in terms if term.is_number), None)
    for term in terms:
        number, rest = term.as_coeff_Mul()
        if (
            constant is not None
            and isinstance(rest, sp.exp)
            and abs(number + constant) <= 1e-16 * abs(number)
        ):
            others = sp.Add(*(t for t in terms if t is not term and t is not constant))
            return number * Expm1(stable(inside(rest))) + stable(others)
    return sp.Add(*map(stable, terms))


# --- checking -------------------------------------------------------------------------------------


def _agrees(form: sp.Expr, phi: Activation) -> bool:
    """Whether a form equals phi to 1e-13 near the origin and is finite wherever phi is."""
    x = np.concatenate(
        [np.linspace(-REACH, REACH, 1201) + 1e-4, [s * far for far in FAR for s in (1, -1)]]
    )
    with np.errstate(all="ignore"):
        found = np.broadcast_to(np.asarray(compiled(form)(x), dtype=float), x.shape)
    wanted = np.asarray(phi.numeric(0)(x))
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(found)):
        return False
    near = finite & (np.abs(x) <= REACH + 1)
    return bool(
        np.all(
            np.abs(found[near] - wanted[near]) <= AGREEMENT * np.maximum(1, np.abs(wanted[near]))
        )
    )


def compiled(form: sp.Expr) -> Any:
    """Return a stable form as a NumPy function."""
    special = {
        "Logistic": lambda u: np.exp(-np.logaddexp(0, -u)),
        "Softplus": lambda u: np.logaddexp(0, u),
        "LogAddExp": np.logaddexp,
        "Expm1": np.expm1,
        "Log1p": np.log1p,
        "Modulus": np.abs,
    }
    return lambdify([X], form, modules=[special, "scipy", "numpy"])
