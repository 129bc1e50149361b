"""The activation: an expression in one real symbol, its kinks, its numerics.

And the activations made of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

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
from kcalc.activations.local import LocalMaps
from kcalc.activations.parameters import real_expression
from kcalc.activations.pieces import (
    X,
    compile_pieces,
    landmark,
    smooth_pieces,
)
from kcalc.activations.tails import Tails
from kcalc.activations.transformation import Transformation
from kcalc.fields import NUMPY, SYMPY, Field, Number
from kcalc.fields.arguments import derivative_order
from kcalc.fields.jax_field import is_jax
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.formulas import exact
from kcalc.foundation.guests import DRAWINGS
from kcalc.foundation.plain_arguments import mapping
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.quadrature import Array

__all__ = ["Activation", "Transformed", "X", "checked", "transform"]

_NARROW = 0.25


@dataclass(frozen=True, eq=False, repr=False)
class Activation(LocalMaps):
    """An immutable function phi of one real variable.

    It is equal to another activation with the same expression and kinks.

    name: how it prints. expr: SymPy expression in ``X``. kinks: sorted SymPy numbers where phi or
    any derivative jumps. degree: of positive homogeneity, phi(a x) = a^degree phi(x) for a > 0, or
    None. stable: optional expressions of phi, phi', ... that do not overflow where ``expr`` would;
    the last one given is differentiated further. growth: optional (A, p, B) with |phi(x)| <= A
    (1+|x|)^p exp(B|x|), for certified integrals where no such bound can be derived. tails: what phi
    and its first two derivatives do far out, for their bounds on the whole line.
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
            isinstance(other, Activation) and self._hash == other._hash and self._key == other._key
        )

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state: the fields, without compiled functions and caches."""
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

    # --- symbols ----------------------------------------------------------------------------------

    def subs(self, values: Mapping[Any, Any]) -> Activation:
        """The activation with numbers, or other expressions, for symbols of its constants.

        {symbol: value}.

        Raises KcalcError for anything else.
        """
        given = {
            symbol: SYMPY.number(exact(value))
            for symbol, value in mapping(values, "values").items()
        }
        return self._substituted(given) if self.free_symbols else self

    def _substituted(self, values: Mapping[Any, Any]) -> Activation:
        """The activation at other constants.

        Classes that keep constants beside ``expr`` override it.
        """
        given = {symbol: value for symbol, value in values.items() if symbol != X}
        expr, *stable = (e.subs(given) for e in (self.expr, *self.stable))
        kinks = sorted((kink.subs(given) for kink in self.kinks), key=float)
        changed = {"kinks": tuple(kinks), "stable": tuple(stable), "tails": (None, None)}
        return replace(self, expr=expr, **changed)

    # --- the function -----------------------------------------------------------------------------

    @cached_property
    def numeric_only(self) -> bool:
        """Whether a callable is inside.

        Then there are no closed forms, and no digits beyond double precision.
        """
        return self.expr.has(AppliedUndef)

    def refuse_numeric_only(self, purpose: str) -> None:
        """Raises KcalcError if a callable is inside; ``purpose`` names the refused result."""
        if self.numeric_only:
            raise KcalcError(
                f"activation {self.name!r} is a callable, numeric only: no {purpose}; give it as "
                f"a SymPy expression"
            )

    @cached_property
    def pieces(self) -> tuple[sp.Expr, ...]:
        """The smooth expressions between kinks, from the left."""
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
                    f"activation {self.name!r} is not smooth near a point that is not among its "
                    f"kinks: give it in kinks=[...]"
                )
            known[n] = parts
        return known[n]

    def derivative_expr(self, n: int = 1) -> sp.Expr:
        """The n-th derivative away from kinks (no deltas).

        It is a Piecewise that is right-continuous where there are kinks.
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
        """(kink, phi^(n)(kink+) - phi^(n)(kink-)) for every kink."""
        if self.numeric_only:
            return tuple(zip(self.kinks, map(sp.Float, self.jump_sizes(n)), strict=True))
        found = exact_jumps(self._piece_derivatives(derivative_order(n)), self.kinks)
        if not self.free_symbols:  # a residue of rounding is no jump
            sizes = self.jump_sizes(n)
            found = tuple(j if size else sp.S.Zero for j, size in zip(found, sizes, strict=True))
        return tuple(zip(self.kinks, found, strict=True))

    def jump_sizes(self, n: int) -> tuple[float, ...]:
        """The jumps of phi^(n) as floats, rounding residues set to zero."""
        known, n = self.__dict__.setdefault("_jump_sizes", {}), derivative_order(n)
        if n not in known:
            known[n] = self._symbolic_jumps(n) if self.free_symbols else self._find_jumps(n)
        return known[n]

    def _symbolic_jumps(self, n: int) -> tuple[float, ...]:
        sizes = [sp.simplify(size) for _, size in self.jumps(n)]
        if any(size.free_symbols for size in sizes):
            self.refuse_symbols(f"the size of the jumps of its derivative of order {n}")
        return tuple(map(float, sizes))

    def _find_jumps(self, n: int) -> tuple[float, ...]:
        if self.numeric_only:
            return sampled_jumps(self, n)
        return rounded_jumps(self._piece_derivatives(n), self.kinks)

    @cached_property
    def rough(self) -> bool:
        """Whether a derivative, up to the third, is infinite at a kink, as of sqrt|x|."""
        if not self.kinks or self.numeric_only or self.free_symbols:
            return False
        return any(map(may_be_rough, self.pieces)) and any(map(any, map(self.steepness, range(4))))

    @cached_property
    def scale_free(self) -> bool:
        """Whether phi(a x) = a^p phi(x) for a > 0 and some p, a whole number or not."""
        if self.degree is not None:
            return True
        if not self.rough or self.kink_points != (0.0,):
            return False
        t = sp.Symbol("t", positive=True)
        sides = [piece.subs(X, x) for piece, x in zip(self.pieces, (-t, t), strict=True)]
        powers = {sp.simplify(t * sp.diff(f, t) / f) for f in sides if f != 0}
        return len(powers) == 1 and all(power.is_number for power in powers)

    def steepness(self, n: int) -> tuple[float, ...]:
        """p where phi^(n) grows as |x - k|^-p towards a kink k, else 0."""
        known = self.__dict__.setdefault("_steepness", {})
        if self.numeric_only:
            return (0.0,) * len(self.kinks)
        if n not in known:
            known[n] = steepness(self._piece_derivatives(n), self.kinks)
        return known[n]

    def strengths(self, n: int) -> tuple[float, ...]:
        """How singular phi^(n) is at each kink, as a distribution: p as |x - k|^-p.

        A jump of phi^(m), m < n, counts n - m.
        """
        found = np.array(self.steepness(n))
        for m in range(n):
            jumps = np.array(self.jump_sizes(m) if self.numeric_only else self._finite_jumps(m))
            found[jumps != 0] = np.maximum(found[jumps != 0], n - m)
        return tuple(found.tolist())

    def _finite_jumps(self, n: int) -> list[float]:
        """The jumps of phi^(n), 0 where it is infinite."""
        parts, found = self._piece_derivatives(n), []
        for index, p in enumerate(self.steepness(n)):
            pair, kink = parts[index : index + 2], self.kinks[index : index + 1]
            found.append(0.0 if p else rounded_jumps(pair, kink)[0])
        return found

    def beside(self, n: int, index: int, side: int, distances: Array) -> Array:
        """phi^(n) at small distances from a kink on one side of it (1 or -1)."""
        piece = self._piece_derivatives(n)[index + (side > 0)]
        return beside(piece, self.kinks[index], side, distances)

    @cached_property
    def landmarks(self) -> tuple[tuple[float, float], ...]:
        """(centre, width) of narrow features.

        Where the argument of a function inside the expression is centred, and its scale.
        """
        inner = {arg for f in self.expr.atoms(sp.Function, sp.exp) for arg in f.args} | {
            p.base for p in self.expr.atoms(sp.Pow)
        }
        found = {mark for arg in inner if isinstance(arg, sp.Expr) for mark in landmark(arg)}
        return tuple(sorted((c, w) for c, w in found if w < _NARROW))

    def numeric(self, n: int = 0) -> Callable[[Array], Array]:
        """The n-th derivative away from kinks as a vectorised float64 function.

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

    def __call__(self, x: object) -> Any:
        """phi(x) elementwise: float64, or JAX for a JAX array."""
        if is_jax(x):
            return jax_function(self)(x)
        return self.numeric(0)(np.asarray(NUMPY.number(x)))[()]

    def jax_values(self, n: int) -> JaxFunction:
        """The derivative phi^(n) on JAX arrays of floats.

        It has the form that :func:`kcalc.activations.jax_function.jax_function` expects.
        """
        return piecewise(self, n)

    def plot(self, ax: Any = None, q: Any = (0.1, 1.0, 10.0)) -> Any:
        """Draw phi, its Q map and its C maps at several q on three Axes.

        See :func:`kcalc.plotting.cards.card`.
        """
        return DRAWINGS["Activation"](self, ax, q)

    # --- new activations from old -----------------------------------------------------------------

    def transformed(
        self,
        input_scale: Any = 1,
        input_shift: Any = 0,
        output_scale: Any = 1,
        output_shift: Any = 0,
    ) -> Activation:
        """output_scale * (phi(input_scale x + input_shift) + output_shift)  [DKS sec. 18].

        Itself for the identity.

        Raises KcalcError for zero scales and for constants that are not real numbers.
        """
        numbers = (
            SYMPY.number(value) for value in (input_scale, input_shift, output_scale, output_shift)
        )
        return transform(self, Transformation(*numbers))

    def composed(self, inner: Activation) -> Activation:
        """The activation phi(psi(x)) with ``inner`` as psi.

        Raises KcalcError unless it is an activation.
        """
        from kcalc.activations.composed import compose

        return compose(self, inner)


@dataclass(frozen=True, eq=False, repr=False)
class Transformed(Activation):
    """An affine transformation of ``original``.

    Closed forms survive as long as the input is not shifted.
    """

    original: Activation = field(default=None)  # type: ignore[assignment]
    constants: Transformation = field(default=None)  # type: ignore[assignment]

    @property
    def base(self) -> Activation:
        return self.original

    @property
    def transformation(self) -> Transformation:
        return self.constants

    @property
    def closed_in_numpy(self) -> bool:  # type: ignore[override]
        return (
            self.original.closed_in_numpy
            and self.constants.output_shift == self.constants.input_shift == 0
        )

    def _find_jumps(self, n: int) -> tuple[float, ...]:
        """Those of the original, scaled.

        Transformed kinks are rounded, so that the two sides would seem to jump.
        """
        a, scale = float(self.constants.input_scale), float(self.constants.output_scale)
        jumps = [scale * a**n * jump for jump in self.original.jump_sizes(n)]
        return tuple(jumps) if a > 0 else tuple(-jump for jump in reversed(jumps))

    @cached_property
    def rough(self) -> bool:
        return self.original.rough

    @cached_property
    def scale_free(self) -> bool:
        shifted = self.constants.output_shift != 0 or self.constants.input_shift != 0
        return self.degree is not None or (not shifted and self.original.scale_free)

    def _turned(self, found: tuple[float, ...]) -> tuple[float, ...]:
        return found if float(self.constants.input_scale) > 0 else found[::-1]

    def steepness(self, n: int) -> tuple[float, ...]:
        return self._turned(self.original.steepness(n))

    def strengths(self, n: int) -> tuple[float, ...]:
        return self._turned(self.original.strengths(n))

    def beside(self, n: int, index: int, side: int, distances: Array) -> Array:
        a, scale = float(self.constants.input_scale), float(self.constants.output_scale)
        place, turn = (index, side) if a > 0 else (len(self.kinks) - 1 - index, -side)
        shift = float(self.constants.output_shift) if n == 0 else 0.0
        return scale * (a**n * self.original.beside(n, place, turn, abs(a) * distances) + shift)

    def _compile(self, n: int) -> Callable[[Array], Array]:
        inner, t = self.original.numeric(n), self.constants
        a = float(t.input_scale)
        b = float(t.input_shift)
        scale = float(t.output_scale)
        shift = float(t.output_shift)
        factor = scale * a**n
        return (
            (lambda x: factor * (inner(a * x + b) + shift))
            if n == 0
            else (lambda x: factor * inner(a * x + b))
        )

    def jax_values(self, n: int) -> JaxFunction:
        t, inner = self.constants, jax_function(self.original, n)
        a, b, scale, shift = (
            float(v) for v in (t.input_scale, t.input_shift, t.output_scale, t.output_shift)
        )
        return (
            (lambda x: scale * (inner(a * x + b) + shift))
            if n == 0
            else (lambda x: scale * a**n * inner(a * x + b))
        )

    def _substituted(self, values: Mapping[Any, Any]) -> Activation:
        numbers = (
            getattr(self.constants, item.name).subs(values) for item in fields(self.constants)
        )
        return transform(self.original.subs(values), Transformation(*numbers))

    def _constants(self, number_field: Field) -> tuple[Number, Number, Number, Number]:
        """(a^2, a, scale, shift) of the affine transformation, as numbers of the field.

        a is the input scale; a^2 serves where only the square of the input scale counts.
        """
        a, scale, shift = (
            number_field.number(v)
            for v in (
                self.constants.input_scale,
                self.constants.output_scale,
                self.constants.output_shift,
            )
        )
        return a * a, a, scale, shift

    def _unshifted(self) -> bool:
        return self.constants.input_shift == 0

    def _closed_mean(self, q: Number, field: Field) -> Number | None:
        square, _, scale, shift = self._constants(field)
        if not self._unshifted():
            return super()._closed_mean(q, field)
        inner = self.original._closed_mean(square * q, field)
        return None if inner is None else scale * (inner * 1 + shift)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number | None:
        square, a, scale, _ = self._constants(field)
        if not self._unshifted():
            return super()._closed_mean_slope(q, field)
        inner = self.original._closed_mean_slope(square * q, field)
        return None if inner is None else scale * a * inner

    def _closed_second_moment(self, q: Number, field: Field) -> Number | None:
        square, _, scale, shift = self._constants(field)
        if not self._unshifted():
            return super()._closed_second_moment(q, field)
        inner = self.original._closed_second_moment(square * q, field)
        if inner is None or shift == 0:
            return None if inner is None else scale**2 * inner
        mean = self.original._closed_mean(square * q, field)
        return None if mean is None else scale**2 * (inner + 2 * shift * mean + shift**2)

    def _ratio(self, q1: Number, q2: Number, field: Field) -> tuple[Number, Number] | None:
        """(r, d) with 1 - C = r (1 - C_original) + d, from output shifts.

        d is 0 at equal q values, without cancellation.
        """
        square, _, _, shift = self._constants(field)
        first, second = (self.original._closed_second_moment(square * q, field) for q in (q1, q2))
        one, two = (self.original._closed_mean(square * q, field) for q in (q1, q2))
        if first is None or second is None or one is None or two is None:
            return None
        norm = field.sqrt(
            (first + 2 * shift * one + shift**2) * (second + 2 * shift * two + shift**2)
        )
        root1, root2 = field.sqrt(first), field.sqrt(second)
        top = root1 * root2 + shift * (one + two) + shift**2
        apart = root1 - root2
        # norm^2 - top^2
        excess = shift * (
            shift * (apart**2 - (one - two) ** 2) + 2 * apart * (root1 * two - root2 * one)
        )
        return root1 * root2 / norm, excess / (norm * (norm + top))

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number | None:
        square = self._constants(field)[0]
        inner = (
            self.original._closed_gap(gap, square * q1, square * q2, field)
            if self._unshifted()
            else None
        )
        if inner is None or self.constants.output_shift == 0:
            return inner
        ratio = self._ratio(q1, q2, field)
        return None if ratio is None else ratio[0] * inner + ratio[1]

    def _closed_derivatives(
        self, gap: Number, q1: Number, q2: Number, field: Field
    ) -> tuple[Number, Number] | None:
        square = self._constants(field)[0]
        inner = (
            self.original._closed_derivatives(gap, square * q1, square * q2, field)
            if self._unshifted()
            else None
        )
        if inner is None or self.constants.output_shift == 0:
            return inner
        ratio = self._ratio(q1, q2, field)
        return None if ratio is None else (ratio[0] * inner[0], ratio[0] * inner[1])


def transform(activation: Activation, constants: Transformation) -> Activation:
    """``activation`` under ``constants``; transformations of transformations are merged."""
    if constants.input_scale.is_zero or constants.output_scale.is_zero:
        raise KcalcError(
            "input_scale and output_scale must not be zero: the activation would be constant"
        )
    for item in fields(constants):
        value = getattr(constants, item.name)
        if value.free_symbols:
            real_expression(value, item.name)
        elif not abs(value) < 1e150:
            raise KcalcError(f"{str(value)[:40]} is too large for a constant of an activation")
    before = activation.transformation
    base = activation.base
    if before is not None:
        constants = constants.after(before)
    if constants.is_identity:
        return base
    a = constants.input_scale
    b = constants.input_shift
    scale = constants.output_scale
    shift = constants.output_shift
    if base.kinks and a.is_positive is None and a.is_negative is None:
        raise KcalcError(
            f"{base.name} has a kink, and the sign of input_scale = {a} is not known: declare its "
            f"symbols with positive=True"
        )
    kinks = [(k - b) / a for k in base.kinks]
    if any(kink.free_symbols for kink in kinks):
        raise KcalcError(
            f"{base.name}: its kinks would lie at {', '.join(map(str, kinks))}; give numbers for "
            f"input_scale and input_shift"
        )
    return Transformed(
        name=constants.label(base.name),
        expr=scale * (base.expr.xreplace({X: a * X + b}) + shift),
        kinks=tuple(sorted(kinks, key=float)),
        degree=base.degree if b == shift == 0 else None,
        original=base,
        constants=constants,
    )


def checked(phi: Any) -> Activation:
    """``phi`` itself.  Raises KcalcError unless it is an activation."""
    if not isinstance(phi, Activation):
        raise KcalcError(
            f"{glimpse(phi)} is not an activation: make one of it with kc.activation(...)"
        )
    return phi
