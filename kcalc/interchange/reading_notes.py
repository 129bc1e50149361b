"""Notes that are made after the network of a reading is built.

These notes concern image sizes and the effect of ignoring epsilons and biases. Earlier notes are
moved to the nodes that they concern.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..calculi.global_maps import node_values, q_and_variances
from ..foundation.errors import KcalcError
from ..foundation.guests import READINGS
from ..network import layers as L
from ..network.network import Network
from ..network.notes import Note, read_at
from .trace import Op

COUNTS = 1e-3  # an epsilon above this fraction of its variance gets a note


def notes_at_nodes(
    notes: Sequence[Note], ops: Sequence[Op], nodes: Collection[object]
) -> list[Note]:
    """Move notes on operations that are not nodes to the nodes that absorbed these operations.

    Notes on operations that no output depends on are dropped.
    """
    after: dict[str, list[str]] = {}
    for op in ops:
        for name in op.reads:
            after.setdefault(name, []).append(op.name)
    return [
        replace(note, node=node)
        for note in notes
        for node in _nearest_nodes(str(note.node), after, nodes)
    ]


def _nearest_nodes(
    name: str, after: Mapping[str, list[str]], nodes: Collection[object]
) -> list[str]:
    """Return the node ``name`` if it exists, else the nearest nodes after operation ``name``."""
    found: list[str] = []
    waiting, seen = [name], {name}
    while waiting:
        here = waiting.pop(0)
        if here in nodes:
            found.append(here)
            continue
        more = [reader for reader in after.get(here, ()) if reader not in seen]
        seen.update(more)
        waiting.extend(more)
    return found


def sizes(network: Network) -> list[Note]:
    """Return notes about the image sizes with which a network was read, placed at its inputs."""
    shapes = {node: network.layer(node).image_shape for node in network.inputs}
    return [read_at(node, shape) for node, shape in shapes.items() if shape is not None]


def about_epsilons(network: Network, epsilons: Mapping[str, float]) -> list[Note]:
    """Return notes on norms whose epsilon is not negligible.

    Kernel maps ignore epsilons. Each epsilon is compared with the variance (or mean square) to
    which the norm adds it, for inputs of the network with q = 1. If this value is unknown because
    of unread operations, 1 is used. Networks with attention are evaluated for a single token.
    """
    there = {node: epsilon for node, epsilon in epsilons.items() if node in network and epsilon > 0}
    if not there:
        return []
    attends = bool(network.nodes_of(L.Attend))
    try:
        values = _of_one_token(network) if attends else q_and_variances(network)
    except (KcalcError, OverflowError):
        values = {}
    notes: list[Note] = []
    for node, epsilon in there.items():
        square, variance = values.get(network.parents(node)[0], (1.0, 1.0))
        rms = not network.layer(node).centred
        divided = square if rms else variance
        if epsilon > COUNTS * divided:
            beside = (
                f" of {divided:.3g} for inputs with q = 1" if values else " that is unknown here"
            )
            text = (
                f"its epsilon of {epsilon:g} is read as 0; the model adds it to a "
                f"{'mean square' if rms else 'variance'}{beside}"
            )
            notes.append(Note(node, "approximate", text))
    return notes


def _of_one_token(network: Network) -> dict[Hashable, tuple[float, float]]:
    """Return {node: (q, variance)} for a single token, for which masks have no effect."""
    alone = network.map_layers(lambda _, layer: layer.alike(), L.Attend)
    tells_apart = READINGS.answering("tells_tokens_apart", tokens=1)
    # a class token would be a second token
    if tells_apart is not None and tells_apart(alone):
        return {}
    return {node: (v.q1, v.q1) for node, v in node_values(alone, tokens=1).items()}


def biased(values: np.ndarray) -> bool:
    """Whether the mean of biases is too large for independent biases of mean 0.

    The threshold is ten standard errors.
    """
    numbers = np.asarray(values, dtype=np.float64).ravel()
    mean = abs(float(numbers.mean())) if numbers.size > 1 else 0.0
    return mean > 10 * float(numbers.std()) / np.sqrt(numbers.size)
