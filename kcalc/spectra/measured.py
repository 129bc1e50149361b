"""Singular values of sampled networks, and their limiting distribution given the sampled slopes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.printing import Rows, Shown, shown
from ..maps.maps import Assumption
from ..network import primitives as P
from ..network.primitives import owner
from .chain import chain_of, zero_mass
from .dyson import Slopes
from .groups import Group, drops
from .reading import Reading
from .slopes import Program
from .spectrum import Law, finite_width

if TYPE_CHECKING:
    from .result import JacobianSpectrum

Array = Any


@dataclass(frozen=True, repr=False, eq=False)
class Measured(Shown):
    """Singular values of sampled networks, with theory; see ``JacobianSpectrum.measure``.

    Attributes
    ----------
    width
        The number n of input channels.
    singular_values
        The singular values, shape (draws, smaller number of channels), in descending order.
    moments
        E s^2 and E s^4 over input channels, shape (draws, 2).
    expected_moments
        The same moments, from the limiting distribution for the slopes of each draw.
    expected_largest
        The expected largest singular value at this width, given the slopes of each draw.
    limit
        E s^2, E s^4 and the largest singular value of the limiting distribution.
    laws
        The limiting distribution for the slopes of each draw, with ``.density(x)`` of s^2.

    """

    width: int
    singular_values: Array
    moments: Array
    expected_moments: Array
    expected_largest: Array
    limit: tuple[float, float, float]
    laws: tuple[Law, ...] = ()
    assumptions: tuple[Assumption, ...] = ()

    @property
    def largest(self) -> np.ndarray:
        """The largest singular value of each draw."""
        return self.singular_values[:, 0]

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {
                "draw": k,
                "mean_square": self.moments[k, 0],
                "expected_mean_square": self.expected_moments[k, 0],
                "second_moment": self.moments[k, 1],
                "expected_second_moment": self.expected_moments[k, 1],
                "largest": self.largest[k],
                "expected_largest": self.expected_largest[k],
            }
            for k in range(len(self.largest))
        ]

    def _rows(self) -> Rows:
        found = (
            ("E s^2", self.moments[:, 0], self.expected_moments[:, 0], self.limit[0]),
            ("E s^4", self.moments[:, 1], self.expected_moments[:, 1], self.limit[1]),
            ("largest s", self.largest, self.expected_largest, self.limit[2]),
        )
        body = ((name, *(shown(float(np.mean(v)), 5) for v in row)) for name, *row in found)
        return [("means over draws", "measured", "slopes of the draw", "limit"), *body]

    def __repr__(self) -> str:
        off = float(np.mean(self.largest / self.expected_largest)) - 1
        draws = len(self.largest)
        return f"Measured({draws} draws at width {self.width}, largest s off by {off:+.2%})"


def measure(spectrum: JacobianSpectrum, width: int, draws: int, seed: int) -> Measured:
    """Compute the singular values of ``draws`` networks with ``width`` input channels."""
    reading: Reading = spectrum._reading
    rng = np.random.default_rng(seed)
    sizes = _sizes(reading, width)
    values, moments, expected, tops = [], [], [], []
    laws: list[Law] = []
    bounded = all(law.bounded for law in reading.laws)
    for _ in range(draws):
        run = _Run(reading, sizes, rng)
        s = np.linalg.svd(run.jacobian, compute_uv=False)
        values.append(s)
        moments.append([float(np.sum(s**k)) / width for k in (2, 4)])
        slopes = [run.slopes(group) for group in reading.grouped.groups]
        links = chain_of(reading.grouped, slopes)
        law = Law(reading.grouped, slopes, lost=None if links is None else zero_mass(*links))
        laws.append(law)
        expected.append(law.moments(2))
        edge = law.top if bounded else None
        tops.append(math.nan if edge is None else finite_width(edge, width)[0])
    limit = spectrum.moment(1), spectrum._second(), spectrum.largest()
    arrays = [np.array(found) for found in (values, moments, expected, tops)]
    return Measured(
        width, arrays[0], arrays[1], arrays[2], arrays[3], limit, tuple(laws), spectrum.assumptions
    )


def _sizes(reading: Reading, width: int) -> dict[Any, int]:
    found = reading.grouped
    sizes = {}
    for node, share in found.width.items():
        size = share * width / found.width[found.start]
        if size.denominator != 1:
            raise KcalcError(
                f"node {owner(node)!r} has {float(size):g} channels for {width} input channels; "
                f"choose a multiple of {_step(found)}"
            )
        sizes[node] = int(size)
    return sizes


def _step(found: Any) -> int:
    ratios = [share / found.width[found.start] for share in found.width.values()]
    return math.lcm(*(Fraction(ratio).denominator for ratio in ratios))


class _Run:
    """One sampled network: node values, Jacobians with respect to the input, masks and norms."""

    def __init__(self, reading: Reading, sizes: dict[Any, int], rng: np.random.Generator) -> None:
        self.reading, self.rng = reading, rng
        self.values: dict[Any, Array] = {}
        self.masks: dict[Any, Array] = {}
        self.norms: dict[Any, Array] = {}
        start = reading.grouped.start
        x = rng.standard_normal(sizes[start])
        self.values[start] = x * math.sqrt(reading.q / np.mean(x**2))
        moves: dict[Any, Any] = {start: np.eye(x.size)}
        operations = reading.network.operations
        last = {read: k for k, (_, _, reads) in enumerate(operations) for read in reads}
        for k, (node, op, reads) in enumerate(operations):
            if node != start:
                inputs = [self.values[read] for read in reads]
                moved = [moves[read] for read in reads]
                self.values[node], moves[node] = self._step(node, op, inputs, moved, sizes)
            for read in reads:
                if last[read] == k:
                    moves.pop(read, None)
        self.jacobian = moves[reading.network.outputs[0]]

    def _step(self, node: Any, op: Any, x: list[Array], J: list[Array], sizes: Any) -> Any:
        if isinstance(op, P.Fresh):
            orthogonal = self.reading.weights[node] == "orthogonal"
            weights = self._weights(op, sizes[node], x[0].size, orthogonal)
            bias = float(op.sigma_b) * self.rng.standard_normal(sizes[node])
            return weights @ x[0] + bias, weights @ J[0]
        if isinstance(op, P.Post):
            phi = op.activation
            return phi.numeric(0)(x[0]), phi.numeric(1)(x[0])[:, None] * J[0]
        if isinstance(op, P.Mix):
            w = [float(weight) for weight in op.weights]
            pairs = list(zip(w, x, J, strict=True))
            return sum(a * v for a, v, _ in pairs), sum(a * m for a, _, m in pairs)
        if isinstance(op, P.Prod):
            parts = range(len(x))
            others = [np.prod([x[j] for j in parts if j != i], axis=0) for i in parts]
            return np.prod(x, axis=0), sum(f[:, None] * m for f, m in zip(others, J, strict=True))
        if isinstance(op, P.Join):
            return np.concatenate(x), np.concatenate(J)
        if isinstance(op, P.Norm):
            return self._normalised(node, op, x[0], J[0])
        if isinstance(op, P.Mask) and drops(op):
            rate = float(op.rate)
            self.masks[node] = (self.rng.random(x[0].size) >= rate) / (1 - rate)
            return self.masks[node] * x[0], self.masks[node][:, None] * J[0]
        return x[0], J[0]

    def _weights(self, op: P.Fresh, rows: int, columns: int, orthogonal: bool) -> Array:
        sigma = float(op.sigma_w)
        drawn = self.rng.standard_normal((rows, columns))
        if op.standardised:
            drawn -= drawn.mean(axis=1, keepdims=True)
        if not orthogonal:
            return sigma / math.sqrt(columns) * drawn
        tall = drawn if rows >= columns else drawn.T
        q, r = np.linalg.qr(tall)
        q = q * np.sign(np.diag(r))
        return sigma * math.sqrt(max(1.0, rows / columns)) * (q if rows >= columns else q.T)

    def _normalised(self, node: Any, op: P.Norm, x: Array, J: Array) -> tuple[Array, Array]:
        parts, moves = x.reshape(op.groups, -1), J.reshape(op.groups, x.size // op.groups, -1)
        mean = parts.mean(axis=1, keepdims=True) if op.centred else np.zeros((op.groups, 1))
        y = parts - mean
        if op.centred:
            moves = moves - moves.mean(axis=1, keepdims=True)
        size = np.sqrt(np.mean(y**2, axis=1, keepdims=True))
        y = y / size
        along = np.einsum("gi,gij->gj", y, moves) / y.shape[1]
        moves = (moves - y[:, :, None] * along[:, None, :]) / size[:, :, None]
        self.norms[node] = np.column_stack([mean.ravel(), size.ravel()])
        return y.ravel(), moves.reshape(J.shape)

    def slopes(self, group: Group) -> Slopes:
        """Return the local Jacobians of a group's coordinates in this draw."""
        width = self.reading.grouped.width

        def part(array: Array, node: Any, start: Any) -> Array:
            one = array.size / width[node]
            return array[int(start * one) : int((start + group.width) * one)]

        places = zip(group.sources, group.starts, strict=True)
        points = np.column_stack([part(self.values[node], node, start) for node, start in places])
        steps, keeps = [], []
        for step in group.steps:
            parameter = step.parameter
            if step.kind == "norm":
                found = self.norms[step.node]
                share = Fraction(1, len(found)) * width[step.node]
                first, end = step.start // share, -(-(step.start + group.width) // share)
                some = found[int(first) : int(end)]
                parameter = float(some[:, 0].mean()), float(np.sqrt(np.mean(some[:, 1] ** 2)))
            if step.kind == "mask":
                keeps.append(part(self.masks[step.node], step.node, step.start))
            steps.append(replace(step, parameter=parameter))
        values = Program(replace(group, steps=steps)).jacobian(points, keeps)
        count = len(points)
        if not group.random:
            values, count = values[:1], 1
        return Slopes(values, np.full(count, 1 / count), np.ones(count, bool))
