"""Mean squared gradients at infinite width: E|d out / d node|^2 at every node, by a reversed fold.

If the covariance K_g of a node's channels changes by 1 (at c = 1), the covariance of an output
channel k changes by ``E|d out_k / d node|^2``, with the squared norm summed over the node's
channels. So gradients explode or vanish like derivatives of kernel maps at c = 1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..fields import NUMPY
from ..fields.arguments import one_q, per_input
from ..foundation.errors import KcalcError
from ..foundation.guests import DRAWINGS, READINGS
from ..foundation.printing import Shown, marked, plain
from ..maps.maps import Approximable, Assumption
from ..network.compose import interpret_back, require_network
from ..network.layers import Resize
from ..network.network import Network, chosen_output
from .backward import (
    Backward,
    Groups,
    added,
    left_out,
    mean_slopes,
    own_parameters,
    refuse_shared_in_batches,
)
from .batch_gradients import normalised_batches, weight_gradients
from .ntk import WIDTH, TangentReading
from .probes import probed_gradients
from .tangent import ACROSS, Tangent, trained_part, with_separate_parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .attention.sampling import Sampling

Node = Hashable
MODES = ("mean", "difference")
NO_RULE = (
    "its gradient is left out, because functions after it are fused with it into one function of a "
    "Gaussian"
)
BATCHES = (
    "batch and width are infinite, and gradients of the loss at different examples are "
    "uncorrelated. A BatchNorm removes the gradient component that is common to all examples"
)
COPIES = "resizing is the identity: gradients of the copies of a position are not summed"


@dataclass(frozen=True, repr=False)
class Gradients(Shown, Approximable):
    """E|d out_k / d node|^2 at infinite width, for inputs with the given q.

    ``k`` is one channel of ``output``.

    Over T tokens, ``out_k`` is a channel at one token, and ``nodes`` and ``weights`` are sums over
    all tokens of a node.

    Nodes with parameters are Affine layers, embeddings and learned positions; the latter two count
    as Affine layers on one-hot vectors. An activation and the Affine that reads it together
    multiply the mean squared gradient by sigma_w^2 chi. Activations mix the two modes over tokens:
    a gradient of the outputs that is the same for all tokens contributes to ``difference`` at
    earlier nodes.

    Attributes
    ----------
    nodes
        {node: value}, the squared norm summed over the node's channels.
    weights
        {node with parameters: E|d out_k / d parameters|^2} in the NTK parameterisation, whose sum
        is the tangent kernel at c = 1.
    chi
        {activation: E phi'(z)^2}, where z is its pre-activation.
    mean
        The squared norm of the sum over tokens of the gradients at a node. It measures the mode
        that is the same for all tokens; None without tokens.
    difference
        ``(T nodes - mean) / (T - 1)``. It measures the mode whose sum over tokens is 0; None
        without tokens.

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
        """Ratio of the largest to the smallest nonzero mean squared gradient at Affine outputs."""
        values = [self.nodes[node] for node in self.weights if self.nodes[node] > 0]
        return max(values) / min(values) if values else float("nan")

    def plot(self, ax: Axes | None = None, **line: Any) -> Axes:
        """Plot the values against the nodes, in network order and on a logarithmic scale.

        Parameters
        ----------
        ax
            The matplotlib Axes to draw on; None creates new axes.
        **line
            Further options of the line, passed to matplotlib.

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        return DRAWINGS["Gradients"](self, ax=ax, **line)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "output": str(self.output),
            **{name: {str(k): v for k, v in table.items()} for name, table in self._tables.items()},
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
    def texts(self) -> dict[str, dict[Node, str]]:
        """The tables, such as "nodes" and "mean", as {name: {node: text}}."""
        return {
            name: {node: f"{value:.6g}" for node, value in table.items()}
            for name, table in self._tables.items()
        }

    @property
    def _tables(self) -> dict[str, dict[Node, float]]:
        return {"nodes": self.nodes, "weights": self.weights, "chi": self.chi} | self._modes

    @property
    def _modes(self) -> dict[str, dict[Node, float]]:
        return {name: getattr(self, name) for name in MODES if getattr(self, name) is not None}

    def _rows(self) -> list[tuple[str, ...]]:
        texts = self.texts.values()
        body = ((str(n), *(table.get(n, "") for table in texts)) for n in self.nodes)
        return [("node", "|d out/d node|^2", "|d out/d weights|^2", "chi", *self._modes), *body]

    def __repr__(self) -> str:
        return f"Gradients({marked(f'{len(self.nodes)} nodes, growth {self.growth:.4g}', self)})"


def gradients(
    network: Network,
    q: Any = 1,
    output: Node = None,
    assume_independent: bool = False,
    *,
    tokens: Any = None,
    token_cosine: float | None = None,
    sampling: Sampling | None = None,
) -> Gradients:
    """Compute mean squared gradients at every node, at initialisation and infinite width.

    Gradients through BatchNorm need a large batch, ``kc.large_batch(net)``. At nodes, they are the
    gradients of one example's output with respect to its own features. At weights, they include the
    gradients through all examples of the batch. Every layer multiplies the gradients at nodes by
    ``gamma^2 E phi'(gamma z + beta)^2 / Var phi(gamma z + beta)``, which is at least 1, if
    gradients of the loss at different examples are uncorrelated. If an activation is fused with
    functions before it into one function of a Gaussian, gradients at these functions are left out,
    with a note.

    Attention is sampled for an array of tokens, for attention that distinguishes tokens (causal
    masks, rotary embeddings, ALiBi, sinusoidal positions), and if ``sampling`` is passed.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    q
        The mean square of the inputs, a number or {input: number}.
    output
        The output, required if there are several.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.
    tokens
        The number of tokens of an input, for networks with attention, as in :func:`kcalc.c_map`; or
        an array, as in :func:`kcalc.node_values`: a covariance (T, T), token ids (T,) or (N, T), or
        inputs (N, T, features).
    token_cosine
        The cosine between any two tokens of an input, 0 by default.
    sampling
        How attention is sampled, a :class:`kcalc.Sampling`; None samples only if no exact rule
        exists.

    Returns
    -------
    Gradients
        A :class:`Gradients`, or a :class:`SampledGradients` if attention is sampled.

    Raises
    ------
    KcalcError
        For an invalid q, an unknown output, or activations that jump, and if the kernel calculus
        does not apply.

    References
    ----------
    [DKS sec. 26; Poole et al. 2016; Schoenholz et al. 2017]

    Examples
    --------
    >>> import kcalc as kc
    >>> found = kc.gradients(kc.architectures.vanilla(2, "relu"))
    >>> found
    Gradients(6 nodes, growth 4)

    """
    require_network(network)
    network = with_separate_parameters(network)
    options = {"tokens": tokens, "token_cosine": token_cosine, "sampling": sampling}
    guest = READINGS.answering("gradients", **options)
    if guest is not None:
        return guest(network, q, output, assume_independent)
    chosen, given = asked_at(network, q, output)
    reading = TangentReading(network, None, assume_independent)
    zero = dict.fromkeys(network.inputs, np.asarray(0.0))
    kernel, states = reading.run(NUMPY, zero, given, None, {})
    assert isinstance(kernel, Tangent)
    # weights include the gradients of ACROSS
    known = [n for n in reading.noting(WIDTH, kernel.notes.values()) if n.text != ACROSS]
    simple = not any(note.kind == "exact" for note in kernel.notes.values())
    backward = Backward(kernel.kernel, states)
    batches = bool(normalised_batches(network))
    if batches and not simple:
        refuse_shared_in_batches(kernel.notes.values())
    with np.errstate(over="ignore", invalid="ignore"):  # _check_finite names the node
        totals = (
            _backward(network, backward, chosen)
            if simple
            else probed_gradients(reading, given, chosen, states)
        )
    if batches:
        weights = weight_gradients(network, backward, _start(backward, chosen), given)
    else:
        weights = {
            node: trained_part(op, float(kernel.whole(states[made])[0])) * totals[node]
            for node, (made, op) in own_parameters(network).items()
            if node in totals
        }
    _check_finite(totals, weights)
    resized = network.nodes_of(Resize)
    copies = (Assumption(n, COPIES, "heuristic") for n in resized)
    common = (Assumption("network", BATCHES, "convention"),) if batches else ()
    hidden = (Assumption(n, NO_RULE, "convention") for n in network if n not in totals)
    notes = (*known, *copies, *common, *left_out(network), *hidden)
    return Gradients(chosen, totals, weights, mean_slopes(network, backward, simple), notes)


def asked_at(network: Network, q: Any, output: Node) -> tuple[Node, dict[Node, Any]]:
    """The chosen output, and {input: its q value}."""
    chosen = chosen_output(network, output)
    return chosen, per_input(network.inputs)(q, lambda value: np.asarray(one_q(value)), "q")


def _check_finite(*tables: Mapping[Node, float]) -> None:
    """Raise KcalcError naming the last node whose value is beyond double precision."""
    bad = [node for table in tables for node, value in table.items() if not math.isfinite(value)]
    if bad:
        raise KcalcError(
            f"the mean squared gradient at node {bad[-1]!r} is beyond double precision; lower "
            "sigma_w, q or the depth"
        )


# -- readings ------------------------------------------------------------------------------------


def _backward(network: Network, backward: Backward, output: Node) -> dict[Node, float]:
    """Return {node: E|d out_k / d node|^2}; 0 at nodes from which no path leads to the output."""
    messages = interpret_back(network, backward.rule, _start(backward, output), added)
    return {node: float(sum(messages[node])) for node in network}


def _start(backward: Backward, output: Node) -> dict[Node, Groups]:
    """The initial messages: 1 at a channel of the output, 0 elsewhere."""
    states = backward.states
    start: dict[Node, Groups] = {node: [0.0] * len(state.groups) for node, state in states.items()}
    return start | {output: [float(share) for share, _ in states[output].groups]}
