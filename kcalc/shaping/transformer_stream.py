"""The stream of a transformer over exchangeable tokens, and its measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..calculi.attention.maps import token_map
from ..calculi.attention.softmax_rows import factor
from ..calculi.global_maps import node_values
from ..calculi.gradients import gradients
from ..foundation.process_state import cached_property
from ..network.layers import Nonlinear
from ..network.network import Network
from .residual_blocks import needed
from .transformer_parts import Parts, parts_of, stream

Node = Hashable
GROWTH, SLOPE, VARIANCE = "stream growth", "token slope", "score variance"
MEAN, DIFFERENCE = "gradient, mean mode", "gradient, difference mode"
COSINE, LEVEL = "token cosine at the end", "q before activations"


@dataclass(frozen=True)
class Start:
    """The start of the stream: the number of tokens, their q and their cosine."""

    tokens: int
    q: float
    cosine: float


@dataclass(frozen=True)
class Stream:
    """The stream of a transformer over exchangeable tokens, and its measurements."""

    network: Network
    parts: Parts
    start: Start

    @classmethod
    def of(cls, network: Network, start: Start) -> Stream:
        """Build the stream of a network."""
        parts = parts_of(network)
        return cls(stream(network, parts), parts, start)

    @cached_property
    def values(self) -> Any:
        """Return the values at all nodes."""
        return node_values(
            self.network,
            1.0,
            q=self.start.q,
            tokens=self.start.tokens,
            token_cosine=self.start.cosine,
        )

    @cached_property
    def measured(self) -> dict[str, float]:
        """Return {condition: value}."""
        return {name: float(self._measures[name]()) for name in self._measures}

    def __getitem__(self, name: str) -> float:
        return float(self._measures[name]())

    @property
    def _measures(self) -> dict[str, Callable[[], float]]:
        found: dict[str, Callable[[], float]] = {
            GROWTH: self.growth,
            SLOPE: self.slope,
            MEAN: lambda: self._modes[0],
            DIFFERENCE: lambda: self._modes[1],
            VARIANCE: self.score_variance,
            COSINE: lambda: self.values[self.parts.end].token_cosine1,
        }
        if not self.parts.blocks:
            del found[GROWTH]
            found[LEVEL] = self.level
        return found

    def growth(self) -> float:
        """Return q at the last residual sum divided by q at the entry."""
        last = max(self.parts.blocks, key=lambda b: list(self.network).index(b.node)).node
        return float(self.values[last].q1) / self.start.q

    def slope(self) -> float:
        """Return the slope R'(1); infinite if nearly equal tokens may get different experts."""
        if self.selecting is not None:
            return math.inf
        found = token_map(self.network, self.start.tokens).derivative(1)(1.0, self.start.q)
        return float(np.asarray(found))

    @cached_property
    def selecting(self) -> Node | None:
        """Return a node that selects some of several experts, or None if no node does."""
        found = (node for node, op, _ in self.network.operations if op is not None and op.selects)
        return next(found, None)

    @cached_property
    def _modes(self) -> tuple[float, float]:
        """Return the mean squared gradients at the entry, for both modes, relative to q."""
        entry, end = self.parts.entry, self.parts.end
        found = gradients(
            self.network, self.start.q, tokens=self.start.tokens, token_cosine=self.start.cosine
        )
        assert found.mean is not None and found.difference is not None
        relative = self.start.q / float(self.values[end].q1)
        return found.mean[entry] * relative, found.difference[entry] * relative

    def score_variance(self) -> float:
        """Return the variance of a score within its row, averaged over attention layers."""
        found = []
        for attention in self.parts.attentions:
            op: Any = self.network.operations_of(attention.node)[-1][1]
            queries, keys = (self.values[n] for n in self.network.parents(attention.node)[:2])
            found.append(float(factor(op)) * queries.q1 * keys.q1 * (1 - float(keys.token_cosine1)))
        return float(np.mean(found))

    def level(self) -> float:
        """Return the q value that is farthest from 1 among the values before activations."""
        seen = [
            float(self.values[self.network.parents(n)[0]].q1)
            for n in self.network.nodes_of(Nonlinear)
        ]
        return max(seen, key=lambda q: abs(math.log(q)), default=1.0)

    def profile(self) -> tuple[list[float], list[float]]:
        """Return q and token cosine at the attention outputs and at the end."""
        nodes = [b.node for b in self.parts.blocks] or [a.output for a in self.parts.attentions]
        order = [n for n in self.network if n in {*nodes, self.parts.entry}]
        return (
            [float(self.values[n].q1) for n in order],
            [float(self.values[n].token_cosine1) for n in order],
        )


def start_of(network: Network, parts: Parts, tokens: int, cosine: float) -> Start:
    """Compute q and token cosine at the entry, for inputs with q = 1 and the given cosine."""
    if parts.entry in network.inputs:
        return Start(tokens, 1.0, cosine)
    before = needed(list(network.steps()), (parts.entry,))
    values: Any = node_values(before, 1.0, tokens=tokens, token_cosine=cosine)
    value = values[parts.entry]
    if not hasattr(value, "token_cosine1"):
        return Start(tokens, float(value.q), float(value.token_cosine))
    return Start(tokens, float(value.q1), float(value.token_cosine1))
