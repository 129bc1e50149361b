"""Global Q and C maps of a network: the kernel calculus folded over it, as map objects."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, TypeVar, overload

import numpy as np

from ..fields import NUMPY
from ..fields.arguments import (
    Array,
    Number,
    Numbers,
    cosine_array,
    one_q,
    per_input,
    q_array,
    q_pair,
    read_pair,
)
from ..fields.gaps import Gap
from ..fields.jax_field import is_jax, jax_arrays, jax_field, precision, within
from ..fields.jets import Jet
from ..foundation.errors import unknown
from ..foundation.guests import READINGS
from ..foundation.printing import Shown, plain, shown, spread
from ..maps.composition import Composition
from ..maps.maps import INFINITE_WIDTH, Assumption, CMap, KernelMap, QMap, sole
from ..network.network import Network, require_network
from .checks import Exploded, check_q, in_enough_digits
from .kernel import KernelReading
from .renormalised import Renormalised, Scaled
from .symbolic import symbolic_map, symbolic_notes
from .tape import Replay, tape_inputs

if TYPE_CHECKING:
    from jax import Array as JaxArray

    from .attention.maps import TokenValue
    from .attention.sampling import Sampling
    from .attention.values import SampledValues
    from .spatial import SpatialKernelMap

Node = Hashable
Value = TypeVar("Value", bound="NodeValue | TokenValue")
KEPT = 16  # the number of results cached per network


@overload
def c_map(
    network: Network,
    assume_independent: bool = False,
    spatial: Literal["delta"] = "delta",
    *,
    tokens: int | None = None,
    token_cosine: float | None = None,
) -> NetworkCMap: ...


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
    network: Network,
    assume_independent: bool = False,
    spatial: str = "delta",
    image_shape: Any = None,
    weights: str = "dense",
    *,
    tokens: int | None = None,
    token_cosine: float | None = None,
) -> NetworkCMap | SpatialKernelMap:
    """Return the global C map of a network, ``C(c, q=1)`` or ``C(c, q1, q2)``.

    Its arguments are the c and q values of the inputs.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    assume_independent
        Whether to continue if a hypothesis of the kernel calculus fails; ``.assumptions`` then
        records it.
    spatial
        "exact" (with ``image_shape``) follows dense convolutions and mean pooling over the
        locations of actual images. The result is ``C(X, Y=None)``, a
        :class:`kcalc.calculi.spatial.SpatialKernelMap`.
    image_shape
        (height, width) of the images.
    weights
        See :func:`kcalc.ntk`.
    tokens
        The number of tokens of an input, for networks with attention.
    token_cosine
        The cosine between any two tokens of an input, 0 by default. c is the cosine between two
        inputs at the same position; at different positions it is ``c token_cosine``.

    Returns
    -------
    NetworkCMap | SpatialKernelMap
        A function of c and q, or a function of images if ``image_shape`` is passed.

    Raises
    ------
    FreshnessError
        If the calculus does not apply; the message names the node.
    NoRule
        If a layer has no rule; the message names the node.

    Examples
    --------
    >>> import kcalc as kc
    >>> C = kc.c_map(kc.architectures.vanilla(10, "relu"))
    >>> print(round(C(0.0), 6))
    0.871536
    >>> C([0.0, 0.5]).round(3)
    array([0.872, 0.898])

    """
    options = {"spatial": spatial, "image_shape": image_shape, "weights": weights}
    options |= {"tokens": tokens, "token_cosine": token_cosine}
    guest = READINGS.answering("c_map", **options)
    if guest is not None:
        return guest(network, assume_independent)
    return NetworkCMap(MapReading(network, assume_independent))


def q_map(
    network: Network,
    assume_independent: bool = False,
    *,
    tokens: int | None = None,
    token_cosine: float | None = None,
) -> NetworkQMap:
    """Return the global Q map of a network, ``Q(q)`` in the q values of its inputs.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.
    tokens
        The number of tokens of an input, for networks with attention.
    token_cosine
        The cosine between any two tokens of the input.

    Returns
    -------
    NetworkQMap
        A function of q, with derivatives, fixed points and plots.

    Examples
    --------
    >>> import kcalc as kc
    >>> Q = kc.q_map(kc.architectures.vanilla(3, "relu"))
    >>> print(Q(1.0))
    0.125

    """
    guest = READINGS.answering("q_map", tokens=tokens, token_cosine=token_cosine)
    if guest is not None:
        return guest(network, assume_independent)
    return NetworkQMap(MapReading(network, assume_independent))


def q_values(
    network: Network,
    q: Any = 1,
    assume_independent: bool = False,
    *,
    tokens: int | None = None,
    token_cosine: float | None = None,
) -> dict[Node, float]:
    """Compute the q value of every node for uniform input q, as floats.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    q
        The mean square of the inputs, > 0: a number or {input: number}.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.
    tokens
        The number of tokens of an input, for networks with attention.
    token_cosine
        The cosine between any two tokens of the input.

    Returns
    -------
    dict[Node, float]
        {node: q value}, including the inputs.

    Examples
    --------
    >>> import kcalc as kc
    >>> list(kc.q_values(kc.architectures.vanilla(2, "relu")).values())
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]

    """
    guest = READINGS.answering("q_values", tokens=tokens, token_cosine=token_cosine)
    if guest is not None:
        return guest(network, q, assume_independent)
    return MapReading(network, assume_independent).q_values(q)


def q_and_variances(
    network: Network, q: Any = 1, assume_independent: bool = False
) -> dict[Node, tuple[float, float]]:
    """Return (q value, variance over channels) of every node for uniform input q.

    ``q``: a number or {input: number}.
    """
    reading = MapReading(network, assume_independent)
    given = per_input(network.inputs)(q, lambda v: q_array(v, "q"), "q")
    kernel, states = reading.run(NUMPY, given, None, None)
    sizes = {node: float(kernel.whole(state)[0]) for node, state in states.items()}
    return {
        node: (sizes[node], kernel.statistics.variance(state)) for node, state in states.items()
    }


def end_values(network: Network, assume_independent: bool = False) -> tuple[float, float]:
    """Return (Q, C'(1)) at the output of a network with one output, for inputs with q = 1."""
    at_one = MapReading(network, assume_independent).at_one
    gap, output = Jet.variable(Gap.from_cosine(1.0), 1, -1.0), network.outputs[0]
    end = at_one.gaps(dict.fromkeys(network.inputs, gap))[output]
    check_q(NUMPY, at_one.q[output], output)
    return float(at_one.q[output]), -float(end.coefficients[1])


class NodeValue(NamedTuple):
    """The q values and the c value of the feature maps of two inputs at one node.

    Attributes
    ----------
    q1
        The q value of the first feature map.
    q2
        The q value of the second feature map.
    c
        Their c value.

    """

    q1: float | Array
    q2: float | Array
    c: float | Array


class NodeValues(dict[Node, Value], Shown, Generic[Value]):
    """{node: values}, in the order of the network.

    Attributes
    ----------
    assumptions
        The assumptions used to compute the values.

    """

    assumptions: tuple[Assumption, ...] = ()

    def __missing__(self, node: Node) -> NoReturn:
        raise unknown("node", node, map(str, self))

    def _frame(self) -> dict[str, Any]:
        parts = [spread({"node": str(node), **value._asdict()}) for node, value in self.items()]
        return {
            name: np.concatenate([part[name] for part in parts]) for name in ("node", *self._names)
        }

    @property
    def _names(self) -> tuple[str, ...]:
        return next(iter(self.values()))._fields

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            ("node", *self._names),
            *((str(node), *map(shown, value)) for node, value in self.items()),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return plain(
            {
                "nodes": {node: value._asdict() for node, value in self.items()},
                "assumptions": self.assumptions,
            }
        )

    def __repr__(self) -> str:
        return f"NodeValues({len(self)} nodes)"


@overload
def node_values(
    network: Network,
    c: Any = None,
    q1: Any = None,
    q2: Any = None,
    assume_independent: bool = False,
    *,
    q: Any = None,
) -> NodeValues[NodeValue]: ...
@overload
def node_values(
    network: Network,
    c: Any = None,
    q1: Any = None,
    q2: Any = None,
    assume_independent: bool = False,
    *,
    q: Any = None,
    tokens: Any,
    token_cosine: float | None = None,
) -> NodeValues[TokenValue]: ...
@overload
def node_values(
    network: Network,
    c: Any = None,
    q1: Any = None,
    q2: Any = None,
    assume_independent: bool = False,
    *,
    q: Any = None,
    tokens: Any = None,
    token_cosine: float | None = None,
    sampling: Sampling | None,
) -> SampledValues: ...
def node_values(
    network: Network,
    c: Any = None,
    q1: Any = None,
    q2: Any = None,
    assume_independent: bool = False,
    *,
    q: Any = None,
    tokens: Any = None,
    token_cosine: float | None = None,
    sampling: Sampling | None = None,
) -> NodeValues[NodeValue] | NodeValues[TokenValue] | SampledValues:
    """Compute q1, q2 and c at every node for inputs with the given c and q values.

    The values trace how q and c change with depth.

    Attention with causal masks, windows, rotary embeddings, ALiBi or sinusoidal positions
    distinguishes tokens. Such attention is sampled as specified by ``sampling``. Attention is also
    sampled if ``tokens`` is an array or ``sampling`` is passed.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    c
        The cosine between the two inputs, 0 by default: a number, an array or {input: value}.
    q1
        The q value of the first input, > 0.
    q2
        The q value of the second input, > 0; None means ``q1``.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.
    q
        The q value of both inputs, 1 by default: a number, an array or {input: value}.
    tokens
        The number of tokens of an input, as in :func:`c_map`, or an array: a covariance (T, T),
        token ids (T,) or (N, T), or inputs (N, T, features).
    token_cosine
        The cosine between any two tokens of an input, 0 by default.
    sampling
        How attention is sampled, a :class:`kcalc.Sampling`; None samples only if no exact rule
        exists.

    Returns
    -------
    NodeValues[NodeValue] | NodeValues[TokenValue] | SampledValues
        {node: NodeValue}; over tokens {node: TokenValue}; if attention is sampled, a
        :class:`SampledValues`.

    Raises
    ------
    KcalcError
        In the same cases as for a C map.

    Examples
    --------
    >>> import kcalc as kc
    >>> values = kc.node_values(kc.architectures.vanilla(3, "relu"), c=0.0)
    >>> [f"{value.c:.3f}" for value in values.values()]
    ['0.000', '0.000', '0.318', '0.318', '0.494', '0.494', '0.605', '0.605']

    """
    options = {"tokens": tokens, "token_cosine": token_cosine, "sampling": sampling}
    guest = READINGS.answering("node_values", **options)
    if guest is not None:
        return guest(network, c, q1, q2, assume_independent, q=q)
    return MapReading(network, assume_independent).node_values(c, *q_pair(q1, q2, q))


class RulePass(NamedTuple):
    """The result of one pass of the rules at given q values, valid for any c values.

    ``notes``: the assumptions of the pass; ``q``: {output: its q value}; ``gaps``: 1 - C of the
    outputs as a function of 1 - c of the inputs.
    """

    notes: tuple[Assumption, ...]
    q: dict[Node, Any]
    gaps: Any


class MapReading(KernelReading):
    """A network with the options of the kernel calculus, for any number system."""

    def __init__(self, network: Network, assume_independent: bool) -> None:
        require_network(network)
        super().__init__(network, assume_independent)

    @property
    def at_one(self) -> RulePass:
        """The :class:`RulePass` at q = 1."""
        return self.passed(dict.fromkeys(self.network.inputs, np.asarray(1.0)), None)

    def passed(self, q1: dict[Node, Any], q2: dict[Node, Any] | None) -> RulePass:
        """The :class:`RulePass` at given q values in double precision; ``q2=None`` means uniform q.

        Passes at single q values are cached with the network and shared by all of its maps.
        """
        numbers = (*q1.values(), *(() if q2 is None else q2.values()))
        if any(q.ndim for q in numbers):
            return self.fresh_pass(q1, q2)
        return self._kept(tuple(map(float, numbers)), lambda: self.fresh_pass(q1, q2))

    def fresh_pass(self, q1: dict[Node, Any], q2: dict[Node, Any] | None) -> RulePass:
        """The :class:`RulePass` at given q values, without caching."""
        given = tape_inputs(self.network.inputs)
        try:
            kernel, states = self.run(NUMPY, q1, q2, given)
        except Exploded:
            return self._renormalised(q1, q2)
        whole = {node: kernel.whole(states[node]) for node in self.network.outputs}
        gaps = Replay(given, {n: gap for n, (*_, gap) in whole.items()})
        return RulePass(tuple(kernel.notes.values()), {n: q for n, (q, *_) in whole.items()}, gaps)

    def _renormalised(self, q1: dict[Node, Any], q2: dict[Node, Any] | None) -> RulePass:
        """The :class:`RulePass` with q rescaled to about 1, for q beyond double precision."""
        given, second = tape_inputs(self.network.inputs), q1 if q2 is None else q2
        kernel = self.plain_kernel(NUMPY, q2 is None)
        inputs = {
            n: Scaled(kernel.start(n, q1[n], second[n], given[n]), 0) for n in self.network.inputs
        }
        states = self.interpreted(Renormalised(kernel), inputs)
        found = {
            node: (states[node], kernel.whole(states[node].state)) for node in self.network.outputs
        }
        with np.errstate(over="ignore", under="ignore"):
            sizes = {n: np.ldexp(q, 2 * state.power) for n, (state, (q, *_)) in found.items()}
        gaps = Replay(given, {n: gap for n, (_, (*_, gap)) in found.items()})
        return RulePass(tuple(kernel.notes.values()), sizes, gaps)

    def _kept(self, what: Hashable, make: Callable[[], Any]) -> Any:
        """Return ``make()``, cached among the last KEPT results of the network."""
        known = self.network.__dict__.setdefault("_kernel_passes", {})
        key = (self.assume, self.said, what)
        found = known.get(key)
        if found is None:
            found = make()
            if len(known) >= KEPT:
                known.clear()
            known[key] = found
        return found

    def run(
        self,
        field: Any,
        q1: dict[Node, Any],
        q2: dict[Node, Any] | None,
        gap: dict[Node, Any] | None,
    ) -> tuple[Any, dict[Node, Any]]:
        """The calculus and the state of every node.

        ``q2=None`` means uniform q, and ``gap=None`` means that only q is followed.
        """
        second = q1 if q2 is None else q2
        kernel = self.plain_kernel(field, q2 is None, gap is not None)
        inputs = {
            n: kernel.start(n, q1[n], second[n], 0 if gap is None else gap[n])
            for n in self.network.inputs
        }
        return kernel, self.interpreted(kernel, inputs)

    def gaps(
        self, gap: dict[Node, Jet], q1: dict[Node, Any], q2: dict[Node, Any] | None, field: Any
    ) -> dict[Node, Jet]:
        """Return 1 - C for each output, computed in the number system ``field``."""
        if field is NUMPY:
            with np.errstate(all="ignore"):
                return self.passed(q1, q2).gaps(gap)
        return self.at_outputs(self.run(field, q1, q2, gap), 2)

    def at_outputs(self, run: tuple[Any, dict[Node, Any]], part: int) -> dict[Node, Any]:
        """Return {output: value} from the result of a run.

        ``part`` selects q1 (0), q2 (1) or the gap (2).
        """
        kernel, states = run
        return {node: kernel.whole(states[node])[part] for node in self.network.outputs}

    def q_values(self, q: Any) -> dict[Node, float]:
        """Return :func:`q_values` for the network."""
        given = per_input(self.network.inputs)(q, lambda v: np.asarray(one_q(v)), "q")
        kernel, states = self.run(NUMPY, given, None, None)
        return {node: float(kernel.whole(state)[0]) for node, state in states.items()}

    def node_values(self, c: Any, q1: Any, q2: Any) -> NodeValues[NodeValue]:
        """Return :func:`node_values` for the network."""
        values = per_input(self.network.inputs)
        first, second = read_pair(
            lambda given, what: values(given, lambda v: q_array(v, what), what), q1, q2
        )
        cosines = values(0.0 if c is None else c, cosine_array, "c")
        gap = {n: Jet((1 - v,)) for n, v in cosines.items()}
        try:
            kernel, states = self.run(NUMPY, first, second, gap)
            out = NodeValues({node: self.value(kernel, states[node]) for node in self.network})
        except Exploded as error:
            kernel, out = self._renormalised_values(first, second, gap, error)
        out.assumptions = self.noting(INFINITE_WIDTH, kernel.notes.values())
        return out

    def _renormalised_values(
        self,
        q1: dict[Node, Any],
        q2: dict[Node, Any] | None,
        gap: dict[Node, Any],
        error: Exploded,
    ) -> tuple[Any, NodeValues[Any]]:
        """Return the kernel and :meth:`node_values` if q leaves the double-precision range.

        Cosines still exist; q values outside that range become 0 or infinite.
        """
        kernel, second = self.plain_kernel(NUMPY, q2 is None), q1 if q2 is None else q2
        if type(self).value is not MapReading.value:
            raise error
        inputs = {n: Scaled(kernel.start(n, q1[n], second[n], gap[n]), 0) for n in gap}
        states = self.interpreted(Renormalised(kernel), inputs)
        out = NodeValues[Any]()
        with np.errstate(over="ignore", under="ignore"):
            for node in self.network:
                found = self.value(kernel, states[node].state)
                one, two = (np.ldexp(q, 2 * states[node].power)[()] for q in found[:2])
                out[node] = NodeValue(one, two, found.c)
        note = "q values beyond double precision are returned as 0 or infinity"
        kernel.note("network", note, "convention")
        return kernel, out

    def value(self, kernel: Any, state: Any) -> Any:
        """The values of a node."""
        q1, q2, gap = kernel.whole(state)
        return NodeValue(*(np.asarray(part)[()] for part in (q1, q2, 1 - gap.value)))

    def formula(self, q1: Any, q2: Any, letter: str) -> Composition | dict[Node, Composition]:
        """Return the map denoted by the given letter, as a named composition."""
        return symbolic_map(self.network, q1, q2, letter, self.assume)

    def symbolic_notes(self) -> tuple[Assumption, ...]:
        """The assumptions of the calculus if the network has symbols."""
        return symbolic_notes(self.network, self.assume)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions made in the pass at q = 1, symbolic if the network has symbols."""
        return self._kept("assumptions", self._assumed)

    def _assumed(self) -> tuple[Assumption, ...]:
        if self.network.free_symbols:
            notes = self.symbolic_notes()
        else:
            notes = in_enough_digits(self._notes_at_one)
            if self.assume:  # other heuristics may apply if the two inputs have different q values
                one, two = (dict.fromkeys(self.network.inputs, np.asarray(q)) for q in (1.0, 2.0))
                kernel, _ = self.run(NUMPY, one, two, None)
                notes = tuple(dict.fromkeys((*notes, *kernel.notes.values())))
        return self.noting(INFINITE_WIDTH, notes)

    def _notes_at_one(self, field: Any) -> tuple[Assumption, ...]:
        if field is NUMPY:
            return self.at_one.notes
        one = dict.fromkeys(self.network.inputs, field.number(1))
        kernel, _ = self.run(field, one, None, {node: Jet((q,)) for node, q in one.items()})
        return tuple(kernel.notes.values())


class _OfNetwork(KernelMap):
    def __init__(self, reading: MapReading) -> None:
        network = reading.network
        self._reading, self.network = reading, network
        self.inputs, self.outputs = network.inputs, network.outputs
        self.name = network.name or f"{len(network)} nodes"
        self._assumptions = reading.assumptions

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return self._assumptions


class NetworkCMap(_OfNetwork, CMap):
    """The global C map of a network, with the methods of :class:`kcalc.maps.maps.CMap`."""

    letter = "C"

    def gaps(
        self, gap: dict[Node, Any], q1: dict[Node, Any], q2: dict[Node, Any] | None, order: int
    ) -> dict[Node, Jet]:
        jets = {node: Jet.variable(value, order, -1.0) for node, value in gap.items()}
        return self._out(jets, q1, q2, NUMPY)

    def _out(
        self, gap: dict[Node, Jet], q1: dict[Node, Any], q2: dict[Node, Any] | None, field: Any
    ) -> dict[Node, Jet]:
        """Return 1 - C for each output, computed in the number system ``field``."""
        return self._reading.gaps(gap, q1, q2, field)

    @overload
    def __call__(
        self, c: JaxArray, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> JaxArray: ...
    @overload
    def __call__(
        self,
        c: Number,
        q1: Number | None = None,
        q2: Number | None = None,
        *,
        q: Number | None = None,
    ) -> float: ...
    @overload
    def __call__(
        self, c: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
    ) -> Array: ...
    def __call__(
        self, c: Any, q1: Any = None, q2: Any = None, *, q: Any = None
    ) -> JaxArray | float | Array:
        """Evaluate C(c, q1, q2) with NumPy, or with JAX if an argument is a JAX array.

        JAX arrays may be traced by jit, grad and vmap; traced c values outside the domain give nan.
        Raises: KcalcError outside -1 <= c <= 1, q > 0.
        """
        q1, q2 = q_pair(q1, q2, q)
        if not (numbers := jax_arrays(c, q1, q2)):
            return super().__call__(c, q1, q2)
        field = jax_field()
        with precision(*numbers):
            read = per_input(self.inputs)
            gap = {
                n: Jet((1 - (within(v, self.least) if is_jax(v) else cosine_array(v)),))
                for n, v in read(c, field.number, "c").items()
            }
            first, second = read_pair(lambda given, what: read(given, field.number, what), q1, q2)
            out = self._out(gap, first, second, field)
            return sole({node: 1 - jet.value for node, jet in out.items()})

    def ball_gaps(
        self, gap: dict[Node, Any], q1: dict[Node, Any], q2: dict[Node, Any] | None, field: Any
    ) -> dict[Node, Any]:
        with field.working():
            jets = {node: Jet((value,)) for node, value in gap.items()}
            return {node: jet.value for node, jet in self._out(jets, q1, q2, field).items()}

    def symbolic(
        self, q1: Any = None, q2: Any = None, *, q: Any = None
    ) -> Composition | dict[Node, Composition]:
        """The map as a named composition in the symbol ``c`` (``c_<input>`` for several inputs).

        ``q``, or ``q1`` and ``q2``, are the q values of the inputs, as numbers or SymPy
        expressions. Stages are named ``q_k``, ``p_k`` (q values of the two inputs) and ``c_k``.
        Raises: KcalcError for symbols of other quantities, such as ``kc.symbols.c``, and if a
        symbol of a layer has the name of an argument.
        """
        return self._reading.formula(*q_pair(q1, q2, q), self.letter)


class NetworkQMap(_OfNetwork, QMap):
    """The global Q map of a network, with the methods of :class:`kcalc.maps.maps.QMap`."""

    def values(self, q: dict[Node, Any], order: int) -> dict[Node, Jet]:
        given = {
            node: Jet.variable(value, order, 1.0) if order else value for node, value in q.items()
        }
        zeros = (0.0,) * order
        return {
            node: value if isinstance(value, Jet) else Jet((value, *zeros))
            for node, value in self._out(given, NUMPY).items()
        }

    @overload
    def __call__(self, q: JaxArray) -> JaxArray: ...
    @overload
    def __call__(self, q: Number) -> float: ...
    @overload
    def __call__(self, q: Numbers) -> Array: ...
    def __call__(self, q: Any) -> JaxArray | float | Array:
        """Evaluate Q(q) with NumPy, or with JAX if q is a JAX array, which may be traced.

        Domain: q > 0. Raises: KcalcError outside the domain or for nan.
        """
        if not (numbers := jax_arrays(q)):
            return super().__call__(q)
        field = jax_field()
        with precision(*numbers):
            return sole(self._out(per_input(self.inputs)(q, field.number, "q"), field))

    def _out(self, q: dict[Node, Any], field: Any) -> dict[Node, Any]:
        """Return Q for each output, computed in the number system ``field``."""
        return self._reading.at_outputs(self._reading.run(field, q, None, None), 0)

    def ball_values(self, q: dict[Node, Any], field: Any) -> dict[Node, Any]:
        with field.working():
            return self._out(q, field)

    def symbolic(self, q: Any = None) -> Composition | dict[Node, Composition]:
        """The map as a named composition; ``q`` is a number or SymPy expression for all inputs.

        By default q is the symbol ``q``, or ``q_<input>`` for several inputs. Raises: KcalcError in
        the same cases as :meth:`NetworkCMap.symbolic`.
        """
        return self._reading.formula(q, None, "Q")
