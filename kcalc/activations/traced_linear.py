"""Piecewise linear activations, such as relu, with constants that JAX may trace.

Their expectations are closed forms or integrals over one angle.

Let ``f = d (phi(a x + b) + e)``, where the slope of phi jumps by ``J_k`` at ``kappa_k``. Let
``h_k = (kappa_k - b) / (|a| sqrt(q1))``, and let ``l_k`` be the same with q2. Then
``E f'(u) f'(v)`` is a sum of orthant probabilities ``L(h, l, t) = P(x > h, y > l)`` of a Gaussian
pair with cosine cos t. The slope of L is ``dL/dt = -p`` with
``p(t) = exp(-(h^2 + l^2 - 2 h l cos t) / (2 sin^2 t)) / (2 pi)`` [Plackett 1954].
Integrals run over ``w = log tan(t/2)``, because p has no narrow features in w. Near c = 1 no large
numbers are subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from kcalc.activations.base import Activation
from kcalc.activations.pieces import X
from kcalc.activations.traced_rules import TracedMaps, line_distance
from kcalc.gaussian.expectations.quadrature import panel_nodes

NAMES = ("input_scale", "input_shift", "output_scale", "output_shift")
MOST = 4
DEPTH = 36.0  # angles below e^-36 of the range are left out
PANELS = 18
NODES = 20
TINY = 1e-30


@dataclass(frozen=True)
class Pieces:
    """The function ``start + slope x + sum_k jumps_k max(x - kinks_k, 0)``."""

    start: float
    slope: float
    kinks: tuple[float, ...]
    jumps: tuple[float, ...]


@lru_cache(maxsize=256)
def linear_pieces(phi: Activation) -> Pieces | None:
    """Return the pieces of a continuous piecewise linear function with 1 to 4 kinks, else None."""
    if phi.numeric_only or not 0 < len(phi.kinks) <= MOST or any(phi.jump_sizes(0)):
        return None
    pieces: Any = phi.pieces
    if not all(piece.is_polynomial(X) and piece.as_poly(X).degree() <= 1 for piece in pieces):
        return None
    first = pieces[0].as_poly(X)
    return Pieces(
        float(first.coeff_monomial(1)),
        float(first.coeff_monomial(X)),
        phi.kink_points,
        tuple(phi.jump_sizes(1)),
    )


@dataclass(frozen=True, eq=False)
class LinearMaps(TracedMaps):
    """The maps of a piecewise linear activation under an affine transformation.

    The activation is ``output_scale (phi(input_scale x + input_shift) + output_shift)``, where phi
    is given by its ``pieces``.
    """

    name: str
    pieces: Pieces
    input_scale: Any
    input_shift: Any
    output_scale: Any
    output_shift: Any
    seen: list[tuple[Any, Standard]] = field(default_factory=list, init=False, repr=False)

    def __call__(self, x: Any, n: int = 0) -> Any:
        import jax.numpy as jnp

        p, y = self.pieces, self.input_scale * x + self.input_shift
        terms = zip(p.jumps, p.kinks, strict=True)
        if n == 0:
            return self.output_scale * (
                p.start
                + self.output_shift
                + p.slope * y
                + sum(j * jnp.maximum(y - k, 0) for j, k in terms)
            )
        return (
            self.output_scale
            * self.input_scale
            * (p.slope + sum(jnp.where(y >= k, j, 0.0) for j, k in terms))
        )

    @property
    def kinked(self) -> bool:
        return True

    def kink_points(self) -> Any:
        import jax.numpy as jnp

        return (jnp.asarray(self.pieces.kinks) - self.input_shift) / self.input_scale

    def rescaled(self, scale: Any) -> LinearMaps:
        """Return the function x -> f(scale x)."""
        return replace(self, input_scale=self.input_scale * scale)

    def _at(self, q: Any) -> Standard:
        """Return the standardised data at q, from a cache."""
        import jax.numpy as jnp

        for known, found in self.seen:
            if known is q:
                return found
        p, shape = self.pieces, jnp.shape(q)
        variance, a, shift, lift = (
            jnp.broadcast_to(jnp.asarray(v) * 1.0, shape)
            for v in (q, self.input_scale, self.input_shift, self.output_shift)
        )
        spread = jnp.abs(a) * jnp.sqrt(variance)  # a negative scale flips both inputs
        kinks = [(k - shift) / spread for k in p.kinks]
        found = Standard(
            spread,
            p.start + lift + p.slope * shift,
            tuple(Kink(k, _tail(k), _density(k)) for k in kinks),
        )
        self.seen.append((q, found))
        return found

    def _scaled(self, value: Any, power: int) -> Any:
        import jax.numpy as jnp

        return (
            jnp.broadcast_to(jnp.asarray(self.output_scale) * 1.0, jnp.shape(value)) ** power
            * value
        )

    def second_moment(self, q: Any) -> Any:
        """Return E f(sqrt(q) z)^2 in closed form."""
        at = self._at(q)
        return self._scaled(self._product(at, at), 2)

    def _product(self, one: Standard, two: Standard) -> Any:
        """Return E f(sqrt(q1) z) f(sqrt(q2) z) / output_scale^2 in closed form."""
        p = self.pieces
        total = one.level * two.level + self.pieces.slope**2 * one.spread * two.spread
        # products of the line level + slope z with (z - k)+
        for j, h, low in zip(p.jumps, one.kinks, two.kinks, strict=True):
            total = total + j * (
                one.level * two.spread * low.excess + two.level * one.spread * h.excess
            )
            total = (
                total + j * p.slope * one.spread * two.spread * (h.tail + low.tail)
                if p.slope
                else total
            )
        for i, h in zip(p.jumps, one.kinks, strict=True):
            for j, low in zip(p.jumps, two.kinks, strict=True):
                top = h.farther(low)
                product = (1 + h.place * low.place) * top.tail + (
                    top.place - h.place - low.place
                ) * top.density
                total = total + i * j * one.spread * two.spread * product
        return total

    def mean(self, q: Any) -> Any:
        """Return E f(sqrt(q) z) in closed form."""
        at = self._at(q)
        return self._scaled(
            at.level
            + at.spread
            * sum(j * h.excess for j, h in zip(self.pieces.jumps, at.kinks, strict=True)),
            1,
        )

    def mean_slope(self, q: Any) -> Any:
        """Return E f'(sqrt(q) z) in closed form."""
        slope = self.pieces.slope + sum(
            j * h.tail for j, h in zip(self.pieces.jumps, self._at(q).kinks, strict=True)
        )
        return self._scaled(self.input_scale * slope, 1)

    def slope_at_one(self, q: Any, second_moment: Any) -> Any:
        """Return C'(1) = q E f'(sqrt(q) z)^2 / E f^2 in closed form."""
        at, p = self._at(q), self.pieces
        pairs = [
            (i * j, h, low)
            for i, h in zip(p.jumps, at.kinks, strict=True)
            for j, low in zip(p.jumps, at.kinks, strict=True)
        ]
        squares = self._straight(at, at) + sum(
            weight * h.farther(low).tail for weight, h, low in pairs
        )
        return self._scaled(at.spread**2 * squares / second_moment, 2)

    def _straight(self, one: Standard, two: Standard) -> Any:
        """Return the contribution of the leftmost straight line to E phi' phi'."""
        p = self.pieces
        terms = zip(p.jumps, one.kinks, two.kinks, strict=True)
        return (
            p.slope**2 + p.slope * sum(j * (h.tail + low.tail) for j, h, low in terms)
            if p.slope
            else 0.0
        )

    def taylor(
        self,
        gap: Any,
        q1: Any,
        q2: Any,
        uniform: bool,
        second_moments: tuple[Any, Any] | None = None,
    ) -> tuple[Any, Any]:
        import jax
        import jax.numpy as jnp

        q2 = q1 if uniform else q2
        first, second = second_moments or (self.second_moment(q1), self.second_moment(q2))
        shape = jnp.broadcast_shapes(jnp.shape(gap), jnp.shape(q1), jnp.shape(q2))
        one = self._at(q1).wide(shape)
        two = one if uniform else self._at(q2).wide(shape)
        p, value = self.pieces, self._straight(one, two)
        drop, gap = value * gap, jnp.broadcast_to(gap, shape)
        for i, h in zip(p.jumps, one.kinks, strict=True):
            for j, low in zip(p.jumps, two.kinks, strict=True):
                orthant, loss = _orthants()(h.place, low.place, h.farther(low).tail, gap)
                value, drop = value + i * j * orthant, drop + i * j * loss
        norm = jnp.sqrt(first * second)
        factor = self._scaled(one.spread * two.spread / norm, 2)
        if uniform:
            return factor * drop, factor * value
        # 1 + closed cancels if it is small, but closed has a short derivative
        closed = -self._scaled(self._product(one, two) / norm, 2)
        frozen = replace(
            self, **{name: jax.lax.stop_gradient(getattr(self, name)) for name in NAMES}
        )
        digits = line_distance(frozen, *(jax.lax.stop_gradient(v) for v in (q1, q2, first, second)))
        return digits + factor * drop + (closed - jax.lax.stop_gradient(closed)), factor * value


@dataclass(frozen=True)
class Kink:
    """A kink at z = ``place``, with P(z > place) and the density there."""

    place: Any
    tail: Any
    density: Any

    @property
    def excess(self) -> Any:
        """E (z - place)+."""
        return self.density - self.place * self.tail

    def farther(self, other: Kink) -> Kink:
        """Return the kink with the larger ``place``, elementwise."""
        import jax.numpy as jnp

        if other is self:
            return self
        mine = self.place >= other.place
        pairs = ((self.place, other.place), (self.tail, other.tail), (self.density, other.density))
        return Kink(*(jnp.where(mine, a, b) for a, b in pairs))


@dataclass(frozen=True)
class Standard:
    """The standardised data of a piecewise linear activation at one q.

    ``spread`` is |a| sqrt(q), ``level`` is the value of phi + e at z = 0 on the leftmost line, and
    ``kinks`` are the kinks in units of |a| sqrt(q).
    """

    spread: Any
    level: Any
    kinks: tuple[Kink, ...]

    def wide(self, shape: tuple[int, ...]) -> Standard:
        """Return the same data, with all arrays broadcast to one shape.

        Gradients are then added before they are reduced to the original shapes, which shortens
        compilation.
        """
        import jax.numpy as jnp

        def to(value: Any) -> Any:
            return jnp.broadcast_to(value, shape)

        return Standard(
            to(self.spread),
            to(self.level),
            tuple(Kink(to(k.place), to(k.tail), to(k.density)) for k in self.kinks),
        )


def _tail(x: Any) -> Any:
    """Return P(z > x)."""
    from jax import lax

    return lax.erfc(x * 0.5**0.5) / 2


def _density(x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.lax.optimization_barrier(jnp.exp(-x * x / 2) * (2 * np.pi) ** -0.5)


@lru_cache(maxsize=1)
def _orthants() -> Any:
    """Return a function that maps (h, l, P(z > max(h, l)), gap) to (L, drop).

    L is the orthant probability. The drop is the decrease of E (x - h)+ (y - l)+ from a gap of 0 to
    ``gap``. The derivatives of the function are closed forms.
    """
    import jax
    import jax.numpy as jnp

    @jax.custom_jvp
    def orthants(h: Any, low: Any, tail: Any, gap: Any) -> tuple[Any, Any]:
        inside, moment = _integrals(h, low, gap)
        return tail - inside, gap * (tail - inside) + moment

    @orthants.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        h, low, tail, gap = primals
        by_h, by_low, _, by_gap = tangents  # the tail depends on h or l only
        found = orthants(*primals)
        c, s = 1 - gap, jnp.sqrt(jnp.maximum(gap * (2 - gap), TINY))
        beyond, within = (low - c * h) / s, (h - c * low) / s
        first, second = _density(h) * _tail(beyond), _density(low) * _tail(within)
        steep = _density(low) * _density(within) / s  # p / sin t
        top = _density(jnp.maximum(h, low))
        moved = -first * by_h - second * by_low - steep * by_gap
        rate_h = second + c * first - low * found[0] - top + low * tail
        rate_low = first + c * second - h * found[0] - top + h * tail
        return found, (moved, rate_h * by_h + rate_low * by_low + found[0] * by_gap)

    return orthants


def _integrals(h: Any, low: Any, gap: Any) -> tuple[Any, Any]:
    """Return the integrals of p and of (1 - cos t) p over t from 0 to arccos(1 - gap)."""
    import jax.numpy as jnp

    end = ((jnp.log(jnp.maximum(gap, TINY)) - jnp.log(jnp.maximum(2 - gap, TINY))) / 2)[..., None]
    offset, weight, share, weight_of_share = (jnp.asarray(v, gap.dtype) for v in _rules())
    above = jnp.maximum(end, 0.0)
    w = jnp.concatenate([jnp.minimum(end, 0.0) + offset, above * share], axis=-1)
    weight = jnp.concatenate([0 * end + weight, above * weight_of_share], axis=-1)
    h, low = h[..., None], low[..., None]
    tangent = jnp.exp(w)  # tan(t/2)
    cosh = (tangent + 1 / tangent) / 2
    far = 2 / (1 + tangent * tangent)  # 1 + cos t
    near = far * tangent * tangent
    ahead = (h - low) ** 2 * cosh**2 / 2 + h * low / jnp.where(w < 0, far, 1.0)
    behind = (h + low) ** 2 * cosh**2 / 2 - h * low / jnp.where(w < 0, 1.0, near)
    # dt = dw / cosh w
    density = jnp.exp(-jnp.where(w < 0, ahead, behind)) / (2 * np.pi) / cosh * weight
    return jnp.sum(density, axis=-1), jnp.sum(near * density, axis=-1)


@lru_cache(maxsize=1)
def _rules() -> tuple[np.ndarray, ...]:
    """Return quadrature nodes and weights on [-36, 0] and on [0, 1]."""
    rules = (
        panel_nodes(np.linspace(low, low + length, PANELS + 1), NODES)
        for low, length in ((-DEPTH, DEPTH), (0.0, 1.0))
    )
    return tuple(part.ravel() for rule in rules for part in rule)
