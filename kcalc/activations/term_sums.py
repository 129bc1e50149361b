"""Sums of terms with elementary kernels: powers, exponentials, waves and erf.

The terms are x^n e^(rate x) with complex rates; examples are x + sin(2x) and x e^x. For Gaussian
u, v with variances q1, q2 and covariance k

    E[e^(a u) e^(b v)] = exp((a^2 q1 + 2 a b k + b^2 q2)/2),

and derivatives with respect to a and b yield the powers. A sum of terms erf(b x) may also have a
term linear in x, because E[u f(v)] = k E f'(v). These closed forms are used only in formulas;
numerical values come from integration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy as sp
from sympy.functions.elementary.hyperbolic import HyperbolicFunction
from sympy.functions.elementary.trigonometric import TrigonometricFunction

from kcalc.activations.base import Activation, X
from kcalc.fields import SYMPY, Field, Number

Terms = Mapping[tuple[int, sp.Expr], sp.Expr]
"""{(n, rate): coefficient} of x^n e^(rate x)."""

MOST_TERMS, MOST_POWER = 8, 4
MOST_EXPANDED = 200  # largest number of terms after expansion
A, B = sp.symbols("a b")
Q1, Q2, K = sp.symbols("q1 q2 k", positive=True)


@dataclass(frozen=True, eq=False, repr=False)
class TermSum(Activation):
    """A sum of terms x^n e^(rate x) or erf(b x), with closed forms of Q and C in SymPy."""

    def _closed_mean(self, q: Number, field: Field) -> Number | None:
        if field is not SYMPY:
            return super()._closed_mean(q, field)
        return _mean(self.expr).xreplace({Q1: q})

    def _closed_mean_slope(self, q: Number, field: Field) -> Number | None:
        if field is not SYMPY:
            return super()._closed_mean_slope(q, field)
        return _mean_slope(self.expr).xreplace({Q1: q})

    def _closed_second_moment(self, q: Number, field: Field) -> Number | None:
        if field is not SYMPY:
            return super()._closed_second_moment(q, field)
        return self._gamma(q, q, q)

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number | None:
        if field is not SYMPY:
            return super()._closed_gap(gap, q1, q2, field)
        gamma = self._gamma(SYMPY.cosine(gap) * sp.sqrt(q1 * q2), q1, q2)
        first, second = self._gamma(q1, q1, q1), self._gamma(q2, q2, q2)
        return 1 - gamma / (first if q1 == q2 else sp.sqrt(first * second))

    def _gamma(self, k: Any, q1: Any, q2: Any) -> Any:
        return _kernel(self.expr).xreplace({K: k, Q1: q1, Q2: q2})

    def _substituted(self, values: Mapping[Any, Any]) -> Activation:
        from kcalc.activations.parse import NAME_LENGTH, activation

        usual = self.name == str(self.expr)[:NAME_LENGTH]
        given = {symbol: value for symbol, value in values.items() if symbol != X}
        return activation(self.expr.subs(given), None if usual else self.name)


def as_sum(candidate: Activation) -> TermSum | None:
    """Return the candidate as a TermSum, with closed forms, or None if that is impossible."""
    if candidate.kinks or candidate.numeric_only or candidate.expr.is_polynomial(X):
        return None
    if _split(candidate.expr) is None:
        return None
    return TermSum(candidate.name, candidate.expr, growth=candidate.growth, tails=candidate.tails)


@lru_cache(maxsize=256)
def _split(expr: sp.Expr) -> tuple[Terms, Mapping[sp.Expr, sp.Expr]] | None:
    """Return (terms, {b: coefficient of erf(b x)}), or None for expressions of another form."""
    if expr.has(sp.Piecewise, sp.Abs, sp.Max, sp.Min, sp.sign, sp.Heaviside):
        return None
    if _terms(expr) > MOST_EXPANDED:
        return None
    waves, errors, found = [], {}, {}
    for term in sp.Add.make_args(sp.expand(expr)):
        coefficient, rest = term.as_independent(X, as_Add=False)
        if isinstance(rest, sp.erf):
            scale = rest.args[0] / X
            if scale.has(X):
                return None
            errors[scale] = errors.get(scale, 0) + coefficient
        else:
            waves.append(term)
    whole = sp.Add(*waves)
    if whole.has(TrigonometricFunction, HyperbolicFunction):
        whole = whole.rewrite(sp.exp)
    for term in sp.Add.make_args(sp.expand(whole)):
        if (read := _term(term)) is None:
            return None
        power, rate, coefficient = read
        found[power, rate] = found.get((power, rate), 0) + coefficient
    found = {key: value for key, value in found.items() if value != 0}
    if errors and not set(found) <= {(0, sp.S.Zero), (1, sp.S.Zero)}:
        return None
    few = len(found) <= MOST_TERMS and all(power <= MOST_POWER for power, _ in found)
    return (found, errors) if few else None


def _terms(expr: Any) -> int:
    """Return a bound on the number of terms of an expression after expansion."""
    inner = [_terms(part) for part in expr.args]
    if expr.is_Add:
        return sum(inner)
    if expr.is_Mul:
        return math.prod(inner)
    if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
        count, power = min(inner[0], MOST_EXPANDED), min(int(expr.exp), MOST_EXPANDED)
        return math.comb(count + power - 1, count - 1)
    waves = isinstance(expr, TrigonometricFunction | HyperbolicFunction)
    return max(inner, default=1) * (2 if waves else 1)


def _term(term: sp.Expr) -> tuple[int, sp.Expr, sp.Expr] | None:
    """Return (n, rate, coefficient) for a term ``coefficient x^n e^(rate x)``, otherwise None."""
    power, rate, coefficient = 0, sp.S.Zero, sp.S.One
    for factor in sp.Mul.make_args(sp.powsimp(term)):
        if not factor.has(X):
            coefficient *= factor
            continue
        base, exponent = factor.as_base_exp()
        if base == X and exponent.is_Integer and exponent > 0:
            power += int(exponent)
        elif isinstance(factor, sp.exp) and sp.diff(factor.args[0], X, 2) == 0:
            rate += sp.diff(factor.args[0], X)
            coefficient *= sp.exp(factor.args[0].subs(X, 0))
        else:
            return None
    return (power, rate, coefficient) if not rate.has(X) else None


@lru_cache(maxsize=256)
def _kernel(expr: sp.Expr) -> sp.Expr:
    """Return E[phi(u) phi(v)] in Q1, Q2 and K."""
    terms, errors = _split(expr)  # type: ignore[misc]
    total: Any = sum(
        one * two * _pair(n, m, a, b)
        for (n, a), one in terms.items()
        for (m, b), two in terms.items()
    )
    linear = terms.get((1, sp.S.Zero), 0)
    for b, one in errors.items():
        total += linear * one * K * (_erf_slope(b, Q1) + _erf_slope(b, Q2))
        for d, two in errors.items():
            root = sp.sqrt((1 + 2 * b**2 * Q1) * (1 + 2 * d**2 * Q2))
            total += one * two * 2 / sp.pi * sp.asin(2 * b * d * K / root)
    return _hyperbolic(_real(total))


def _hyperbolic(expr: sp.Expr) -> sp.Expr:
    """Rewrite f e^(r K) + g e^(-r K) as (f + g) cosh(r K) + (f - g) sinh(r K)."""
    parts: dict[sp.Expr, sp.Expr] = {}
    for term in sp.Add.make_args(expr):
        waves: list[Any] = [f for f in sp.Mul.make_args(term) if isinstance(f, sp.exp)]
        exponent = sp.expand(sp.Add(*(wave.args[0] for wave in waves)))
        rate = exponent.coeff(K, 1)
        rest = term / sp.Mul(*waves) * sp.exp(sp.factor_terms(exponent - rate * K))
        parts[rate] = parts.get(rate, 0) + rest
    out = []
    for rate, rest in parts.items():
        other = parts.get(-rate)
        if rate == 0 or other is None:
            out.append(rest * sp.exp(rate * K))
        elif not rate.could_extract_minus_sign():
            out.append(sp.expand(rest + other) * sp.cosh(rate * K))
            out.append(sp.expand(rest - other) * sp.sinh(rate * K))
    return sp.Add(*out)


@lru_cache(maxsize=1024)
def _pair(n: int, m: int, a: sp.Expr, b: sp.Expr) -> sp.Expr:
    """Return E[u^n e^(a u) v^m e^(b v)]."""
    whole = sp.exp((A**2 * Q1 + 2 * A * B * K + B**2 * Q2) / 2)
    return sp.diff(sp.diff(whole, A, n), B, m).subs({A: a, B: b}, simultaneous=True)


def _erf_slope(b: sp.Expr, q: sp.Expr) -> sp.Expr:
    """Return the expected derivative of erf(b u), for u with variance q."""
    return 2 * b / sp.sqrt(sp.pi * (1 + 2 * b**2 * q))


@lru_cache(maxsize=256)
def _mean(expr: sp.Expr) -> sp.Expr:
    terms, _ = _split(expr)  # type: ignore[misc]
    return _real(sum(one * _pair(n, 0, a, sp.S.Zero) for (n, a), one in terms.items()))


@lru_cache(maxsize=256)
def _mean_slope(expr: sp.Expr) -> sp.Expr:
    terms, errors = _split(expr)  # type: ignore[misc]
    total: Any = sum(
        one * (a * _pair(n, 0, a, sp.S.Zero) + (n * _pair(n - 1, 0, a, sp.S.Zero) if n else 0))
        for (n, a), one in terms.items()
    )
    return _real(total + sum(one * _erf_slope(b, Q1) for b, one in errors.items()))


def _real(value: Any) -> Any:
    """Rewrite a real-valued sum of complex exponentials without i, assuming real symbols."""
    value = sp.sympify(value, strict=True)
    names = {s: sp.Dummy(s.name, real=True) for s in value.free_symbols - {Q1, Q2, K}}
    real = sp.expand(value.xreplace(names))
    if real.has(sp.I):
        real = sp.re(real).expand(complex=True)
    return sp.expand(real).xreplace({dummy: symbol for symbol, dummy in names.items()})
