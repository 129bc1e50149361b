"""Kernel matrices of data: a network's kernels for the engine :mod:`kcalc.matrices.gram`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..activations import Activation
from ..fields import NUMPY
from ..fields.arguments import one_q
from ..fields.gaps import Gap
from ..fields.jets import Jet
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import choice
from ..foundation.process_state import cached_property
from ..matrices.gram.entry import compute
from ..matrices.gram.norms import NormFunctions, NormPlan, NormTable, q_range, tabulate_norms
from ..matrices.gram.options import Options, tolerance
from ..matrices.gram.plans import ChunkPlan, PairPlan, TablePlan
from ..matrices.gram.rows import RowSet
from ..matrices.gram.tables import AngleTable, tabulate
from ..matrices.gram.zeros import planned
from ..matrices.spectrum import condition_number
from ..network.primitives import Fresh, Mask, owner
from .channel_statistics import CENTRED
from .homogeneity import degrees, is_odd
from .local_tables import LocalTable, RecordedMaps, TabledMaps
from .powers import DeepKernel, rows_of
from .zero_inputs import ZeroTangent, zero_kernel

if TYPE_CHECKING:
    from .channels import Channels
    from .ntk import TangentReading
    from .tangent import Tangent

Node = Hashable
Array = np.ndarray

METHODS = ("auto", "angle", "pairs")
KINDS = ("nngp", "ntk")
FEW_NORMS = 4
"""Largest number of different norms for which there is one table per pair of norms."""
MANY_PAIRS = 2000
"""Smallest number of row pairs for which activations are interpolated in angles and norms."""
MOST_PAIRS = 100_000
"""Smallest number of row pairs for which whole networks without kinks are interpolated."""
LAYERED_AT_ONCE = 1 << 14


class Matrices(NamedTuple):
    """Both kernels of the same data."""

    nngp: Any
    ntk: Any


@dataclass(frozen=True, eq=False)
class LayeredPairs:
    """(NNGP, NTK) for pairs of rows and columns, layer by layer, from tables of local maps."""

    reading: TangentReading
    seeds: Mapping[Node, Any] | None
    tables: tuple[LocalTable | None, ...]

    def __call__(self, gap: Any, q1: Any, q2: Any, system: Any = NUMPY) -> list[Any]:
        """Return two matrices from gaps (rows, columns), q1 (rows, 1) and q2 (1, columns)."""
        kernel, state = self.followed(gap, q1, q2, system)
        with np.errstate(all="ignore"):
            return [part + 0.0 * gap for part in kernel.kernels(state)]

    def followed(self, gap: Any, q1: Any, q2: Any, system: Any = NUMPY) -> tuple[Tangent, Channels]:
        """Return the calculus, and its state at the network's output."""
        (node,), (output,) = self.reading.network.inputs, self.reading.network.outputs
        kernel = self.reading.kernel(system, False, self.seeds, TabledMaps(self.tables, system))
        start = kernel.start(node, q1, q2, Jet((gap, gap * 0)))
        return kernel, self.reading.interpreted(kernel, {node: start})[output]

    @property
    def tabled(self) -> bool:
        """Whether there is a table; positively homogeneous activations need no table."""
        return any(self.tables)

    @property
    def error(self) -> float:
        """The largest error of any table."""
        return max((table.error for table in self.tables if table is not None), default=0.0)


@dataclass
class MatrixKernel:
    """Kernel matrices of a network with one input and one output, from cached tables.

    See :class:`kcalc.calculi.tangent.Tangent` for ``seeds``.
    """

    reading: TangentReading
    seeds: Mapping[Node, Any] | None
    _tables: dict[tuple[float, ...], AngleTable] = field(default_factory=dict)
    _norms: dict[tuple[float, float], NormTable | None] = field(default_factory=dict)
    _local: dict[Activation, list[LocalTable]] = field(default_factory=dict)
    _layered: dict[tuple[int, ...], LayeredPairs] = field(default_factory=dict)

    def matrices(
        self, X: Any, Y: Any, parts: tuple[int, ...], method: str, q: float | None, options: Options
    ) -> list[Any]:
        """Return one matrix per part (0 NNGP, 1 NTK).

        See :meth:`kcalc.calculi.ntk.KernelFunction.matrix`.
        """
        choice(method, "method", METHODS)
        self._check()
        binding = Binding(self, method, None if q is None else one_q(q))
        return compute(binding, X, Y, parts, options)

    def table(self, q: float = 1.0) -> AngleTable:
        """The kernels as functions of the angle, for inputs with the same q value."""
        self._check()
        return self.tabled((float(q),))

    def tabled(self, qs: tuple[float, ...]) -> AngleTable:
        """Return a table with one set of kernels for each pair of q values.

        The pairs are in the order (0, 0), (1, 0), (1, 1), ...
        """
        if qs not in self._tables:
            odd = self._odd
            banks = [self._bank(qs[i], qs[j], odd) for i in range(len(qs)) for j in range(i + 1)]
            self._tables[qs] = tabulate(
                lambda gap: np.concatenate([bank(gap) for bank in banks]), len(banks), odd
            )
        return self._tables[qs]

    def normed(self, low: float, high: float) -> NormTable | None:
        """Return the table for q values between exp(low) and exp(high), or None."""
        if (low, high) not in self._norms:
            layered = self.layered(np.exp(np.linspace(low, high, 64)))
            functions = NormFunctions(self.pairs, layered or self.pairs, self.table, self._odd)
            self._norms[low, high] = tabulate_norms(functions, low, high)
        return self._norms[low, high]

    def layered(self, q: Array) -> LayeredPairs | None:
        """The recursion over tables of local maps, or None if some q value has no table."""
        maps = RecordedMaps(self._local)
        (node,) = self.reading.network.inputs
        kernel = self.reading.kernel(NUMPY, True, self.seeds, maps)
        start = kernel.start(node, q, q, Jet((np.zeros(q.shape), np.zeros(q.shape))))
        self.reading.interpreted(kernel, {node: start})
        tables = tuple(maps.tables)
        if any(t is None and phi.degree is None for phi, t in zip(maps.calls, tables, strict=True)):
            return None
        key = tuple(map(id, tables))
        if key not in self._layered:
            self._layered[key] = LayeredPairs(self.reading, self.seeds, tables)
        return self._layered[key]

    def _bank(self, first: float, second: float, odd: bool) -> Any:
        if first == second:
            return DeepKernel(self.reading, first, self.seeds, odd)
        return lambda gap: self.pairs(gap, np.full(gap.shape, first), np.full(gap.shape, second))

    def pairs(self, gap: Gap, q1: Array, q2: Array) -> Array:
        """Return (NNGP, NTK) of pairs from the general recursion, shape (2, n)."""
        (node,) = self.reading.network.inputs
        second = None if np.array_equal(q1, q2) else {node: q2}
        ((nngp, ntk),) = self.reading.values({node: gap}, {node: q1}, second, self.seeds).values()
        return rows_of(gap.shape, nngp, ntk)

    def at_zero(self, q: Array) -> Array:
        """Return (NNGP, NTK) between the zero input and inputs with q values >= 0, shape (2, n)."""
        network = self.reading.network
        (node,), (output,) = network.inputs, network.outputs
        reading = self.reading
        plain = zero_kernel(reading.assume)
        kernel = ZeroTangent(plain, self.seeds, reading.fan_in, reading.unseen)
        jet = Jet((np.ones(q.shape), np.zeros(q.shape)))
        start = kernel.start(node, np.zeros(q.shape), q, jet)
        state = self.reading.interpreted(kernel, {node: start})[output]
        with np.errstate(all="ignore"):
            return rows_of(q.shape, *(part + 0.0 for part in kernel.kernels(state)))

    @property
    def smooth(self) -> bool:
        """Whether no activation has kinks, so the kernels are smooth functions of the q values."""
        return not any(phi.kinks for phi in self.reading.network.activations)

    @cached_property
    def degree(self) -> int | None:
        """The degree k with K(a x, b y) = (a b)^k K(x, y) for all a, b > 0.

        The degree is None if the structure of the network implies no such k.
        """
        network = self.reading.network
        return None if self._bias_counts else degrees(network)[network.outputs[0]]

    @property
    def _odd(self) -> bool:
        """Whether both kernels are odd functions of c."""
        return is_odd(self.reading.network) and not self._bias_counts

    @property
    def _bias_counts(self) -> bool:
        """Whether biases contribute to the tangent kernel even at sigma_b = 0.

        They contribute a constant in the standard parameterisation, which is neither homogeneous
        nor odd.
        """
        return self.reading.fan_in is not None and any(
            op.bias for _, op, _ in self.reading.network.operations if isinstance(op, Fresh)
        )

    @property
    def features(self) -> int | None:
        """The number of input features, from the network or from ``fan_in``.

        The number is None if neither defines it.
        """
        (node,) = self.reading.network.inputs
        stated = self.reading.network.layer(node).features
        return (self.reading.fan_in or {}).get(node) if stated is None else stated

    @property
    def centred(self) -> bool:
        """Whether the kernels need centred rows, because a layer depends on the input's mean."""
        return any(note.text == CENTRED for note in self.reading.assumptions)

    def _check(self) -> None:
        network = self.reading.network
        for what, nodes in (("inputs", network.inputs), ("outputs", network.outputs)):
            if len(nodes) != 1:
                names = ", ".join(map(str, nodes[:6]))
                raise KcalcError(
                    "a kernel matrix needs one input and one output, but the network has "
                    f"{len(nodes)} {what}: {names}"
                )
        for node, op, _ in network.operations:
            if isinstance(op, Mask) and op.drops:
                raise KcalcError(
                    f"node {owner(node)!r}: with active dropout, the kernel of a row with itself "
                    "differs from its kernel with a copy of the row, because their masks differ. "
                    "So there is no kernel matrix; use Dropout(rate) with active=False, or call "
                    "K(c) for pairs of examples"
                )


@dataclass(frozen=True)
class Binding:
    """The interface between a network's kernels and the engine.

    It chooses how the kernels of given rows are computed.
    """

    kernel: MatrixKernel
    method: str
    q: float | None

    @property
    def features(self) -> int | None:
        """The number of features that rows must have, or None."""
        return self.kernel.features

    @property
    def centred(self) -> bool:
        """Whether rows must have mean 0."""
        return self.kernel.centred

    def plan(self, left: Array, right: Array, tolerance: float, tabled: bool = False) -> ChunkPlan:
        """The plan for rows with q values ``left`` and ``right``.

        q values within the relative ``tolerance`` count as equal. ``tabled``: use a table even for
        few pairs. Raises: KcalcError for ``method="angle"`` and rows with different norms, unless
        the network is homogeneous.
        """
        if self.q is not None:
            left, right = np.full(left.shape, self.q), np.full(right.shape, self.q)
        if self.method == "pairs":
            return PairPlan(self.kernel.pairs, (left, right))
        distinct, (ones, others) = _classes(left, right, tolerance)
        degree = self.kernel.degree
        if len(distinct) == 1:
            if degree is None:
                return TablePlan(self.kernel.tabled((distinct[0],)))
            return TablePlan(self.kernel.tabled((1.0,)).scaled(distinct[0] ** degree))
        if degree is not None:
            scale = None if degree == 0 else (left ** (degree / 2), right ** (degree / 2))
            return TablePlan(self.kernel.tabled((1.0,)), scale=scale)
        if self.method == "angle":
            raise KcalcError(
                f"the rows have {len(distinct)} different norms (q from {min(distinct):.6g} to "
                f"{max(distinct):.6g}) and the network is not homogeneous, so its kernel depends "
                'on more than the angle; use the general recursion (method="pairs" or '
                '"auto"), rescale the rows to one norm, or pass q= to compare only angles'
            )
        if len(distinct) <= FEW_NORMS:
            return TablePlan(self.kernel.tabled(tuple(distinct)), classes=(ones, others))
        if not tabled and left.size * right.size < MANY_PAIRS:
            return PairPlan(self.kernel.pairs, (left, right))
        if self.kernel.smooth and (tabled or left.size * right.size >= MOST_PAIRS):
            table = self.kernel.normed(*q_range(left, right))
            if table is not None:
                return NormPlan(table, (left, right))
        layered = self.kernel.layered(np.unique(np.concatenate([left, right])))
        if layered is None:
            return PairPlan(self.kernel.pairs, (left, right))
        plan = PairPlan(layered, (left, right), LAYERED_AT_ONCE, layered.error, traced=layered)
        if not layered.tabled:
            return plan
        text = (
            "layer by layer for every pair of rows, with activations from tables in the angle "
            "and in the q values of both rows; the relative error of each layer is <= "
            f"{layered.error:.0e}"
        )
        return replace(plan, method=text)

    def at_zero(self, q: Array) -> Array:
        """Return the kernels between a zero row and rows with q values >= 0, shape (2, n)."""
        return self.kernel.at_zero(q)

    def by_angle(self) -> tuple[AngleTable, int]:
        """Return (table, k) with K = table(c) (q1 q2)^(k/2).

        Raises: KcalcError if the kernel does not have this form.
        """
        if self.q is not None:
            return self.kernel.tabled((self.q,)), 0
        if self.kernel.degree is None:
            raise KcalcError(
                "inside jax.grad or jax.jit the norms of the rows are unknown, but the kernel of "
                "this network depends on them because it is not homogeneous; pass q= to use only "
                "angles"
            )
        return self.kernel.tabled((1.0,)), self.kernel.degree


def _classes(
    left: Array, right: Array, tolerance: float
) -> tuple[list[float], tuple[Array, Array]]:
    """Return (distinct q values, index of each row's value on the left and on the right).

    Values within ``tolerance`` are replaced by their mean.
    """
    together = np.concatenate([left, right])
    order = np.argsort(together, kind="stable")
    ascending = together[order]
    starts = np.concatenate([[True], np.diff(ascending) > tolerance * ascending[1:]])
    firsts = ascending[starts][np.cumsum(starts) - 1]
    if np.any(ascending - firsts > 2 * tolerance * firsts):  # a run of close neighbours is too long
        starts = np.concatenate([[True], np.diff(ascending) > 0])
    numbers = np.empty(len(together), dtype=np.int64)
    numbers[order] = np.cumsum(starts) - 1
    means = np.bincount(numbers, weights=together) / np.bincount(numbers)
    distinct = [
        1.0 if abs(mean - 1) <= tolerance else float(mean) for mean in means[: FEW_NORMS + 1]
    ]
    if len(means) > len(distinct):
        distinct += [float(means[-1])] * (len(means) - len(distinct))
    return distinct, (numbers[: len(left)], numbers[len(left) :])


@dataclass(frozen=True, eq=False)
class KernelOfRows:
    """A kernel on rows of data, which :class:`kcalc.calculi.ntk.KernelFunction` uses for matrices.

    ``part``: 0 for the NNGP, 1 for the NTK; see :class:`MatrixKernel` for ``seeds``.
    """

    reading: TangentReading
    part: int
    seeds: Mapping[Node, Any] | None

    @cached_property
    def kernel(self) -> MatrixKernel:
        """Return the kernel with its tables.

        Raises: KcalcError for kernels over tokens.
        """
        self.reading.require_closed()
        return MatrixKernel(self.reading, self.seeds)

    def matrix(
        self, X: Any, Y: Any, kind: str | None, method: str, q: float | None, work: tuple[Any, ...]
    ) -> Any:
        """The matrix, or :class:`Matrices` of both kinds.

        ``work``: the fields of :class:`kcalc.matrices.gram.options.Options`.
        """
        parts = self._parts(kind)
        found = self.kernel.matrices(X, Y, parts, method, q, Options(*work))
        return found[0] if len(parts) == 1 else Matrices(*found)

    def matrix_method(self, X: Any, Y: Any, method: str, q: float | None) -> str:
        """Describe how :meth:`matrix` computes the entries for NumPy data."""
        choice(method, "method", METHODS)
        left = RowSet.of(X, "X")
        right = left if Y is None else RowSet.of(Y, "Y")
        binding = Binding(self.kernel, method, None if q is None else one_q(q))
        return planned(binding, left.q, right.q, tolerance(left.single and right.single)).method

    def table(self, q: float) -> AngleTable:
        """The table for inputs with the same q value."""
        return self.kernel.table(one_q(q))

    @staticmethod
    def condition_number(matrix: Any) -> float:
        """Return lambda_max / lambda_min of a kernel matrix."""
        return condition_number(matrix)

    def _parts(self, kind: str | None) -> tuple[int, ...]:
        own = KINDS[self.part]
        if kind is None or (isinstance(kind, str) and kind == own):
            return (self.part,)
        choice(kind, "kind", (*KINDS, "both"))
        if self.seeds is not None:
            raise KcalcError(
                f"this is one part of a kernel and has only matrices of kind {own!r}; call matrix "
                f"on the whole kernel for {kind!r}"
            )
        return (0, 1) if kind == "both" else (KINDS.index(kind),)
