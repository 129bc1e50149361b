"""Products of activations of one variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from kcalc.activations.base import Activation, checked
from kcalc.activations.jax_function import JaxFunction, jax_function
from kcalc.activations.parameters import named
from kcalc.gaussian.expectations.quadrature import Array

__all__ = ["Multiplication", "multiply"]


@dataclass(frozen=True, eq=False, repr=False)
class Multiplication(Activation):
    """The product ``phi(x) psi(x)``, with derivatives from the product rule."""

    factors: tuple[Activation, ...] = ()

    def _compile(self, n: int) -> Callable[[Array], Array]:
        first, second = self.factors
        parts = [(comb(n, k), first.numeric(k), second.numeric(n - k)) for k in range(n + 1)]
        return lambda x: np.sum([many * one(x) * two(x) for many, one, two in parts], axis=0)

    def jax_values(self, n: int) -> JaxFunction:
        first, second = self.factors
        parts = [
            (comb(n, k), jax_function(first, k), jax_function(second, n - k)) for k in range(n + 1)
        ]

        def values(x: Any) -> Any:
            return sum(many * one(x) * two(x) for many, one, two in parts)

        return values


def multiply(phi: Activation, psi: Activation, name: str | None = None) -> Activation:
    """Return the activation ``phi(x) psi(x)``.

    Raises KcalcError unless both arguments are activations.
    """
    first, second = checked(phi), checked(psi)
    for factor in (first, second):
        factor.refuse_symbols("a product")
    kinks = sorted({*first.kinks, *second.kinks}, key=float)
    degree = None if first.degree is None or second.degree is None else first.degree + second.degree
    return Multiplication(
        named(name, f"{first.name}*{second.name}"),
        first.expr * second.expr,
        tuple(kinks),
        degree,
        factors=(first, second),
    )
