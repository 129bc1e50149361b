"""Activations: functions of one real variable, with their kernel quantities in every field.

The kernel quantities are the mean, Q(q) = E phi(sqrt q z)^2, and C with its derivatives with
respect to c:

    C(c, q1, q2) = E[phi(sqrt q1 x) phi(sqrt q2 (c x + sqrt(1-c^2) y))] / sqrt(Q(q1) Q(q2)).

An activation class may override the ``_closed_*`` hooks. Each hook is written once and works in
every field. If a hook returns None, the quantity is integrated numerically (NumPy, mpmath) or
printed as an undefined function (SymPy).

This module also defines transformed and composed activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import sympy as sp

from kcalc.activations import double_precision, truncated
from kcalc.activations.composed import chain_rule, composed_kinks
from kcalc.activations.double_precision import EXTREME, broadcast, finite, positive, series, spread
from kcalc.activations.jax_function import JaxFunction, differentiated, jax_function
from kcalc.activations.local_map import LocalCMap, LocalQMap
from kcalc.activations.pieces import X
from kcalc.activations.piecewise_function import PiecewiseFunction
from kcalc.activations.transformation import Transformation, moved_kinks, shifted_ratio
from kcalc.fields import NUMPY, SYMPY, Field, Number
from kcalc.fields.arguments import derivative_order, symbolic_q
from kcalc.fields.gaps import Gap
from kcalc.fields.jets import Jet, JetField
from kcalc.fields.systems import as_field
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.formulas import formula_name
from kcalc.foundation.guests import DRAWINGS, KERNELS
from kcalc.foundation.plain_arguments import whole
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations import q_series
from kcalc.gaussian.expectations import single as expectations
from kcalc.gaussian.expectations.quadrature import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Activation", "Transformed", "X", "checked", "transform"]


@dataclass(frozen=True, eq=False, repr=False)
class Activation(PiecewiseFunction):
    """An immutable function phi of one real variable.

    Activations with the same expression and kinks are equal.

    Parameters
    ----------
    name
        The printed name.
    expr
        A SymPy expression in ``X``.
    kinks
        Sorted SymPy numbers where phi or any derivative jumps.
    degree
        The degree of positive homogeneity, phi(a x) = a^degree phi(x) for a > 0, or None.
    stable
        Optional expressions for phi, phi', ... that do not overflow where ``expr`` would. Higher
        derivatives are derived from the last one given.
    growth
        Optional (A, p, B) with |phi(x)| <= A (1+|x|)^p exp(B|x|). Certified integrals use it if no
        such bound can be derived.
    tails
        The behaviour of phi and its first two derivatives at infinity, for bounds on the whole
        line.

    """

    closed_in_numpy: ClassVar[bool] = False
    """Whether closed forms keep relative accuracy at every gap; if not, NumPy uses quadrature."""

    closed_over_jets: ClassVar[bool] = True
    """Whether the closed form of Q has an accurate Taylor series in q."""

    # --- hooks: closed forms over any field; None if unknown -----------------------------------

    def _closed_mean(self, q: Number, field: Field) -> Number | None:
        return truncated.mean(self, q, field)

    def _closed_second_moment(self, q: Number, field: Field) -> Number | None:
        return truncated.second_moment(self, q, field)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number | None:
        return truncated.mean_slope(self, q, field)

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number | None:
        """Return 1 - C(1 - gap, q1, q2) in closed form, or None without a closed form."""
        return None

    def _closed_derivatives(
        self, gap: Number, q1: Number, q2: Number, field: Field
    ) -> tuple[Number, Number] | None:
        """Return (C', C'') at c = 1 - gap in closed form, or None without a closed form.

        A divergent derivative is returned as inf.
        """
        return None

    @property
    def has_closed_form(self) -> bool:
        """Whether both Q and C have closed forms in elementary functions and erf."""
        q = sp.Symbol("q", positive=True)
        return (
            self._closed_second_moment(q, SYMPY) is not None
            and self._closed_gap(sp.Symbol("u"), q, q, SYMPY) is not None
        )

    @cached_property
    def c_map(self) -> LocalCMap:
        """The local C map, ``phi.c_map(c, q=1)`` or ``phi.c_map(c, q1, q2)``.

        It also has derivatives, a power series, fixed points, enclosures and plots.
        """
        return LocalCMap(self)

    @cached_property
    def q_map(self) -> LocalQMap:
        """The local Q map, ``phi.q_map(q)``.

        It also has derivatives, fixed points, enclosures and plots.
        """
        return LocalQMap(self)

    def q_expr(self, q: object = 1) -> sp.Expr | None:
        """Return Q(q) in SymPy, for a number or a positive symbol q.

        Parameters
        ----------
        q
            A number > 0 or a positive SymPy symbol.

        Returns
        -------
        sp.Expr | None
            Q(q), or None if no closed form is known.

        """
        return self._closed_second_moment(symbolic_q(q, "q", "q_expr(q=1)"), SYMPY)

    def c_expr(self, c: object, q1: object = 1, q2: object = None) -> sp.Expr | None:
        """Return C(c, q1, q2) in SymPy in textbook form.

        Parameters
        ----------
        c
            A number in [-1, 1] or a SymPy symbol.
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.

        Returns
        -------
        sp.Expr | None
            C(c, q1, q2), or None if no closed form is known.

        """
        first = SYMPY.number(q1)
        gap = self._closed_gap(
            1 - SYMPY.number(c), first, first if q2 is None else SYMPY.number(q2), SYMPY
        )
        return None if gap is None else 1 - gap

    # --- one-dimensional quantities ---------------------------------------------------------------

    def mean(self, q: object = 1, field: Field = NUMPY) -> Number:
        """Return E phi(sqrt(q) z).

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.
        field
            The number system to compute in, NumPy by default.

        Returns
        -------
        Number
            The mean, with the shape of ``q``.

        Raises
        ------
        KcalcError
            For q <= 0 and divergent expectations.

        """
        return self._moment("M", self._closed_mean, expectations.mean, q, field)

    def second_moment(self, q: object = 1, field: Field = NUMPY) -> Number:
        """Return Q(q) = E phi(sqrt(q) z)^2.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.
        field
            The number system to compute in, NumPy by default.

        Returns
        -------
        Number
            Q(q), with the shape of ``q``.

        Raises
        ------
        KcalcError
            For q <= 0 and divergent expectations.

        """
        return self._moment("Q", self._closed_second_moment, expectations.second_moment, q, field)

    def mean_slope(self, q: object = 1, field: Field = NUMPY) -> Number:
        """Return E phi'(sqrt(q) z), with delta functions in phi' at the jumps of phi.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.
        field
            The number system to compute in, NumPy by default.

        Returns
        -------
        Number
            The mean slope, with the shape of ``q``.

        """
        return self._moment("D", self._closed_mean_slope, expectations.mean_slope, q, field)

    def q_slope(self, q: object = 1, field: Field = NUMPY) -> Number:
        """Return dQ/dq = E[phi(sqrt q z) phi'(sqrt q z) z]/sqrt q, plus terms for the jumps of phi.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.
        field
            The number system to compute in, NumPy by default.

        Returns
        -------
        Number
            dQ/dq, with the shape of ``q``.

        """
        if field is SYMPY:
            symbol = sp.Symbol("q", positive=True)
            return sp.diff(self.second_moment(symbol, SYMPY), symbol).subs(symbol, SYMPY.number(q))
        return self._moment("", self._closed_q_slope, expectations.q_slope, q, field)

    def _closed_q_slope(self, q: Number, field: Field) -> Number | None:
        """Return dQ/dq from the closed form of Q, evaluated at a jet."""
        if field is not NUMPY or not self.closed_over_jets:
            return None
        series = self._closed_second_moment(Jet.variable(q, 1), JetField(field))
        return (
            series.coefficients[1] if isinstance(series, Jet) else None if series is None else 0 * q
        )

    def q_series(self, q: object, power: int, order: int) -> tuple[Array, ...]:
        """Return the Taylor coefficients in q of E phi(sqrt(q) z)^power, up to ``order``.

        Power 1 gives the mean, power 2 gives Q. NumPy only.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.
        power
            The power of phi, 1 or 2.
        order
            The highest order, an integer >= 0.

        Returns
        -------
        tuple[Array, ...]
            ``order + 1`` coefficients, each with the shape of ``q``.

        """
        return series(lambda value: q_series.moment_series(self, power, value, order), q)

    def mean_slope_series(self, q: object, order: int) -> tuple[Array, ...]:
        """Return the Taylor coefficients in q of E phi'(sqrt(q) z). NumPy only.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.
        order
            The highest order, an integer >= 0.

        Returns
        -------
        tuple[Array, ...]
            ``order + 1`` coefficients, each with the shape of ``q``.

        """
        return series(lambda value: q_series.slope_series(self, value, order), q)

    def q_product_series(self, other: Any, q: object, order: int) -> tuple[Array, ...]:
        """Return the Taylor coefficients in q of E[phi(sqrt(q) z) psi(sqrt(q) z)].

        NumPy only.

        Parameters
        ----------
        other
            The other activation, psi.
        q
            The mean square of the inputs, > 0.
        order
            The highest order, an integer >= 0.

        Returns
        -------
        tuple[Array, ...]
            ``order + 1`` coefficients, each with the shape of ``q``.

        """
        return series(lambda value: q_series.product_series(self, other, value, order), q)

    def _moment(
        self,
        letter: str,
        closed: Callable[[Number, Field], Number | None],
        integrate: Callable[..., float],
        q: object,
        field: Field,
    ) -> Number:
        q = as_field(field).number(q)
        if field is NUMPY:
            flat = positive(np.asarray(q, dtype=float))
            with np.errstate(over="ignore"):
                exact = closed(flat, field) if self.closed_in_numpy else None
            # closed forms may take powers of q, which underflow for small q
            small = self.degree is None and bool(np.any(flat < 1 / EXTREME))
            if exact is not None and not small:
                return finite(self.name, flat, spread(exact, flat.shape))
            return double_precision.moment(self, integrate, flat)
        if ("moment", field.kind) in KERNELS:
            return KERNELS["moment", field.kind](self, integrate.__name__, closed, q, field)
        exact = closed(q, field)
        if exact is not None:
            return exact
        if field is SYMPY:
            return sp.Function(f"{letter}_{formula_name(self.name)}")(q)
        self.refuse_numeric_only("digits beyond double precision")
        above_zero = integrate is expectations.second_moment
        what = f"{integrate.__name__} of {self.name} at q = {q}"
        return KERNELS["midpoints", field.kind](
            lambda balls: (self._moment(letter, closed, integrate, q, balls),),
            field,
            above_zero,
            what,
        )[0]

    # --- C ----------------------------------------------------------------------------------------

    def taylor(
        self, gap: Any, q1: Any = 1, q2: Any = None, order: int = 0, field: Field = NUMPY
    ) -> tuple[Number, ...]:
        """Return (1 - C(c, q1, q2), C'(c), C''(c)/2, ..., C^(order)(c)/order!) at c = 1 - gap.

        NumPy broadcasts ``gap``, ``q1`` and ``q2``. Derivatives that diverge at c = +-1 are
        infinite. A :class:`kcalc.fields.gaps.Gap` keeps the digits of 1 + c near c = -1.

        Parameters
        ----------
        gap
            1 - c, in [0, 2].
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        order
            The highest order, an integer >= 0.
        field
            The number system to compute in, NumPy by default.

        Returns
        -------
        tuple[Number, ...]
            ``order + 1`` values, each in the broadcast shape of the arguments.

        Raises
        ------
        KcalcError
            For arguments out of range, and for orders above 2 near |c| = 1 without a closed form.

        """
        rest = getattr(gap, "rest", None)
        order, gap, q1 = derivative_order(order), field.number(gap), field.number(q1)
        q2 = q1 if q2 is None else field.number(q2)
        if field is NUMPY:
            return self._taylor_numpy(gap, q1, q2, order, rest)
        if ("taylor", field.kind) in KERNELS:
            return KERNELS["taylor", field.kind](self, gap, q1, q2, order, field)
        exact = self._closed_taylor(gap, q1, q2, order, field)
        if exact is not None:
            return exact
        if field is SYMPY:
            return self._taylor_symbolic(gap, q1, q2, order)
        self.refuse_numeric_only("digits beyond double precision")
        if gap == 0 and q1 == q2 and not order:
            return (gap,)
        what = f"1 - C of {self.name} or a derivative at c = {1 - gap}"
        return KERNELS["midpoints", field.kind](
            lambda balls: self.taylor(gap, q1, q2, order, balls), field, bool(gap or q1 != q2), what
        )

    def _closed_taylor(
        self, gap: Number, q1: Number, q2: Number, order: int, field: Field
    ) -> tuple[Number, ...] | None:
        if order > 2:
            return self._closed_series(gap, q1, q2, order, field)
        value = self._closed_gap(gap, q1, q2, field)
        slopes = (
            self._closed_derivatives(gap, q1, q2, field) if order and value is not None else (0, 0)
        )
        if value is None or slopes is None:
            return None
        return (value, slopes[0], slopes[1] / 2)[: order + 1]

    def _closed_series(
        self, gap: Number, q1: Number, q2: Number, order: int, field: Field
    ) -> tuple[Number, ...] | None:
        """Return the Taylor coefficients of any order, from the closed form evaluated at a jet.

        The coefficients exist for |c| < 1 only.
        """
        series = self._closed_gap(Jet.variable(gap, order, -1), q1, q2, JetField(field))
        if series is None:
            return None
        if not isinstance(series, Jet):
            series = Jet((series, *[series * 0] * order))
        if field is NUMPY and not all(np.all(np.isfinite(a)) for a in series.coefficients):
            raise KcalcError(
                f"activation {self.name!r} has Taylor coefficients of order {order} > 2 only for "
                f"|c| < 1"
            )
        return (series.value, *(-a for a in series.coefficients[1:]))

    def _taylor_symbolic(
        self, gap: sp.Expr, q1: sp.Expr, q2: sp.Expr, order: int
    ) -> tuple[sp.Expr, ...]:
        c = sp.Symbol("c", real=True)
        uniform = q1 == q2 == 1
        closed = self._closed_gap(1 - c, q1, q2, SYMPY)
        unknown = sp.Function(f"C_{formula_name(self.name)}")(*((c,) if uniform else (c, q1, q2)))
        value = unknown if closed is None else sp.expand(1 - closed)
        here = SYMPY.cosine(gap)
        derivatives = [
            sp.diff(value, c, k).subs(c, here) / sp.factorial(k) for k in range(1, order + 1)
        ]
        return (1 - value.subs(c, here), *derivatives)

    def _taylor_numpy(
        self, gap: Array, q1: Array, q2: Array, order: int, rest: Array | None = None
    ) -> tuple[Number, ...]:
        gap, q1, q2 = broadcast(gap, q1, q2)
        rest = 2 - gap if rest is None else np.clip(np.broadcast_to(rest, gap.shape), 0.0, 2.0)
        # C does not depend on q; at q = 1 no power of q leaves double precision
        if self.scale_free:
            q1 = q2 = np.ones(gap.shape)
        if self.closed_in_numpy and all(map(self._multiplies, (q1,) if q2 is q1 else (q1, q2))):
            with np.errstate(all="ignore"):
                exact = self._closed_taylor(
                    Gap.of(gap, rest) if order <= 2 else gap, q1, q2, order, NUMPY
                )
            if exact is not None:
                if np.isnan(exact[0]).any():
                    raise KcalcError(
                        f"the C map of {self.name!r} cannot be computed in double precision at "
                        f"such a large q; use c_map.ball"
                    )
                return tuple(
                    spread(part, gap.shape) for part in (np.maximum(exact[0], 0.0), *exact[1:])
                )
        return double_precision.taylor(self, gap, rest, q1, q2, order)

    def _multiplies(self, q: Array) -> bool:
        """Whether products of several q and Q values in closed forms do not overflow."""
        with np.errstate(all="ignore"):
            return double_precision.multiplies(q, self._closed_second_moment(q, NUMPY))

    def cross_drop(
        self, other: Any, q1: Any, q2: Any, gap: Any, order: int = 0
    ) -> tuple[Number, ...]:
        """Return (G(1), G(1) - G(c), G'(c), ..., G^(order)(c)/order!) at c = 1 - gap.

        G(c) = E[phi(u) psi(v)], where psi is ``other``. The drop G(1) - G(c) is computed without
        cancellation.

        Parameters
        ----------
        other
            The other activation, psi.
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        gap
            1 - c, in [0, 2].
        order
            The highest order, an integer >= 0.

        Returns
        -------
        tuple[Number, ...]
            ``order + 2`` values, each in the broadcast shape of the arguments.

        """
        if not isinstance(other, Activation):
            raise KcalcError(
                f"expected an activation, got {glimpse(other)}; make one with kc.activation"
            )
        return double_precision.cross_drop(self, other, q1, q2, gap, order)

    def cross(
        self, other: Any, q1: Any = 1.0, q2: Any = 1.0, c: object = 0.0, order: int = 0
    ) -> tuple[Number, ...]:
        """Return Taylor coefficients in c of E[phi(sqrt q1 x) psi(sqrt q2 (c x + sqrt(1-c^2) y))].

        NumPy only.

        Parameters
        ----------
        other
            The other activation, psi.
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        c
            The cosine between the two inputs, in [-1, 1].
        order
            The highest order, an integer >= 0.

        Returns
        -------
        tuple[Number, ...]
            ``order + 1`` coefficients, each in the broadcast shape of the arguments.

        """
        cosine = np.asarray(NUMPY.number(c), dtype=float)
        top, drop, *rest = self.cross_drop(
            other, NUMPY.number(q1), NUMPY.number(q2), 1 - cosine, whole(order, "order", 0, 100)
        )
        return (top - drop, *rest)

    @property
    def base(self) -> Activation:
        """The activation before the transformation, or this activation if it is not transformed."""
        return self

    @property
    def transformation(self) -> Transformation | None:
        """The four constants that transform ``base`` into this activation, or None."""
        return None

    def plot(self, ax: Any = None, q: Any = (0.1, 1.0, 10.0)) -> Figure:
        """Draw phi, its Q map and its C maps at several q values in three panels.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.
        q
            The q values to draw.

        Returns
        -------
        Figure
            A Matplotlib figure with three panels.

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
        """Return output_scale * (phi(input_scale x + input_shift) + output_shift).

        The identity transformation returns the activation itself.

        Parameters
        ----------
        input_scale
            The factor of x, not 0.
        input_shift
            The value added to the scaled x.
        output_scale
            The factor of the result, not 0.
        output_shift
            The value added to phi before scaling.

        Returns
        -------
        Activation
            The transformed activation, with derived kinks and closed forms.

        Raises
        ------
        KcalcError
            For zero scales and for constants that are not real numbers.

        References
        ----------
        [DKS sec. 18]

        """
        numbers = (
            SYMPY.number(value) for value in (input_scale, input_shift, output_scale, output_shift)
        )
        return transform(self, Transformation(*numbers))

    def composed(self, inner: Activation) -> Activation:
        """Return the activation phi(psi(x)), where psi is ``inner``.

        Parameters
        ----------
        inner
            The inner activation, psi.

        Returns
        -------
        Activation
            phi(psi(x)), as a new activation.

        Raises
        ------
        KcalcError
            If ``inner`` is not an activation.

        """
        inner = checked(inner)
        for phi in (self, inner):
            phi.refuse_symbols("a composition")
        kinks, degrees = composed_kinks(self, inner), (self.degree, inner.degree)
        degree = None if None in degrees else math.prod(degrees)  # type: ignore[arg-type]
        expr: Any = self.expr.xreplace({X: inner.expr})
        name = f"{self.name}({inner.name})"
        return Composed(name, expr, kinks, degree, outer=self, inner=inner)


@dataclass(frozen=True, eq=False, repr=False)
class Transformed(Activation):
    """An affine transformation of ``original``.

    It keeps the closed forms of ``original`` unless the input is shifted.
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
        """Return the jumps, scaled from the jumps of the original activation.

        Transformed kinks are rounded, so one-sided limits there would show spurious jumps.
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
        inner, (a, b, scale, shift) = self.original.numeric(n), self.constants.as_floats()
        factor = scale * a**n
        return (
            (lambda x: factor * (inner(a * x + b) + shift))
            if n == 0
            else (lambda x: factor * inner(a * x + b))
        )

    def jax_values(self, n: int) -> JaxFunction:
        inner, (a, b, scale, shift) = jax_function(self.original, n), self.constants.as_floats()
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
        """Return (a^2, a, scale, shift) of the affine transformation, as numbers of the field.

        a is the input scale.
        """
        t = self.constants
        a, scale, shift = map(number_field.number, (t.input_scale, t.output_scale, t.output_shift))
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
        """Return (r, d) with 1 - C = r (1 - C_original) + d, for a shifted output.

        At equal q values d is exactly 0.
        """
        square, _, _, shift = self._constants(field)
        first, second = (self.original._closed_second_moment(square * q, field) for q in (q1, q2))
        one, two = (self.original._closed_mean(square * q, field) for q in (q1, q2))
        if first is None or second is None or one is None or two is None:
            return None
        return shifted_ratio((first, second), (one, two), shift, field)

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


@dataclass(frozen=True, eq=False, repr=False)
class Composed(Activation):
    """The activation outer(inner(x)), with derivatives from Faa di Bruno's formula."""

    outer: Activation = field(default=None)  # type: ignore[assignment]
    inner: Activation = field(default=None)  # type: ignore[assignment]

    def jax_values(self, n: int) -> JaxFunction:
        outer, first = jax_function(self.outer), jax_function(self.inner)
        return differentiated(lambda x: outer(first(x)), n)

    def _compile(self, n: int) -> Callable[[Array], Array]:
        return super()._compile(n) if n > 3 else chain_rule(self.outer, self.inner, n)


def transform(activation: Activation, constants: Transformation) -> Activation:
    """Return a transformed activation; successive transformations are merged into one."""
    constants.check()
    before = activation.transformation
    base = activation.base
    if before is not None:
        constants = constants.after(before)
    if constants.is_identity:
        return base
    a, b = constants.input_scale, constants.input_shift
    scale, shift = constants.output_scale, constants.output_shift
    return Transformed(
        name=constants.label(base.name),
        expr=scale * (base.expr.xreplace({X: a * X + b}) + shift),
        kinks=moved_kinks(base, constants),
        degree=base.degree if b == shift == 0 else None,
        original=base,
        constants=constants,
    )


def checked(phi: Any) -> Activation:
    """Return ``phi``; raise KcalcError unless it is an activation."""
    if not isinstance(phi, Activation):
        raise KcalcError(f"expected an activation, got {glimpse(phi)}; make one with kc.activation")
    return phi
