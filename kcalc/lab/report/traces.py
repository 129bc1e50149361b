"""Tables of q and c values by depth, and descriptions of them in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ... import Network, c_map
from ... import layers as L
from ...activations import Activation
from ...calculi import kind
from ...foundation.errors import KcalcError
from ...foundation.guests import SHAPING

MOST_POINTS = 240


@dataclass
class Trace:
    """Values by depth: the number of nonlinear layers, q, and c for each initial c in ``starts``.

    ``nodes`` is {drawn node: (q, c starting from c = 0)}.
    """

    depth: list[int] = field(default_factory=list)
    q: list[float] = field(default_factory=list)
    c: list[list[float]] = field(default_factory=list)
    nodes: dict[Any, tuple[float, float]] = field(default_factory=dict)
    slope: float = float("nan")
    level: float = float("nan")
    starts: tuple[float, ...] = ()

    @property
    def kind(self) -> str:
        """Return the regime that follows from the final slope and c value."""
        return kind(self.slope, self.level)

    @property
    def q_ratio(self) -> float:
        """Return the ratio of the largest to the smallest q value over the depth."""
        return max(self.q) / min(self.q)

    def to_json(self) -> dict[str, Any]:
        """Return the rows as plain data, thinned out if there are many."""
        step = max(1, len(self.depth) // MOST_POINTS)
        rows = sorted({*range(0, len(self.depth), step), len(self.depth) - 1})
        columns = {"depth": self.depth, "q": self.q, "c": self.c}
        thin = {name: [values[i] for i in rows] for name, values in columns.items()}
        return {"starts": self.starts, **thin}


def trace(network: Network, **tokens: Any) -> Trace:
    """Return the trace of a network for inputs with q = 1.

    ``tokens`` contains the arguments for maps over tokens.

    Raises: KcalcError if the kernel calculus does not apply.
    """
    rows = SHAPING["depth trace"](network, **tokens)
    values = zip(rows.nodes, rows.q, rows.values[:, rows.cosines.index(0.0)], strict=True)
    slope, level = ends(network, **tokens)
    last = {int(rows.depth[i]): i for i in rows.trunk}  # the last row at each depth
    trunk = list(last.values())
    found = Trace(
        list(last),
        rows.q[trunk].tolist(),
        rows.values[trunk].tolist(),
        {node: (float(q), float(c)) for node, q, c in values},
        slope,
        level,
        rows.cosines,
    )
    if not np.all(np.isfinite(found.q)):
        raise KcalcError("q values overflow inside the network")
    return found


def ends(network: Network, **tokens: Any) -> tuple[float, float]:
    """Return (slope at c = 1, c value for orthogonal inputs) at the last output."""
    maps = c_map(network, **tokens)
    values = (maps.derivative(1)(1.0), maps(0.0))
    slope, level = (v[network.outputs[-1]] if isinstance(v, dict) else v for v in values)
    return float(slope), float(level)


def verdict(found: Trace) -> str:
    """Describe the effect of the network on pairs of inputs in one sentence."""
    slope, level = found.slope, found.level
    parts = []
    if not np.isfinite(slope) or slope > 1e6:
        parts.append(
            "the network is chaotic: the angle between nearby inputs grows by a factor of more "
            "than 1000"
        )
    elif found.kind == "exploding":
        parts.append(
            "the network is chaotic: the angle between nearby inputs grows by a factor of "
            f"{slope**0.5:.3g}"
        )
    elif found.kind == "collapsing":
        parts.append(
            "the network forgets its input: the angle between nearby inputs shrinks by a factor of "
            f"{slope**-0.5 if slope else np.inf:.3g}"
        )
    elif level > 0.92:
        parts.append(
            "the network hardly distinguishes inputs: orthogonal inputs come out with cosine "
            f"{level:.4f}"
        )
    elif level > 0.5:
        parts.append(
            "the network keeps part of the differences between inputs: orthogonal inputs come out "
            f"with cosine {level:.3f}"
        )
    else:
        shown = 0.0 if abs(level) < 5e-4 else level
        parts.append(
            "the network keeps inputs distinct: orthogonal inputs come out with cosine "
            f"{shown:.3f}, and the slope at c = 1 is {slope:.4g}"
        )
    if found.kind != "exploding" and 4 < slope <= 1e6:
        parts.append(
            f"its slope at c = 1 is large, {slope:.3g}: a stack of such networks is chaotic"
        )
    if found.q_ratio > 100:
        parts.append(f"q values vary by a factor of {found.q_ratio:.2g} within the network")
    return "; ".join(parts)


def local_slopes(network: Network, found: Trace) -> dict[Any, float]:
    """Return C'(1) of the local map at every nonlinear node whose channels share one q value."""

    @cache
    def slope(phi: Activation, q: float) -> float:
        return float(phi.taylor(0.0, q, order=1)[1])

    out: dict[Any, float] = {}
    for node in network.nodes_of(L.Nonlinear):
        phi = network.layer(node).activation
        if phi.degree is not None:
            out[node] = slope(phi, 1.0)
        elif not network.nodes_of(L.Concat):
            out[node] = slope(phi, found.nodes[network.parents(node)[0]][0])
    return out
