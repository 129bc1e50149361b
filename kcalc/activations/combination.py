"""Linear combinations of activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from kcalc.activations.base import Activation, checked
from kcalc.activations.jax_function import JaxFunction, jax_function
from kcalc.activations.parameters import named
from kcalc.activations.pieces import X
from kcalc.activations.transformation import short
from kcalc.fields import SYMPY
from kcalc.foundation.errors import KcalcError
from kcalc.foundation.plain_arguments import items
from kcalc.gaussian.expectations.quadrature import Array

__all__ = ["Combination", "combine"]


@dataclass(frozen=True, eq=False, repr=False)
class Combination(Activation):
    """The activation sum_k coefficient_k phi_k(input_scale_k x)."""

    terms: tuple[tuple[sp.Expr, Activation, sp.Expr], ...] = ()

    def _compile(self, n: int) -> Callable[[Array], Array]:
        parts = [(float(c) * float(s) ** n, phi.numeric(n), float(s)) for c, phi, s in self.terms]
        return lambda x: np.sum(
            [factor * function(scale * x) for factor, function, scale in parts], axis=0
        )

    def jax_values(self, n: int) -> JaxFunction:
        parts = [
            (float(c) * float(s) ** n, float(s), jax_function(term, n)) for c, term, s in self.terms
        ]
        return lambda x: sum(factor * function(s * x) for factor, s, function in parts)


def combine(terms: Iterable[tuple[Any, Activation, Any]], name: str | None = None) -> Activation:
    """Return the activation sum_k coefficient_k phi_k(input_scale_k x).

    Parameters
    ----------
    terms
        The triples (coefficient, activation, input scale) of the sum.
    name
        The printed name; None derives one.

    Returns
    -------
    Activation
        The sum, as one activation.

    Raises
    ------
    KcalcError
        For an empty sum, a scale of 0, or a constant that is not a number.

    """
    try:
        triples = [(c, phi, s) for c, phi, s in items(terms, "terms")]
    except (TypeError, ValueError) as error:
        raise KcalcError("combine takes (coefficient, activation, input_scale) triples") from error
    parts = tuple((SYMPY.number(c), checked(phi), SYMPY.number(s)) for c, phi, s in triples)
    for _, phi, _ in parts:
        phi.refuse_symbols("a combination")
    if not parts:
        raise KcalcError("combine needs at least one (coefficient, activation, input_scale) triple")
    if any(s == 0 or s.free_symbols or c.free_symbols for c, _, s in parts):
        raise KcalcError(
            "the coefficients passed to combine must be numbers, and the input scales must be "
            "nonzero numbers"
        )
    kinks = sorted({k / s for _, phi, s in parts for k in phi.kinks}, key=float)
    expr = sp.Add(*(c * phi.expr.xreplace({X: s * X}) for c, phi, s in parts))
    degrees = {phi.degree for _, phi, _ in parts}
    label = named(
        name,
        " + ".join(
            f"{short(c)}*{phi.name}" + ("" if s == 1 else f"[{short(s)}x]") for c, phi, s in parts
        ),
    )
    return Combination(
        label, expr, tuple(kinks), degrees.pop() if len(degrees) == 1 else None, terms=parts
    )
