"""Local kernel quantities of one activation in every field.

Means, Q, and C with its derivatives in c.

C(c, q1, q2) = E[phi(sqrt q1 x) phi(sqrt q2 (c x + sqrt(1-c^2) y))] / sqrt(Q(q1) Q(q2)), Q(q) = E
phi(sqrt q z)^2.

An activation class may override the ``_closed_*`` hooks, each written once over the field; hooks
left at None are integrated numerically (NumPy, mpmath) or printed as an undefined function (SymPy).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy as sp

from kcalc.activations import truncated
from kcalc.activations.local_map import LocalCMap, LocalQMap
from kcalc.activations.pieces import X
from kcalc.fields import NUMPY, SYMPY, Field, Number
from kcalc.fields.arguments import TINY, derivative_order, symbolic_q
from kcalc.fields.gaps import Gap
from kcalc.fields.jets import Jet, JetField
from kcalc.fields.systems import as_field
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.formulas import formula_name
from kcalc.foundation.guests import KERNELS
from kcalc.foundation.plain_arguments import whole
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations import q_series
from kcalc.gaussian.expectations import single as expectations
from kcalc.gaussian.expectations.pairs import pair_map, smooth_taylor
from kcalc.gaussian.expectations.quadrature import Array
from kcalc.gaussian.expectations.single import pair_distance, pair_moment

EXTREME = 1e70  # products of four such numbers, or of their inverses, are doubles of full precision
LARGEST = 1e150  # products of two are
MANY = 8
"""From this many different pairs of q values on, smooth activations are summed together."""


def _positive(q: Array) -> Array:
    if not (
        q >= TINY
    ).all():  # np.all is several times slower for the single numbers of deep networks
        if not (q > 0).all():
            raise KcalcError(f"q = {np.min(q):g}: a q value is a mean square and must be positive")
        raise KcalcError(
            f"q = {np.min(q)} has too few digits in double precision; give at least {TINY:.3g}"
        )
    return q


def _finite(name: str, q: Array, value: Array) -> Array:
    if not np.isfinite(value).all():
        raise KcalcError(
            f"activation {name!r}: a moment at q = {q[~np.isfinite(value)].flat[0]:g} is beyond "
            f"double precision"
        )
    return value


def _distinct(columns: Array) -> tuple[Array, Any]:
    """The distinct columns of an array (rows, n), and for every column which of them it is."""
    if (columns == columns[:, :1]).all():
        return columns[:, :1], np.zeros(columns.shape[1], dtype=int)
    values, which = np.unique(columns, return_inverse=True)
    numbers = np.zeros(columns.shape[1], dtype=np.int64)
    for row in which.reshape(columns.shape):  # one number per column is sorted sooner than columns
        numbers = numbers * values.size + row
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    return columns[:, first], which.ravel()


def _groups(which: Any, count: int) -> list[Any]:
    """Where each of 0 ... count - 1 stands in ``which``."""
    order = np.argsort(which, kind="stable")
    return np.split(order, np.searchsorted(which[order], np.arange(1, count)))[:count]


def _unit_gap(gap: Array) -> Array:
    if ((gap < -1e-12) | (gap > 2 + 1e-12)).any():
        worst = gap.flat[np.argmax(np.abs(gap - 1))]
        raise KcalcError(f"c = {1 - worst:.17g}: a c value is a cosine and must lie in [-1, 1]")
    return np.clip(gap, 0.0, 2.0)


def _spread(part: Any, shape: tuple[int, ...]) -> Array:
    """An array of the shape, a number where that is ()."""
    array = np.asarray(part, dtype=float)
    return (array if array.shape == shape else np.broadcast_to(array, shape))[()]


def _broadcast(gap: Any, q1: Any, q2: Any) -> tuple[Array, Array, Array]:
    """The three arguments checked and broadcast together."""
    first = _positive(np.asarray(q1, dtype=float))
    second = first if q2 is q1 else _positive(np.asarray(q2, dtype=float))
    gap = _unit_gap(np.asarray(gap, dtype=float))
    if gap.shape == first.shape == second.shape:
        return gap, first, second
    try:
        return np.broadcast_arrays(gap, first, second)  # type: ignore[return-value]
    except ValueError as error:
        if isinstance(error, KcalcError):
            raise
        raise KcalcError(
            f"c, q1 and q2 do not broadcast together: shapes {np.shape(gap)}, {np.shape(q1)}, "
            f"{np.shape(q2)}"
        ) from None


class LocalMaps:
    """Mixin of the kernel quantities for :class:`kcalc.activations.Activation`.

    The activation supplies the function itself.
    """

    name: str
    expr: sp.Expr
    degree: int | None
    scale_free: bool

    closed_in_numpy: bool = False
    """Whether the closed forms keep relative accuracy at every gap; else NumPy integrates."""

    closed_over_jets: bool = True
    """Whether the closed form of Q keeps its digits when its Taylor series in q is read off."""

    @cached_property
    def free_symbols(self) -> frozenset[sp.Symbol]:
        """The symbols of the activation's constants, such as a of leaky_relu(a)."""
        return frozenset(self.expr.free_symbols - {X})  # type: ignore[arg-type]

    def refuse_symbols(self, purpose: str) -> None:
        """Raises KcalcError if a constant is a symbol.

        ``purpose`` names the result that needs numbers.
        """
        if self.free_symbols:
            named = ", ".join(sorted(symbol.name for symbol in self.free_symbols))
            raise KcalcError(
                f"activation {self.name!r} has the symbol {named}, and {purpose} needs numbers: "
                f"give them with .subs({{...}})"
            )

    # --- hooks: closed forms over any field; None where unknown -----------------------------------

    def _closed_mean(self, q: Number, field: Field) -> Number | None:
        return truncated.mean(self, q, field)  # type: ignore[arg-type]

    def _closed_second_moment(self, q: Number, field: Field) -> Number | None:
        return truncated.second_moment(self, q, field)  # type: ignore[arg-type]

    def _closed_mean_slope(self, q: Number, field: Field) -> Number | None:
        return truncated.mean_slope(self, q, field)  # type: ignore[arg-type]

    def _closed_gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number | None:
        """1 - C(1 - gap, q1, q2)."""
        return None

    def _closed_derivatives(
        self, gap: Number, q1: Number, q2: Number, field: Field
    ) -> tuple[Number, Number] | None:
        """(C', C'') at c = 1 - gap, infinite where they are."""
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

        Its derivatives, series, fixed points, enclosures, plots.
        """
        return LocalCMap(self)

    @cached_property
    def q_map(self) -> LocalQMap:
        """The local Q map as an object.

        ``phi.q_map(q)``, its derivatives, fixed points, enclosures, plots.
        """
        return LocalQMap(self)

    def q_expr(self, q: object = 1) -> sp.Expr | None:
        """Q(q) in SymPy, for a number or a positive symbol q.

        None where no closed form is known.
        """
        return self._closed_second_moment(symbolic_q(q, "q", "q_expr(q=1)"), SYMPY)

    def c_expr(self, c: object, q1: object = 1, q2: object = None) -> sp.Expr | None:
        """C(c, q1, q2) in SymPy as the textbooks write it, q2 = None meaning q1.

        None where no closed form is known.
        """
        first = SYMPY.number(q1)
        gap = self._closed_gap(
            1 - SYMPY.number(c), first, first if q2 is None else SYMPY.number(q2), SYMPY
        )
        return None if gap is None else 1 - gap

    # --- one-dimensional quantities ---------------------------------------------------------------

    def mean(self, q: object = 1, field: Field = NUMPY) -> Number:
        """E phi(sqrt(q) z).  Raises KcalcError for q <= 0 and divergent expectations."""
        return self._moment("M", self._closed_mean, expectations.mean, q, field)

    def second_moment(self, q: object = 1, field: Field = NUMPY) -> Number:
        """Q(q) = E phi(sqrt(q) z)^2.  Raises KcalcError for q <= 0 and divergent expectations."""
        return self._moment("Q", self._closed_second_moment, expectations.second_moment, q, field)

    def mean_slope(self, q: object = 1, field: Field = NUMPY) -> Number:
        """E phi'(sqrt(q) z) with phi' a distribution (jumps of phi count)."""
        return self._moment("D", self._closed_mean_slope, expectations.mean_slope, q, field)

    def q_slope(self, q: object = 1, field: Field = NUMPY) -> Number:
        """dQ/dq = E[phi(sqrt q z) phi'(sqrt q z) z]/sqrt q, plus the terms of jumps of phi."""
        if field is SYMPY:
            symbol = sp.Symbol("q", positive=True)
            return sp.diff(self.second_moment(symbol, SYMPY), symbol).subs(symbol, SYMPY.number(q))
        return self._moment("", self._closed_q_slope, expectations.q_slope, q, field)

    def _closed_q_slope(self, q: Number, field: Field) -> Number | None:
        """dQ/dq from the closed form of Q, read over jets."""
        if field is not NUMPY or not self.closed_over_jets:
            return None
        series = self._closed_second_moment(Jet.variable(q, 1), JetField(field))
        return (
            series.coefficients[1] if isinstance(series, Jet) else None if series is None else 0 * q
        )

    def q_series(self, q: object, power: int, order: int) -> tuple[Array, ...]:
        """Taylor coefficients in q of E phi(sqrt(q) z)^power, orders 0 to ``order``.

        Power 1 is the mean, 2 is Q. NumPy only.
        """
        return self._series(lambda value: q_series.moment_series(self, power, value, order), q)

    def mean_slope_series(self, q: object, order: int) -> tuple[Array, ...]:
        """Taylor coefficients in q of E phi'(sqrt(q) z).  NumPy only."""
        return self._series(lambda value: q_series.slope_series(self, value, order), q)

    def q_product_series(self, other: Any, q: object, order: int) -> tuple[Array, ...]:
        """Taylor coefficients in q of E[phi(sqrt(q) z) psi(sqrt(q) z)], ``other`` being psi.

        NumPy only.
        """
        return self._series(lambda value: q_series.product_series(self, other, value, order), q)

    @staticmethod
    def _series(integrate: Callable[[float], tuple[float, ...]], q: object) -> tuple[Array, ...]:
        flat = _positive(np.asarray(NUMPY.number(q), dtype=float))
        (unique,), inverse = _distinct(flat.reshape(1, -1))
        rows = np.array([integrate(float(value)) for value in unique])
        return tuple(column[inverse].reshape(flat.shape)[()] for column in rows.T)

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
            flat = _positive(np.asarray(q, dtype=float))
            with np.errstate(over="ignore"):
                exact = closed(flat, field) if self.closed_in_numpy else None
            # where closed forms take powers of q, which vanish
            small = self.degree is None and bool(np.any(flat < 1 / EXTREME))
            if exact is not None and not small:
                return _finite(self.name, flat, _spread(exact, flat.shape))
            (unique,), inverse = _distinct(flat.reshape(1, -1))
            with np.errstate(over="ignore"):
                found = self._moments_together(integrate, unique)
                if found is None:
                    found = np.array([integrate(self, float(value)) for value in unique])
            return _finite(self.name, unique, found)[inverse].reshape(flat.shape)[()]
        if ("moment", field.kind) in KERNELS:
            return KERNELS["moment", field.kind](self, integrate.__name__, closed, q, field)
        exact = closed(q, field)
        if exact is not None:
            return exact
        if field is SYMPY:
            return sp.Function(f"{letter}_{formula_name(self.name)}")(q)
        self.refuse_numeric_only("digits beyond double precision")  # type: ignore[attr-defined]
        positive = integrate is expectations.second_moment
        what = f"{integrate.__name__} of {self.name} at q = {q}"
        return KERNELS["midpoints", field.kind](
            lambda balls: (self._moment(letter, closed, integrate, q, balls),),
            field,
            positive,
            what,
        )[0]

    def _moments_together(self, integrate: Callable[..., float], q: Array) -> Array | None:
        """The mean or the second moment at many q on one grid of nodes, where one serves."""
        powers: dict[Any, int] = {expectations.mean: 1, expectations.second_moment: 2}
        power = powers.get(integrate)
        if power is None or q.size < MANY:
            return None
        found = expectations.sampled(self, q)  # type: ignore[arg-type]
        return None if found is None else found[1] ** power @ found[0].nodes.w

    def refuse_rough(self, purpose: str) -> None:
        """Raise KcalcError if a derivative is infinite at a kink; ``purpose``: what needs it."""
        if self.rough:  # type: ignore[attr-defined]
            raise KcalcError(
                f"a derivative of activation {self.name!r} is infinite at a kink: no {purpose}; "
                f"evaluate its Q and C maps with NumPy"
            )

    # --- C ----------------------------------------------------------------------------------------

    def taylor(
        self, gap: Any, q1: Any = 1, q2: Any = None, order: int = 0, field: Field = NUMPY
    ) -> tuple[Number, ...]:
        """(1 - C(c, q1, q2), C'(c), C''(c)/2, ..., C^(order)(c)/order!) at c = 1 - gap.

        gap in [0, 2]; q1, q2 > 0, q2 = None meaning q1; NumPy broadcasts all three. Derivatives
        that diverge at c = +-1 are infinite. A :class:`kcalc.fields.gaps.Gap` keeps the digits of 1
        + c near c = -1.
        Raises KcalcError for arguments out of range, and for orders above 2 near |c| = 1 where no
        closed form serves.
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
        self.refuse_numeric_only("digits beyond double precision")  # type: ignore[attr-defined]
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
        """Taylor coefficients of any order from the closed form, read over jets.

        They exist for |c| < 1.
        """
        series = self._closed_gap(Jet.variable(gap, order, -1), q1, q2, JetField(field))
        if series is None:
            return None
        if not isinstance(series, Jet):
            series = Jet((series, *[series * 0] * order))
        if field is NUMPY and not all(np.all(np.isfinite(a)) for a in series.coefficients):
            raise KcalcError(
                f"Taylor coefficients of order {order} > 2 of {self.name!r} are available for |c| "
                f"< 1 only"
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
        gap, q1, q2 = _broadcast(gap, q1, q2)
        rest = 2 - gap if rest is None else np.clip(np.broadcast_to(rest, gap.shape), 0.0, 2.0)
        # C is that of q = 1, where no power of q leaves double precision
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
                        f"the C map of {self.name!r} is beyond double precision at so large a q; "
                        f"use c_map.ball"
                    )
                return tuple(
                    _spread(part, gap.shape) for part in (np.maximum(exact[0], 0.0), *exact[1:])
                )
        pairs, inverse = _distinct(np.stack([q1.ravel(), q2.ravel()]))
        if pairs.shape[1] >= MANY and order <= 2 and not self.kink_points:  # type: ignore[attr-defined]
            found = smooth_taylor(self, q1.ravel(), q2.ravel(), gap.ravel(), order)  # type: ignore[arg-type]
            if found is not None:
                return tuple(part.reshape(gap.shape) for part in found)
        out = np.empty((order + 1, gap.size))
        for index, here in enumerate(_groups(inverse, pairs.shape[1])):
            one, two = float(pairs[0, index]), float(pairs[1, index])
            out[:, here] = self._normalised(gap.ravel()[here], rest.ravel()[here], one, two, order)
        return tuple(part.reshape(gap.shape)[()] for part in out)

    def _multiplies(self, q: Array) -> bool:
        """Whether q and Q(q) are far enough from the ends of double precision for products.

        Closed forms may then take products of several of these values.
        """
        with np.errstate(all="ignore"):
            power = self._closed_second_moment(q, NUMPY)
        ranges = ((q, EXTREME), (power, LARGEST))
        return all(
            bool(np.all((size > 1 / EXTREME) & (size < most)))
            for size, most in ranges
            if size is not None
        )

    def _normalised(self, gap: Array, rest: Array, q1: float, q2: float, order: int) -> list[Array]:
        """The Taylor coefficients of C for one pair of q values."""
        gamma = pair_map(self, q1, self, q2)  # type: ignore[arg-type]
        parts = gamma.taylor(gap, order, rest=rest)
        norm = (
            gamma.whole
            if gamma.same
            else float(np.sqrt(self.second_moment(q1)) * np.sqrt(self.second_moment(q2)))
        )
        if norm == 0:
            raise KcalcError(
                f"E phi^2 of activation {self.name!r} vanishes (or underflows) at q = "
                f"{min(q1, q2):g}: there is no C map"
            )
        offset = 0.0 if gamma.same else pair_distance(self, q1, q2)  # type: ignore[arg-type]
        return [offset + parts[0] / norm, *(part / norm for part in parts[1:])]

    def cross_drop(
        self, other: Any, q1: Any, q2: Any, gap: Any, order: int = 0
    ) -> tuple[Number, ...]:
        """(G(1), G(1) - G(c), G'(c), ..., G^(order)(c)/order!) at c = 1 - gap.

        G(c) = E[phi(u) psi(v)], ``other`` being psi. The drop G(1) - G(c) is computed without
        cancellation.
        """
        if not isinstance(other, LocalMaps):
            raise KcalcError(
                f"expected an activation, got {glimpse(other)}; make one with kc.activation"
            )
        gap, q1, q2 = _broadcast(gap, q1, q2)
        out = np.empty((order + 2, gap.size))
        pairs, inverse = _distinct(np.stack([q1.ravel(), q2.ravel()]))
        for index in range(pairs.shape[1]):
            here = inverse == index
            with np.errstate(over="ignore"):
                gamma = pair_map(self, float(pairs[0, index]), other, float(pairs[1, index]))  # type: ignore[arg-type]
                out[0, here] = gamma.at_one
                out[1:, here] = gamma.taylor(gap.ravel()[here], order)
            if not np.isfinite(out[:2, here]).all():
                names = " and ".join(dict.fromkeys((self.name, other.name)))
                raise KcalcError(
                    f"the cross moment of {names} is beyond double precision at q = "
                    f"{float(pairs[:, index].max()):g}"
                )
        return tuple(part.reshape(gap.shape)[()] for part in out)

    def cross(
        self, other: Any, q1: Any = 1.0, q2: Any = 1.0, c: object = 0.0, order: int = 0
    ) -> tuple[Number, ...]:
        """Taylor coefficients in c of E[phi(sqrt q1 x) psi(sqrt q2 (c x + sqrt(1-c^2) y))].

        ``other`` is psi. NumPy only.
        """
        cosine = np.asarray(NUMPY.number(c), dtype=float)
        top, drop, *rest = self.cross_drop(
            other, NUMPY.number(q1), NUMPY.number(q2), 1 - cosine, whole(order, "order", 0, 100)
        )
        return (top - drop, *rest)


__all__ = ["LocalMaps", "pair_moment"]
