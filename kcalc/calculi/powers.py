"""Kernels of deep networks at uniform q: powers of the maps of repeated blocks, by doubling.

Consider a piece of the network between two centred Gaussian feature maps that all paths cross. The
state of a pair of inputs is ``(q, u, t)``, where ``u = 1 - c`` and ``t`` is the tangent kernel
divided by q. The piece maps it by ``q -> Q(q)``, ``u -> U(u)``, ``t -> D(u) t + A(u)``. If q is
constant from piece to piece (or the piece is positively homogeneous, so only the ratio of q values
matters), n identical pieces correspond to the n-th power of that map. The table of ``(U, D, A)``
composed with itself is computed from the table of ``(U, D, A)``, so a thousand layers require only
ten tables.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..fields import NUMPY
from ..fields.gaps import Gap
from ..fields.jets import Jet
from ..fields.panels import Fitted, fit
from ..foundation.process_state import cached_property
from ..network.blocks import Block
from ..network.network import Network
from ..network.primitives import Fresh, emitted
from .atoms import Atom, Pair
from .channels import Channels
from .checks import check_q
from .homogeneity import degrees
from .second_moments import Moments, is_zero
from .tangent import Tangent

if TYPE_CHECKING:
    from .ntk import TangentReading

Node = Hashable
Array = np.ndarray

FEWEST = 12
"""Fewer equal pieces are evaluated one by one, because tables would cost more."""

_SETTLED = 1e-15  # smaller relative changes of q from piece to piece are ignored
_CALM = 7.0  # largest log of the slope at c = 1 of all pieces together
_TOLERANCE = 1e-14  # tolerance for tables


@dataclass
class DeepKernel:
    """(NNGP, NTK) of a network with one output as a function of the gap of its inputs.

    All inputs have the same q.

    See :class:`kcalc.calculi.tangent.Tangent` for ``seeds``. If ``odd``, the kernel is called only
    with gaps <= 1.
    """

    reading: TangentReading
    q: float
    seeds: Mapping[Node, Any] | None
    odd: bool = False
    _powers: dict[Any, _Powers] = field(default_factory=dict)
    _slopes: dict[Any, float] = field(default_factory=dict)

    def __call__(self, gap: Gap) -> Array:
        """Return (NNGP, NTK), of shape (2, n), at gaps (n,)."""
        network = self.reading.network
        kernel = self.reading.kernel(NUMPY, True, self.seeds)
        states: dict[Node, Channels] = {}
        with np.errstate(all="ignore"):
            for node in network.inputs:
                q = np.asarray(self.q)
                states[node] = kernel.start(node, q, q, Jet((gap, np.zeros(gap.shape))))
            for block in self._blocks:
                self._walk(kernel, block, states)
            nngp, ntk = kernel.kernels(states[network.outputs[0]])
        return rows_of(gap.shape, nngp, ntk)

    @cached_property
    def _blocks(self) -> tuple[Block, ...]:
        return self.reading.network.blocks()

    @cached_property
    def _crossings(self) -> set[Node]:
        return set(self.reading.network.cut_nodes())

    def _walk(self, kernel: Tangent, block: Block, states: dict[Node, Channels]) -> None:
        """The states of a block's nodes, except for the middle pieces that a power replaces."""
        network, crossings = self.reading.network, self._crossings
        leaps = block.count >= FEWEST and self._alike(block)
        previous: dict[int, float] = {}
        k = 0
        while k < block.count:
            for r, node in enumerate(block.pieces[k]):
                if node not in states:
                    (*_, (_, op, reads)) = network.operations_of(node)
                    state = _emitted(network, kernel, node, states)
                    states[node] = (
                        _keeping(op, states[reads[0]], state)
                        if isinstance(op, Fresh) and reads[0] in states
                        else state
                    )
                left = block.count - 1 - k
                if not (
                    leaps and left >= FEWEST and node in crossings and _settled_kind(states[node])
                ):
                    continue
                q = float(states[node].pairs[0].moments.q1)
                ratio = q / previous[r] if r in previous else None
                previous[r] = q
                if (
                    ratio is not None
                    and (abs(ratio - 1) <= _SETTLED or self._scales(block, r))
                    and self._calm(block, r, q)
                ):
                    last = block.pieces[-1][r]
                    states[last] = self._leap(block, r, left, ratio, states[node], last)
                    k = block.count - 1
                    for later in block.pieces[k][r + 1 :]:
                        states[later] = _emitted(network, kernel, later, states)
                    break
            k += 1

    def _alike(self, block: Block) -> bool:
        """Whether the trained parameters of all pieces have equal tangent kernels."""
        seeds, fan_in = self.seeds, self.reading.fan_in
        if seeds and any(node in seeds for node in block.nodes):
            return False
        if fan_in is None:
            return True
        rows = [[fan_in.get(node) for node in piece] for piece in block.pieces[1:]]
        return all(row == rows[0] for row in rows)

    def _scales(self, block: Block, r: int) -> bool:
        """Whether f(a x) = a f(x) for a piece f and a > 0, and likewise for its tangent kernel."""
        network = self.reading.network
        nodes = (*block.pieces[1][r + 1 :], *block.pieces[2][: r + 1])
        if self.reading.fan_in is not None:  # biases then contribute even at sigma_b = 0
            return False
        found = degrees(network, {block.pieces[1][r]: 1}, nodes)
        return found[nodes[-1]] == 1

    def _calm(self, block: Block, r: int, q: float) -> bool:
        """Whether the product of the slopes of all pieces at c = 1 is at most exp(_CALM).

        Steeper odd networks drive c to 0, and tables in terms of 1 - c lose digits there.
        """
        key = (block.pieces[0], r)
        if key not in self._slopes:
            self._slopes[key] = float(
                _PieceMap(self.reading, self.seeds, block, r, q)(Gap.of([0.0], [2.0]))[1, 0]
            )
        return block.count * math.log(max(self._slopes[key], 1e-300)) <= _CALM

    def _leap(
        self, block: Block, r: int, count: int, ratio: float, state: Channels, last: Node
    ) -> Channels:
        key = (block.pieces[0], r)
        if key not in self._powers:
            q = float(state.pairs[0].moments.q1)
            self._powers[key] = _Powers(_PieceMap(self.reading, self.seeds, block, r, q), self.odd)
        moments = state.pairs[0].moments
        u, t = self._powers[key](count, np.asarray(moments.gap.value), -moments.gap.coefficients[1])
        q = moments.q1 * (1.0 if abs(ratio - 1) <= _SETTLED else ratio**count)
        check_q(NUMPY, q, last)
        return _gaussian(last, q, Jet((u, -t)), 1 << 20_000)


@dataclass(frozen=True)
class _PieceMap:
    """(U/u - offset, D - offset, A) of one piece at q, as functions of the gap: shape (3, n)."""

    reading: TangentReading
    seeds: Mapping[Node, Any] | None
    block: Block
    r: int
    q: float
    offset: float = 0.0

    def __call__(self, gap: Gap) -> Array:
        network = self.reading.network
        kernel = self.reading.kernel(NUMPY, True, self.seeds)
        entry = self.block.pieces[1][self.r]
        nodes = (*self.block.pieces[1][self.r + 1 :], *self.block.pieces[2][: self.r + 1])
        start = Jet((gap, np.array([[0.0], [-1.0]]) + np.zeros(gap.shape)))
        states = {entry: _gaussian(entry, np.asarray(self.q), start, kernel.kernel.ledger.bit())}
        with np.errstate(all="ignore"):
            for node in nodes:
                states[node] = _emitted(network, kernel, node, states)
        out = states[nodes[-1]].pairs[0].moments.gap
        value = np.broadcast_to(out.value, gap.shape)
        first = np.broadcast_to(out.coefficients[1], (2, *gap.shape))
        added, slope = -first[0], first[0] - first[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(np.asarray(gap) > 0, value / np.asarray(gap), slope)
        return np.stack([ratio - self.offset, slope - self.offset, added])


class _Powers:
    """The powers 1, 2, 4, ... of a piece's map, tabulated when first needed."""

    def __init__(self, piece: _PieceMap, odd: bool) -> None:
        self._odd = odd
        self._tables = [self._table(piece)]

    def __call__(self, count: int, u: Array, t: Array) -> tuple[Array, Array]:
        """Return (u, t) after ``count`` pieces."""
        level = 0
        while count:
            if level == len(self._tables):
                self._tables.append(self._table(_Squared(self._tables[-1])))
            if count & 1:
                table = self._tables[level]
                ratio, slope, added = table.at(u)
                u = np.clip((ratio + table.offset) * u, 0.0, 2.0)
                t = (slope + table.offset) * t + added
            count, level = count >> 1, level + 1
        return u, t

    def _table(self, function: _PieceMap | _Squared) -> _Table:
        end = function(Gap.of([0.0], [2.0]))[1, 0]
        slope = float(end if isinstance(function, _PieceMap) else end + function.offset)
        offset = slope if 0.5 <= slope <= 2 else 0.0
        moved = replace(function, offset=offset)
        level = np.array([0.1, 0.01 if offset == 0 else 0.1, 1e-3]) * min(1.0, slope)
        reflected = np.ones(3) if self._odd else None
        return _Table(fit(moved, _TOLERANCE, lambda end: level, reflected), offset)


@dataclass(frozen=True)
class _Table:
    """The table of (U/u - offset, D - offset, A).

    The offset is D(0) if D(0) is near 1, so that the differences and their errors are small near u
    = 0.
    """

    fitted: Fitted
    offset: float

    def at(self, u: Array, rest: Array | None = None) -> Array:
        """The three tabulated functions at gaps u (n,).

        ``rest`` is 2 - u, if the caller knows it more accurately.
        """
        rest = 2 - u if rest is None else rest
        with np.errstate(divide="ignore"):
            return self.fitted.at(-np.log2(np.minimum(u, rest)), u > 1)


@dataclass(frozen=True)
class _Squared:
    """(U/u - offset, D - offset, A) of a map composed with itself."""

    table: _Table
    offset: float = 0.0

    def __call__(self, gap: Gap) -> Array:
        u, z = np.asarray(gap), self.table.offset
        ratio, slope, added = self.table.at(u, np.asarray(2 - gap))
        then, steeper, more = self.table.at(np.clip((ratio + z) * u, 0.0, 2.0))
        rest = z * z - self.offset  # 0 up to rounding, if the offset is not 0
        product = (
            z * (ratio + then) + ratio * then + rest,
            z * (slope + steeper) + slope * steeper + rest,
        )
        return np.stack([*product, more + (steeper + z) * added])


def _emitted(
    network: Network, kernel: Tangent, node: Node, states: Mapping[Node, Channels]
) -> Channels:
    return emitted(
        network.operations_of(node), kernel.rule, {p: states[p] for p in network.parents(node)}
    )


def _keeping(op: Fresh, below: Channels, state: Channels) -> Channels:
    """Set the gap of ``state`` to the gap of the input, which weights without bias preserve.

    The gap computed by the calculus would contain a rounded value of 1 + c.
    """
    if op.sigma_b != 0 or len(below.groups) != 1:
        return state
    gap, pair = below.pairs[0].moments.gap.value, state.pairs[0]
    if not isinstance(gap, Gap) or gap.rest is None or len(pair.terms) != 1:
        return state
    moments = replace(pair.moments, gap=Jet((gap, *pair.moments.gap.coefficients[1:])))
    (term,) = pair.terms
    return Channels.one(
        replace(
            pair, moments=moments, terms=(replace(term, atom=replace(term.atom, moments=moments)),)
        )
    )


def _gaussian(node: Node, q: Any, gap: Jet, bit: int) -> Channels:
    return Channels.one(Pair.of(Atom(node, Moments(q, q, gap), bit, gaussian=True)))


def _settled_kind(state: Channels) -> bool:
    """Whether a feature map at two inputs is a centred Gaussian, defined by its q and gap."""
    (pair,) = state.pairs if len(state.groups) == 1 else (None,)
    if pair is None or not pair.gaussian or any(t.atom.raw or t.atom.patched for t in pair.terms):
        return False
    return is_zero(pair.moments.mean1) and np.ndim(pair.moments.q1) == 0


def rows_of(shape: tuple[int, ...], *parts: Any) -> Array:
    """Broadcast numbers and arrays to a shape, and return them as the rows of one array."""
    return np.stack([np.broadcast_to(np.asarray(part, dtype=float), shape) for part in parts])
