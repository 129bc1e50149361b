"""Mean squared gradients at infinite width: E|d out / d node|^2 at every node, by a reversed fold.

If the covariance K_g of a node's channels changes by 1 (at c = 1), that of an output channel k
changes by ``E|d out_k / d node|^2``, the squared norm being summed over the node's channels. So
gradients explode or vanish as derivatives of kernel maps at c = 1 do.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..activations import Activation
from ..fields import NUMPY
from ..fields.arguments import one_q, per_input
from ..fields.jets import Jet
from ..foundation.errors import KcalcError
from ..foundation.printing import Shown, marked, plain
from ..maps.maps import Approximable, Assumption
from ..network import primitives as P
from ..network.compose import interpret, interpret_back, no_rule, require_network
from ..network.network import Network, chosen_output
from ..network.primitives import owner
from .attention.backward import TokenBackward, added
from .attention.exchangeable import ONE
from .attention.structure import read_tokens
from .channels import Channels
from .kernel import Kernel
from .ntk import TangentReading
from .tangent import Tangent, refuse_jumps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node = Hashable
Groups = list[float]
MODES = ("mean", "difference")
COPIES = "resizing is the identity: gradients of the copies of a position are not added up"


@dataclass(frozen=True, repr=False)
class Gradients(Shown, Approximable):
    """E|d out_k / d node|^2 at infinite width, for inputs of the given q.

    ``k`` is one channel of ``output``. ``nodes``: {node: value}, the squared norm summed over the
    node's channels; ``weights``: {node with parameters: E|d out_k / d parameters|^2} in the NTK
    parameterisation, which add up to the tangent kernel at c = 1: those of Affine layers, and of
    embeddings and learned positions, which count as Affine layers on one-hot vectors; ``chi``:
    {activation: E phi'(z)^2} with its pre-activation z. An activation and the Affine that reads it
    together multiply the mean squared gradient by sigma_w^2 chi.

    Over T tokens ``out_k`` is a channel of one token and ``nodes`` and ``weights`` sum over all
    tokens of a node. ``mean`` is the squared norm of the sum over tokens of the gradients at a
    node: a gradient that is the same for all tokens. ``difference`` is
    ``(T nodes - mean) / (T - 1)``: a gradient whose sum over tokens is 0. Both are None for
    networks without tokens. Where the output has T tokens too, they are the factors by which the
    covariances of such gradients of the outputs are multiplied on the way to the node.
    """

    output: Node
    nodes: dict[Node, float]
    weights: dict[Node, float]
    chi: dict[Node, float]
    assumptions: tuple[Assumption, ...]
    mean: dict[Node, float] | None = None
    difference: dict[Node, float] | None = None

    @property
    def growth(self) -> float:
        """Largest over smallest mean squared gradient among Affine outputs; zeros are left out."""
        values = [self.nodes[node] for node in self.weights if self.nodes[node] > 0]
        return max(values) / min(values) if values else float("nan")

    def plot(self, ax: Axes | None = None, **line: Any) -> Axes:
        """Draw the values over the network's nodes in order, on a logarithmic scale."""
        from ..plotting.kernels import gradient_trace

        return gradient_trace(self, ax=ax, **line)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        tables = {"nodes": self.nodes, "weights": self.weights, "chi": self.chi} | self._modes
        return {
            "output": str(self.output),
            **{name: {str(k): v for k, v in table.items()} for name, table in tables.items()},
            "growth": self.growth,
            "assumptions": plain(self.assumptions),
        }

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {
                "node": str(n),
                "node_gradient": v,
                "weight_gradient": self.weights.get(n),
                "chi": self.chi.get(n),
            }
            | {name: table[n] for name, table in self._modes.items()}
            for n, v in self.nodes.items()
        ]

    @property
    def _modes(self) -> dict[str, dict[Node, float]]:
        return {name: getattr(self, name) for name in MODES if getattr(self, name) is not None}

    def _rows(self) -> list[tuple[str, ...]]:
        def shown(table: Mapping[Node, float], node: Node) -> str:
            return f"{table[node]:.6g}" if node in table else ""

        tables = (self.weights, self.chi, *self._modes.values())
        body = (
            (str(n), f"{v:.6g}", *(shown(table, n) for table in tables))
            for n, v in self.nodes.items()
        )
        return [("node", "|d out/d node|^2", "|d out/d weights|^2", "chi", *self._modes), *body]

    def __repr__(self) -> str:
        return f"Gradients({marked(f'{len(self.nodes)} nodes, growth {self.growth:.4g}', self)})"


def gradients(
    network: Network,
    q: Any = 1,
    output: Node = None,
    assume_independent: bool = False,
    *,
    tokens: int | None = None,
    token_cosine: float | None = None,
) -> Gradients:
    """How large gradients are at every node of a network at initialisation, infinite width.

    ``q``: the mean square of the inputs, a number or {input: number}; ``output``: which output,
    needed where there are several. Where branches share weights or activations are fused, only the
    Affine layers and the inputs are reported. ``tokens``, ``token_cosine``: the tokens of an input,
    for networks with attention, as in :func:`kcalc.c_map`.
    Raises: KcalcError for bad q, an unknown output, activations that jump, and where the kernel
    calculus does not apply. [DKS sec. 26; Poole et al. 2016; Schoenholz et al. 2017]
    """
    require_network(network)
    chosen = chosen_output(network, output)
    given = per_input(network.inputs)(q, lambda value: np.asarray(one_q(value)), "q")
    reading = TangentReading(network, None, assume_independent, read_tokens(tokens, token_cosine))
    if reading.tokens is not None:
        return _over_tokens(reading, given, chosen)
    zero = dict.fromkeys(network.inputs, np.asarray(0.0))
    kernel, states = reading.run(NUMPY, zero, given, None, {})
    assert isinstance(kernel, Tangent)
    simple = not any(note.kind == "exact" for note in kernel.notes.values())
    backward = Backward(kernel.kernel, states)
    totals = (
        _backward(network, backward, chosen)
        if simple
        else _forward(network, reading, given, chosen)
    )
    weights = {
        node: float(kernel.whole(states[made])[0]) * totals[node]
        for node, made in _parameters(network).items()
        if node in totals
    }
    resized = (n for n, op, _ in network.operations if isinstance(op, P.Resize))
    notes = (*reading.assumptions, *(Assumption(n, COPIES, "heuristic") for n in resized))
    if not simple:
        text = (
            "branches share weights or activations are fused: gradients are reported at Affine "
            "layers and inputs only"
        )
        notes = (*notes, Assumption("network", text, "convention"))
    return Gradients(chosen, totals, weights, _mean_chi(network, states) if simple else {}, notes)


# -- backwards -------------------------------------------------------------------------------------


class Backward:
    """The rules of the reversed fold: messages from a layer to the nodes that it reads.

    ``states`` are those of the kernel calculus; ``apart``: they are those of two inputs, and
    gradients are products of gradients at both, else gradients at one of them. A message is d K_out
    / d K_g for every group g of a node's channels.
    """

    def __init__(
        self, kernel: Kernel, states: Mapping[Node, Channels], apart: bool = False
    ) -> None:
        self.kernel, self.states, self.apart = kernel, states, apart

    @singledispatchmethod
    def rule(
        self, op: P.Primitive, node: Node, message: Groups, reads: Sequence[Node]
    ) -> list[Groups]:
        """One message per node read, in slot order."""
        raise no_rule("gradients", op, node)

    @rule.register
    def _(self, op: P.Fresh, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        total = float(op.sigma_w) ** 2 * sum(message)
        return [[total * float(share) for share, _ in self.states[reads[0]].groups]]

    @rule.register
    def _(self, op: P.Post, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        pairs = self.states[reads[0]].pairs
        factors = [
            _chi(op.activation, node, p.moments.q1, p.moments.gap.value if self.apart else 0.0)
            for p in pairs
        ]
        return [[m * f for m, f in zip(message, factors, strict=True)]]

    @rule.register
    def _(self, op: P.Mix, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        weights = [float(w) ** 2 for w in op.weights]
        return [
            [w * m for m in self._regrouped(message, node, parent)]
            for w, parent in zip(weights, reads, strict=True)
        ]

    @rule.register
    def _(self, op: P.Prod, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        """Each factor's message is multiplied by the q values of the others."""
        out = []
        for slot, parent in enumerate(reads):
            others = [self._q_values(node, other) for k, other in enumerate(reads) if k != slot]
            out.append(
                self._regrouped(
                    [m * prod(q) for m, *q in zip(message, *others, strict=True)], node, parent
                )
            )
        return out

    @rule.register
    def _(self, op: P.Join, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        out, start = [], 0
        for parent in reads:
            stop = start + len(self.states[parent].groups)
            out.append(message[start:stop])
            start = stop
        return out

    @rule.register
    def _(self, op: P.Norm, node: Node, message: Groups, reads: Sequence[Node]) -> list[Groups]:
        if op.over == "batch":
            raise no_rule("gradients", op, node)
        below = self.states[reads[0]]
        size = (
            self.kernel.statistics.variance(below)
            if op.centred
            else float(self.kernel.whole(below)[0])
        )
        return [[m / size for m in message]]

    @rule.register
    def _(
        self,
        op: P.Window | P.Mask | P.Reshape | P.Resize | P.Shuffle,
        node: Node,
        message: Groups,
        reads: Sequence[Node],
    ) -> list[Groups]:
        """As kernel maps have it: positions that change places, or nothing."""
        if not isinstance(op, P.Blend) or op.matrix is None:
            return [message]
        if op.permutes is None:
            raise no_rule("gradients", op, node)
        return [[op.permutes**2 * m for m in message]]

    def _q_values(self, node: Node, parent: Node) -> Groups:
        """The q value of ``parent`` in every group of ``node``.

        For two inputs (``apart``) it is the covariance of the two in the group.
        """
        moments = [self.states[parent].pairs[place].moments for place in self._places(node, parent)]
        return [float(m.q1) * (1 - float(m.gap.value) if self.apart else 1) for m in moments]

    def _places(self, node: Node, parent: Node) -> list[int]:
        """For every group of ``node``, the index of the group of ``parent`` that contains it."""
        edges = _ends(self.states[parent])
        middles = [
            end - share / 2
            for (share, _), end in zip(
                self.states[node].groups, _ends(self.states[node]), strict=True
            )
        ]
        return [next(i for i, edge in enumerate(edges) if middle < edge) for middle in middles]

    def _regrouped(self, message: Groups, node: Node, parent: Node) -> Groups:
        """Sums of a message over the groups of ``node`` that each group of ``parent`` contains."""
        out = [0.0] * len(self.states[parent].groups)
        for place, value in zip(self._places(node, parent), message, strict=True):
            out[place] += value
        return out


def _ends(state: Channels) -> list[Any]:
    return list(accumulate(share for share, _ in state.groups))


def _chi(phi: Activation, node: Node, q: Any, gap: Any = 0.0) -> float:
    """E phi'(z1) phi'(z2), computed as C'(1 - gap) Q(q) / q.

    z1 and z2 have mean square q and cosine 1 - gap.
    """
    refuse_jumps(phi, node)
    at = np.asarray(float(q))
    slope = float(phi.taylor(np.asarray(float(gap)), at, at, 1)[1])
    return (slope if gap else abs(slope)) * float(phi.second_moment(at)) / float(at)


def _mean_chi(network: Network, states: Mapping[Node, Channels]) -> dict[Node, float]:
    """{node: E phi'(z)^2} of all activations."""
    posts = (
        (owner(node), op.activation, states[reads[0]].groups)
        for node, op, reads in network.operations
        if isinstance(op, P.Post)
    )
    return {
        node: sum(float(share) * _chi(phi, node, pair.moments.q1) for share, pair in groups)
        for node, phi, groups in posts
    }


def _added(one: Groups, two: Groups) -> Groups:
    return [a + b for a, b in zip(one, two, strict=True)]


def _backward(network: Network, backward: Backward, output: Node) -> dict[Node, float]:
    """{node: E|d out_k / d node|^2}; 0 at nodes from which no path leads to the output."""
    states = backward.states
    start: dict[Node, Groups] = {node: [0.0] * len(state.groups) for node, state in states.items()}
    start[output] = [float(share) for share, _ in states[output].groups]

    messages = interpret_back(network, backward.rule, start, _added)
    return {node: sum(messages[node]) for node in network}


def _over_tokens(reading: TangentReading, q: dict[Node, Any], output: Node) -> Gradients:
    """Gradients over tokens that are alike.

    They are computed from covariances of gradients at one token and at two.
    """
    network = reading.network
    kernel, states = reading.run_sequence(q)
    if any(note.kind == "exact" for note in kernel.notes.values()):
        raise KcalcError(
            "branches share weights or activations are fused, for which there are no gradients "
            "over tokens"
        )
    backward = TokenBackward(kernel, states, Backward)
    messages = interpret_back(network, backward.rule, backward.start(output), added)
    counts = {node: states[owner(node)].count or 1 for node in states}
    # tokens of a node per token of the output
    share = {node: count / counts[output] for node, count in counts.items()}
    one = {node: share[node] * sum(message.one) for node, message in messages.items()}
    two = {node: share[node] * sum(message.two) for node, message in messages.items()}
    weights = {}
    for node, made in _parameters(network).items():
        size, _, gap = kernel.whole(states[made])
        weights[node] = float(size) * (
            one[made] + (counts[made] - 1) * two[made] * (1 - float(gap.value))
        )
    chi = _mean_chi(network, {node: state.relations[ONE] for node, state in states.items()})
    mean = {node: one[node] + (counts[node] - 1) * two[node] for node in network}
    difference = {node: one[node] - two[node] for node in network if counts[node] > 1}
    return Gradients(
        output,
        {node: one[node] for node in network},
        weights,
        chi,
        reading.noting(kernel.notes.values()),
        mean,
        difference,
    )


def _parameters(network: Network) -> dict[Node, Node]:
    """{node with parameters: the feature map that they make, a node of the lowered network}."""
    return {owner(node): node for node, op, _ in network.operations if isinstance(op, P.Fresh)}


def _forward(
    network: Network, reading: TangentReading, q: dict[Node, Any], output: Node
) -> dict[Node, float]:
    """{node with parameters or input: E|d out_k / d node|^2} by one pass of the tangent calculus.

    It serves networks whose addends have cross terms.
    """
    made = _parameters(network)
    nodes = [*network.inputs, *made]
    directions = dict(zip(nodes, np.eye(len(nodes)), strict=True))
    kernel = reading.kernel(NUMPY, True, {node: directions[node] for node in made})
    start: dict[Node, Any] = {
        n: kernel.start(n, q[n], q[n], Jet((np.asarray(0.0), -directions[n])))
        for n in network.inputs
    }
    with np.errstate(all="ignore"):  # the rules raise KcalcError naming the node of an overflow
        states = interpret(network, kernel, start)
    parts = np.broadcast_to(kernel.kernels(states[output])[1], (len(nodes),))
    found = {
        node: float(part) / float(kernel.whole(states[made.get(node, node)])[0])
        for node, part in zip(nodes, parts, strict=True)
    }
    return {node: found[node] for node in network if node in found}
