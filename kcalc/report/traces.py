"""q and c values from layer to layer, and sentences about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..calculi.global_maps import c_map
from ..calculi.regime import kind
from ..foundation.errors import KcalcError
from ..network.network import Network
from ..shaping.traces import STARTS, depth_trace
from .program import ENTRY, Program
from .replay import Group, run, whole

TINY = 1e-16  # a gap at which the quotient of gaps is the slope
MOST_POINTS = 240


@dataclass
class Trace:
    """Rows along the depth: number of nonlinear layers, node, q, c values from ``STARTS``.

    ``nodes``: {drawn node: (q, c from c = 0)}.
    """

    depth: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    q: list[float] = field(default_factory=list)
    c: list[list[float]] = field(default_factory=list)
    nodes: dict[Any, tuple[float, float]] = field(default_factory=dict)
    slope: float = float("nan")
    level: float = float("nan")

    @property
    def kind(self) -> str:
        """The regime."""
        return kind(self.slope, self.level)

    @property
    def q_ratio(self) -> float:
        """The greatest q value on the way over the least."""
        return max(self.q) / min(self.q)

    def to_json(self) -> dict[str, Any]:
        """The rows as plain data, thinned out where there are very many."""
        step = max(1, len(self.depth) // MOST_POINTS)
        rows = sorted({*range(0, len(self.depth), step), len(self.depth) - 1})
        pick = lambda values: [values[i] for i in rows]  # noqa: E731
        return {
            "starts": list(STARTS),
            "depth": pick(self.depth),
            "q": pick(self.q),
            "c": pick(self.c),
        }


def trace(
    network: Network, program: Program | None, tokens: Mapping[str, Any] | None = None
) -> Trace:
    """The trace of a network for inputs of q = 1; ``tokens``: the arguments of maps over tokens.

    Raises: KcalcError where the kernel calculus does not apply.
    """
    found = _from_program(program) if program is not None else _from_network(network, tokens or {})
    if not np.all(np.isfinite(found.q)):
        raise KcalcError("q values overflow on the way through the network")
    return found


def _from_program(program: Program) -> Trace:
    out = Trace()
    gaps = np.array([*(1 - c for c in STARTS), TINY])
    middle = STARTS.index(0.0)
    count = 0

    def visit(piece: int, repetition: int, states: list[list[Group]]) -> None:
        nonlocal count
        steps = program.pieces[piece].steps
        count += program.pieces[piece].nonlinear
        if out.depth and out.depth[-1] == count:
            for column in (out.depth, out.names, out.q, out.c):
                column.pop()
        q, gap, _ = whole(states[-1])
        out.depth.append(count)
        out.names.append(str(steps[-1].node))
        out.q.append(float(q))
        out.c.append([float(1 - u) for u in gap[:-1]])
        if repetition == 0:
            for step, state in zip(steps, states, strict=True):
                size, own, _ = whole(state)
                out.nodes[step.node] = (float(size), float(1 - own[middle]))

    ends = run(program, gaps, visit=visit)
    gap = whole(ends[-1])[1]
    out.slope, out.level = float(gap[-1] / TINY), float(1 - gap[middle])
    return out


def _from_network(network: Network, tokens: Mapping[str, Any]) -> Trace:
    rows = depth_trace(network, **tokens)
    out = Trace()
    for row in rows.trunk:
        node = rows.nodes[row]
        out.depth.append(int(rows.depth[row]))
        out.names.append(str(node))
        out.q.append(float(rows.q[row]))
        out.c.append([float(x) for x in rows.values[row]])
    middle = STARTS.index(0.0)
    for node, q, c in zip(rows.nodes, rows.q, rows.values, strict=True):
        out.nodes[node] = (float(q), float(c[middle]))
    slopes = c_map(network, **tokens).derivative(1)(1.0)
    out.slope = float(slopes[network.outputs[-1]] if isinstance(slopes, dict) else slopes)
    out.level = out.nodes[network.outputs[-1]][1]
    return out


def verdict(found: Trace) -> str:
    """The effect of the network on pairs of inputs, in a sentence."""
    slope, level = found.slope, found.level
    parts = []
    if not np.isfinite(slope) or slope > 1e6:
        parts.append(
            "the network is chaotic: the angle between close inputs is blown up beyond use"
        )
    elif found.kind == "exploding":
        parts.append(
            f"the network is chaotic: the angle between close inputs grows by a factor "
            f"{slope**0.5:.3g}"
        )
    elif found.kind == "collapsing":
        parts.append(
            f"the network forgets its input: the angle between close inputs shrinks by a factor "
            f"{slope**-0.5 if slope else np.inf:.3g}"
        )
    elif level > 0.92:
        parts.append(
            f"the network hardly tells inputs apart: orthogonal ones come out with cosine "
            f"{level:.4f}"
        )
    elif level > 0.5:
        parts.append(
            f"the network keeps part of the differences between inputs: orthogonal ones come out "
            f"with cosine {level:.3f}"
        )
    else:
        shown = 0.0 if abs(level) < 5e-4 else level
        parts.append(
            f"the network keeps inputs apart: orthogonal ones come out with cosine {shown:.3f}, "
            f"and the slope at c = 1 is {slope:.4g}"
        )
    if found.kind != "exploding" and 4 < slope <= 1e6:
        parts.append(
            f"its slope at c = 1 is large, {slope:.3g}: repeated, such a network is chaotic"
        )
    if found.q_ratio > 100:
        parts.append(f"q values spread over a factor {found.q_ratio:.2g} on the way")
    return "; ".join(parts)


def local_slopes(network: Network, program: Program | None, found: Trace) -> dict[Any, float]:
    """C'(1) of the local map at every drawn nonlinear node."""
    out: dict[Any, float] = {}
    if program is None:
        return out
    known: dict[Any, float] = {}
    for piece in program.pieces:
        for step in piece.steps:
            if step.kind != "phi" or step.activation is None or step.reads[0] == ENTRY:
                continue
            phi = program.activations[step.activation]
            q = found.nodes[piece.steps[step.reads[0]].node][0]
            key = (phi, 1.0 if phi.degree is not None else q)
            if key not in known:
                known[key] = float(phi.taylor(0.0, key[1], order=1)[1])
            out[step.node] = known[key]
    return out
