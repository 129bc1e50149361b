"""The tangent calculus over JAX arrays with sigma_w, sigma_b and activations of the caller."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..activations import Activation, activation
from ..activations.traced import FusedActivation, TracedMaps, cross, cross_alike, cross_drop, traced
from ..errors import FreshnessError
from ..fields.jax_field import is_jax, jax_field
from ..fields.jets import Jet
from ..layers import Affine
from .atoms import Atom, Pair, opened
from .checks import plain
from .crossing import to_end
from .freshness import Algebra
from .second_moments import Moments, Part, agree
from .tangent import Tangent

Node = Hashable


@dataclass
class LearnableTangent(Tangent):
    """The tangent calculus over JAX arrays. ``equal``: both inputs are one, so that every gap is 0.

    ``activations`` replace those of their nodes. ``fixed`` collects {nonlinear node: why its constants cannot be given}.
    """

    sigma_w: Mapping[Node, Any] = field(default_factory=dict)
    sigma_b: Mapping[Node, Any] = field(default_factory=dict)
    activations: Mapping[Node, TracedMaps] = field(default_factory=dict)
    equal: bool = False
    fixed: dict[Node, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.algebra: Algebra = TracedAlgebra(self.field, self.uniform)
        self._traced: dict[Activation, TracedMaps] = {}

    def maps_of(self, phi: Any) -> TracedMaps:
        """An activation as JAX sees it."""
        if isinstance(phi, TracedMaps):
            return phi
        if phi not in self._traced:
            self._traced[phi] = traced(phi, {})
        return self._traced[phi]

    def _sigmas(self, layer: Affine, node: Node) -> tuple[Any, Any]:
        own = super()._sigmas(layer, node)
        return self.sigma_w.get(node, own[0]), self.sigma_b.get(node, own[1])

    def _activated(self, phi: Any, pair: Pair, node: Node) -> Pair:
        chosen: Any = self.activations.get(node, phi)
        return super()._activated(chosen, pair, node)

    # -- one activation ------------------------------------------------------------------------------------------------------------------

    def _local_q(self, phi: Any, q: Any) -> tuple[Any, Any]:
        if closed_in_jax(phi):
            return super()._local_q(phi, q)
        maps = self.maps_of(phi)
        return maps.second_moment(q), maps.mean(q)

    def _local_gap(self, phi: Any, gap: Jet, q1: Any, q2: Any) -> Jet:
        if closed_in_jax(phi):
            return super()._local_gap(phi, gap, q1, q2)
        maps = self.maps_of(phi)
        if self.equal:
            return Jet((gap.value, maps.slope_at_one(q1, maps.second_moment(q1)) * gap.coefficients[1]))
        value, slope = maps.taylor(gap.value, q1, q1 if self.uniform else q2, self.uniform)
        return Jet((value, slope * gap.coefficients[1]))

    # -- several, one after the other ----------------------------------------------------------------------------------------------------

    def _fusion(self, phi: Any, pair: Pair, node: Node) -> tuple[Any, Atom] | None:
        """As before where all constants are the network's own, which also finds new kinks; else only where the outer one has none."""
        below = [t.atom for t in opened(pair.terms)]
        if isinstance(phi, Activation) and not any(isinstance(a.activation, TracedMaps) for a in below):
            found = super()._fusion(phi, pair, node)
            if found is not None and phi.kinks:
                text = f"{phi.name} has kinks and is fused with the functions before it, so the constants of none of them can be learnt"
                self.fixed.update(dict.fromkeys([node, *(a.node for a in below if a.activation is not None)], text))
            return found
        if self.maps_of(phi).kinked or not (plain(pair.shift1) and agree(pair.shift1, pair.shift2)):
            return None
        return self._fused(self.maps_of(phi), pair, node)

    def _fused(self, phi: TracedMaps, pair: Pair, node: Node) -> tuple[TracedMaps, Atom] | None:
        for terms in (pair.terms, opened(pair.terms)):
            sources = {id(a): a for t in terms for a in [t.atom if t.atom.gaussian else t.atom.source]}
            (source, *others) = sources.values()
            if source is None or others or not all(plain(t.a1) and agree(t.a1, t.a2) for t in terms):
                continue
            parts = [(t.a1, self.maps_of(t.atom.activation or activation("identity")), t.atom.scale) for t in terms]
            return FusedActivation(phi, tuple(parts), pair.shift1), source
        return None

    def _clipped(self, gap: Any) -> Any:
        import jax.numpy as jnp

        value = jnp.where(gap.value < 0, 0.0, jnp.where(gap.value > 2, 2.0, gap.value))
        return Jet((value, *gap.coefficients[1:]))


class TracedAlgebra(Algebra):
    """Second moments of feature maps over JAX arrays, cross moments of unlike activations included."""

    def _mean_slope(self, phi: Any, q: Any) -> Any:
        maps = _maps(phi)
        return phi.mean_slope(q, self.field) if maps is None else maps.mean_slope(q)

    def _crossed(self, a: Atom, b: Atom, node: Node) -> tuple[Part, Part]:
        """``E[phi(g) psi(h)]`` of two activations of dependent Gaussians."""
        if a.activation is None or b.activation is None or a.source is None or b.source is None:
            raise FreshnessError(f"node {node!r} adds {a.node!r} and {b.node!r}, which share weights in a way that kcalc cannot follow")
        phi, psi = (_scaled(post) for post in (a, b))
        m, n = a.source.moments, b.source.moments
        if a.source is b.source:
            return self._of_one(phi, psi, m)
        ahead, back = self.product(a.source, b.source, node)
        first = cross(phi, psi, m.q1, n.q1, _to_end(ahead.first / self.geometric(m.q1, n.q1)))
        second = first if self.uniform else cross(phi, psi, m.q2, n.q2, _to_end(ahead.second / self.geometric(m.q2, n.q2)))
        one = self._lessened(phi, psi, m.q1, n.q2, ahead)
        two = one if self.uniform else self._lessened(phi, psi, m.q2, n.q1, back)
        return Part(first, second, *one), Part(first, second, *two)

    def _of_one(self, phi: TracedMaps, psi: TracedMaps, m: Moments) -> tuple[Part, Part]:
        first = cross_alike(phi, psi, m.q1)
        second = first if self.uniform else cross_alike(phi, psi, m.q2)
        q2 = m.q1 if self.uniform else m.q2
        one = _dropped(cross_drop(phi, psi, m.q1, q2, None, m.gap.value), m.gap)
        two = one if self.uniform else _dropped(cross_drop(phi, psi, m.q2, m.q1, None, m.gap.value), m.gap)
        return Part(first, second, *one), Part(first, second, *two)

    def _lessened(self, phi: TracedMaps, psi: TracedMaps, q1: Any, q2: Any, part: Part) -> tuple[Any, Any]:
        norm = self.geometric(q1, q2)
        top, loss = _to_end(part.joint / norm), part.deficit / norm
        if not isinstance(loss, Jet):
            return cross(phi, psi, q1, q2, top), 0
        return _dropped(cross_drop(phi, psi, q1, q2, top, loss.value), loss)


def _dropped(found: tuple[Any, Any, Any], loss: Jet) -> tuple[Any, Jet]:
    joint, drop, slope = found
    return joint, Jet((drop, slope * loss.coefficients[1]))


def _to_end(cosine: Any) -> Any:
    import jax.numpy as jnp

    return to_end(cosine, jnp)


def _maps(phi: Any) -> TracedMaps | None:
    """The function as JAX sees it; None where its closed forms do."""
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


__all__ = ["LearnableTangent", "TracedAlgebra", "closed_in_jax"]
