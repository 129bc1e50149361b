"""The local maps of one activation as map objects: ``phi.c_map`` and ``phi.q_map``."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import sympy as sp
from sympy.core.function import AppliedUndef

from kcalc.fields import NUMPY, SYMPY
from kcalc.fields.arguments import (
    Number,
    Numbers,
    formula_symbols,
    one_q,
    pair_arrays,
    q_pair,
    read_pair,
    series_length,
    symbolic_q,
)
from kcalc.fields.jax_field import is_jax
from kcalc.fields.jets import Jet, JetField
from kcalc.foundation import symbols
from kcalc.foundation.errors import KcalcError, glimpse
from kcalc.foundation.formulas import formula_name
from kcalc.foundation.guests import KERNELS
from kcalc.gaussian.expectations.pairs import pair_map
from kcalc.gaussian.expectations.quadrature import Array, normal_density
from kcalc.gaussian.expectations.single import hermite
from kcalc.gaussian.expectations.smoothing import smoothed
from kcalc.maps.composition import Composition, LocalFunction
from kcalc.maps.maps import Assumption, CMap, QMap

if TYPE_CHECKING:
    from jax import Array as JaxArray

Node = Hashable
SYMBOLIC = "symbolic(q=1)"


class _Local:
    """A map of one activation. Its only input and only output are named after the activation."""

    def __init__(self, activation: Any) -> None:
        self.activation = activation
        self.name = activation.name
        self.inputs = self.outputs = (activation.name,)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return (
            Assumption(
                self.name, "the pre-activations are Gaussian with mean 0, at infinite width"
            ),
        )


class LocalCMap(_Local, CMap):
    """The local C map C(c, q1, q2) = E[phi(u) phi(v)] / sqrt(Q(q1) Q(q2)).

    (u, v) is Gaussian with variances q1, q2 and correlation c.

    Domain: -1 <= c <= 1, q > 0.

    Raises
    ------
    KcalcError
        Outside the domain, and if the second moment diverges.

    References
    ----------
    [DKS eq. 9]

    """

    def gaps(
        self,
        gap: dict[Node, Array],
        q1: dict[Node, Array],
        q2: dict[Node, Array] | None,
        order: int,
    ) -> dict[Node, Jet]:
        first, *rest = self.activation.taylor(
            gap[self.name], q1[self.name], None if q2 is None else q2[self.name], order
        )
        return {self.name: Jet((first, *(-part for part in rest)))}

    @overload
    def __call__(
        self, c: JaxArray, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> JaxArray: ...
    @overload
    def __call__(
        self,
        c: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> float: ...
    @overload
    def __call__(
        self, c: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> Array: ...
    def __call__(
        self, c: Any, q1: Any = None, q2: Any = None, *, q: Any = None
    ) -> JaxArray | float | Array:
        """Evaluate C(c, q1, q2) with NumPy, or with JAX if an argument is a JAX array.

        Raises KcalcError outside -1 <= c <= 1, q > 0.
        """
        q1, q2 = q_pair(q1, q2, q)
        if is_jax(c) or is_jax(q1) or is_jax(q2):
            return KERNELS["c_map", "jax"](self.activation, c, q1, q2)
        return super().__call__(c, q1, q2)

    def ball_gaps(
        self, gap: dict[Node, Any], q1: dict[Node, Any], q2: dict[Node, Any] | None, field: Any
    ) -> dict[Node, Any]:
        second = None if q2 is None else q2[self.name]
        return {
            self.name: self.activation.taylor(gap[self.name], q1[self.name], second, 0, field)[0]
        }

    def symbolic(self, q1: Any = None, q2: Any = None, *, q: Any = None) -> Composition:
        """Return the map as a formula in ``kc.symbols.c``.

        The q values may be numbers or SymPy expressions.

        Parameters
        ----------
        q1
            The q value of the first input, > 0.
        q2
            The q value of the second input, > 0; None means ``q1``.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Composition
            The map as a formula.

        Raises
        ------
        KcalcError
            For q values that are not positive or contain symbols of other quantities.

        """
        one, other = read_pair(
            lambda given, what: symbolic_q(given, what, SYMBOLIC), *q_pair(q1, q2, q)
        )
        two = one if other is None else other
        arguments = formula_symbols((symbols.c,), one.free_symbols | two.free_symbols)
        value = self.activation.c_expr(symbols.c, one, two)
        functions: tuple[LocalFunction, ...] = ()
        if value is None:
            value = SYMPY.cosine(self.activation.taylor(1 - symbols.c, one, two, 0, SYMPY)[0])
            level = self._level(symbols.q)
            functions = (level, LocalFunction(value.func, value.args, None, self.activation))  # type: ignore[arg-type]
        return Composition(arguments, (), value, "C", functions)

    def _level(self, q: sp.Symbol) -> LocalFunction:
        """Return Q(q), which normalises the Gaussian integral for C."""
        value = self.activation.second_moment(q, SYMPY)
        closed = None if value.atoms(AppliedUndef) else value
        return LocalFunction(
            sp.Function(f"Q_{formula_name(self.name)}"), (q,), closed, self.activation
        )

    def series(self, n: int, q: Any = 1) -> Array:
        """Return the coefficients b_0 ... b_(n-1) of C(c) = sum_n b_n c^n at q1 = q2 = q.

        b_n = a_n^2/Q >= 0 with a_n = E[phi(sqrt(q) z) h_n(z)], and sum b_n = 1.

        Parameters
        ----------
        n
            The number of coefficients.
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Array
            The ``n`` coefficients.

        Raises
        ------
        KcalcError
            If n is larger than the number of coefficients that can be computed accurately.

        """
        count, size = series_length(n), one_q(q)
        found = hermite(self.activation, size)
        if count > found.coefficients.size + 1 and not found.complete:
            raise KcalcError(
                f"series({n}) needs more than the {found.coefficients.size + 1} known "
                f"coefficients of {self.name!r}; use tail() to bound the rest"
            )
        out = np.zeros(count)
        out[0] = found.mean**2
        known = found.coefficients[: count - 1]
        out[1 : known.size + 1] = known**2
        return out / self._power(size)

    def tail(self, n: int, q: Any = 1) -> float:
        """Return the tail sum_{k >= n} b_k of the series of C if both inputs have the same q.

        The tail bounds |C(c) - sum_{k < n} b_k c^k| / |c|^n and is computed without the
        cancellation in 1 - sum b_k.

        Parameters
        ----------
        n
            The first index, an integer >= 1.
        q
            The q value, one number > 0.

        Returns
        -------
        float
            A number >= 0. If the series is finite, rounding may leave a tiny positive tail beyond
            its end.

        """
        count, size = series_length(n), one_q(q)
        found = hermite(self.activation, size)
        rest = found.coefficients[count - 1 :]
        return (float(rest @ rest) + found.tail) / self._power(size)

    def _power(self, q: float) -> float:
        power = float(self.activation.second_moment(q))
        if not power > 0:
            raise KcalcError(
                f"E phi^2 of activation {self.name!r} vanishes (or underflows) at q = {q:g}, so "
                "its C map is undefined there"
            )
        return power

    def q_derivative(self, which: int | None = None) -> LocalCMapQDerivative:
        """Return dC/dq1 (``which=1``) or dC/dq2 (2) at fixed c, or dC/dq along q1 = q2 (None).

        Parameters
        ----------
        which
            1, 2, or None for the derivative along q1 = q2.

        Returns
        -------
        LocalCMapQDerivative
            A function of c, q1 and q2.

        """
        if which is not None and (
            isinstance(which, bool) or not isinstance(which, int) or which not in (1, 2)
        ):
            raise KcalcError(
                "which must be 1 for dC/dq1, 2 for dC/dq2, or None for the derivative along q1 = "
                f"q2, got {glimpse(which)}"
            )
        return LocalCMapQDerivative(self, which)


@dataclass(frozen=True)
class LocalCMapQDerivative:
    """A derivative of a local C map with respect to its q values; call it like the map.

    dC/dq1 = E[u phi'(u) phi(v)] / (2 q1 sqrt(Q1 Q2)) - C Q'(q1)/(2 Q(q1)). If phi jumps, phi' has
    delta functions at the jumps.
    """

    base: LocalCMap
    which: int | None

    @overload
    def __call__(
        self,
        c: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> float: ...
    @overload
    def __call__(
        self, c: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> Array: ...
    def __call__(self, c: Any, q1: Any = None, q2: Any = None, *, q: Any = None) -> float | Array:
        """Return the derivative at c, with the same arguments and shapes as the map."""
        cosine, one, two = pair_arrays(c, *q_pair(q1, q2, q))
        total = np.zeros(cosine.shape)
        if self.which in (1, None):
            total = total + _in_first_q(self.base.activation, cosine, one, two)
        if self.which in (2, None):
            total = total + _in_first_q(self.base.activation, cosine, two, one)
        return total[()]

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the map."""
        return self.base.assumptions

    def __repr__(self) -> str:
        return (
            f"LocalCMapQDerivative({self.base.name}, "
            f"{'q1 = q2' if self.which is None else f'q{self.which}'})"
        )


class LocalQMap(_Local, QMap):
    """The local Q map Q(q) = E phi(sqrt(q) z)^2, with z standard normal.

    Domain: q > 0.

    Raises
    ------
    KcalcError
        Outside the domain, and if Q diverges.

    References
    ----------
    [DKS eq. 8]

    """

    def values(self, q: dict[Node, Any], order: int) -> dict[Node, Jet]:
        value = q[self.name]
        parts = (
            (self.activation.second_moment(value),)
            if order == 0
            else self.activation.q_series(value, 2, order)
        )
        return {self.name: Jet(tuple(parts))}

    def ball_values(self, q: dict[Node, Any], field: Any) -> dict[Node, Any]:
        return {self.name: self.activation.second_moment(q[self.name], field)}

    def symbolic(self, q: Any = symbols.q) -> Composition:
        """Return the map at a number or a SymPy expression q.

        Parameters
        ----------
        q
            The mean square of the inputs, > 0.

        Returns
        -------
        Composition
            The map as a formula.

        Raises
        ------
        KcalcError
            If q is not positive or contains symbols of other quantities.

        """
        at = symbolic_q(q, "q", "symbolic(q)")
        value = self.activation.q_expr(at)
        functions: tuple[LocalFunction, ...] = ()
        if value is None:
            value = self.activation.second_moment(at, SYMPY)
            functions = (self.activation.c_map._level(symbols.q),)
        return Composition(formula_symbols((), at.free_symbols), (), value, "Q", functions)


# --- derivatives in q -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Euler:
    """The function x phi'(x), as a profile for quadrature.

    Its n-th derivative is x phi^(n+1) + n phi^(n).
    """

    phi: Any

    @property
    def name(self) -> str:
        return f"x times the derivative of {self.phi.name}"

    @property
    def kink_points(self) -> tuple[float, ...]:
        return self.phi.kink_points

    @property
    def landmarks(self) -> tuple[tuple[float, float], ...]:
        return self.phi.landmarks

    def numeric(self, n: int = 0) -> Callable[[Array], Array]:
        above, here = self.phi.numeric(n + 1), self.phi.numeric(n)
        return (lambda x: x * above(x) + n * here(x)) if n else (lambda x: x * above(x))

    def jump_sizes(self, n: int) -> tuple[float, ...]:
        above, here = self.phi.jump_sizes(n + 1), self.phi.jump_sizes(n)
        return tuple(k * a + n * b for k, a, b in zip(self.kink_points, above, here, strict=True))


@lru_cache(maxsize=64)
def _euler(phi: Any) -> _Euler:
    return _Euler(phi)


def _in_first_q(phi: Any, c: Array, q1: Array, q2: Array) -> Array:
    """Return dC/dq1 at fixed c, elementwise."""
    if phi.degree is not None:
        return np.zeros(c.shape)
    phi.refuse_rough("derivatives of C with respect to q")
    out = np.empty(c.size)
    pairs, inverse = np.unique(np.stack([q1.ravel(), q2.ravel()]), axis=1, return_inverse=True)
    for index in range(pairs.shape[1]):
        here = inverse.ravel() == index
        out[here] = _at_one_pair(
            phi, c.ravel()[here], float(pairs[0, index]), float(pairs[1, index])
        )
    return out.reshape(c.shape)


def _at_one_pair(phi: Any, c: Array, q1: float, q2: float) -> Array:
    exact = _from_closed_form(phi, c, q1, q2) if phi.closed_in_numpy else None
    if exact is not None:
        return exact
    norm = math.sqrt(phi.second_moment(q1) * phi.second_moment(q2))
    gamma = pair_map(_euler(phi), q1, phi, q2)
    rate = gamma.at_one - gamma.taylor(1 - c, 0, absolute=True)[0] + _from_jumps(phi, c, q1, q2)
    cosine = 1 - phi.taylor(1 - c, q1, q2)[0]
    return rate / (2 * q1 * norm) - cosine * phi.q_slope(q1) / (2 * phi.second_moment(q1))


def _from_closed_form(phi: Any, c: Array, q1: float, q2: float) -> Array | None:
    """Evaluate the closed form at a jet in q1 and return dC/dq1, or None if it is not finite."""
    with np.errstate(all="ignore"):
        series = phi._closed_gap(
            1 - c, Jet.variable(np.full(c.shape, q1), 1), np.full(c.shape, q2), JetField(NUMPY)
        )
    if not isinstance(series, Jet):
        return np.zeros(c.shape) if series is not None else None
    slope = -np.broadcast_to(np.asarray(series.coefficients[1], dtype=float), c.shape)
    return slope if np.isfinite(slope).all() else None


def _from_jumps(phi: Any, c: Array, q1: float, q2: float) -> Array:
    """Return sum_k k J_k N(k; 0, q1) E[phi(v) | u = k] over the jumps J_k of phi."""
    total = np.zeros(c.shape)
    for k, jump in zip(phi.kink_points, phi.jump_sizes(0), strict=True):
        if not jump or not k:
            continue
        weight = k * jump * float(normal_density(np.array(k / math.sqrt(q1)))) / math.sqrt(q1)
        for i, cosine in np.ndenumerate(c):
            centre = np.array([cosine * math.sqrt(q2 / q1) * k])
            spread = math.sqrt(q2 * (1 - cosine) * (1 + cosine))
            total[i] += (
                weight * (smoothed(phi, 0, centre, spread) if spread else _middle(phi, centre))[0]
            )
    return total


def _middle(phi: Any, x: Array) -> Array:
    """Return phi(x), or the mean of the two one-sided limits at a jump."""
    step = 1e-13 * (1 + np.abs(x))
    return (phi.numeric(0)(x - step) + phi.numeric(0)(x + step)) / 2


__all__ = ["LocalCMap", "LocalCMapQDerivative", "LocalQMap"]
