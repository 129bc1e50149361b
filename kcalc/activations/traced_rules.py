"""Gaussian expectations of functions that JAX traces.

The expectations include moments, C maps and cross moments. All are differentiable with respect to
all arguments.

For smooth functions, one matrix product gives the Hermite coefficients
``a_n(q) = E[f(sqrt(q) z) h_n(z)]``, and ``E[f(u) g(v)] = sum_n a_n(q1) b_n(q2) c^n`` (Mehler). For
functions with kinks this series converges slowly, so expectations are integrals over the plane,
split at the kinks. Both methods are accurate to about 1e-11. If 256 terms of the series are not
enough, the result is nan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache, partial
from typing import Any

import numpy as np

from kcalc.gaussian.expectations.quadrature import panel_nodes

TERMS = 256
REACH = 13.0
STEP = 0.05
NODES = 16  # nodes on each panel in the plane, per dimension
FINE = 48  # nodes on each panel of the line
OUTER = (-13.0, -7.0, -4.5, -3.0, -1.5, 0.0, 1.5, 3.0, 4.5, 7.0, 13.0)
WITHIN = (-8.5, -4.5, -2.4, -0.8, 0.8, 2.4, 4.5, 8.5)
LAYER = 9.0  # half-width of the zone around a kink, in units of the spread of v around c u
CUT = 1e-9
CROWDS = (12, 24, 48, 96, 192)  # numbers of kinks that may be kept, if there are more
AT_ONCE = 1 << 23  # nodes in the plane that are processed together


class TracedMaps(ABC):
    """A continuous function ``f`` of JAX arrays, with kinks at known points.

    The arguments of every method broadcast.
    """

    name: str

    @abstractmethod
    def __call__(self, x: Any, n: int = 0) -> Any:
        """Return f(x), or f'(x) for n = 1."""

    @property
    @abstractmethod
    def kinked(self) -> bool:
        """Whether there are kinks."""

    @abstractmethod
    def kink_points(self) -> Any:
        """Return the kinks, shape (kinks,), in any order."""

    @property
    def endless(self) -> bool:
        """Whether there are more kinks beyond the known kinks, as for |sin x|."""
        return False

    @abstractmethod
    def rescaled(self, scale: Any) -> TracedMaps:
        """Return the function x -> f(scale x)."""

    # -- moments -----------------------------------------------------------------------------------

    def second_moment(self, q: Any) -> Any:
        """Return E f(sqrt(q) z)^2."""
        return _line((self,), lambda x: self(x) ** 2, q)

    def mean(self, q: Any) -> Any:
        """Return E f(sqrt(q) z)."""
        return _line((self,), self, q)

    def mean_slope(self, q: Any) -> Any:
        """Return E f'(sqrt(q) z)."""
        return _line((self,), lambda x: self(x, 1), q)

    def slope_at_one(self, q: Any, second_moment: Any) -> Any:
        """Return C'(1) = q E f'(sqrt(q) z)^2 / E f^2, given the ``second_moment`` E f^2 at q."""
        return q * _line((self,), lambda x: self(x, 1) ** 2, q) / second_moment

    # -- two inputs --------------------------------------------------------------------------------

    def taylor(
        self,
        gap: Any,
        q1: Any,
        q2: Any,
        uniform: bool,
        second_moments: tuple[Any, Any] | None = None,
    ) -> tuple[Any, Any]:
        """Return (1 - C, C') at c = 1 - gap.

        1 - C keeps its digits near c = 1. ``uniform`` is True if q2 is q1. ``second_moments`` are
        E f^2 at q1 and q2, if known.
        """
        import jax
        import jax.numpy as jnp

        first, second = second_moments or (
            self.second_moment(q1),
            None if uniform else self.second_moment(q2),
        )
        second = first if uniform else second
        if not self.kinked:
            return jax.checkpoint(partial(self._series, uniform=uniform))(
                jnp.asarray(gap), q1, q2, first, second
            )
        return _over_pairs(
            partial(self._planar, uniform=uniform),
            self,
            self,
            jnp.asarray(gap),
            q1,
            q2,
            first,
            second,
        )

    def _series(
        self, gap: Any, q1: Any, q2: Any, first: Any, second: Any, uniform: bool
    ) -> tuple[Any, Any]:
        import jax.numpy as jnp

        one = _coefficients(self, q1) / jnp.sqrt(first)
        two = one if uniform else _coefficients(self, q2) / jnp.sqrt(second)
        _, gain, slope, apart = _mehler(one, two, 1.0, 1 - gap, not uniform)
        return apart + gap * gain, slope

    def _planar(
        self, gap: Any, q1: Any, q2: Any, first: Any, second: Any, uniform: bool, most: int | None
    ) -> tuple[Any, Any]:
        import jax.numpy as jnp

        u, v, weights = _plane(self, self, gap, q1, q2, most)
        norm = jnp.sqrt(first * second)
        slope = jnp.sum(self(u, 1) * self(v, 1) * weights, axis=(-1, -2)) * jnp.sqrt(q1 * q2) / norm
        scale1, scale2 = (jnp.sqrt(jnp.asarray(m) * 1.0)[..., None, None] for m in (first, second))
        difference = (
            (self(u) - self(v)) / scale1 if uniform else self(u) / scale1 - self(v) / scale2
        )
        return jnp.sum(difference**2 * weights, axis=(-1, -2)) / 2, slope


def cross(f: TracedMaps, g: TracedMaps, q1: Any, q2: Any, cosine: Any) -> Any:
    """Return E f(u) g(v) for Gaussians with variances q1, q2 and the given cosine."""
    return cross_drop(f, g, q1, q2, cosine, None)[0]


def cross_alike(f: TracedMaps, g: TracedMaps, q: Any) -> Any:
    """Return E f(u) g(u) for a Gaussian u with variance q."""
    return _line((f, g), lambda x: f(x) * g(x), q)


def cross_drop(
    f: TracedMaps, g: TracedMaps, q1: Any, q2: Any, top: Any, loss: Any
) -> tuple[Any, Any, Any]:
    """Return ``E f(u) g(v)`` at cosine ``top``, its decrease, and the decrease's derivative.

    The cosine decreases by ``loss``, and the derivative is with respect to ``loss``.

    ``top`` is None if f and g have the same Gaussian input (cosine 1). ``loss`` is None if only the
    first result is needed.
    """
    import jax
    import jax.numpy as jnp

    if not f.kinked and not g.kinked:

        def series(q1: Any, q2: Any, one: Any, taken: Any) -> tuple[Any, ...]:
            whole, gain, slope, _ = _mehler(
                _coefficients(f, q1), _coefficients(g, q2), one, one - taken, False
            )
            return whole, taken * gain, slope

        return jax.checkpoint(series)(
            q1,
            q2,
            jnp.asarray(1.0 if top is None else top),
            jnp.asarray(0.0 if loss is None else loss),
        )
    if top is None:
        return _line_pair(f, g, q1, q2), *_over_pairs(
            partial(_alike, f, g), f, g, jnp.asarray(0.0 if loss is None else loss), q1, q2
        )
    whole = _over_pairs(partial(_crossed, f, g), f, g, 1 - jnp.asarray(top), q1, q2)[0]
    if loss is None:
        return whole, 0.0, 0.0
    less, slope = _over_pairs(partial(_crossed, f, g), f, g, 1 - top + loss, q1, q2)
    return whole, whole - less, slope


def _crossed(
    f: TracedMaps, g: TracedMaps, gap: Any, q1: Any, q2: Any, most: int | None
) -> tuple[Any, Any]:
    """Return E f(u) g(v) and its derivative with respect to the cosine, by a plane integral."""
    import jax.numpy as jnp

    u, v, weights = _plane(f, g, gap, q1, q2, most)
    slope = jnp.sum(f(u, 1) * g(v, 1) * weights, axis=(-1, -2)) * jnp.sqrt(q1 * q2)
    return jnp.sum(f(u) * g(v) * weights, axis=(-1, -2)), slope


def _alike(
    f: TracedMaps, g: TracedMaps, gap: Any, q1: Any, q2: Any, most: int | None
) -> tuple[Any, Any]:
    """Return the decrease ``E f(u) (g(u') - g(v))`` and its derivative with respect to ``gap``.

    ``u'`` is u scaled to the variance of v.

    The plane is split at the kinks of f(u) and g(v), but not of g(u').
    """
    import jax.numpy as jnp

    u, v, weights = _plane(f, g, gap, q1, q2, most)
    slope = jnp.sum(f(u, 1) * g(v, 1) * weights, axis=(-1, -2)) * jnp.sqrt(q1 * q2)
    same = u * jnp.sqrt(q2 / q1)[..., None, None]
    return jnp.sum(f(u) * (g(same) - g(v)) * weights, axis=(-1, -2)), slope


# -- one Gaussian ----------------------------------------------------------------------------------


def _line(functions: tuple[TracedMaps, ...], integrand: Any, q: Any) -> Any:
    """Return E integrand(sqrt(q) z), with the integral split at the kinks of the functions."""
    import jax.numpy as jnp

    spread = jnp.sqrt(jnp.asarray(q) * 1.0)[..., None]
    z, weight = _panels([_kinks(f, spread) for f in functions if f.kinked])
    return jnp.sum(integrand(spread * z) * weight, axis=-1)


def _line_pair(f: TracedMaps, g: TracedMaps, q1: Any, q2: Any) -> Any:
    """Return E f(sqrt(q1) z) g(sqrt(q2) z)."""
    import jax.numpy as jnp

    one, two = (jnp.sqrt(jnp.asarray(q) * 1.0)[..., None] for q in (q1, q2))
    z, weight = _panels([_kinks(h, s) for h, s in ((f, one), (g, two)) if h.kinked])
    return jnp.sum(f(one * z) * g(two * z) * weight, axis=-1)


def line_distance(f: TracedMaps, q1: Any, q2: Any, first: Any, second: Any) -> Any:
    """Return 1 - C at c = 1 for two q values.

    The value is ``E (f(sqrt(q1) z) / sqrt(Q1) - f(sqrt(q2) z) / sqrt(Q2))^2 / 2``, with Q1 and Q2
    given as ``first`` and ``second``.
    """
    import jax.numpy as jnp

    one, two = (jnp.sqrt(jnp.asarray(q) * 1.0)[..., None] for q in (q1, q2))
    z, weight = _panels([_kinks(f, s) for s in (one, two) if f.kinked])
    scale1, scale2 = (jnp.sqrt(jnp.asarray(m) * 1.0)[..., None] for m in (first, second))
    return jnp.sum((f(one * z) / scale1 - f(two * z) / scale2) ** 2 * weight, axis=-1) / 2


def _kinks(f: TracedMaps, spread: Any, most: int | None = None) -> Any:
    """Return the kinks of f(spread z) in z, with shape (..., kinks).

    ``most`` limits their number; the kinks nearest to 0 are kept.
    """
    import jax
    import jax.numpy as jnp

    points = f.kink_points()
    if most is not None and most < points.shape[0]:
        points = points[jnp.argsort(jnp.abs(jax.lax.stop_gradient(points)))[:most]]
    return points / spread


def _panels(kinks: list[Any]) -> tuple[Any, Any]:
    """Return nodes and Gaussian weights on panels that cover [-13, 13], split at kinks."""
    import jax.numpy as jnp

    if not kinks:
        z = jnp.asarray(np.arange(-REACH, REACH + STEP / 2, STEP))
        return z, STEP * jnp.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return _gauss(_merged(jnp.asarray(OUTER, kinks[0].dtype), kinks, REACH), FINE)


def _merged(fixed: Any, kinks: list[Any], reach: float) -> Any:
    """Merge edges and kinks in ascending order, clipped to [-reach, reach].

    Only derivatives with respect to the kinks are kept, because integrals do not depend on the
    other edges.
    """
    import jax
    import jax.numpy as jnp

    shape = jnp.broadcast_shapes(fixed.shape[:-1], *(k.shape[:-1] for k in kinks))
    parts = [
        jnp.clip(jnp.broadcast_to(part, (*shape, part.shape[-1])), -reach, reach)
        for part in (fixed, *kinks)
    ]
    # computed once, so equal numbers stay equal
    whole = jax.lax.optimization_barrier(jnp.concatenate(parts, axis=-1))
    held = jax.lax.stop_gradient(whole)
    edges, first = jnp.sort(held, axis=-1), fixed.shape[-1]
    moved = jnp.where(
        edges[..., None] == held[..., None, first:], (whole - held)[..., None, first:], 0.0
    )
    return edges + jnp.sum(moved, axis=-1)


# -- two Gaussians: kinks --------------------------------------------------------------------------


def _over_pairs(
    compute: Any, f: TracedMaps, g: TracedMaps, gap: Any, q1: Any, q2: Any, *more: Any
) -> tuple[Any, Any]:
    """Compute integrals over the plane, ``compute(gap, q1, q2, *more, most=...)``, for all pairs.

    If there are many kinks (a periodic function has infinitely many), only the kinks within reach
    of the Gaussians count. Their number is known only at run time, so one of a few sizes is chosen
    then. The result is nan if the known kinks do not extend far enough. Pairs are processed in
    batches that fit in memory.
    """
    import jax
    import jax.numpy as jnp

    counts = [h.kink_points().shape[0] if h.kinked else 0 for h in (f, g)]
    if max(counts) <= CROWDS[0]:
        return jax.checkpoint(partial(compute, most=None))(gap, q1, q2, *more)
    given = [jnp.asarray(v) * 1.0 for v in (gap, q1, q2, *more)]
    shape = jnp.broadcast_shapes(*(v.shape for v in given))
    flat = [jnp.broadcast_to(v, shape).ravel() for v in given]
    sizes = [*(size for size in CROWDS if size < max(counts)), max(counts)]
    reached = [
        jnp.sum(jnp.abs(_kinks(h, jnp.sqrt(jnp.max(q)))) <= REACH)
        for h, q in zip((f, g), flat[1:3], strict=True)
        if h.kinked
    ]

    def chunked(size: int) -> Any:
        one, two = (min(size, count) for count in counts)
        nodes = (len(OUTER) + one + 4 * two) * (len(WITHIN) + two) * NODES**2
        body = jax.checkpoint(partial(compute, most=size))
        return lambda arrays: jax.lax.map(
            lambda each: body(*each), arrays, batch_size=max(1, AT_ONCE // nodes)
        )

    chosen = jnp.searchsorted(jnp.asarray(sizes), jnp.max(jnp.stack(reached)))
    first, second = jax.lax.switch(chosen, [chunked(size) for size in sizes], flat)
    for h, q in zip((f, g), flat[1:3], strict=True):
        if h.endless:
            known = jnp.max(jnp.abs(jax.lax.stop_gradient(h.kink_points()))) >= WITHIN[
                -1
            ] * jnp.sqrt(q)
            first, second = jnp.where(known, first, jnp.nan), jnp.where(known, second, jnp.nan)
    return first.reshape(shape), second.reshape(shape)


def _plane(
    f: TracedMaps, g: TracedMaps, gap: Any, q1: Any, q2: Any, most: int | None
) -> tuple[Any, Any, Any]:
    """Return (u, v, weights) for quadrature in the plane; the nodes are in the last two axes.

    ``u = sqrt(q1) x`` is the argument of f, ``v = sqrt(q2) (c x + s y)`` is the argument of g.
    """
    import jax.numpy as jnp

    shape = jnp.broadcast_shapes(jnp.shape(gap), jnp.shape(q1), jnp.shape(q2))
    gap, one, two = (
        jnp.broadcast_to(jnp.asarray(v) * 1.0, shape)[..., None] for v in (gap, q1, q2)
    )
    c = 1 - gap
    s = jnp.sqrt(jnp.maximum(gap * (2 - gap), 1e-30))
    one = jnp.sqrt(one)
    two = jnp.sqrt(two)
    x, weight = _outer(f, g, c, s, one, two, most)
    x, weight, c, s, one, two = (v[..., None] for v in (x, weight, c, s, one, two))
    below = [(_kinks(g, two, most) - c * x) / s] if g.kinked else []
    y, inner = _gauss(_merged(jnp.asarray(WITHIN, x.dtype) + 0 * x, below, WITHIN[-1]), NODES)
    return one * x, two * (c * x + s * y), weight * inner


def _outer(
    f: TracedMaps, g: TracedMaps, c: Any, s: Any, spread1: Any, spread2: Any, most: int | None
) -> tuple[Any, Any]:
    """Return the nodes and weights in x, on panels that are split at kinks.

    Panels are split at the kinks of f(u), and around the points where the mean of v is at a kink of
    g, in a zone proportional to the spread of v.
    """
    import jax.numpy as jnp

    edges = [jnp.asarray(OUTER, s.dtype) + 0 * s]
    if g.kinked:
        safe = jnp.where(jnp.abs(c) < 1e-3, jnp.where(c < 0, -1e-3, 1e-3), c)
        centre, zone = _kinks(g, spread2, most) / safe, LAYER * s / jnp.abs(safe)
        edges += [centre + k * zone for k in (-1, -1 / 3, 1 / 3, 1)]
    return _gauss(
        _merged(
            jnp.concatenate(edges, axis=-1), [_kinks(f, spread1, most)] if f.kinked else [], REACH
        ),
        NODES,
    )


def _gauss(edges: Any, count: int) -> tuple[Any, Any]:
    """Return Gauss-Legendre nodes and Gaussian weights on the panels between edges (last axis)."""
    import jax.numpy as jnp

    z, weight = (part.reshape(*edges.shape[:-1], -1) for part in panel_nodes(edges, count))
    return z, weight * jnp.exp(-z * z / 2) / np.sqrt(2 * np.pi)


# -- two Gaussians: series -------------------------------------------------------------------------


def _coefficients(f: TracedMaps, q: Any) -> Any:
    """Return a_0(q) ... a_255(q) with shape (256, ...); nan if 256 terms are too few for C'."""
    import jax.numpy as jnp

    q = jnp.asarray(q) * 1.0
    # separate arrays for every precision, because JAX caches constants by identity
    z, weighted = (part.astype(q.dtype) for part in _hermite())
    values = f(jnp.sqrt(q)[..., None] * z)
    out = jnp.moveaxis(jnp.matmul(values, weighted.T, precision="highest"), -1, 0)
    order = jnp.arange(TERMS).reshape(-1, *([1] * q.ndim))
    whole = q * _line((f,), lambda x: f(x, 1) ** 2, q)  # = sum_n n a_n^2
    missing = jnp.abs(1 - jnp.sum(order * out**2, axis=0) / whole)
    allowed = CUT if values.dtype == jnp.float64 else 1e-3
    return jnp.where(missing < allowed, out, jnp.nan)


def _mehler(one: Any, two: Any, top: Any, c: Any, distance: bool) -> tuple[Any, Any, Any, Any]:
    """Evaluate the Mehler series P(x) = sum_n one_n two_n x^n.

    Returns (P(top), (P(top) - P(c))/(top - c), P'(c), sum_n (one_n - two_n)^2 / 2). The last entry
    is 0 unless ``distance`` is True.

    A single loop over n avoids an array with all terms of all pairs.
    """
    import jax
    import jax.numpy as jnp

    shape = jnp.broadcast_shapes(jnp.shape(c), jnp.shape(top), one.shape[1:], two.shape[1:])
    zero = jnp.zeros(shape, jnp.result_type(one, two, c))

    def step(carry: Any, given: Any) -> Any:
        inside, gain, slope, apart = carry
        n, a, b = given
        inside = inside * top + a * b
        gain, slope = gain * c + inside, slope * c + n * a * b
        return (inside, gain, slope, apart + (a - b) ** 2 / 2 if distance else apart), None

    orders = jnp.arange(1, TERMS).astype(zero.dtype)
    inside, gain, slope, apart = jax.lax.scan(
        step, (zero,) * 4, (orders, one[1:], two[1:]), reverse=True
    )[0]
    return (
        inside * top + one[0] * two[0],
        gain,
        slope,
        apart + (one[0] - two[0]) ** 2 / 2 if distance else apart,
    )


@lru_cache(maxsize=1)
def _hermite() -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes z and the matrix h_n(z) exp(-z^2/2) STEP / sqrt(2 pi), shape (256, nodes).

    h_n is orthonormal under the standard Gaussian.
    """
    z = np.arange(-REACH, REACH + STEP / 2, STEP)
    rows = [np.exp(-z * z / 4), z * np.exp(-z * z / 4)]
    for n in range(1, TERMS - 1):
        rows.append((z * rows[n] - np.sqrt(n) * rows[n - 1]) / np.sqrt(n + 1))
    return z, np.array(rows) * np.exp(-z * z / 4) * STEP / np.sqrt(2 * np.pi)
