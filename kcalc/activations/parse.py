"""Make activations from user input.

The input is a registered name, an Activation, a SymPy expression in one symbol, or a callable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from numbers import Number as AnyNumber
from typing import Any

import numpy as np
import sympy as sp
from sympy.core.function import AppliedUndef

from kcalc.activations.acceptance import FAR_PROBES, PROBES, check_moments, check_values, read_kinks
from kcalc.activations.base import Activation, X
from kcalc.activations.callables import from_callable
from kcalc.activations.parameters import check_constant
from kcalc.activations.pieces import (
    CORNERED,
    KINK_REACH,
    compile_pieces,
    resolve,
    smooth_pieces,
    switch_points,
)
from kcalc.activations.polynomial import polynomial
from kcalc.activations.rectifiers import abrelu
from kcalc.activations.registry import by_name, entered, same_function
from kcalc.activations.rescaled import rescaled
from kcalc.activations.term_sums import as_sum
from kcalc.fields import NUMPY, SYMPY
from kcalc.fields.degrees import check_degree, expandable
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.plain_arguments import items, utf8
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.quadrature import Array

_JUMPY = (sp.floor, sp.ceiling, sp.frac, sp.Mod, sp.DiracDelta)
_UNFINISHED = (sp.Integral, sp.Derivative, sp.Sum, sp.Product, sp.Limit, sp.Subs)
_LARGEST = sp.Float("1e300")
NAME_LENGTH = 40  # characters of an expression that serve as its name
_TELLING = (
    "positive",
    "negative",
    "nonnegative",
    "nonpositive",
    "integer",
    "nonzero",
    "imaginary",
    "not commutative",
)
_FARTHER = np.concatenate([np.linspace(KINK_REACH, 3e2, 173), np.geomspace(3e2, 2e3, 60)])


def activation(
    spec: Any, name: str | None = None, kinks: Iterable[Any] | None = None, growth: Any = None
) -> Activation:
    """Return the activation that ``spec`` describes.

    Parameters
    ----------
    spec
        A registered name or alias ("tanh", "silu"; any case), an :class:`Activation`, a SymPy
        expression in one variable, or a Python, NumPy or JAX callable (numeric only; see
        :func:`kcalc.activations.callables.from_callable`).
    name
        The name shown in results.
    kinks
        The points where the function or a derivative jumps. With None, the kinks of an expression
        are found from Piecewise, Abs, Max, Min, Heaviside and sign; a callable has no kinks.
    growth
        (A, p, B) with |phi(x)| <= A (1 + |x|)^p exp(B |x|) everywhere. You guarantee that this
        bound holds. Certified integrals require it if no bound can be derived from the formula.

    Returns
    -------
    Activation
        The catalogue entry of that name, or a new activation made from a formula or a callable.

    Raises
    ------
    KcalcError
        For unknown names (the message lists similar names), several symbols, missing kinks, and
        functions that are zero everywhere, are not real and finite on the whole line, or have no
        Gaussian second moment at any reasonable q.

    Examples
    --------
    >>> import sympy as sp
    >>> import kcalc as kc
    >>> phi = kc.activation("tanh")
    >>> print(round(phi.q_map(1.0), 6))
    0.394294
    >>> x = sp.Symbol("x", real=True)
    >>> kc.activation(sp.tanh(x) / 2, name="half").name
    'half'

    """
    if growth is not None:
        return declare_growth(activation(spec, name, kinks), growth)
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise KcalcError(f"the name of an activation must be a string, got name={glimpse(name)}")
    if name is not None:
        utf8(name, "the activation's name")
    if isinstance(spec, Activation | str):
        if kinks is not None:
            raise KcalcError(
                "kinks= can be passed with an expression or a callable, but not with an existing "
                "activation"
            )
        found = spec if isinstance(spec, Activation) else by_name(spec)
        return found if name is None else replace(found, name=name)
    if isinstance(spec, AnyNumber):
        spec = SYMPY.number(spec)
    if isinstance(spec, sp.Lambda):
        if len(spec.variables) != 1:
            raise KcalcError(
                f"an activation is a function of one symbol, but {glimpse(spec)} takes "
                f"{len(spec.variables)} symbols"
            )
        spec = spec.expr
    if isinstance(spec, sp.Poly):
        spec = spec.as_expr()
    if isinstance(spec, sp.Expr) and not getattr(spec, "is_Matrix", False):
        return _from_expression(spec, name, kinks)
    if callable(spec) and not isinstance(spec, sp.Basic):
        return from_callable(spec, name, kinks)
    raise KcalcError(
        f"cannot make an activation from a {type(spec).__name__}; pass a name, a SymPy "
        "expression in one symbol, a callable, or an Activation"
    )


def declare_growth(phi: Activation, growth: Any) -> Activation:
    """Return the activation with a declared growth bound (A, p, B).

    Raises KcalcError unless ``growth`` is three numbers, and if samples contradict the bound.
    """
    try:
        size, power, rate = (float(NUMPY.number(value)) for value in items(growth, "growth"))
    except (TypeError, ValueError):
        raise KcalcError(
            "growth must be three numbers (A, p, B) with |phi(x)| <= A (1+|x|)^p exp(B|x|), got "
            f"growth={glimpse(growth)}"
        ) from None
    if size <= 0 or power < 0 or rate < 0:
        raise KcalcError(
            f"growth=(A, p, B) must have A > 0, p >= 0 and B >= 0, got growth={glimpse(growth)}"
        )
    x = np.concatenate([PROBES, FAR_PROBES])
    with np.errstate(all="ignore"):
        excess = (
            np.log(np.abs(phi.numeric(0)(x)))
            - np.log(size)
            - power * np.log1p(np.abs(x))
            - rate * np.abs(x)
        )
    if np.any(excess > 1e-12):
        raise KcalcError(
            f"growth={glimpse(growth)} does not bound activation {phi.name!r} at x = "
            f"{x[np.nanargmax(excess)]:g}"
        )
    return replace(phi, growth=(size, power, rate))


def _from_expression(spec: sp.Expr, name: str | None, kinks: Iterable[Any] | None) -> Activation:
    given = None if kinks is None else read_kinks(kinks)
    try:
        expr = _in_x(spec)
        if len(spec.free_symbols) > 1:
            return _parametric(expr, name, given)
        candidate = _candidate(expr, name, given)
        whole = compile_pieces((expr,), ())
        _check(candidate, whole)
        candidate = _with_reach(candidate, whole)
    except KcalcError:
        raise
    except Exception as error:  # SymPy fails in many ways on unusual input
        raise KcalcError(
            f"cannot make an activation from {glimpse(spec)}: {type(error).__name__} "
            f"({str(error)[:80]})"
        ) from error
    known = _known(candidate)
    if known is not None:
        return known if name is None else replace(known, name=name)
    return (
        _as_rectifier(candidate) or rescaled(candidate, entered()) or as_sum(candidate) or candidate
    )


def _parametric(expr: sp.Expr, name: str | None, given: tuple[sp.Expr, ...] | None) -> Activation:
    """Make an activation with symbolic constants, for formulas and for later substitution."""
    label = name or str(expr)[:NAME_LENGTH]
    candidate = Activation(label, expr)
    if given or expr.has(*CORNERED) or (found := as_sum(candidate)) is None:
        raise KcalcError(
            f"{label}: only sums of powers, exponentials, sines, cosines and erf can have "
            "symbolic constants; substitute numbers with expr.subs({...}), or use a catalogue "
            f"activation with symbols, such as kc.{_with_symbols(expr)}"
        )
    return found


def _with_symbols(expr: sp.Expr) -> str:
    """Return the catalogue call to suggest for an expression with symbols.

    The call reproduces an expression that is linear on each side of 0; otherwise, it is only an
    example.
    """
    p = sp.Dummy(positive=True)
    left, right = (sp.expand(expr.subs(X, side * p) / (side * p)) for side in (-1, 1))
    if left == right or left.has(p) or right.has(p):
        return "activation('tanh').transformed(input_scale=a)"
    return (
        f"activations.leaky_relu({left})" if right == 1 else f"activations.abrelu({left}, {right})"
    )


def _as_rectifier(candidate: Activation) -> Activation | None:
    """Return the candidate as an activation with two slopes, such as Max(x, x/5), or None."""
    if candidate.kinks != (0,) or not all(
        piece.is_polynomial(X) and expandable(piece) for piece in candidate.pieces
    ):
        return None
    left, right = (piece.coeff(X, 1) for piece in candidate.pieces)
    if any(
        sp.expand(piece - slope * X) != 0
        for piece, slope in zip(candidate.pieces, (left, right), strict=True)
    ):
        return None
    return replace(abrelu(left, right), name=candidate.name, expr=candidate.expr)


def _in_x(spec: sp.Expr) -> sp.Expr:
    """Rewrite the expression in the canonical real symbol X.

    Raises KcalcError for an expression that is not a function of one real variable.
    """
    symbols: Any = spec.free_symbols
    text = str(spec)[:80]
    argument = symbols
    if len(symbols) > 1:
        argument = {symbol for symbol in symbols if symbol.name == "x"}
        listed = ", ".join(sorted(str(symbol) for symbol in symbols))
        if len(argument) != 1:
            raise KcalcError(
                f"an activation is a function of one symbol, but {text} contains {listed}; name "
                "the argument x to make the other symbols constants"
            )
        for symbol in symbols - argument:
            check_constant(symbol, text)
    for symbol in argument:
        _check_symbol(symbol)
    if spec.has(sp.nan, sp.zoo, sp.oo, -sp.oo):
        raise KcalcError(
            f"{text} contains nan or infinity, but an activation must be real and finite on the "
            "whole line"
        )
    check_degree(spec)
    if any(abs(number) > _LARGEST for number in spec.atoms(sp.Number)):
        raise KcalcError(f"{text} contains a number beyond double precision")
    expr: Any = spec.xreplace(dict.fromkeys(argument, X))
    if expr.has(AppliedUndef):
        raise KcalcError(
            f"{text} contains an undefined function; use composed and combine to build on "
            "activations made from callables"
        )
    if expr.has(*_UNFINISHED):
        raise KcalcError(
            f"{text} contains an unevaluated integral, derivative, sum or limit; call .doit() on "
            "it first"
        )
    if expr.has(*_JUMPY):
        raise KcalcError(
            f"{text} jumps infinitely often or is not a function, but an activation must be a "
            "function with finitely many kinks"
        )
    if expr.has(sp.SingularityFunction):
        expr = expr.rewrite(sp.Heaviside)
    if expr.has(sp.Contains):
        expr = expr.replace(sp.Contains, lambda element, where: where.as_relational(element))
    if expr.is_zero:
        raise KcalcError("the zero function has no C map, so it cannot be an activation")
    return expr


def _check_symbol(symbol: Any) -> None:
    """Reject symbols with assumptions other than ``real``.

    For example, SymPy simplifies Abs(x) to x if x is positive.
    """
    if not isinstance(symbol, sp.Symbol):
        raise KcalcError(
            "an activation must be an expression in a plain symbol, sp.Symbol('x', real=True), "
            f"but {symbol} is a {type(symbol).__name__}"
        )
    more = [
        f"{'' if value else 'not '}{key}"
        for key, value in symbol.assumptions0.items()
        if X.assumptions0.get(key) is not value
    ]
    if more:
        declared = next((word for word in _TELLING if word in more), more[0])
        raise KcalcError(
            f"the symbol {symbol} is declared {declared}, so SymPy may have simplified the "
            "expression in ways that are valid only under this assumption; declare the symbol as "
            f"sp.Symbol({symbol.name!r}, real=True)"
        )


def _candidate(expr: sp.Expr, name: str | None, given: tuple[sp.Expr, ...] | None) -> Activation:
    label = name or str(expr)[:NAME_LENGTH]
    if expr.is_polynomial(X):
        return polynomial(expr, label)
    if given is not None:
        return Activation(label, expr, given)
    points = switch_points(expr)
    kinks = _confirmed(expr, points)
    if expr.has(*CORNERED) and not kinks and not expr.has(sp.Eq, sp.Ne):
        expr = resolve(expr, points, 0)  # no corner is left: Abs(x^2 + 1) is x^2 + 1
        return _candidate(expr, name, given) if expr.is_polynomial(X) else Activation(label, expr)
    return Activation(label, expr, kinks)


def _confirmed(expr: sp.Expr, points: tuple[sp.Expr, ...]) -> tuple[sp.Expr, ...]:
    """Return the candidate kinks at which the expression really changes."""
    pieces = smooth_pieces(expr, points)
    return tuple(
        k for k, left, right in zip(points, pieces, pieces[1:], strict=False) if left != right
    )


def _known(candidate: Activation) -> Activation | None:
    """Return the registered activation that is the same function, or None.

    Functions are the same if their expressions are equal, or if their kinks and pieces are equal,
    as for |x| and sign(x) x.
    """
    found = same_function(candidate)
    if found is not None or not candidate.kinks:
        return found
    return next(
        (
            phi
            for phi in entered()
            if phi.kinks == candidate.kinks and phi.pieces == candidate.pieces
        ),
        None,
    )


def _check(candidate: Activation, whole: Callable[[Array], Array]) -> None:
    """Reject functions that are not real, lack Gaussian moments or have missing kinks.

    Kinks are missing if the pieces between the known kinks differ from the given expression.
    """
    pieces = compile_pieces(candidate.pieces, candidate.kink_points)
    extra = np.array(
        [c + w * step for c, w in candidate.landmarks for step in (-1.0, 0.5)] + FAR_PROBES.tolist()
    )
    probes = np.concatenate([PROBES, extra])
    with np.errstate(all="ignore"):
        values, direct = pieces(probes), whole(probes)
        apart = (
            np.isfinite(direct)
            & (np.abs(values - direct) > 1e-9 * (1 + np.abs(direct)))
            & ~np.isin(probes, candidate.kink_points)
        )
    apart &= np.abs(probes) <= KINK_REACH
    # an expanded Hermite polynomial differs from its recurrence by rounding
    if apart.any() and (candidate.kinks or not candidate.expr.is_polynomial(X)):
        raise KcalcError(
            f"activation {candidate.name!r} switches to another formula at a point that is not "
            f"among its kinks (near x = {probes[apart][0]:.4g})"
        )
    check_values(candidate, pieces, extra)
    check_moments(candidate)


# --- functions with infinitely many kinks ---------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Ranged(Activation):
    """An activation with kinks that are known only for |x| <= reach, such as max(sin x, 0).

    Values are correct everywhere. Evaluating a derivative beyond the reach raises KcalcError.
    """

    reach: float = field(default=float(KINK_REACH))

    @cached_property
    def _whole(self) -> Callable[[Array], Array]:
        return compile_pieces((self.expr,), ())

    def _compile(self, n: int) -> Callable[[Array], Array]:
        inside = super()._compile(n)

        def values(x: Array) -> Array:
            x = np.asarray(x, dtype=float)
            beyond = np.abs(x) > self.reach
            if not beyond.any():
                return inside(x)
            if n:
                raise KcalcError(
                    f"the kinks of activation {self.name!r} are known only for |x| <= "
                    f"{self.reach:g}, but it has more kinks farther out; use q values of at most "
                    f"about {(self.reach / 12.8) ** 2:.0f}"
                )
            out = inside(x)
            out[beyond] = self._whole(x[beyond])
            return out

        return values


def _with_reach(candidate: Activation, whole: Callable[[Array], Array]) -> Activation:
    """Return the candidate, with limited reach if its kinks continue beyond the searched range."""
    if not candidate.kinks:
        return candidate
    probes = np.concatenate([_FARTHER, -_FARTHER])
    with np.errstate(all="ignore"):
        values = compile_pieces(candidate.pieces, candidate.kink_points)(probes)
        direct = whole(probes)
        apart = np.isfinite(direct) & (np.abs(values - direct) > 1e-9 * (1 + np.abs(direct)))
    if not apart.any():
        return candidate
    return Ranged(candidate.name, candidate.expr, candidate.kinks)
