"""The tangent calculus over JAX arrays, with the caller's sigma_w, sigma_b and activations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..activations import Activation, activation
from ..activations.traced import FusedActivation, TracedMaps, cross, cross_alike, cross_drop, traced
from ..fields.jax_field import is_jax, jax_field
from ..fields.jets import Jet
from ..network.compose import refuse_dropping
from ..network.primitives import Fresh, Primitive
from .atoms import Atom, Pair, gaussians, opened
from .channel_statistics import AssumptionLog, Statistics
from .channels import Channels
from .checks import plain
from .crossing import to_end
from .field_maps import FieldMaps
from .freshness import Algebra
from .kernel import Kernel
from .kernel_activations import Activations
from .products import Products
from .second_moments import SecondMoments, agree
from .tangent import Tangent

Node = Hashable


@dataclass(frozen=True)
class Learnt:
    """Replacements for the sigma_w and sigma_b of Affine nodes and for the activations of nodes."""

    sigma_w: Mapping[Node, Any]
    sigma_b: Mapping[Node, Any]
    activations: Mapping[Node, TracedMaps]


@dataclass
class LearnableTangent:
    """The tangent calculus over JAX arrays, with replaced sigmas and activations."""

    tangent: Tangent
    learnt: Learnt

    def rule(self, op: Primitive, node: Node, inputs: Sequence[Channels]) -> Channels:
        """The state that a primitive emits, with the replaced values."""
        if isinstance(op, Fresh):
            known = self.learnt
            op = replace(
                op,
                sigma_w=known.sigma_w.get(node, op.sigma_w),
                sigma_b=known.sigma_b.get(node, op.sigma_b),
            )
        refuse_dropping("learnable kernels", op, node)
        return self.tangent.rule(op, node, inputs)


def learnable_tangent(
    learnt: Learnt,
    fan_in: Mapping[Node, int] | None,
    uniform: bool,
    equal: bool,
    fixed: dict[Node, str],
) -> LearnableTangent:
    """The tangent calculus over JAX arrays.

    ``equal``: whether both inputs are equal, so that every gap is 0. The function fills ``fixed``
    with {nonlinear node: the reason why its constants cannot be set}.
    """
    local = TracedFieldMaps(uniform, equal)
    kernel = traced_kernel(local, chosen=learnt.activations, fixed=fixed)
    return LearnableTangent(Tangent(kernel, None, fan_in), learnt)


def traced_kernel(
    local: TracedFieldMaps,
    follow_c: bool = True,
    assume_independent: bool = False,
    chosen: Mapping[Node, TracedMaps] | None = None,
    fixed: dict[Node, str] | None = None,
) -> Kernel:
    """The kernel calculus over JAX arrays.

    See ``kernel_over`` and :func:`learnable_tangent` for the arguments.
    """
    moments = SecondMoments(jax_field(), local.uniform)
    statistics = Statistics(moments, AssumptionLog(), follow_c, assume_independent)
    algebra = Algebra(moments, TracedProducts(moments))
    activations = TracedActivations(
        statistics, algebra, local, chosen=chosen or {}, fixed={} if fixed is None else fixed
    )
    return Kernel(statistics, algebra, activations)


def kernel_in_jax(uniform: bool, follow_c: bool, assume_independent: bool) -> Kernel:
    """The kernel calculus over JAX arrays, with the network's own sigmas and activations."""
    return traced_kernel(TracedFieldMaps(uniform, False), follow_c, assume_independent)


class TracedFieldMaps(FieldMaps):
    """Local maps that JAX can trace, for activations whose constants may be traced numbers."""

    def __init__(self, uniform: bool, equal: bool) -> None:
        super().__init__(jax_field())
        self.uniform, self.equal = uniform, equal
        self._traced: dict[Activation, TracedMaps] = {}

    def of(self, phi: Any) -> TracedMaps:
        """The maps of an activation as functions that JAX can trace."""
        if isinstance(phi, TracedMaps):
            return phi
        if phi not in self._traced:
            self._traced[phi] = traced(phi, {})
        return self._traced[phi]

    def q(self, phi: Any, q: Any) -> tuple[Any, Any]:
        """Return (Q, channel mean) of an activation."""
        if closed_in_jax(phi):
            return super().q(phi, q)
        maps = self.of(phi)
        return maps.second_moment(q), maps.mean(q)

    def gap(self, phi: Any, gap: Jet, q1: Any, q2: Any) -> Jet:
        """Return 1 - C after phi, a jet of at most first order."""
        if closed_in_jax(phi):
            return super().gap(phi, gap, q1, q2)
        maps = self.of(phi)
        if self.equal:
            return Jet(
                (gap.value, maps.slope_at_one(q1, maps.second_moment(q1)) * gap.coefficients[1])
            )
        value, slope = maps.taylor(gap.value, q1, q1 if self.uniform else q2, self.uniform)
        return Jet((value, *(slope * first for first in gap.coefficients[1:])))


@dataclass
class TracedActivations(Activations):
    """Activations, some of which are ``chosen`` by the caller.

    See :func:`learnable_tangent` for ``fixed``.
    """

    local: TracedFieldMaps
    chosen: Mapping[Node, TracedMaps] = field(kw_only=True)
    fixed: dict[Node, str] = field(kw_only=True)

    def activated(self, phi: Any, pair: Pair, node: Node) -> Pair:
        """The feature map phi(f), with the caller's activation instead of phi if there is one."""
        known: Any = self.chosen.get(node, phi)
        return super().activated(known, pair, node)

    def _fusion(self, phi: Any, pair: Pair, node: Node) -> tuple[Any, Atom] | None:
        """The fusion of :class:`Activations` if all constants come from the network.

        With constants from the caller, fusion needs an outer activation without kinks, because the
        kinks of the fused activation are unknown.
        """
        below = [t.atom for t in opened(pair.terms)]
        if isinstance(phi, Activation) and not any(
            isinstance(a.activation, TracedMaps) for a in below
        ):
            found = super()._fusion(phi, pair, node)
            if found is not None and phi.kinks:
                text = (
                    f"{phi.name} has kinks and is fused with the functions before it, so none of "
                    "their constants can be learnt"
                )
                self.fixed.update(
                    dict.fromkeys(
                        [node, *(a.node for a in below if a.activation is not None)], text
                    )
                )
            return found
        if self.local.of(phi).kinked or not (
            plain(pair.shift1) and agree(pair.shift1, pair.shift2)
        ):
            return None
        return self._fused(self.local.of(phi), pair, node)

    def _fused(self, phi: TracedMaps, pair: Pair, node: Node) -> tuple[TracedMaps, Atom] | None:
        for terms in (pair.terms, opened(pair.terms)):
            (source, *others) = gaussians(terms)
            if (
                source is None
                or others
                or not all(plain(t.a1) and agree(t.a1, t.a2) for t in terms)
            ):
                continue
            parts = [
                (t.a1, self.local.of(t.atom.activation or activation("identity")), t.atom.scale)
                for t in terms
            ]
            return FusedActivation(phi, tuple(parts), pair.shift1), source
        return None


class TracedProducts(Products):
    """Cross moments of atoms over JAX arrays, even if two atoms have different activations."""

    @property
    def crossing(self) -> type[TracedCrossing]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Cross moments of activations."""
        return TracedCrossing

    def _mean_slope(self, phi: Any, q: Any) -> Any:
        maps = _maps(phi)
        return phi.mean_slope(q, self.field) if maps is None else maps.mean_slope(q)

    def _functions(self, a: Atom, b: Atom, node: Node) -> tuple[TracedMaps, TracedMaps]:
        return _scaled(a), _scaled(b)


class TracedCrossing:
    """The functions of :mod:`kcalc.calculi.crossing` over JAX arrays."""

    alike = staticmethod(cross_alike)

    @staticmethod
    def expected(phi: TracedMaps, psi: TracedMaps, q1: Any, q2: Any, covariance: Any) -> Any:
        """Return ``E[phi(g) psi(h)]`` for Gaussians with these variances and covariance."""
        return cross(phi, psi, q1, q2, _cosine(covariance, q1, q2))

    @staticmethod
    def cross_moment_and_drop(
        phi: TracedMaps, psi: TracedMaps, q1: Any, q2: Any, covariance: Any, decrease: Any
    ) -> tuple[Any, Any]:
        """Return the cross moment E[phi psi] and its decrease when the covariance decreases.

        ``decrease`` is the decrease of the covariance.
        """
        top = _cosine(covariance, q1, q2)
        if not isinstance(decrease, Jet):
            return cross(phi, psi, q1, q2, top), 0
        return _with_drop(phi, psi, q1, q2, top, decrease / _norm(q1, q2))

    @staticmethod
    def dropped(phi: TracedMaps, psi: TracedMaps, q1: Any, q2: Any, gap: Jet) -> tuple[Any, Any]:
        """Return ``E[phi psi]`` at c = 1, and its decrease at the gap ``gap`` = 1 - c."""
        return _with_drop(phi, psi, q1, q2, None, gap)


def _with_drop(
    phi: TracedMaps, psi: TracedMaps, q1: Any, q2: Any, top: Any, loss: Jet
) -> tuple[Any, Jet]:
    joint, drop, slope = cross_drop(phi, psi, q1, q2, top, loss.value)
    return joint, Jet((drop, slope * loss.coefficients[1]))


def _cosine(covariance: Any, q1: Any, q2: Any) -> Any:
    import jax.numpy as jnp

    return to_end(covariance / _norm(q1, q2), jnp)


def _norm(q1: Any, q2: Any) -> Any:
    return q1 if q1 is q2 else jax_field().sqrt(q1 * q2)


def _maps(phi: Any) -> TracedMaps | None:
    """The maps of an activation for JAX; None if its closed forms suffice."""
    return phi if isinstance(phi, TracedMaps) else None if closed_in_jax(phi) else traced(phi, {})


def _scaled(post: Atom) -> TracedMaps:
    phi: Any = post.activation
    maps = phi if isinstance(phi, TracedMaps) else traced(phi, {})
    return maps if not is_jax(post.scale) and post.scale == 1 else maps.rescaled(post.scale)


def closed_in_jax(phi: Any) -> bool:
    """Whether an activation's C and C' have closed forms that JAX can trace in c and q."""
    if isinstance(phi, TracedMaps):
        return False
    known = phi.closed_in_numpy and phi._closed_gap(0.5, 1.0, 1.0, jax_field()) is not None
    return known and phi._closed_derivatives(0.5, 1.0, 1.0, jax_field()) is not None
