"""Local kernel quantities as differentiable JAX functions of c, q and the constants of a transformed activation, any of them traced.

A transformed activation is ``f(x) = d (phi(a x + b) + e)``. Where phi is smooth, its Hermite coefficients ``a_n(q)``, which are
``E[f(sqrt(q) z) h_n(z)]``, take one matrix product, and ``E[f(u) f(v)] = sum_n a_n(q1) a_n(q2) c^n`` (Mehler). Where phi has kinks
that series is slow; expectations are then integrals over the plane, split where f has its kinks. Both are good to about 1e-11; a series
that is cut too early gives nan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from kcalc.activations.base import Activation, Transformed
from kcalc.activations.jax_function import jax_function
from kcalc.errors import KcalcError

TERMS = 256
REACH = 13.0
STEP = 0.05
NODES = 48
INNER = 40
LAYER = 9.0  # half width of the zone about a kink, in units of the spread of v about c u
CUT = 1e-9
NAMES = ("input_scale", "input_shift", "output_scale", "output_shift")


@dataclass(frozen=True, eq=False)
class TracedActivation:
    """``f(x) = output_scale (phi(input_scale x + input_shift) + output_shift)`` with constants that JAX may trace.

    ``phi`` must be continuous. Every method takes JAX arrays (or numbers) and broadcasts.
    """

    phi: Activation
    input_scale: Any = 1.0
    input_shift: Any = 0.0
    output_scale: Any = 1.0
    output_shift: Any = 0.0

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.phi.name

    @classmethod
    def of(cls, activation: Activation, constants: Mapping[str, Any]) -> TracedActivation:
        """An activation with some of its constants replaced; those not given are its own. Raises: KcalcError for unknown names."""
        wrong = [name for name in constants if name not in NAMES]
        if wrong:
            raise KcalcError(f"unknown constant {wrong[0]!r} of {activation.name}; known are {', '.join(NAMES)}")
        phi, own = split(activation)
        if any(phi.jump_sizes(0)):
            raise KcalcError(f"{phi.name} jumps, so its kernels have no derivative at c = 1; use a continuous activation")
        return cls(phi, **(own | dict(constants)))

    def __call__(self, x: Any, n: int = 0) -> Any:
        """f^(n)(x)."""
        inner = jax_function(self.phi, n)(self.input_scale * x + self.input_shift)
        return self.output_scale * (inner + self.output_shift) if n == 0 else self.output_scale * self.input_scale**n * inner

    # -- moments -------------------------------------------------------------------------------------------------------------------------

    def second_moment(self, q: Any) -> Any:
        """E f(sqrt(q) z)^2."""
        return self._line(lambda x: self(x) ** 2, q)

    def mean(self, q: Any) -> Any:
        """E f(sqrt(q) z)."""
        return self._line(self, q)

    def _line(self, function: Any, q: Any) -> Any:
        import jax.numpy as jnp

        spread = jnp.sqrt(jnp.asarray(q) * 1.0)[..., None]
        z, weight = self._panels(spread, REACH)
        return jnp.sum(function(spread * z) * weight, axis=-1)

    def _kinks(self, spread: Any) -> Any:
        """Where z makes f(spread z) kink, ascending, shape (..., kinks)."""
        import jax.numpy as jnp

        points = jnp.asarray([float(k) for k in self.phi.kinks])
        return jnp.sort((points - self.input_shift) / self.input_scale / spread, axis=-1)

    def _panels(self, spread: Any, reach: float) -> tuple[Any, Any]:
        """Nodes and Gaussian weights on [-reach, reach], split at kinks; ``spread`` has a last axis of length one."""
        import jax.numpy as jnp

        if not self.phi.kinks:
            z = jnp.asarray(np.arange(-reach, reach + STEP / 2, STEP))
            return z, STEP * jnp.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        middle = jnp.clip(self._kinks(spread), -reach, reach)
        return _gauss(jnp.concatenate([jnp.full_like(middle[..., :1], -reach), middle, jnp.full_like(middle[..., :1], reach)], -1), NODES)

    # -- C -------------------------------------------------------------------------------------------------------------------------------

    def taylor(self, gap: Any, q1: Any, q2: Any, uniform: bool) -> tuple[Any, Any]:
        """(1 - C, C') at c = 1 - gap; ``uniform`` says that q2 is q1, which keeps the digits of 1 - C near c = 1."""
        import jax
        import jax.numpy as jnp

        compute = partial(self._plane if self.phi.kinks else self._series, uniform=uniform)
        return jax.checkpoint(compute)(jnp.asarray(gap), q1, q2)

    def _series(self, gap: Any, q1: Any, q2: Any, uniform: bool) -> tuple[Any, Any]:
        import jax.numpy as jnp

        first = self._coefficients(q1)
        second = first if uniform else self._coefficients(q2)
        norm = jnp.sqrt(self.second_moment(q1) * self.second_moment(q2)) if not uniform else self.second_moment(q1)
        b = first * second / norm
        tails = jnp.cumsum(b[::-1], axis=0)[::-1]
        offset = 0.0 if uniform else 1 - tails[0]
        gain, slope = _horner(1 - gap, tails[1:], jnp.arange(1, TERMS).reshape(-1, *([1] * (b.ndim - 1))) * b[1:])
        return offset + gap * gain, slope  # 1 - C = (1 - C(1)) + (1 - c) sum_n (b_{n+1} + b_{n+2} + ...) c^n

    def _coefficients(self, q: Any) -> Any:
        """a_0(q) ... a_255(q), shape (256, ...); nan where 256 terms are too few for C'."""
        import jax.numpy as jnp

        q = jnp.asarray(q) * 1.0
        z, weighted = _hermite()
        values = self(jnp.sqrt(q)[..., None] * z)
        out = jnp.moveaxis(jnp.matmul(values, weighted.T.astype(values.dtype)), -1, 0)
        order = jnp.arange(TERMS).reshape(-1, *([1] * q.ndim))
        whole = q * self._line(lambda x: self(x, 1) ** 2, q)  # = sum_n n a_n^2
        missing = jnp.abs(1 - jnp.sum(order * out**2, axis=0) / whole)
        allowed = CUT if values.dtype == jnp.float64 else 1e-3
        return jnp.where(missing < allowed, out, jnp.nan)

    def _plane(self, gap: Any, q1: Any, q2: Any, uniform: bool) -> tuple[Any, Any]:
        """E (f(u) - f(v))^2 / (2 Q) and E f'(u) f'(v) sqrt(q1 q2) / norm, v = sqrt(q2) (c x + s y)."""
        import jax.numpy as jnp

        shape = jnp.broadcast_shapes(gap.shape, jnp.shape(q1), jnp.shape(q2))
        gap, one, two = (jnp.broadcast_to(jnp.asarray(v) * 1.0, shape)[..., None] for v in (gap, q1, q2))
        c, s = 1 - gap, jnp.sqrt(jnp.maximum(gap * (2 - gap), 1e-30))
        x, weight = self._outer(c, s, jnp.sqrt(one), jnp.sqrt(two))
        x, weight = x[..., None], weight[..., None]
        c, s, one, two = (v[..., None] for v in (c, s, one, two))
        kinks = (self._kinks(jnp.sqrt(two)) - c * x) / s
        middle = jnp.clip(kinks, -8.5, 8.5)
        y, inner = _gauss(jnp.concatenate([jnp.full_like(middle[..., :1], -8.5), middle, jnp.full_like(middle[..., :1], 8.5)], -1), INNER)
        u, v = jnp.sqrt(one) * x, jnp.sqrt(two) * (c * x + s * y)
        weights = weight * inner
        norm = jnp.sqrt(self.second_moment(one[..., 0, 0]) * self.second_moment(two[..., 0, 0]))
        slope = jnp.sum(self(u, 1) * self(v, 1) * weights, axis=(-1, -2)) * jnp.sqrt(one * two)[..., 0, 0] / norm
        scaled = (
            (self(u) if uniform else self(u) / jnp.sqrt(self.second_moment(one))),
            (self(v) if uniform else self(v) / jnp.sqrt(self.second_moment(two))),
        )
        drop = jnp.sum((scaled[0] - scaled[1]) ** 2 * weights, axis=(-1, -2)) / 2
        return drop / norm if uniform else drop, slope

    def _outer(self, c: Any, s: Any, spread1: Any, spread2: Any) -> tuple[Any, Any]:
        """Nodes in x: split at the kinks of f(u), and about those of the mean of v in a zone as wide as v's spread."""
        import jax.numpy as jnp

        own = self._kinks(spread1)
        far = self._kinks(spread2)
        safe = jnp.where(jnp.abs(c) < 1e-3, jnp.where(c < 0, -1e-3, 1e-3), c)
        centre, zone = far / safe, LAYER * s / jnp.abs(safe)
        ends = jnp.full_like(own[..., :1], REACH)
        edges = jnp.concatenate([-ends, own, centre - zone, centre - zone / 3, centre + zone / 3, centre + zone, 0 * ends, ends], axis=-1)
        return _gauss(jnp.sort(jnp.clip(edges, -REACH, REACH), axis=-1), NODES // 2)


def _horner(c: Any, *series: Any) -> tuple[Any, ...]:
    """sum_n series[n] c^n of several series of the same length (first axis), by one loop."""
    import jax
    import jax.numpy as jnp

    def step(carry: Any, row: Any) -> Any:
        return tuple(old * c + a for old, a in zip(carry, row, strict=True)), None

    def run(*given: Any) -> Any:
        shape = jnp.broadcast_shapes(c.shape, *(s.shape[1:] for s in given))
        start = tuple(jnp.zeros(shape, jnp.result_type(c, s)) for s in given)
        return jax.lax.scan(step, start, given, reverse=True)[0]

    return run(*series)


def split(activation: Activation) -> tuple[Activation, dict[str, float]]:
    """The activation before its transformation, and the constants of that as floats."""
    if isinstance(activation, Transformed):
        return activation.original, {name: float(getattr(activation.constants, name)) for name in NAMES}
    return activation, dict(zip(NAMES, (1.0, 0.0, 1.0, 0.0), strict=True))


def _gauss(edges: Any, count: int) -> tuple[Any, Any]:
    """Gauss-Legendre nodes and Gaussian weights on the panels between the edges (last axis)."""
    import jax.numpy as jnp

    t, w = np.polynomial.legendre.leggauss(count)
    half, middle = (edges[..., 1:] - edges[..., :-1]) / 2, (edges[..., 1:] + edges[..., :-1]) / 2
    z = (middle[..., None] + half[..., None] * t).reshape(*edges.shape[:-1], -1)
    weight = (half[..., None] * w).reshape(z.shape)
    return z, weight * jnp.exp(-z * z / 2) / np.sqrt(2 * np.pi)


@lru_cache(maxsize=1)
def _hermite() -> tuple[np.ndarray, np.ndarray]:
    """Nodes z and the matrix h_n(z) exp(-z^2/2) STEP / sqrt(2 pi), h_n orthonormal under the standard Gaussian: shape (256, nodes)."""
    z = np.arange(-REACH, REACH + STEP / 2, STEP)
    rows = [np.exp(-z * z / 4), z * np.exp(-z * z / 4)]
    for n in range(1, TERMS - 1):
        rows.append((z * rows[n] - np.sqrt(n) * rows[n - 1]) / np.sqrt(n + 1))
    return z, np.array(rows) * np.exp(-z * z / 4) * STEP / np.sqrt(2 * np.pi)
