"""Logits of a readout that is tied to the table of an embedding.

The feature map before the readout is ``out = a e + rest``. Here e is the embedding of the token's
id, with variance sigma^2, and rest is uncorrelated with it. Residual streams preserve e, new
weights remove it, and norms rescale it. With n channels, the logits of a tied readout, ``l_v =
sum_c out_c e_vc``, then have

    the token's own id      mean n a sigma^2
    other ids               mean 0, variance n q sigma^2
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from math import sqrt
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import is_key
from ..foundation.printing import Shown, marked
from ..maps.maps import Approximable, Assumption
from ..network import primitives as P
from ..network.compose import interpret, refuse_dropping, require_network
from ..network.layers import Embedding
from ..network.network import Network
from ..network.tokens import has_distinct_tokens, read_tokens
from .attention.exchangeable import Relation
from .attention.maps import sequence_states
from .attention.sampled import Sampled, token_kernel
from .attention.sampling import CHAINS, DRAWS, ERROR, Draws, Sampling, read_sampling
from .attention.structure import one_by_one
from .attention.values import assumptions_of, same_tokens, token_covariance
from .tangent import tied_heads

Node = Hashable
Array = Any


@dataclass(frozen=True)
class TiedReadout(Approximable, Shown):
    """Logits of a readout whose weights are the table of ``embedding``, at initialisation.

    Attributes
    ----------
    overlap
        ``E out_c e_c``, the covariance of a channel of the output with the same channel of the
        embedding of the token's own id, averaged over tokens.
    cosine
        The overlap divided by the root mean squares of the output and of the embedding.
    own
        The mean logit of the token's own id; None if the number of channels is unknown.
    spread
        The standard deviation of the logits of other ids; None if the number of channels is
        unknown. ``own / spread`` is the cosine times the square root of the number of channels.

    """

    output: Node
    embedding: Node
    overlap: float
    cosine: float
    own: float | None
    spread: float | None
    assumptions: tuple[Assumption, ...] = ()

    def __repr__(self) -> str:
        own = "" if self.own is None else f", own {self.own:.4g} +- {self.spread:.4g}"
        nodes = f"{self.output} to {self.embedding}"
        return f"TiedReadout({marked(f'{nodes}: cosine {self.cosine:.4g}{own}', self)})"


def tied_readout(
    network: Network,
    embedding: Node = None,
    *,
    tokens: Any,
    token_cosine: float | None = None,
    sampling: Sampling | None = None,
) -> TiedReadout:
    """Compute the logits of a readout tied to an embedding, for the output of a network.

    Parameters
    ----------
    network
        A network that ends in the input of the readout, as in :func:`kcalc.architectures.gpt2`, or
        in a readout that was read as tied from a model.
    embedding
        The Embedding node, required if there are several.
    tokens, token_cosine, sampling
        See :func:`kcalc.node_values`, but with a single sequence. If attention is sampled, the
        result has no error estimates. It uses 8 draws in 6 chains unless ``sampling`` specifies
        other numbers, and ``error=`` and ``seconds=`` raise an error. Compare two seeds to estimate
        errors.

    Returns
    -------
    TiedReadout
        Statistics of the logits, such as their spread.

    Raises
    ------
    KcalcError
        For networks without an Embedding or with several outputs, and if the embedding passes
        through a layer other than a sum, a norm or new weights.

    """
    require_network(network)
    table = _chosen(network, embedding)
    if len(network.outputs) != 1:
        raise KcalcError(
            f"a readout needs one output, but the network has {len(network.outputs)} outputs"
        )
    plain, states, notes = _states(network, tokens, token_cosine, sampling)
    below = {node: reads[0] for node, op, reads in network.operations if isinstance(op, P.Norm)}
    carried = interpret(
        network, _Carried(plain, states, table, below), dict.fromkeys(network.inputs, 0.0)
    )
    (output,) = network.outputs
    output = network.parents(output)[0] if output in tied_heads(network) else output
    sigma = float(network.layer(table).sigma)
    q = np.asarray(plain.whole(states[output].relations[Relation.FIRST_INPUT])[0], float)
    overlap = float(np.mean(carried[output])) * sigma**2
    size, channels = float(np.mean(q)), network.features[output]
    cosine = float(np.mean(carried[output] / np.sqrt(q))) * sigma
    own, spread = (
        (None, None) if channels is None else (channels * overlap, sqrt(channels * size) * sigma)
    )
    return TiedReadout(output, table, overlap, cosine, own, spread, notes)


def _chosen(network: Network, embedding: Node) -> Node:
    """Return the chosen Embedding node.

    Raises: KcalcError unless there is exactly one candidate.
    """
    known = network.nodes_of(Embedding)
    if embedding is None and len(known) == 1:
        return known[0]
    if embedding is not None and is_key(embedding, known):
        return embedding
    listed = ", ".join(map(repr, known)) or "none"
    raise KcalcError(
        "pass the Embedding that the readout is tied to as embedding=; Embedding nodes of the "
        f"network: {listed}"
    )


def _states(
    network: Network, tokens: Any, token_cosine: float | None, sampling: Sampling | None
) -> tuple[Any, Mapping[Node, Any], tuple[Assumption, ...]]:
    """Return (kernel calculus, all states, assumptions) for two tokens of one sequence."""
    asked = read_sampling(sampling)  # there are no error estimates from which to choose the draws
    if asked.seconds is not None or asked.error not in (None, ERROR):
        raise KcalcError(
            "a tied readout has no error estimates, so error= and seconds= have no effect; use "
            "kc.Sampling(draws=, chains=)"
        )
    asked = Sampling(DRAWS, CHAINS, asked.seed) if asked.draws is None else asked
    if has_distinct_tokens(tokens):
        if token_cosine is not None:
            raise KcalcError("an array of tokens already defines their cosines; omit token_cosine=")
        covariance, sequences = token_covariance(tokens, network)
    else:
        given = read_tokens(tokens, token_cosine)
        if given is None:
            raise KcalcError("the logits depend on the number of tokens; pass tokens=")
        if not one_by_one(network, tokens, sampling):
            return sequence_states(network, given)
        covariance, sequences = same_tokens(given.count, given.cosine, None, 1.0, 1.0)
    kernel = Sampled(token_kernel(False), Draws.of(asked), sequences, exact=sampling is None)
    with np.errstate(all="ignore"):  # on overflow, the rules raise an error that names the node
        states = interpret(
            network, kernel, {node: kernel.start(node, covariance) for node in network.inputs}
        )
    return kernel.kernel, states, assumptions_of(network, kernel, asked)


class _Carried:
    """Compute the coefficient ``a`` of the embedding in every feature map.

    The coefficients are numbers, or arrays over chains and tokens.
    """

    def __init__(
        self, kernel: Any, states: Mapping[Node, Any], table: Node, below: Mapping[Node, Node]
    ) -> None:
        self.kernel, self.states, self.table = kernel, states, table
        self.below = below

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[Array]) -> Array:
        """The coefficient of the embedding in the output of a primitive."""
        if any(np.any(np.asarray(a) != 0) for a in inputs):
            raise KcalcError(
                f"node {node!r} reads the embedding {self.table!r} through its "
                f"{type(op.origin).__name__}, but only sums, norms and dropout preserve it; put an "
                "Affine layer before it"
            )
        return 0.0

    @rule.register
    def _(self, op: P.Fresh, node: Node, inputs: Sequence[Array]) -> Array:
        return 1.0 if node == self.table else 0.0

    @rule.register
    def _(self, op: P.Mix, node: Node, inputs: Sequence[Array]) -> Array:
        return sum(float(w) * a for w, a in zip(op.weights, inputs, strict=True))

    @rule.register
    def _(self, op: P.Mask | P.Stop, node: Node, inputs: Sequence[Array]) -> Array:
        refuse_dropping("kernels of tied readouts", op, node)
        return inputs[0]

    @rule.register
    def _(self, op: P.Norm, node: Node, inputs: Sequence[Array]) -> Array:
        (a,) = inputs
        if op.over != "channels" or op.groups != 1:
            raise KcalcError(
                f"node {node!r} normalises over more than the channels of one token; use "
                f"LayerNorm or RMSNorm"
            )
        below = self.states[self.below[node]].relations[Relation.FIRST_INPUT]
        mean = self.kernel.statistics.means(below, node)[0] if op.centred else 0.0
        return a / np.sqrt(
            np.asarray(self.kernel.whole(below)[0], float) - np.asarray(mean, float) ** 2
        )
