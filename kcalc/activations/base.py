"""The activation: an expression in one real symbol, its kinks, its numerics; and the activations made of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import sympy as sp
from sympy.core.function import AppliedUndef

from kcalc.activations.local import LocalMaps
from kcalc.activations.pieces import X, compile_pieces, exact_jumps, landmark, resolve, rounded_jumps, sampled_jumps
from kcalc.activations.transformation import Transformation
from kcalc.arguments import derivative_order
from kcalc.errors import KcalcError
from kcalc.fields import NUMPY, SYMPY
from kcalc.jax_field import is_jax
from kcalc.quadrature import Array

__all__ = ["Activation", "X"]

_NARROW = 0.25


@dataclass(frozen=True, eq=False, repr=False)
class Activation(LocalMaps):
    """A function phi of one real variable, immutable, equal to another with the same expression and kinks.

    name: how it prints.  expr: SymPy expression in ``X``.  kinks: sorted SymPy numbers where phi or any derivative jumps.
    degree: of positive homogeneity, phi(a x) = a^degree phi(x) for a > 0, or None.
    stable: optional expressions of phi, phi', ... that do not overflow where ``expr`` would; the last one given is differentiated further.
    growth: optional (A, p, B) with |phi(x)| <= A (1+|x|)^p exp(B|x|), for certified integrals where no such bound can be derived.
    """

    name: str
    expr: sp.Expr
    kinks: tuple[sp.Expr, ...] = ()
    degree: int | None = None
    stable: tuple[sp.Expr, ...] = field(default=(), repr=False)
    growth: tuple[float, float, float] | None = field(default=None, repr=False)

    # --- identity ------------------------------------------------------------------------------------------------------------------

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return (self.expr, self.kinks)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Activation) and self._hash == other._hash and self._key == other._key)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the fields, not the compiled functions and caches."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __repr__(self) -> str:
        text = str(self.expr)
        return f"<activation {self.name}: {text if len(text) <= 60 else text[:57] + '...'}>"

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {sp.latex(self.expr)}$"

    @property
    def base(self) -> Activation:
        """The activation this one is an affine transformation of; itself if it is none."""
        return self

    @property
    def transformation(self) -> Transformation | None:
        """The four constants that lead from ``base`` here, or None."""
        return None

    # --- the function --------------------------------------------------------------------------------------------------------------

    @cached_property
    def numeric_only(self) -> bool:
        """Whether a callable is inside: then there are no closed forms, and no digits beyond double precision."""
        return self.expr.has(AppliedUndef)

    def refuse_numeric_only(self, purpose: str) -> None:
        """Raises KcalcError if a callable is inside; ``purpose`` says what cannot be had of it."""
        if self.numeric_only:
            raise KcalcError(f"activation {self.name!r} is a callable, numeric only: no {purpose}; give it as a SymPy expression")

    @cached_property
    def pieces(self) -> tuple[sp.Expr, ...]:
        """The smooth expressions between kinks, from the left."""
        if self.numeric_only:
            return (self.expr,) * (len(self.kinks) + 1)
        if not self.kinks:
            return (self.expr,)
        return tuple(resolve(self.expr, self.kinks, index) for index in range(len(self.kinks) + 1))

    @cached_property
    def kink_points(self) -> tuple[float, ...]:
        """The kinks as floats."""
        return tuple(float(k) for k in self.kinks)

    def _piece_derivatives(self, n: int) -> tuple[sp.Expr, ...]:
        known = self.__dict__.setdefault("_derivatives", {0: self.pieces})
        if n not in known:
            parts = tuple(sp.diff(piece, X) for piece in self._piece_derivatives(n - 1))
            if any(part.has(sp.DiracDelta) for part in parts):
                raise KcalcError(f"activation {self.name!r} is not smooth near a point that is not among its kinks: give it in kinks=[...]")
            known[n] = parts
        return known[n]

    def derivative_expr(self, n: int = 1) -> sp.Expr:
        """The n-th derivative away from kinks (no deltas); a Piecewise that is right-continuous where there are kinks."""
        if self.numeric_only:
            return sp.Derivative(self.expr, (X, derivative_order(n)), evaluate=isinstance(self.expr, AppliedUndef))
        parts = self._piece_derivatives(derivative_order(n))
        if not self.kinks:
            return parts[0]
        conditions = [k > X for k in self.kinks]
        return sp.Piecewise(*zip(parts, [*conditions, True], strict=True))  # type: ignore[return-value]

    def jumps(self, n: int = 0) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        """(kink, phi^(n)(kink+) - phi^(n)(kink-)) for every kink."""
        if self.numeric_only:
            return tuple(zip(self.kinks, map(sp.Float, self.jump_sizes(n)), strict=True))
        return tuple(zip(self.kinks, exact_jumps(self._piece_derivatives(derivative_order(n)), self.kinks), strict=True))

    def jump_sizes(self, n: int) -> tuple[float, ...]:
        """The jumps of phi^(n) as floats, rounding residues set to zero."""
        known, n = self.__dict__.setdefault("_jump_sizes", {}), derivative_order(n)
        if n not in known:
            known[n] = self._find_jumps(n)
        return known[n]

    def _find_jumps(self, n: int) -> tuple[float, ...]:
        if self.numeric_only:
            return sampled_jumps(self, n)
        return rounded_jumps(self._piece_derivatives(n), self.kinks)

    @cached_property
    def landmarks(self) -> tuple[tuple[float, float], ...]:
        """(centre, width) of narrow features: where the argument of a function inside the expression is centred, and its scale."""
        inner = {arg for f in self.expr.atoms(sp.Function, sp.exp) for arg in f.args} | {p.base for p in self.expr.atoms(sp.Pow)}
        found = {mark for arg in inner if isinstance(arg, sp.Expr) for mark in landmark(arg)}
        return tuple(sorted((c, w) for c, w in found if w < _NARROW))

    def numeric(self, n: int = 0) -> Callable[[Array], Array]:
        """The n-th derivative away from kinks as a vectorised float64 function without overflows, right-continuous at kinks."""
        known, n = self.__dict__.setdefault("_numeric", {}), derivative_order(n)
        if n not in known:
            known[n] = self._compile(n)
        return known[n]

    def _compile(self, n: int) -> Callable[[Array], Array]:
        if not self.stable:
            return compile_pieces(self._piece_derivatives(n), self.kink_points)
        last = min(n, len(self.stable) - 1)
        expr = sp.diff(self.stable[last], X, n - last) if n > last else self.stable[last]
        return compile_pieces(
            [resolve(expr, self.kinks, index) for index in range(len(self.kinks) + 1)] if self.kinks else [expr], self.kink_points
        )

    def __call__(self, x: object) -> Any:
        """phi(x) elementwise: float64, or JAX for a JAX array."""
        if is_jax(x):
            from kcalc.activations.jax_function import jax_function

            return jax_function(self)(x)
        return self.numeric(0)(np.asarray(NUMPY.number(x)))[()]

    def plot(self, axes: Any = None, q: Any = (0.1, 1.0, 10.0)) -> Any:
        """Draw phi, its Q map and its C maps at several q on three Axes; see :func:`kcalc.cards.card`."""
        from kcalc.cards import card

        return card(self, axes, q)

    # --- new activations from old --------------------------------------------------------------------------------------------------

    def transformed(self, input_scale: Any = 1, input_shift: Any = 0, output_scale: Any = 1, output_shift: Any = 0) -> Activation:
        """output_scale * (phi(input_scale x + input_shift) + output_shift)  [DKS section 4]; itself for the identity.

        Raises KcalcError for zero scales and for constants that are not real numbers.
        """
        numbers = (SYMPY.number(value) for value in (input_scale, input_shift, output_scale, output_shift))
        from kcalc.activations.derived import transform

        return transform(self, Transformation(*numbers))

    def composed(self, inner: Activation) -> Activation:
        """The activation phi(psi(x)) with ``inner`` as psi.  Raises KcalcError unless it is an activation."""
        from kcalc.activations.derived import compose

        return compose(self, inner)
