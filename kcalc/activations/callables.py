"""Activations given as Python or JAX callables: numeric only, with explicit kinks.

Values come from the callable itself. Derivatives come from nested ``jax.grad`` if JAX can
differentiate the callable and its gradient matches the values (a straight-through estimator fails
this test). Otherwise they come from Chebyshev panels fitted to the values. On a dozen catalogue
activations, for q from 0.04 to 30 and c from -1 to 1, C agrees with the closed forms to within
1e-15, C' to within 5e-15 and C'' to within 2e-12.
"""

from __future__ import annotations

import copyreg
import pickle
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from sympy.core.function import UndefinedFunction

from kcalc.activations.acceptance import check_growth, check_moments, check_values, read_kinks
from kcalc.activations.base import Activation, X
from kcalc.activations.elementwise import Elementwise, compiled, elementwise, in_blocks
from kcalc.activations.jax_function import JaxFunction, differentiated
from kcalc.activations.spectral import HIGHEST, Panels
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.process_state import cached_property
from kcalc.gaussian.expectations.quadrature import Array

_REACH = 128.0  # |x| reached by inputs with q <= 100
_AGREEMENT = (1e-7, 1e-6, 1e-4)  # relative tolerances for JAX's derivatives


class _Named(UndefinedFunction):
    """An undefined SymPy function that represents a callable in expressions.

    Two such functions are equal if their callables are equal.
    """


def _function(rule: Elementwise) -> Any:
    return _Named(re.sub(r"\W", "_", rule.name), real=True, _imp_=rule)


def _picklable(rule: Elementwise) -> Elementwise:
    try:
        pickle.dumps(rule.function)
    except Exception as error:
        raise KcalcError(
            f"activation {rule.name!r} cannot be pickled: its callable is pickled by reference, "
            "so it must be a function defined at the top level of a module (not a lambda or an "
            "inner function) or a picklable object"
        ) from error
    return rule


def _reduced(named: Any) -> tuple[Any, ...]:
    return (_function, (_picklable(named._imp_),))


copyreg.pickle(_Named, _reduced)


@dataclass(frozen=True, eq=False, repr=False)
class FromCallable(Activation):
    """An activation given as a Python or JAX callable; numeric only.

    Two such activations are equal if they have the same callable object and the same kinks.

    ``expr`` is an undefined function of ``X`` named after the callable. There are no closed forms,
    no mpmath values and no certified enclosures. Results are cached, so the callable must not
    change its behaviour later.
    """

    rule: Elementwise = field(default=None)  # type: ignore[assignment]

    def jax_values(self, n: int) -> JaxFunction:
        if not self.rule.is_jax:
            raise KcalcError(
                f"activation {self.name!r} is a Python callable that JAX cannot trace; write it "
                "with jax.numpy"
            )
        return differentiated(lambda x: self.rule.mapped(x.ravel()).reshape(x.shape), n)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return (self.rule, self.kinks)

    def __repr__(self) -> str:
        kinks = f", kinks {[round(k, 6) for k in self.kink_points]}" if self.kinks else ""
        return (
            f"<activation {self.name}: a {'JAX' if self.rule.is_jax else 'Python'} callable{kinks}>"
        )

    @cached_property
    def panels(self) -> Panels:
        """Chebyshev panels that resolve the values of the callable."""
        return Panels(self.rule, self.kink_points, self.name)

    def _compile(self, n: int) -> Callable[[Array], Array]:
        """Return the callable itself for n = 0 and its n-th derivative for n > 0.

        Evaluating a derivative farther out extends the panels there and searches the new range for
        undeclared kinks.
        """
        if n == 0:
            return self.rule
        if n > HIGHEST:
            raise KcalcError(
                f"activation {self.name!r} is a callable, so its derivatives are available only "
                f"up to order {HIGHEST}, but order {n} was requested"
            )
        exact = self._jax_derivative(n) if self.rule.is_jax else None
        if exact is None:
            return lambda x: self.panels.derivative(n, x)

        def values(x: Array) -> Array:
            x = np.asarray(x, dtype=float)
            if x.size == 0:
                return np.zeros_like(x)
            self.panels.grow(float(np.abs(x).max()))
            return exact(x.ravel()).reshape(x.shape)

        return values

    def _jax_derivative(self, n: int) -> Callable[[Array], Array] | None:
        """Return the n-th derivative by nested ``jax.grad`` of sums.

        The result is None if JAX fails or its derivative does not match the values.
        """
        jax, slope = sys.modules["jax"], self.rule.mapped
        for _ in range(n):
            slope = _gradient(jax, slope)
        function = compiled(slope)
        points = np.array(
            [
                x
                for x in np.linspace(-7.93, 8.11, 48)
                if all(abs(x - k) > 1e-3 for k in self.kink_points)
            ]
        )
        truth = self.panels.derivative(n, points)
        try:
            off = np.abs(in_blocks(function, points, self.name) - truth)
        except KcalcError:
            return None
        size = float(np.abs(truth).max(initial=0.0)) + float(
            np.abs(self.rule(points)).max(initial=0.0)
        )
        return (
            (lambda x: in_blocks(function, x, self.name))
            if bool(np.all(off <= _AGREEMENT[n - 1] * size))
            else None
        )


def _gradient(jax: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.grad(lambda x: jax.numpy.sum(function(x)))


def label(function: Any) -> str:
    """Return the name of an activation made from ``function``.

    The name is the function's name, the class name of a callable object, or "phi" for a lambda.
    """
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name:
        name = type(function).__name__
    return "phi" if name == "<lambda>" else name


def from_callable(
    function: Callable[..., Any], name: str | None = None, kinks: Iterable[Any] | None = None
) -> FromCallable:
    """Make an activation from a Python, NumPy or JAX callable of one argument.

    The callable may take float64 arrays, single floats or JAX arrays. It must be elementwise and
    deterministic, and compute in double precision. ``kinks`` lists, to full precision, all points
    where the callable or one of its derivatives jumps. By default there are no kinks; missing kinks
    are detected.

    Raises KcalcError for exceptions inside the callable, complex values, nan, Booleans, single
    precision, randomness, values that depend on the rest of the array, missing kinks, and divergent
    Gaussian moments. The message names the callable and, if possible, the value of x.
    """
    rule = elementwise(function, name or label(function))
    points = read_kinks(() if kinks is None else kinks)
    candidate = FromCallable(rule.name, _function(rule)(X), points, rule=rule)
    check_values(candidate, lambda x: rule.raw(x))
    check_growth(candidate)
    candidate.panels.grow(16.0)
    check_moments(candidate)
    far = rule.raw(np.linspace(-2 * _REACH, 2 * _REACH, 257))
    if np.all(np.abs(far) < 1e100):
        candidate.panels.grow(_REACH)
    return candidate
