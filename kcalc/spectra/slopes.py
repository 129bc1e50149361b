"""Distribution of the local Jacobian of a group, given jointly Gaussian sources.

The slopes depend only on those linear forms of the sources that enter nonlinear operations. A
single form is integrated on panels between the kinks, so the probability of every piece of a
piecewise linear activation is exact up to rounding. Two forms lead to nested integrals of the same
kind, and more forms to a quasi-Monte Carlo rule. Equal Jacobians are merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..fields.chebyshev import gauss_legendre
from ..foundation.errors import KcalcError
from ..network.primitives import owner
from .dyson import Slopes
from .groups import Group, Step

Array = Any
REACH = 9.0  # standard deviations
PANELS = (-REACH, -6.0, -4.0, -2.5, -1.25, 0.0, 1.25, 2.5, 4.0, 6.0, REACH)
WIDE = (-REACH, -5.0, -2.0, 0.0, 2.0, 5.0, REACH)  # panels of nested rules
NODES, INNER = 16, 12
RESOLVED, COARSE = 1e-10, 1e-5
HALVINGS = 12
NEAR, NEAREST = 5e-3, 1e-10  # standard deviations
GRID = 801
RARE = 1e-13  # the moments of slopes with lower probability are not resolved
RESOLVED_TAIL = 1e-6  # largest fraction of a moment that may come from such slopes
REPEATED = 8  # number of nodes with equal Jacobians that indicates a piece of positive probability
LIGHT = 1e-16  # smallest probability in nested rules
LEAST = 1e-18  # smallest probability
SEED = 20
FEWEST, MOST, MANY = 10, 12, 15  # binary logarithms of the number of quasi-random points
WORK = 4e6
FEW = 12  # number of sources
EXACT, MASKS = 2, 6  # largest numbers of forms and dropout masks with an exact distribution
FAR = (8.0, 8e2, 8e4)


@dataclass(frozen=True)
class GroupLaw:
    """Distribution of the slopes of a group.

    ``bounded`` states whether the slopes are bounded. ``vanishing`` states whether the slope of a
    group with one source and one sink comes close to 0. ``sampled`` states whether the distribution
    is a quasi-Monte Carlo rule.
    """

    slopes: Slopes
    bounded: bool
    vanishing: bool
    sampled: bool


def law_of(group: Group, variance: Mapping[Any, float | None]) -> GroupLaw:
    """Return the distribution of the local Jacobian of a group.

    ``variance`` is {source: its variance}. The variance is None for an input of unknown
    distribution that no nonlinear operation reads. Raises: KcalcError if the slopes have no finite
    mean square.
    """
    for step in group.steps:
        if step.kind == "post":
            _check_slopes(step)
    program = Program(group)
    size = np.sqrt([variance[node] or 0.0 for node in group.sources])
    basis = _basis(program.forms * size)
    directions = basis * size  # sources in terms of independent standard normals
    sampled = len(basis) > EXACT or len(program.masks) > MASKS
    values, merged, flat = _rule(program, directions, _count(program.size))
    if sampled and 4 * len(values) < 2**FEWEST and program.size <= FEW:  # few sign patterns
        values, merged, flat = _rule(program, directions, 2**MANY)
    if not len(basis):  # the dropout masks alone decide
        flat = np.ones_like(flat)
    _check_finite(group, values, merged)
    sizes = _far_sizes(program, directions) if len(basis) else np.ones((2, 3))
    largest, least = sizes
    bounded = not (largest[1] > 1.3 * largest[0] and largest[2] > 1.3 * largest[1])
    bounded &= bool(np.isfinite(largest[-1]))
    single = values.shape[1:] == (1, 1)
    slopes = Slopes(values, merged, flat)
    if not bounded and tail_share(slopes, 1) > RESOLVED_TAIL:
        raise _no_mean_square(group)
    vanishing = single and min(np.abs(values).min(), least[-1]) < 1e-6 * np.abs(values).max()
    return GroupLaw(slopes, bounded, bool(vanishing), sampled)


def program_key(group: Group, variance: Mapping[Any, float | None]) -> Any:
    """Return a key that contains everything on which a group's distribution depends."""
    steps = tuple((step.kind, step.parameter, step.reads) for step in group.steps)
    sizes = tuple(variance[node] for node in group.sources)
    return steps, sizes, tuple(index for _, index in group.sinks)


def _rule(program: Program, directions: Array, count: int) -> tuple[Array, Array, Array]:
    """Return local Jacobians, their weights, and which of them have a positive probability."""
    points, cases, shares = _points(program, directions, count)
    with np.errstate(over="ignore", invalid="ignore"):
        found = [program.jacobian(points, keeps) for keeps in cases]
    return _merged(np.concatenate(found), shares)


def _points(program: Program, directions: Array, count: int) -> tuple[Array, list[Any], Array]:
    """Return source values, dropout factors and the probabilities of all combinations."""
    masks = program.masks
    if len(directions) > EXACT or len(masks) > MASKS:
        u, uniform = _quasi_random(len(directions), len(masks), count)
        rates = np.array([mask.parameter for mask in masks])
        keeps = (uniform >= rates) / (1 - rates)
        return u @ directions, [list(keeps.T)], np.full(len(u), 1 / len(u))
    if len(directions):
        u, shares = _nested(program, directions)
    else:
        u, shares = np.zeros((1, 0)), np.ones(1)
    sides = [((0.0, m.parameter), (1 / (1 - m.parameter), 1 - m.parameter)) for m in masks]
    cases = list(product(*sides))
    weights = [math.prod(p for _, p in case) * shares for case in cases]
    return u @ directions, [[f for f, _ in case] for case in cases], np.concatenate(weights)


def _check_slopes(step: Step) -> None:
    """Raise a KcalcError for an activation whose slope is infinite at some point."""
    phi = step.parameter
    if any(phi.jump_sizes(0)) or getattr(phi, "rough", False):
        what = "jumps" if any(phi.jump_sizes(0)) else "has an infinite slope at a kink"
        raise KcalcError(
            f"node {owner(step.node)!r}: {phi.name} {what}, so its slopes have no finite moments "
            "and the Jacobian has no limiting spectrum; use an activation with finite slopes"
        )


def tail_share(law: Slopes, order: int) -> float:
    """Return the fraction of E |T|^(2 order) that comes from slopes too rare to be resolved."""
    with np.errstate(all="ignore"):
        size = np.linalg.norm(law.values, axis=(1, 2))
        powers = law.shares * (size / size.max()) ** (2 * order)
    rare = np.cumsum(law.shares[np.argsort(size)[::-1]]) < RARE
    return float(powers[np.argsort(size)[::-1]][rare].sum() / powers.sum())


def _check_finite(group: Group, values: Array, shares: Array) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("n,nij->", shares, values**2)
    if not math.isfinite(float(squares)):
        raise _no_mean_square(group)


def _no_mean_square(group: Group) -> KcalcError:
    node = next(step.node for step in group.steps if step.kind in ("post", "prod"))
    return KcalcError(
        f"node {owner(node)!r}: the mean square of its slopes is not finite at this q, or depends "
        "on slopes that are too rare to integrate; reduce q or sigma_w, or use an activation with "
        "bounded slopes"
    )


class Program:
    """A group's program on arrays: values and derivatives with respect to the sources."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.size = len(group.sources)
        self.masks = [step for step in group.steps if step.kind == "mask"]
        self.forms = self._forms()

    def _forms(self) -> Array:
        """Return the linear forms of sources that enter nonlinear operations, (forms, sources)."""
        found: list[Array] = []
        values: list[tuple[Array, list[Array]]] = [(row, []) for row in np.eye(self.size)]
        for step in self.group.steps:
            inputs = [values[read] for read in step.reads]
            waiting = [form for _, forms in inputs for form in forms]  # under dropout
            form = np.zeros(self.size)
            if step.kind == "mix":
                form = np.einsum("i,ij->j", step.parameter, [own for own, _ in inputs])
            elif step.kind == "norm":
                form = inputs[0][0] / step.parameter[1]
            elif step.kind == "mask":
                waiting.append(inputs[0][0])
            else:
                found += [own for own, _ in inputs] + waiting
                waiting = []
            values.append((form, waiting))
        return np.array(found).reshape(len(found), self.size)

    def refuse_unknown(self, unknown: list[int]) -> None:
        """Raise a KcalcError if a nonlinear operation reads an input of unknown distribution."""
        if not unknown or not np.any(self.forms[:, unknown]):
            return
        reads = [np.eye(self.size)[j] for j in range(self.size)]
        for step in self.group.steps:
            touched = any(np.any(reads[read][unknown]) for read in step.reads)
            if step.kind in ("post", "prod") and touched:
                raise KcalcError(
                    f"node {owner(step.node)!r} acts on the coordinates of the network's input, "
                    'whose distribution is unknown; pass input_law="gaussian" if they are '
                    "Gaussian, or put an Affine after the input"
                )
            reads.append(np.sum([np.abs(reads[read]) for read in step.reads], axis=0))

    def run(self, points: Array, keeps: Any = None, slopes: bool = True) -> tuple[Any, Any]:
        """Return values (n,) and derivatives (n, sources) of every source and step."""
        values = [points[:, j] for j in range(self.size)]
        eye = np.eye(self.size)
        moves: list[Any] = [np.broadcast_to(eye[j], points.shape) for j in range(self.size)]
        masks = iter(np.ones(len(self.masks)) if keeps is None else keeps)
        for step in self.group.steps:
            inputs = [values[read] for read in step.reads]
            values.append(_value(step, inputs, factors := _constants(step, masks)))
            if slopes:
                factors = _slopes(step, inputs) if factors is None else factors
                pairs = zip(factors, step.reads, strict=True)
                moves.append(sum(np.reshape(f, (-1, 1)) * moves[i] for f, i in pairs))
        return values, moves

    def jacobian(self, points: Array, keeps: Any = None) -> Array:
        """Return the local Jacobian (n, sinks, sources)."""
        _, moves = self.run(points, keeps)
        shape = points.shape
        return np.stack([np.broadcast_to(moves[i], shape) for _, i in self.group.sinks], axis=1)

    def _at(self, points: Array, index: int) -> Array:
        """Return one value of the program."""
        return self.run(points, slopes=False)[0][index]

    def kinks(self, along: Callable[[Array], Array]) -> list[float]:
        """Return the values of u at which an activation's input crosses a kink on ``along(u)``."""
        grid = np.linspace(-REACH, REACH, GRID)
        found: list[float] = []
        values, _ = self.run(along(grid), slopes=False)
        for step in self.group.steps:
            points = step.parameter.kink_points if step.kind == "post" else ()
            for kink in points:
                read = step.reads[0]
                off = values[read] - kink
                (crossings,) = np.nonzero((off[:-1] < 0) != (off[1:] < 0))
                if crossings.size:
                    low, high = grid[crossings], grid[crossings + 1]
                    rising = off[crossings] < 0
                    guess = low - off[crossings] * (high - low) / (
                        off[crossings + 1] - off[crossings]
                    )
                    left = np.abs(self._at(along(guess), read) - kink)
                    if np.all(left <= 1e-14 * (1 + abs(kink))):  # the argument is linear in u
                        found += guess.tolist()
                        continue
                    for _ in range(52):
                        middle = (low + high) / 2
                        below = (self._at(along(middle), read) < kink) == rising
                        low, high = np.where(below, middle, low), np.where(below, high, middle)
                    found += ((low + high) / 2).tolist()
        return found


def _constants(step: Step, masks: Any) -> Any:
    """Return a linear step's derivatives with respect to its inputs, or None for other steps."""
    if step.kind == "mix":
        return step.parameter
    if step.kind == "norm":
        return (1 / step.parameter[1],)
    return (next(masks),) if step.kind == "mask" else None


def _value(step: Step, inputs: list[Array], factors: Any) -> Array:
    if step.kind == "post":
        return step.parameter.numeric(0)(inputs[0])
    if step.kind == "prod":
        return np.prod(inputs, axis=0)
    shift = step.parameter[0] if step.kind == "norm" else 0.0
    return sum(f * (x - shift) for f, x in zip(factors, inputs, strict=True))


def _slopes(step: Step, inputs: list[Array]) -> list[Array]:
    if step.kind == "post":
        return [step.parameter.numeric(1)(inputs[0])]
    parts = range(len(inputs))
    return [np.prod([inputs[j] for j in parts if j != i], axis=0) for i in parts]


def _basis(forms: Array) -> Array:
    """Return orthonormal rows that span the forms; the first row is along the first form."""
    basis: list[Array] = []
    for form in forms:
        size = np.linalg.norm(form)
        if size == 0:
            continue
        rest = form / size
        for row in (*basis, *basis):
            rest = rest - (rest @ row) * row
        if np.linalg.norm(rest) > 1e-9:
            basis.append(rest / np.linalg.norm(rest))
    return np.array(basis).reshape(len(basis), forms.shape[1])


# -- rules ---------------------------------------------------------------------------------------


def _nested(program: Program, directions: Array) -> tuple[Array, Array]:
    """Return points (n, 1 or 2) in the orthonormal coordinates, and their probabilities."""
    if len(directions) == 1:
        u, p = _line(program, lambda u: u[:, None] * directions[0])
        return u[:, None], p
    inner_only = directions[1]

    def first(u: Array) -> Array:  # the second coordinate is 0
        return u[:, None] * directions[0]

    outer, p = _line(program, first, INNER, COARSE)
    points, shares = [], []
    for one, share in zip(outer, p, strict=True):
        base = one * directions[0]
        inner, q = _line(
            program, lambda u, base=base: base + u[:, None] * inner_only, INNER, COARSE
        )
        points.append(np.column_stack([np.full(inner.size, one), inner]))
        shares.append(share * q)
    weights = np.concatenate(shares)
    kept = weights > LIGHT
    return np.concatenate(points)[kept], weights[kept] / weights[kept].sum()


def _line(
    program: Program,
    along: Callable[[Array], Array],
    nodes: int = NODES,
    resolved: float = RESOLVED,
) -> tuple[Array, Array]:
    """Return nodes and probabilities of a standard normal u, between the kinks on a line.

    Panels are halved until the local Jacobian is a polynomial on each.
    """
    kinks = [u for u in program.kinks(along) if -REACH < u < REACH]
    x, w = gauss_legendre(nodes)
    edges = np.unique([*(PANELS if nodes == NODES else WIDE), *_near_zero(program, along), *kinks])
    tail = _last_rows(nodes)
    left, right = edges[:-1], edges[1:]
    done: list[tuple[Array, Array]] = []
    scale = 0.0
    for halving in range(HALVINGS + 1):
        middle, half = (left + right) / 2, (right - left) / 2
        u = middle[:, None] + half[:, None] * x
        with np.errstate(over="ignore", invalid="ignore"):
            values = program.jacobian(along(u.ravel())).reshape(len(left), nodes, -1)
            weighted = values * np.exp(-(u[:, :, None] ** 2) / 8)
        scale = max(scale, float(np.nanmax(np.abs(weighted), initial=0.0)))
        off = np.abs(np.einsum("kn,pnj->pkj", tail, weighted)).max(axis=(1, 2))
        bad = off > resolved * scale if halving < HALVINGS else np.zeros(len(left), bool)
        good = ~bad
        density = np.exp(-(u[good] ** 2) / 2) / math.sqrt(2 * math.pi)
        done.append((u[good].ravel(), (half[good, None] * w * density).ravel()))
        if not bad.any():
            break
        left, right = (
            np.concatenate([left[bad], middle[bad]]),
            np.concatenate([middle[bad], right[bad]]),
        )
    u = np.concatenate([part for part, _ in done])
    p = np.concatenate([part for _, part in done])
    kept = p > LEAST
    return u[kept], p[kept] / p[kept].sum()


def _near_zero(program: Program, along: Callable[[Array], Array]) -> list[float]:
    """Return edges of panels around 0 if the local Jacobian changes on a scale far below 1.

    This happens for large pre-activations of saturating activations.
    """
    near = np.geomspace(NEAREST, NEAR, 5)
    with np.errstate(over="ignore", invalid="ignore"):
        found = program.jacobian(along(np.concatenate([near, -near]))).reshape(2, 5, -1)
    narrow = np.abs(found[:, :-1] - found[:, -1:]).max() > 0.5 * np.abs(found).max()
    return [*near, *-near] if narrow else []


def _last_rows(nodes: int) -> Array:
    """Return rows that map values at the nodes to the last two Legendre coefficients."""
    x, w = gauss_legendre(nodes)
    degrees = np.array([nodes - 2, nodes - 1])
    vander = np.polynomial.legendre.legvander(x, nodes - 1)[:, degrees]
    return ((2 * degrees + 1) / 2)[:, None] * (vander * w[:, None]).T


def _count(sources: int) -> int:
    """Return the number of quasi-random points for local Jacobians of this many sources."""
    return 2 ** int(np.clip(math.log2(WORK / sources**3), FEWEST, MOST))


def _quasi_random(normals: int, uniforms: int, count: int) -> tuple[Array, Array]:
    """Return ``count`` quasi-random standard normals (with their negatives) and uniforms."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    points = qmc.Sobol(normals + uniforms, scramble=True, rng=SEED).random(count // 2)
    u = ndtri(np.clip(points[:, :normals], 1e-12, 1 - 1e-12))
    return np.concatenate([u, -u]), np.tile(points[:, normals:], (2, 1))


def _merged(values: Array, shares: Array) -> tuple[Array, Array, Array]:
    """Merge equal Jacobians.

    The third result marks Jacobians that occur so often that they are constant over an interval.
    """
    flat = values.reshape(len(values), -1)
    size = np.abs(flat).max(initial=0.0)
    keys = np.round(flat / size, 13) + 0.0 if size > 0 and np.isfinite(size) else flat
    _, first, inverse, count = np.unique(
        keys, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    whole = (count >= REPEATED) | (len(values) == 1)
    return values[first], np.bincount(inverse.ravel(), weights=shares), whole


def _far_sizes(program: Program, directions: Array) -> tuple[list[float], list[float]]:
    """Return the largest and smallest entry of the local Jacobian at increasing distances.

    The points lie far from 0 along random directions or along a single form. The other coordinates
    have typical values.
    """
    rng = np.random.default_rng(SEED)
    d = len(directions)
    ways = rng.standard_normal((64 * d, d))
    ways[: 16 * d] = np.repeat(np.eye(d), 16, axis=0)
    ways /= np.linalg.norm(ways, axis=1)[:, None]
    offsets = rng.standard_normal((len(ways), d))
    largest, least = [], []
    for reach in FAR:
        spread = reach * np.array([-1.0, -0.9, 0.9, 1.0])
        u = (offsets[:, None, :] + spread[None, :, None] * ways[:, None, :]).reshape(-1, d)
        with np.errstate(all="ignore"):
            found = np.abs(program.jacobian(u @ directions))
        found = np.where(np.isfinite(found), found, math.inf)
        largest.append(float(found.max(initial=0.0)))
        least.append(float(found.min(initial=math.inf)))
    return largest, least
