"""A function of one real variable: expression, kinks, derivatives and numerical evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import sympy as sp
from sympy.core.function import AppliedUndef

from kcalc.activations.jax_function import JaxFunction, jax_function, piecewise, stable_derivative
from kcalc.activations.jumps import (
    beside,
    exact_jumps,
    may_be_rough,
    rounded_jumps,
    sampled_jumps,
    steepness,
)
from kcalc.activations.pieces import X, compile_pieces, landmark, smooth_pieces
from kcalc.activations.tails import Tails
from kcalc.fields import NUMPY, SYMPY
from kcalc.fields.arguments import Number, Numbers, derivative_order
from kcalc.fields.jax_field import is_jax
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.formulas import exact
from kcalc.foundation.plain_arguments import mapping
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.quadrature import Array

if TYPE_CHECKING:
    from jax import Array as JaxArray

_NARROW = 0.25


@dataclass(frozen=True, eq=False, repr=False)
class PiecewiseFunction:
    """A function of one real variable that is smooth between its kinks; immutable.

    Its fields are those of :class:`kcalc.activations.Activation`.
    """

    name: str
    expr: sp.Expr
    kinks: tuple[sp.Expr, ...] = ()
    degree: int | None = None
    stable: tuple[sp.Expr, ...] = field(default=(), repr=False)
    growth: tuple[float, float, float] | None = field(default=None, repr=False)
    tails: Tails = field(default=(None, None), repr=False)

    # --- identity ---------------------------------------------------------------------------------

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return (self.expr, self.kinks)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, PiecewiseFunction)
            and self._hash == other._hash
            and self._key == other._key
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state: the fields, without compiled functions and caches."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __repr__(self) -> str:
        text = str(self.expr)
        return f"<activation {self.name}: {text if len(text) <= 60 else text[:57] + '...'}>"

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {sp.latex(self.expr)}$"

    # --- symbols ----------------------------------------------------------------------------------

    @cached_property
    def free_symbols(self) -> frozenset[sp.Symbol]:
        """The symbols in the function's constants, such as a in leaky_relu(a)."""
        return frozenset(self.expr.free_symbols - {X})  # type: ignore[arg-type]

    def refuse_symbols(self, purpose: str) -> None:
        """Raise KcalcError if a constant is a symbol.

        ``purpose`` names the result that needs numbers.
        """
        if self.free_symbols:
            named = ", ".join(sorted(symbol.name for symbol in self.free_symbols))
            raise KcalcError(
                f"activation {self.name!r} contains the symbol {named}, but {purpose} needs "
                "numbers; substitute numbers with .subs({...})"
            )

    def subs(self, values: Mapping[Any, Any]) -> Self:
        """Substitute numbers or other expressions for symbols in the constants.

        ``values`` is a mapping {symbol: value}; anything else raises KcalcError.
        """
        given = {
            symbol: SYMPY.number(exact(value))
            for symbol, value in mapping(values, "values").items()
        }
        return self._substituted(given) if self.free_symbols else self

    def _substituted(self, values: Mapping[Any, Any]) -> Self:
        """Substitute values in the expressions and kinks.

        Classes that store further constants override this method.
        """
        given = {symbol: value for symbol, value in values.items() if symbol != X}
        expr, *stable = (e.subs(given) for e in (self.expr, *self.stable))
        kinks = sorted((kink.subs(given) for kink in self.kinks), key=float)
        changed = {"kinks": tuple(kinks), "stable": tuple(stable), "tails": (None, None)}
        return replace(self, expr=expr, **changed)

    # --- the function -----------------------------------------------------------------------------

    @cached_property
    def numeric_only(self) -> bool:
        """Whether the expression contains a callable.

        Such a function has no closed forms and no digits beyond double precision.
        """
        return self.expr.has(AppliedUndef)

    def refuse_numeric_only(self, purpose: str) -> None:
        """Raise KcalcError if the expression contains a callable.

        ``purpose`` names the result that is unavailable.
        """
        if self.numeric_only:
            raise KcalcError(
                f"activation {self.name!r} is a Python callable, which can be evaluated only "
                f"numerically, so it has no {purpose}; pass it as a SymPy expression"
            )

    @cached_property
    def pieces(self) -> tuple[sp.Expr, ...]:
        """The smooth expressions between the kinks, from left to right."""
        if self.numeric_only:
            return (self.expr,) * (len(self.kinks) + 1)
        return tuple(smooth_pieces(self.expr, self.kinks))

    @cached_property
    def kink_points(self) -> tuple[float, ...]:
        """The kinks as floats."""
        return tuple(float(k) for k in self.kinks)

    def _piece_derivatives(self, n: int) -> tuple[sp.Expr, ...]:
        known = self.__dict__.setdefault("_derivatives", {0: self.pieces})
        if n not in known:
            parts = tuple(sp.diff(piece, X) for piece in self._piece_derivatives(n - 1))
            if any(part.has(sp.DiracDelta) for part in parts):
                raise KcalcError(
                    f"activation {self.name!r} is not smooth at a point that is not among its "
                    "kinks; add this point to kinks=[...]"
                )
            known[n] = parts
        return known[n]

    def derivative_expr(self, n: int = 1) -> sp.Expr:
        """Return the n-th derivative away from kinks, without deltas at jumps.

        If there are kinks, the result is a right-continuous Piecewise.
        """
        if self.numeric_only:
            return sp.Derivative(
                self.expr, (X, derivative_order(n)), evaluate=isinstance(self.expr, AppliedUndef)
            )
        parts = self._piece_derivatives(derivative_order(n))
        if not self.kinks:
            return parts[0]
        conditions = [k > X for k in self.kinks]
        return sp.Piecewise(*zip(parts, [*conditions, True], strict=True))  # type: ignore[return-value]

    def jumps(self, n: int = 0) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        """Return (kink, phi^(n)(kink+) - phi^(n)(kink-)) for every kink."""
        if self.numeric_only:
            return tuple(zip(self.kinks, map(sp.Float, self.jump_sizes(n)), strict=True))
        found = exact_jumps(self._piece_derivatives(derivative_order(n)), self.kinks)
        if not self.free_symbols:  # a rounding residue is not a jump
            sizes = self.jump_sizes(n)
            found = tuple(j if size else sp.S.Zero for j, size in zip(found, sizes, strict=True))
        return tuple(zip(self.kinks, found, strict=True))

    def jump_sizes(self, n: int) -> tuple[float, ...]:
        """Return the jumps of phi^(n) as floats, with rounding residues set to 0."""
        known, n = self.__dict__.setdefault("_jump_sizes", {}), derivative_order(n)
        if n not in known:
            known[n] = self._symbolic_jumps(n) if self.free_symbols else self._find_jumps(n)
        return known[n]

    def _symbolic_jumps(self, n: int) -> tuple[float, ...]:
        sizes = [sp.simplify(size) for _, size in self.jumps(n)]
        if any(size.free_symbols for size in sizes):
            self.refuse_symbols(f"the size of the jumps in its derivative of order {n}")
        return tuple(map(float, sizes))

    def _find_jumps(self, n: int) -> tuple[float, ...]:
        if self.numeric_only:
            return sampled_jumps(self, n)
        return rounded_jumps(self._piece_derivatives(n), self.kinks)

    @cached_property
    def rough(self) -> bool:
        """Whether phi or a derivative up to the third is infinite at a kink, as for sqrt|x|."""
        if not self.kinks or self.numeric_only or self.free_symbols:
            return False
        return any(map(may_be_rough, self.pieces)) and any(map(any, map(self.steepness, range(4))))

    @cached_property
    def scale_free(self) -> bool:
        """Whether phi(a x) = a^p phi(x) for all a > 0 and some real p."""
        if self.degree is not None:
            return True
        if not self.rough or self.kink_points != (0.0,):
            return False
        t = sp.Symbol("t", positive=True)
        sides = [piece.subs(X, x) for piece, x in zip(self.pieces, (-t, t), strict=True)]
        powers = {sp.simplify(t * sp.diff(f, t) / f) for f in sides if f != 0}
        return len(powers) == 1 and all(power.is_number for power in powers)

    def steepness(self, n: int) -> tuple[float, ...]:
        """Return, for each kink k, the p such that phi^(n) grows like |x - k|^-p.

        The value is 0 if phi^(n) is bounded near k.
        """
        known = self.__dict__.setdefault("_steepness", {})
        if self.numeric_only:
            return (0.0,) * len(self.kinks)
        if n not in known:
            known[n] = steepness(self._piece_derivatives(n), self.kinks)
        return known[n]

    def strengths(self, n: int) -> tuple[float, ...]:
        """Return, for each kink k, the order p of the singularity |x - k|^-p of phi^(n).

        Here phi^(n) is a distribution: a jump of phi^(m) with m < n counts as order n - m.
        """
        found = np.array(self.steepness(n))
        for m in range(n):
            jumps = np.array(self.jump_sizes(m) if self.numeric_only else self._finite_jumps(m))
            found[jumps != 0] = np.maximum(found[jumps != 0], n - m)
        return tuple(found.tolist())

    def _finite_jumps(self, n: int) -> list[float]:
        """Return the jumps of phi^(n); 0 at kinks where phi^(n) is infinite."""
        parts, found = self._piece_derivatives(n), []
        for index, p in enumerate(self.steepness(n)):
            pair, kink = parts[index : index + 2], self.kinks[index : index + 1]
            found.append(0.0 if p else rounded_jumps(pair, kink)[0])
        return found

    def beside(self, n: int, index: int, side: int, distances: Array) -> Array:
        """Return phi^(n) at small distances to the right (side 1) or left (side -1) of a kink."""
        piece = self._piece_derivatives(n)[index + (side > 0)]
        return beside(piece, self.kinks[index], side, distances)

    @cached_property
    def landmarks(self) -> tuple[tuple[float, float], ...]:
        """The (centre, width) of each narrow feature.

        Centre and width come from the arguments of the functions and powers in the expression.
        """
        inner = {arg for f in self.expr.atoms(sp.Function, sp.exp) for arg in f.args} | {
            p.base for p in self.expr.atoms(sp.Pow)
        }
        found = {mark for arg in inner if isinstance(arg, sp.Expr) for mark in landmark(arg)}
        return tuple(sorted((c, w) for c, w in found if w < _NARROW))

    def numeric(self, n: int = 0) -> Callable[[Array], Array]:
        """Return the n-th derivative away from kinks as a vectorised float64 function.

        The function does not overflow and is right-continuous at kinks.
        """
        self.refuse_symbols("its value")
        known, n = self.__dict__.setdefault("_numeric", {}), derivative_order(n)
        if n not in known:
            known[n] = self._compile(n)
        return known[n]

    def _compile(self, n: int) -> Callable[[Array], Array]:
        if not self.stable:
            return compile_pieces(self._piece_derivatives(n), self.kink_points)
        return compile_pieces(
            smooth_pieces(stable_derivative(self, n), self.kinks), self.kink_points
        )

    @overload
    def __call__(self, x: JaxArray) -> JaxArray: ...
    @overload
    def __call__(self, x: Number) -> float: ...
    @overload
    def __call__(self, x: Numbers) -> Array: ...
    def __call__(self, x: object) -> JaxArray | float | Array:
        """Evaluate phi(x) elementwise, in float64 or, for a JAX array, in JAX."""
        if is_jax(x):
            return jax_function(self)(x)
        return self.numeric(0)(np.asarray(NUMPY.number(x)))[()]

    def jax_values(self, n: int) -> JaxFunction:
        """Return the derivative phi^(n) as a function of JAX arrays of floats.

        The function has the form that :func:`kcalc.activations.jax_function.jax_function` expects.
        """
        return piecewise(self, n)

    def refuse_rough(self, purpose: str) -> None:
        """Raise KcalcError if a derivative is infinite at a kink.

        ``purpose`` names the result that needs the derivative.
        """
        if self.rough:
            raise KcalcError(
                f"a derivative of activation {self.name!r} is infinite at a kink, so there are no "
                f"{purpose}; evaluate its Q and C maps with NumPy"
            )
