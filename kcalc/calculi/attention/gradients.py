"""Mean squared gradients over tokens, for exchangeable tokens and for sampled attention."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...foundation.plain_arguments import truth
from ...maps.maps import Assumption
from ...network.compose import interpret_back, require_network
from ...network.network import Network
from ...network.primitives import owner
from ...network.tokens import read_tokens
from ..backward import left_out, mean_slopes, own_parameters
from ..batch_gradients import refuse_batches_of_tokens
from ..gradients import MODES, NO_RULE, Gradients, asked_at
from ..gradients import gradients as plain_gradients
from ..ntk import WIDTH
from ..tangent import trained_part
from .backward import TokenBackward, both_added
from .probes import probed_modes
from .sampled_gradients import Chains, followed
from .sampling import Draws, Sampling, read_sampling, until_accurate, worst_of
from .structure import given_tokens, one_by_one
from .tangent import TokenTangentReading
from .values import with_error

Node = Hashable
Array = np.ndarray
NOTHING = 1e-12  # fraction of the largest squared gradient below which values are rounding errors


@dataclass(frozen=True, repr=False)
class SampledGradients(Gradients):
    """:class:`Gradients` for tokens that are followed separately, with sampled attention.

    Values that are summed over tokens are averaged over the N given sequences. For tokens that are
    followed separately, attention mixes the two modes: a gradient of the outputs that sums to 0
    over tokens contributes to both ``mean`` and ``difference`` at earlier nodes.

    Attributes
    ----------
    errors
        {"nodes", "weights", "mean", "difference": {node: standard error over the sampling chains}}.
    tokens
        {node: (mean, standard error)} of the squared gradient at each token, both as arrays (N, T).
        The means add up to ``nodes``.
    covariances
        {node: array (N, T, T)}, the mean product of the gradients at two tokens of a sequence,
        summed over channels.

    """

    errors: dict[str, dict[Node, float]] = field(default_factory=dict)
    tokens: dict[Node, tuple[Array, Array]] = field(default_factory=dict)
    covariances: dict[Node, Array] = field(default_factory=dict)

    @property
    def texts(self) -> dict[str, dict[Node, str]]:
        """The tables as {name: {node: text}}, with standard errors."""
        texts = super().texts
        for name, errors in self.errors.items():
            values = self._tables[name]
            texts[name] |= {node: with_error(values[node], error) for node, error in errors.items()}
        return texts

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the tables over tokens as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        errors = {
            name: {str(k): v for k, v in table.items()} for name, table in self.errors.items()
        }
        return super().to_dict() | {"errors": errors}

    def _frame(self) -> list[dict[str, Any]]:
        names = {"nodes": "node_gradient_error", "weights": "weight_gradient_error"}
        return [
            row
            | {
                names.get(name, f"{name}_error"): table.get(node)
                for name, table in self.errors.items()
            }
            for node, row in zip(self.nodes, super()._frame(), strict=True)
        ]


def gradients(
    network: Network, q: Any, output: Node, assume_independent: bool, **options: Any
) -> Gradients:
    """Compute :func:`kcalc.gradients` for a network over tokens."""
    return gradients_at(network, None, q, output, options, assume_independent)


def gradients_at(
    network: Network,
    needed: Sequence[Node] | None,
    q: Any,
    output: Node,
    options: Mapping[str, Any],
    assume_independent: bool = False,
) -> Gradients:
    """Compute :func:`gradients` with sampled attention, at the requested nodes.

    ``needed``: the nodes of a profile, or None for all nodes and parameters. ``options``: the
    arguments that concern tokens.
    """
    tokens, sampling = options.get("tokens"), options.get("sampling")
    require_network(network)
    chosen, given = asked_at(network, q, output)
    read_sampling(sampling)
    if tokens is not None:
        refuse_batches_of_tokens(network)
    if one_by_one(network, tokens, sampling):
        levels = (None, None) if isinstance(q, int | float) and q == 1 else (1.0, None)
        table, count = given_tokens(network, tokens, options.get("token_cosine"), levels)
        inputs = {node: float(level) * table for node, level in given.items()}
        assume = truth(assume_independent, "assume_independent")
        return sampled_gradients(network, inputs, (count, chosen, assume, sampling), needed)
    alike = read_tokens(tokens, options.get("token_cosine"))
    if alike is None:
        return plain_gradients(network, q, output, assume_independent)
    reading = TokenTangentReading(network, None, assume_independent, alike)
    return _over_tokens(reading, given, chosen)


def _over_tokens(reading: TokenTangentReading, q: dict[Node, Any], output: Node) -> Gradients:
    """Compute gradients over exchangeable tokens.

    The computation uses covariances of gradients at one token and at two different tokens.
    """
    network = reading.network
    kernel, states = reading.run_sequence(q)
    simple = not any(note.kind == "exact" for note in kernel.notes.values())
    backward = TokenBackward(kernel, states)
    counts = {node: states[owner(node)].count or 1 for node in states}
    if simple:
        messages = interpret_back(network, backward.rule, backward.start(output), both_added)
        # tokens of a node per token of the output
        share = {node: count / counts[output] for node, count in counts.items()}
        one = {node: float(share[node] * sum(message.one)) for node, message in messages.items()}
        two = {node: float(share[node] * sum(message.two)) for node, message in messages.items()}
    else:
        modes = probed_modes(reading, q, output, states)
        one = {node: own for node, (own, _) in modes.items()}
        two = {n: (mean - own) / max(counts[n] - 1, 1) for n, (own, mean) in modes.items()}
    known = [node for node in network if node in one]
    weights = {}
    for node, (made, op) in own_parameters(network).items():
        if made not in one:
            continue
        size, _, gap = kernel.whole(states[made])
        own, other = (
            trained_part(op, float(size) * cosine) for cosine in (1, 1 - float(gap.value))
        )
        weights[node] = own * one[made] + (counts[made] - 1) * two[made] * other
    mean = {node: one[node] + (counts[node] - 1) * two[node] for node in known}
    difference = {node: one[node] - two[node] for node in known if counts[node] > 1}
    hidden = (Assumption(n, NO_RULE, "convention") for n in network if n not in one)
    return Gradients(
        output,
        {node: one[node] for node in known},
        weights,
        mean_slopes(network, backward.one, simple),
        (*reading.noting(WIDTH, kernel.notes.values()), *left_out(network), *hidden),
        mean,
        difference,
    )


def sampled_gradients(
    network: Network,
    inputs: dict[Node, Any],
    options: tuple[int, Node, bool, Sampling | None],
    needed: Sequence[Node] | None = None,
) -> SampledGradients:
    """Compute gradients, given the covariances of all tokens of the inputs.

    ``options``: the number of sequences, the output, whether addends are assumed independent, and
    how attention is sampled. ``needed``: the nodes of a profile, to compute only their values; by
    default all nodes and parameters.
    """
    count, output, assume, sampling = options
    asked = read_sampling(sampling)

    def run(draws: Draws) -> tuple[SampledGradients, float]:
        how = (assume, asked, sampling is None, needed)
        chains, notes = followed(network, inputs, count, output, how, draws)
        found = _joined(output, chains, (*notes, *left_out(network)), draws)
        return found, _worst(found)

    found, missed = until_accurate(asked, run, needed is not None)
    return replace(found, assumptions=(*found.assumptions, *missed))


def _worst(found: SampledGradients) -> float:
    """The largest error relative to a squared gradient.

    The error of a mode is relative to the larger of the mode and the squared gradient.
    """
    tables = {"nodes": found.nodes, "mean": found.mean or {}, "difference": found.difference or {}}
    worst = 0.0
    for name, table in (tables | {"weights": found.weights}).items():
        least = {} if name == "weights" else found.nodes
        sizes = np.array([max(abs(value), least.get(n, 0.0)) for n, value in table.items()])
        floor = NOTHING * sizes.max(initial=0.0)
        errors = np.array([found.errors[name][n] for n in table])
        worst = max(worst, worst_of(errors, np.maximum(sizes, floor)))
    return worst


def _joined(
    output: Node,
    sequences: Sequence[Chains],
    assumptions: tuple[Assumption, ...],
    draws: Draws,
) -> SampledGradients:
    """Average over sequences, and compute means and standard errors over chains."""
    values: dict[str, dict[Node, float]] = {name: {} for name in ("nodes", *MODES, "weights")}
    errors: dict[str, dict[Node, float]] = {name: {} for name in values}

    def add(name: str, node: Node, found: Array) -> None:
        mean, error = draws.averaged(found.mean(axis=0))
        values[name][node], errors[name][node] = float(mean), float(error)

    tokens, covariances = {}, {}
    for node in sequences[0].nodes:
        found = np.array([chains.nodes[node] for chains in sequences])
        covariances[node] = found.mean(axis=1)
        own = np.diagonal(found, axis1=-2, axis2=-1)
        tokens[node] = draws.averaged(own.swapaxes(0, 1))
        total, mean, count = own.sum(axis=-1), found.sum(axis=(-2, -1)), found.shape[-1]
        add("nodes", node, total)
        add("mean", node, mean)
        if count > 1:
            add("difference", node, (count * total - mean) / (count - 1))
    for node in sequences[0].weights:
        add("weights", node, np.array([chains.weights[node] for chains in sequences]))
    slopes = [chains.chi for chains in sequences]
    chi = {node: float(np.mean([one[node] for one in slopes])) for node in slopes[0]}
    return SampledGradients(
        output,
        values["nodes"],
        values["weights"],
        chi,
        assumptions,
        values["mean"],
        values["difference"],
        errors,
        tokens,
        covariances,
    )
