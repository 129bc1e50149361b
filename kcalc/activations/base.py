"""The activation: an expression in one real symbol, its kinks, its numerics, and optional closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy as sp

from kcalc.activations.local import LocalMaps
from kcalc.activations.pieces import X, compile_pieces, resolve, side_value
from kcalc.fields import NUMPY, SYMPY
from kcalc.quadrature import Array

if TYPE_CHECKING:
    from kcalc.activations.derived import Transformation

__all__ = ["Activation", "X"]


@dataclass(frozen=True, eq=False, repr=False)
class Activation(LocalMaps):
    """A function phi of one real variable, immutable, equal to another with the same expression and kinks.

    name: how it prints.  expr: SymPy expression in ``X``.  kinks: sorted SymPy numbers where phi or any derivative jumps.
    degree: of positive homogeneity, phi(a x) = a^degree phi(x) for a > 0, or None.
    stable: optional expressions of phi, phi', ... that do not overflow where ``expr`` would; the last one given is differentiated further.
    """

    name: str
    expr: sp.Expr
    kinks: tuple[sp.Expr, ...] = ()
    degree: int | None = None
    stable: tuple[sp.Expr, ...] = field(default=(), repr=False)

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
    def pieces(self) -> tuple[sp.Expr, ...]:
        """The smooth expressions between kinks, from the left."""
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
            known[n] = tuple(sp.diff(piece, X) for piece in self._piece_derivatives(n - 1))
        return known[n]

    def derivative_expr(self, n: int = 1) -> sp.Expr:
        """The n-th derivative away from kinks (no deltas); a Piecewise that is right-continuous where there are kinks."""
        parts = self._piece_derivatives(n)
        if not self.kinks:
            return parts[0]
        conditions = [k > X for k in self.kinks]
        return sp.Piecewise(*zip(parts, [*conditions, True], strict=True))  # type: ignore[return-value]

    def jumps(self, n: int = 0) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        """(kink, phi^(n)(kink+) - phi^(n)(kink-)) for every kink."""
        parts = self._piece_derivatives(n)
        return tuple(
            (k, sp.simplify(side_value(right, k, "+") - side_value(left, k, "-")))
            for k, left, right in zip(self.kinks, parts, parts[1:], strict=False)
        )

    def jump_sizes(self, n: int) -> tuple[float, ...]:
        """The jumps of phi^(n) as floats, rounding residues set to zero."""
        known = self.__dict__.setdefault("_jump_sizes", {})
        if n not in known:
            sizes = [float(jump) for _, jump in self.jumps(n)]
            known[n] = tuple(size if abs(size) > 1e-14 else 0.0 for size in sizes)
        return known[n]

    def numeric(self, n: int = 0) -> Callable[[Array], Array]:
        """The n-th derivative away from kinks as a vectorised float64 function without overflows, right-continuous at kinks."""
        known = self.__dict__.setdefault("_numeric", {})
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
        """phi(x) in float64, elementwise."""
        return self.numeric(0)(np.asarray(NUMPY.number(x)))[()]

    # --- new activations from old --------------------------------------------------------------------------------------------------

    def transformed(self, input_scale: Any = 1, input_shift: Any = 0, output_scale: Any = 1, output_shift: Any = 0) -> Activation:
        """output_scale * (phi(input_scale x + input_shift) + output_shift)  [DKS section 4]; itself for the identity.

        Raises KcalcError for zero scales and for constants that are not real numbers.
        """
        from kcalc.activations.derived import Transformation, transform

        numbers = (SYMPY.number(value) for value in (input_scale, input_shift, output_scale, output_shift))
        return transform(self, Transformation(*numbers))

    def composed(self, inner: Activation) -> Activation:
        """The activation phi(psi(x)) with ``inner`` as psi."""
        from kcalc.activations.derived import compose

        return compose(self, inner)
