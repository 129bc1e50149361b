"""Quadrature for one function under Gaussians of every width.

The rules for all widths are derived from one mesh on the preactivation axis.

A :class:`Profile` describes a function phi: its derivatives away from kinks, the positions of the
kinks, and the jumps of phi and its derivatives there. ``mesh(profile, radius)`` bisects [-radius,
radius] until a Legendre interpolant of degree 19 resolves phi, phi' and phi'' on every panel.
``rule(profile, q)`` turns the mesh into Gauss-Legendre nodes for a standard normal z, with phi
evaluated at sqrt(q) z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kcalc.fields.chebyshev import gauss_legendre, is_noise
from kcalc.foundation.errors import KcalcError

Array = NDArray[np.float64]

NODES = 20
WINDOW = 8.5  # |y| <= WINDOW contains all but 2e-17 of a standard normal's probability
# integrands are included down to exp(-DEPTH) of their peak: Hermite projections are then right to
# 1e-17
DEPTH = 78.0
_RESOLVED = 2e-14  # smaller last Legendre coefficients, relative to phi nearby, are rounding errors
_NARROWEST = 1e-9
_STEEPEST = 1e-30  # least width of panels next to a kink at 0 with infinite slope
_BESIDE = 1e-6  # largest distance of such panels from the kink
_SHARE = 0.05
_MOST = 20_000  # panels in one round of bisection
# a function jumps if it changes by more over the narrowest panel, relative to its largest value
_STEEP = 1e-6
_STEPS = np.concatenate([[0.0], *([s * 2.0**k] for k in range(-1, 5) for s in (1, -1))])
_SCAN = np.linspace(-40.0, 40.0, 321)


class Profile(Hashable, Protocol):
    """A real function on the line, smooth between its kinks."""

    @property
    def name(self) -> str: ...
    @property
    def kink_points(self) -> tuple[float, ...]:
        """Sorted points where phi or one of its derivatives jumps."""
        ...

    def numeric(self, n: int = 0) -> Callable[[Array], Array]:
        """Return the n-th derivative away from kinks, vectorised."""
        ...

    def jump_sizes(self, n: int) -> tuple[float, ...]:
        """Return phi^(n)(k+) - phi^(n)(k-) at each kink point."""
        ...


@lru_cache(maxsize=16)
def gauss_hermite(n: int) -> tuple[Array, Array]:
    """Return the nodes and weights of the n-point Gauss-Hermite rule for a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()


@lru_cache(maxsize=1)
def _last_legendre_rows() -> Array:
    """Return the matrix that maps values at the nodes to the last eight Legendre coefficients."""
    nodes, weights = gauss_legendre(NODES)
    degrees = np.arange(NODES - 8, NODES)
    vander = np.polynomial.legendre.legvander(nodes, NODES - 1)[:, degrees]
    return ((2 * degrees + 1) / 2)[:, None] * (vander * weights[:, None]).T


def panel_nodes(edges: Any, n: int = NODES) -> tuple[Any, Any]:
    """Return the nodes and weights of a composite n-point Gauss-Legendre rule.

    The shape is (..., panels, n). ``edges``, a NumPy or JAX array sorted along its last axis,
    contains the ends of the panels.
    """
    nodes, weights = (part.astype(edges.dtype) for part in gauss_legendre(n))
    low, high = edges[..., :-1, None], edges[..., 1:, None]
    half = (high - low) / 2
    return (low + high) / 2 + half * nodes, half * weights


def _envelope(
    values: Callable[[Array], Array], radius: float, landmarks: Any = ()
) -> Callable[[Array], Array]:
    """Return a function that estimates the scale of rounding errors at x from samples of f.

    The scale is the larger of max |f| over [-|x|, |x|] and a fraction of the largest |f| at
    ordinary inputs and narrow features. Cancellation errors are relative to the largest values, not
    to nearby values.
    """
    centres = np.array([c + w * step for c, w in landmarks for step in (-0.7, 0.0, 0.7)]).reshape(
        -1
    )
    reach = max(4.0, float(np.abs(centres).max()) if centres.size else 0.0)
    samples = np.unique(np.concatenate([[0.0], np.geomspace(1e-3, radius, 240), np.abs(centres)]))
    samples = samples[samples <= radius]
    sizes = np.maximum(np.abs(values(samples)), np.abs(values(-samples)))
    sizes = np.where(np.isfinite(sizes), sizes, 0.0)
    floor = _SHARE * float(sizes[samples <= reach].max())
    running = np.maximum(np.maximum.accumulate(sizes), floor)
    return lambda x: running[np.minimum(np.searchsorted(samples, np.abs(x)), samples.size - 1)]


def _unresolved(
    profile: Profile, order: int, left: Array, right: Array, size: Callable[[Array], Array]
) -> NDArray[np.bool_]:
    """Return a mask of the panels that need bisection.

    On such panels, the last Legendre coefficients exceed the rounding errors of phi^(order) and of
    x.
    """
    nodes, _ = gauss_legendre(NODES)
    x = ((left + right) / 2)[:, None] + ((right - left) / 2)[:, None] * nodes
    f = profile.numeric(order)(x)
    scale = np.maximum(size(np.maximum(np.abs(left), np.abs(right))), np.max(np.abs(f), axis=1))
    with np.errstate(invalid="ignore", over="ignore"):
        last = np.abs(f @ _last_legendre_rows().T)
        coefficients = last[:, 5:].max(axis=1)
        bad = np.isfinite(scale) & (coefficients > _RESOLVED * scale) & ~is_noise(last, scale)
        if bad.any():
            noise = np.abs(x[bad] * profile.numeric(order + 1)(x[bad])).max(axis=1)
            bad[bad] = coefficients[bad] > _RESOLVED * scale[bad] + 4e-16 * noise
    return bad


@lru_cache(maxsize=512)
def mesh(profile: Profile, radius: float) -> Array:
    """Return panel edges on [-radius, radius] that resolve phi and its first two derivatives.

    Kinks are among the edges. On each panel, phi, phi' and phi'' are polynomials of degree 19 up to
    rounding.

    Raises KcalcError if bisection does not help, because of an undeclared kink, a jump or a pole.
    """
    inside = [k for k in profile.kink_points if -radius < k < radius]
    dyadic = 2.0 ** np.arange(1, math.ceil(math.log2(radius)) + 1)
    seeds = [c + w * step for c, w in getattr(profile, "landmarks", ()) for step in _STEPS]
    edges = np.unique(np.concatenate([inside, seeds, dyadic, -dyadic, [0.0, -radius, radius]]))
    edges = edges[(edges >= -radius) & (edges <= radius)]
    # infinite derivatives are not integrated
    for order in (0,) if getattr(profile, "rough", False) else (0, 1, 2):
        edges = _refine(profile, order, edges)
    return edges


def _scale(profile: Profile, order: int, radius: float) -> Callable[[Array], Array]:
    """Return the envelope of phi^(order).

    If phi^(order) is computed from values of phi, it inherits their rounding errors. The result is
    then at least the envelope of phi.
    """
    marks = getattr(profile, "landmarks", ())
    own = _envelope(profile.numeric(order), radius, marks)
    if not order or not getattr(profile, "numeric_only", False):
        return own
    whole = _envelope(profile.numeric(0), radius, marks)
    return lambda x: np.maximum(own(x), whole(x))


def _refine(profile: Profile, order: int, edges: Array) -> Array:
    size = _scale(profile, order, float(edges[-1]))
    done = list(edges)
    left, right = edges[:-1], edges[1:]
    while left.size:
        bad = _unresolved(profile, order, left, right, size)
        left, right = left[bad], right[bad]
        if left.size > _MOST:
            raise KcalcError(
                f"activation {profile.name!r} varies too fast to be resolved over the range that "
                f"a Gaussian input covers"
            )
        if getattr(profile, "rough", False):
            wide = _divisible(profile, left, right)
            left, right = left[wide], right[wide]
        middle = (left + right) / 2
        narrow = (right - left) < _NARROWEST * (1 + np.abs(middle))
        if getattr(profile, "rough", False):
            narrow &= _from_kinks(profile, middle) > _BESIDE * (1 + np.abs(middle))
        if narrow.any():
            where = float(middle[narrow][0])
            spread = np.ptp(
                profile.numeric(order)(np.stack([left[narrow], middle[narrow], right[narrow]])),
                axis=0,
            )
            left, right, middle = left[~narrow], right[~narrow], middle[~narrow]
            # smaller changes are rounding errors, or too narrow to matter
            if np.any(spread > _STEEP * size(np.array([edges[-1]]))):
                raise KcalcError(
                    f"activation {profile.name!r} is not smooth near x = {where:.6g}. Pass this "
                    "point in kinks=[...] if the function or one of its derivatives jumps there. "
                    "A function with a pole on the real line has no Gaussian moments"
                )
        done.extend(middle)
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    return np.unique(np.array(done))


def _from_kinks(profile: Profile, x: Array) -> Array:
    """Return the distance of each x from the nearest kink."""
    return np.abs(x[:, None] - np.array(profile.kink_points)).min(axis=1)


def _divisible(profile: Profile, left: Array, right: Array) -> NDArray[np.bool_]:
    """Whether panels next to an infinitely steep kink can be split further."""
    middle = (left + right) / 2
    least = np.maximum(8 * np.spacing(np.abs(middle)), _STEEPEST)
    return (_from_kinks(profile, middle) > _BESIDE * (1 + np.abs(middle))) | (right - left > least)


@lru_cache(maxsize=2048)
def z_range(profile: Profile, q: float, depth: float = DEPTH) -> tuple[float, float]:
    """Return the interval of z outside which phi(sqrt q z)^2 N(z) is below exp(-depth) of its peak.

    Raises KcalcError if E phi(sqrt q z)^2 diverges or overflows double precision.
    """
    with np.errstate(divide="ignore", over="ignore"):
        logs = 2 * np.log(np.abs(profile.numeric(0)(math.sqrt(q) * _SCAN))) - _SCAN**2 / 2
    peak = logs.max()
    if peak > 650 or max(logs[0], logs[-1]) > peak - DEPTH:
        raise KcalcError(
            f"activation {profile.name!r} grows too fast: E[phi(sqrt(q) z)^2] diverges (or "
            f"overflows) at q = {q:g}; "
            "growth must stay below exp(x^2/(4q))"
        )
    heavy = _SCAN[logs > peak - depth] if np.isfinite(peak) else _SCAN[:0]
    low, high = (heavy[0], heavy[-1]) if heavy.size else (0.0, 0.0)
    least = math.sqrt(2 * depth) - 0.5
    return min(float(low) - 0.25, -least), max(float(high) + 0.25, least)


@dataclass(frozen=True)
class Rule:
    """Nodes z and weights w, with sum w f(z) = E f(z) for a standard normal z."""

    z: Array
    w: Array


def trapezoid(step: float, count: int) -> Rule:
    """Return the trapezoid rule at z = 0, +-step, ..., +-count step for a standard normal."""
    z: Array = np.arange(-count, count + 1) * np.float64(step)
    return Rule(z, step * normal_density(z))


def z_edges(profile: Profile, q: float, depth: float = DEPTH) -> Array:
    """Return mesh edges on the axis of the standard normal z = x / sqrt q.

    The edges are clipped to the range where the integrand is not negligible.
    """
    low, high = z_range(profile, q, depth)
    radius = 2.0 ** max(4, math.ceil(math.log2(max(-low, high) * math.sqrt(q))))
    edges = mesh(profile, radius) / math.sqrt(q)
    return np.concatenate([[low], edges[(edges > low) & (edges < high)], [high]])


def joint_edges(
    phi: Profile, q1: float, psi: Profile, q2: float, sign: int, depth: float = DEPTH
) -> Array:
    """Return the edges of both meshes on the z axis, over the wider of the two ranges.

    The second mesh is reflected if sign = -1.
    """
    first, second = z_edges(phi, q1, depth), z_edges(psi, q2, depth)
    return np.unique(np.concatenate([first, second if sign > 0 else -second]))


def split(edges: Array, width: float) -> Array:
    """Split every panel wider than ``width`` into equal parts."""
    counts = np.maximum(np.ceil(np.diff(edges) / width), 1).astype(int)
    starts, steps = np.repeat(edges[:-1], counts), np.repeat(np.diff(edges) / counts, counts)
    index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.append(starts + index * steps, edges[-1])


def normal_density(z: Array) -> Array:
    """Return exp(-z^2/2)/sqrt(2 pi)."""
    return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def normal_rule(edges: Array) -> Rule:
    """Return the composite Gauss-Legendre rule on ``edges`` for a standard normal."""
    z, w = panel_nodes(edges)
    z, w = z.ravel(), w.ravel()
    return Rule(z, w * normal_density(z))


def neighbour(profile: Profile, q: float) -> float:
    """Return the q value, within 2^-30 q, whose quadrature nodes are used for q.

    The q values in a deep network often differ only in their last digits and then share nodes.
    Functions with kinks use q itself.
    """
    if profile.kink_points:
        return q
    mantissa, exponent = math.frexp(q)
    return math.ldexp(round(mantissa * 2**30), exponent - 30)


def rule(profile: Profile, q: float) -> Rule:
    """Return the rule for E f(sqrt(q) z), with f built from phi, phi', phi'' and polynomials.

    The rule's panels are at most 1 wide in z.
    """
    return _rule(profile, neighbour(profile, q))


@lru_cache(maxsize=1024)
def _rule(profile: Profile, q: float) -> Rule:
    return normal_rule(split(z_edges(profile, q), 1.0))
