"""Activations with constants that JAX may trace, and compositions of such activations.

A transformed activation is ``f(x) = d (phi(a x + b) + e)``. Its expectations are computed in
:mod:`kcalc.activations.traced_rules`. Piecewise linear functions, such as relu, have shorter
formulas, in :mod:`kcalc.activations.traced_linear`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kcalc.activations.base import Activation
from kcalc.activations.jax_function import jax_function
from kcalc.activations.pieces import KINK_REACH
from kcalc.activations.traced_linear import NAMES, LinearMaps, linear_pieces
from kcalc.activations.traced_rules import CROWDS, TracedMaps, cross, cross_alike, cross_drop
from kcalc.foundation.errors import KcalcError

__all__ = [
    "NAMES",
    "FusedActivation",
    "TracedActivation",
    "TracedMaps",
    "cross",
    "cross_alike",
    "cross_drop",
    "split",
    "traced",
]


@dataclass(frozen=True, eq=False)
class TracedActivation(TracedMaps):
    """An affine transformation of an activation, with constants that JAX may trace.

    ``f(x) = output_scale (phi(input_scale x + input_shift) + output_shift)``.

    ``phi`` must be continuous. Every method takes JAX arrays or numbers, which broadcast.
    """

    phi: Activation
    input_scale: Any = 1.0
    input_shift: Any = 0.0
    output_scale: Any = 1.0
    output_shift: Any = 0.0

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name used in messages."""
        return self.phi.name

    def __call__(self, x: Any, n: int = 0) -> Any:
        """Return f^(n)(x)."""
        inner = jax_function(self.phi, n)(self.input_scale * x + self.input_shift)
        return (
            self.output_scale * (inner + self.output_shift)
            if n == 0
            else self.output_scale * self.input_scale**n * inner
        )

    @property
    def kinked(self) -> bool:
        return bool(self.phi.kinks)

    @property
    def endless(self) -> bool:
        points = self.phi.kink_points
        return len(points) > CROWDS[0] and max(map(abs, points)) > 0.9 * KINK_REACH

    def kink_points(self) -> Any:
        import jax.numpy as jnp

        return (jnp.asarray(self.phi.kink_points) - self.input_shift) / self.input_scale

    def rescaled(self, scale: Any) -> TracedActivation:
        """Return the function x -> f(scale x)."""
        return replace(self, input_scale=self.input_scale * scale)


@dataclass(frozen=True, eq=False)
class FusedActivation(TracedMaps):
    """The function ``outer(shift + sum_k coefficient_k f_k(scale_k x))``.

    ``terms`` are triples (coefficient, f, scale). ``outer`` must have no kinks.
    """

    outer: TracedMaps
    terms: tuple[tuple[Any, TracedMaps, Any], ...]
    shift: Any = 0.0

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name used in messages."""
        return f"{self.outer.name}({' + '.join(f.name for _, f, _ in self.terms)})"

    def __call__(self, x: Any, n: int = 0) -> Any:
        """Return f(x), or f'(x) for n = 1."""
        inner = self.shift + sum(a * f(s * x) for a, f, s in self.terms)
        return (
            self.outer(inner)
            if n == 0
            else self.outer(inner, 1) * sum(a * s * f(s * x, 1) for a, f, s in self.terms)
        )

    @property
    def kinked(self) -> bool:
        return any(f.kinked for _, f, _ in self.terms)

    @property
    def endless(self) -> bool:
        return any(f.endless for _, f, _ in self.terms)

    def kink_points(self) -> Any:
        import jax.numpy as jnp

        return jnp.concatenate([f.kink_points() / s for _, f, s in self.terms if f.kinked])

    def rescaled(self, scale: Any) -> FusedActivation:
        """Return the function x -> f(scale x)."""
        return replace(self, terms=tuple((a, f, s * scale) for a, f, s in self.terms))


def traced(activation: Activation, constants: Mapping[str, Any]) -> TracedMaps:
    """Return the activation with some constants replaced by numbers that JAX may trace.

    Raises KcalcError for unknown names and for an activation that jumps.
    """
    wrong = [name for name in constants if name not in NAMES]
    if wrong:
        raise KcalcError(f"{activation.name} has no constant {wrong[0]!r}; use {', '.join(NAMES)}")
    phi, own = split(activation)
    if any(phi.jump_sizes(0)):
        raise KcalcError(
            f"{phi.name} jumps, so its kernels have no derivative at c = 1; use a continuous "
            f"activation"
        )
    phi.refuse_rough("kernels with constants in JAX")
    pieces, numbers = linear_pieces(phi), own | dict(constants)
    return (
        TracedActivation(phi, **numbers)
        if pieces is None
        else LinearMaps(phi.name, pieces, **numbers)
    )


def split(activation: Activation) -> tuple[Activation, dict[str, float]]:
    """Return the untransformed activation, and the constants of the transformation as floats."""
    if activation.transformation is not None:
        return activation.base, {
            name: float(getattr(activation.transformation, name)) for name in NAMES
        }
    return activation, dict(zip(NAMES, (1.0, 0.0, 1.0, 0.0), strict=True))
