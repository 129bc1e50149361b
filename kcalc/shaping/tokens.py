"""Shaping for networks that mix tokens.

The condition is q = 1 at every token before every activation, for inputs with known token cosines.

Local conditions hold if the input of every activation has q = 1. The rows of a mixing preserve this
only for some cosines between the tokens that they mix, so the cosines must be known. An exact
recursion over pairs of tokens follows the cosines through the network. Slopes and curvature include
only the activations, because the effect of mixing on the *difference* between two inputs depends on
how this difference is spread over their tokens.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..calculi.global_maps import c_map
from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network.layers import Input, Nonlinear, RMSNorm, TokenMix
from ..network.network import Network
from ..network.token_mixing import covariance
from .mixing import ALIKE

Node = Hashable
Array = np.ndarray
KEPT = 1e-8  # tolerance of q around 1
AT_START = (
    "every token has q = 1 only at initialisation and for inputs whose tokens have the given "
    "cosines"
)
APART = (
    "slopes include only the activations: token mixing is assumed to preserve the difference "
    "between two inputs, although its effect depends on the inputs"
)


@dataclass(frozen=True, eq=False)
class TokenCosines:
    """The cosines between the tokens of an input, (T, T), and their images under a network.

    ``rows`` is the treatment of the rows of mixings, "keep" or "rescale".
    """

    cosines: Array
    rows: str = "keep"

    @property
    def options(self) -> dict[str, Any]:
        """Return the tokens as options of a shaping: their number and the treatment of the rows."""
        rescaled = {} if self.rows == "keep" else {"token_rows": self.rows}
        return {"tokens": len(self.cosines)} | rescaled

    @property
    def notes(self) -> tuple[Assumption, ...]:
        """The assumptions of a shaping based on these tokens."""
        return (Assumption("network", AT_START, "exact"), Assumption("network", APART, "heuristic"))

    @cached_property
    def example(self) -> Array:
        """Return an input (T, T + 1) whose tokens have q = 1, mean 0 and the given cosines."""
        from scipy.linalg import helmert

        values, vectors = np.linalg.eigh(self.cosines)
        rows = vectors * np.sqrt(np.maximum(values, 0)) @ helmert(len(values) + 1)
        return rows * np.sqrt(rows.shape[1]) / np.linalg.norm(rows, axis=1, keepdims=True)

    def _image(self, network: Network) -> tuple[Any, Network, Array]:
        """Return (map, network, example), with the example as an input of the network.

        The inputs of the network get as many channels as the example, and the example gets the
        shape of an input.
        """
        layers = [
            layer
            for _, layer, _ in network.steps()
            if isinstance(layer, Input) and layer.image_shape is not None
        ]
        shape = layers[0].image_shape if layers else None
        shape = (len(self.cosines),) if shape is None else shape
        if prod(shape) != len(self.cosines):
            raise KcalcError(
                f"tokens contains the cosines of {len(self.cosines)} tokens, but the inputs have "
                f"{prod(shape)} locations {shape}"
            )
        free = network.map_layers(lambda node, layer: replace(layer, features=None), Input)
        return (
            c_map(free, spatial="exact", image_shape=shape, weights="delta"),
            free,
            self.example.reshape(*shape, -1),
        )

    def q_values(self, network: Network) -> dict[Node, Array]:
        """Return {node: q value of every token}."""
        kernel, _, image = self._image(network)
        return {node: q.ravel() for node, q in kernel.q_values(image[None]).items()}

    def cosines_in(self, network: Network) -> dict[Node, Array]:
        """Return {node: cosines between its tokens}."""
        kernel, _, image = self._image(network)
        found = kernel.c_values(image, image, pairs=True)
        return {node: c.reshape(int(np.sqrt(c.size)), -1) for node, c in found.items()}

    def assumptions(self, network: Network) -> tuple[Assumption, ...]:
        """Return the assumptions of the recursion over pairs of tokens."""
        return self._image(network)[0].assumptions

    def farthest(self, network: Network) -> float:
        """Return the q value that is farthest from 1 among the values before activations."""
        q = self.q_values(network)
        seen = np.concatenate([q[network.parents(node)[0]] for node in network.nodes_of(Nonlinear)])
        return float(seen[np.argmax(np.abs(seen - 1))])

    def check(self, network: Network) -> None:
        """Reject a network in which the input of an activation has a q other than 1.

        Raises: a KcalcError that names the row that changes q.
        """
        q = self.q_values(network)
        off = {node: np.abs(values - 1) > KEPT for node, values in q.items()}
        bad = next(
            (node for node in network.nodes_of(Nonlinear) if off[network.parents(node)[0]].any()),
            None,
        )
        if bad is None:
            return
        order = list(network)
        for node in network.nodes_of(TokenMix):
            if off[node].any() and order.index(node) < order.index(bad):
                row = int(np.argmax(np.abs(q[node] - 1)))
                raise KcalcError(
                    f"row {row} of the TokenMix at node {node!r} gives q = {q[node][row]:.6g} for "
                    f"these tokens, so activation {bad!r} does not see q = 1; pass "
                    "token_rows='rescale', put an RMSNorm before the activation, or use a matrix "
                    "that preserves q: kc.token_mixing.preserving(source, target) for the cosines "
                    "that reach it, or value_skip(T) with mix=0"
                )
        parent = network.parents(bad)[0]
        token = int(np.argmax(off[parent]))
        raise KcalcError(
            f"activation {bad!r} sees q = {q[parent][token]:.6g} at token {token}, not 1, for "
            f"these tokens; put an RMSNorm before it"
        )

    def applied(self, shaped: Network) -> tuple[Network, tuple[str, ...]]:
        """Rescale rows if requested, and check the shaped network token by token.

        Return the network and the edits.

        Raises: KcalcError if a token has a q other than 1 before an activation.
        """
        made, edits = self.rescaled(shaped) if self.rows == "rescale" else (shaped, ())
        self.check(made)
        return made, edits

    def rescaled(self, network: Network) -> tuple[Network, tuple[str, ...]]:
        """Rescale the token mixings; return the network and the edits.

        The rows of the mixings are divided so that q = 1 after every mixing.
        """
        normed = with_norms(network, network.nodes_of(TokenMix))
        q = self.q_values(normed)
        changes: list[str] = []

        def change(node: Node, layer: TokenMix) -> TokenMix:
            sizes = np.sqrt(q[node])
            if np.abs(sizes - 1).max() <= ALIKE:
                return layer
            changes.append(
                f"{node}: rows divided by {sizes.min():.6g} to {sizes.max():.6g}, so every token "
                "keeps q = 1"
            )
            return TokenMix(layer.array / sizes[:, None])

        return network.map_layers(change, TokenMix), tuple(changes)


def with_norms(network: Network, behind: Container[Node]) -> Network:
    """Add an RMSNorm after some nodes."""
    names: dict[Node, Node] = {}
    steps = []
    for node, layer, parents in network.steps():
        steps.append((node, layer, tuple(names[p] for p in parents)))
        names[node] = node
        if node in behind:
            names[node] = (node, "norm")
            steps.append((names[node], RMSNorm(), (node,)))
    return Network.from_steps(steps, [names[node] for node in network.outputs])


def given_tokens(tokens: Any, rows: str) -> TokenCosines:
    """Read the option ``tokens`` of a shaping method; raise KcalcError if it has no cosines."""
    return TokenCosines(covariance(tokens, "tokens", 0.0), rows)
