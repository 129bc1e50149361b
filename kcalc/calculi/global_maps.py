"""Global Q and C maps of a network: the kernel calculus folded over it, as map objects."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from ..fields import NUMPY
from ..fields.arguments import cosine_array, one_q, per_input, q_array, q_pair, read_pair
from ..fields.gaps import Gap
from ..fields.jets import Jet
from ..foundation.plain_arguments import truth
from ..foundation.printing import Tabled, html_table, plain, shown, spread, text_table
from ..maps.composition import Composition
from ..maps.maps import Assumption, CMap, KernelMap, QMap
from ..network.compose import interpret
from ..network.network import Network, require_network
from .channels import Channels
from .field_maps import field_maps_of
from .kernel import kernel_over
from .spatial import SpatialKernelMap, exact_locations, spatial_reading
from .symbolic import symbolic_map, symbolic_notes

Node = Hashable


@overload
def c_map(network: Network, assume_independent: bool = False, spatial: Literal["delta"] = "delta") -> NetworkCMap: ...


@overload
def c_map(
    network: Network,
    assume_independent: bool = False,
    *,
    spatial: Literal["exact"],
    image_shape: Any = None,
    weights: str = "dense",
) -> SpatialKernelMap: ...


def c_map(
    network: Network, assume_independent: bool = False, spatial: str = "delta", image_shape: Any = None, weights: str = "dense"
) -> NetworkCMap | SpatialKernelMap:
    """The global C map of a network, ``C(c, q=1)`` or ``C(c, q1, q2)`` in the c and q values of its inputs.

    ``assume_independent=True``: where a hypothesis of the kernel calculus fails, record it in
    ``.assumptions`` instead of raising. ``spatial="exact"``, with the ``image_shape`` (height,
    width): dense convolutions and mean pooling over the locations of given images,
    ``C(X, Y=None)``, a :class:`kcalc.calculi.spatial.SpatialKernelMap`; ``weights`` as in
    :func:`kcalc.ntk`.
    Raises: FreshnessError or NoRule naming the node where the calculus does not apply.
    """
    if exact_locations(spatial, image_shape, weights):
        return SpatialKernelMap(spatial_reading(network, image_shape, weights, assume_independent))
    return NetworkCMap(network, assume_independent)


def q_map(network: Network, assume_independent: bool = False) -> NetworkQMap:
    """The global Q map of a network, ``Q(q)`` in the q values of its inputs; see :func:`c_map`."""
    return NetworkQMap(network, assume_independent)


def q_values(network: Network, q: Any = 1, assume_independent: bool = False) -> dict[Node, Any]:
    """The q value of every node for uniform input q (a number, or {input: number}), as floats."""
    reading = _Reading(network, assume_independent)
    given = per_input(network.inputs)(q, lambda v: np.asarray(one_q(v)), "q")
    states = reading.run(NUMPY, given, None, None)
    return {node: float(reading.kernel.whole(state)[0]) for node, state in states.items()}


def q_and_variances(network: Network, q: Any = 1) -> dict[Node, tuple[float, float]]:
    """(q value, variance over channels) of every node for uniform input q, a number or {input: number}."""
    reading = _Reading(network, False)
    given = per_input(network.inputs)(q, lambda v: q_array(v, "q"), "q")
    states = reading.run(NUMPY, given, None, None)
    kernel = reading.kernel
    sizes = {node: float(kernel.whole(state)[0]) for node, state in states.items()}
    return {node: (sizes[node], kernel.statistics.variance(state)) for node, state in states.items()}


def end_values(network: Network) -> tuple[float, float]:
    """(Q, C'(1)) at the output of a network of one output for inputs of q = 1, by one fold."""
    reading = c_map(network)._reading
    inputs, one = network.inputs, np.asarray(1.0)
    gap = Jet.variable(Gap.from_cosine(one), 1, -1.0)
    states = reading.run(NUMPY, dict.fromkeys(inputs, one), None, dict.fromkeys(inputs, gap))
    q, _, end = reading.kernel.whole(states[network.outputs[0]])
    return float(q), -float(end.coefficients[1])


class NodeValue(NamedTuple):
    """The values at one node: ``q1`` and ``q2``, the q values of the two inputs' feature maps, and ``c``, their c value."""

    q1: Any
    q2: Any
    c: Any


class NodeValues(dict[Node, NodeValue], Tabled):
    """{node: its values}, in the order of the network, with their ``assumptions``."""

    assumptions: tuple[Assumption, ...] = ()

    def _frame(self) -> dict[str, Any]:
        parts = [spread({"node": str(node), **value._asdict()}) for node, value in self.items()]
        return {name: np.concatenate([part[name] for part in parts]) for name in ("node", *NodeValue._fields)}

    def _rows(self) -> list[tuple[str, ...]]:
        return [("node", *NodeValue._fields), *((str(node), *map(shown, value)) for node, value in self.items())]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return plain({"nodes": {node: value._asdict() for node, value in self.items()}, "assumptions": self.assumptions})

    def __repr__(self) -> str:
        return f"NodeValues({len(self)} nodes)"

    def __str__(self) -> str:
        return text_table(self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows(), repr(self))


def node_values(
    network: Network, c: Any = 0.0, q1: Any = None, q2: Any = None, assume_independent: bool = False, *, q: Any = None
) -> NodeValues:
    """q1, q2 and c of every node for inputs of the given c and q values: the depth trace of a network.

    ``c`` and ``q`` (default 1; ``q1`` and ``q2`` where the two inputs differ) are numbers, arrays, or {input: value}.
    Returns: {node: NodeValue}. Raises: KcalcError as a C map does.
    """
    reading = _Reading(network, assume_independent)
    values = per_input(network.inputs)
    first, second = read_pair(lambda given, what: values(given, lambda v: q_array(v, what), what), *q_pair(q1, q2, q))
    gap = {n: Jet((1 - v,)) for n, v in values(c, cosine_array, "c").items()}
    states = reading.run(NUMPY, first, second, gap)
    out = NodeValues()
    for node in network:
        a, b, g = reading.kernel.whole(states[node])
        out[node] = NodeValue(np.asarray(a)[()], np.asarray(b)[()], np.asarray(1 - g.value)[()])
    out.assumptions = reading.with_network_assumptions(reading.kernel.notes.values())
    return out


class _Reading:
    """A network with the options of the kernel calculus, which runs in any number system."""

    def __init__(self, network: Network, assume_independent: bool) -> None:
        require_network(network)
        self.network = network
        self.assume = truth(assume_independent, "assume_independent")
        self.kernel = kernel_over()

    def run(self, field: Any, q1: dict[Node, Any], q2: dict[Node, Any] | None, gap: dict[Node, Any] | None) -> dict[Node, Channels]:
        """The state of every node; ``q2=None`` for uniform q, ``gap=None`` to follow q alone."""
        self.kernel = kernel = kernel_over(field, q2 is None, gap is not None, self.assume, field_maps_of(self.network, field))
        inputs = {n: kernel.start(n, q1[n], q1[n] if q2 is None else q2[n], 0 if gap is None else gap[n]) for n in self.network.inputs}
        with np.errstate(all="ignore"):  # the rules raise KcalcError naming the node of an overflow
            return interpret(self.network, kernel, inputs)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions made in a trial run, cached on the network for all of its maps."""
        known = self.network.__dict__.setdefault("_kernel_assumptions", {})
        if self.assume not in known:
            known[self.assume] = self._tried()
        return known[self.assume]

    def _tried(self) -> tuple[Assumption, ...]:
        """The assumptions made in a trial run, symbolic if the network has symbols."""
        if self.network.free_symbols:
            notes = symbolic_notes(self.network, self.assume)
        else:
            inputs = self.network.inputs
            self.run(NUMPY, dict.fromkeys(inputs, np.asarray(1.0)), None, None)
            notes = tuple(self.kernel.notes.values())
            if self.assume:  # other heuristics may enter where the two inputs differ in q
                one, two = (dict.fromkeys(inputs, np.asarray(q)) for q in (1.0, 2.0))
                self.run(NUMPY, one, two, None)
                notes = tuple(dict.fromkeys((*notes, *self.kernel.notes.values())))
        return self.with_network_assumptions(notes)

    def with_network_assumptions(self, notes: Iterable[Assumption]) -> tuple[Assumption, ...]:
        """The assumptions of all kernel maps and of the network, followed by ``notes``."""
        width = Assumption("network", "infinite width; independent weights of mean 0, Gaussian or uniform orthogonal")
        return (width, *self.network.assumptions, *notes)


class _OfNetwork(KernelMap):
    def __init__(self, network: Network, assume_independent: bool = False) -> None:
        self._reading = _Reading(network, assume_independent)
        self.network = network
        self.inputs, self.outputs = network.inputs, network.outputs
        self.name = network.name or f"{len(network)} nodes"
        self._assumptions = self._reading.assumptions

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return self._assumptions


class NetworkCMap(_OfNetwork, CMap):
    """The global C map of a network; its methods are those of :class:`kcalc.maps.maps.CMap`."""

    def gaps(self, gap: dict[Node, Any], q1: dict[Node, Any], q2: dict[Node, Any] | None, order: int) -> dict[Node, Jet]:
        jets = {node: Jet.variable(value, order, -1.0) for node, value in gap.items()}
        states = self._reading.run(NUMPY, q1, q2, jets)
        return {node: self._reading.kernel.whole(states[node])[2] for node in self.outputs}

    def ball_gaps(self, gap: dict[Node, Any], q1: dict[Node, Any], q2: dict[Node, Any] | None, field: Any) -> dict[Node, Any]:
        with field.working():
            states = self._reading.run(field, q1, q2, {node: Jet((value,)) for node, value in gap.items()})
            return {node: self._reading.kernel.whole(states[node])[2].value for node in self.outputs}

    def symbolic(self, q1: Any = None, q2: Any = None, *, q: Any = None) -> Composition | dict[Node, Composition]:
        """The map as a named composition in the symbol ``c``, for several inputs in ``c_<input>``.

        ``q``, or ``q1`` and ``q2``: the q values of the inputs, numbers or SymPy expressions.
        Stages are named ``q_k``, ``p_k`` (q values of the two inputs) and ``c_k``.
        Raises: KcalcError for symbols of other quantities, such as ``kc.symbols.c``, and where a
        symbol of a layer has the name of an argument.
        """
        return symbolic_map(self.network, *q_pair(q1, q2, q), "C", self._reading.assume)


class NetworkQMap(_OfNetwork, QMap):
    """The global Q map of a network; its methods are those of :class:`kcalc.maps.maps.QMap`."""

    def values(self, q: dict[Node, Any], order: int) -> dict[Node, Jet]:
        given = {node: Jet.variable(value, order, 1.0) if order else value for node, value in q.items()}
        states = self._reading.run(NUMPY, given, None, None)
        out = {node: self._reading.kernel.whole(states[node])[0] for node in self.outputs}
        zeros = (0.0,) * order
        return {node: value if isinstance(value, Jet) else Jet((value, *zeros)) for node, value in out.items()}

    def ball_values(self, q: dict[Node, Any], field: Any) -> dict[Node, Any]:
        with field.working():
            states = self._reading.run(field, q, None, None)
            return {node: self._reading.kernel.whole(states[node])[0] for node in self.outputs}

    def symbolic(self, q: Any = None) -> Composition | dict[Node, Composition]:
        """The map as a named composition at a number or SymPy expression q of all inputs.

        By default in the symbol ``q``, for several inputs in ``q_<input>``.
        Raises: KcalcError as a C map's ``symbolic``.
        """
        return symbolic_map(self.network, q, None, "Q", self._reading.assume)
