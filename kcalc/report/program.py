"""A network as a short program over local maps, each repeated block written once; the page evaluates it.

State of a feature map: groups of channels ``(share, q, gap, mean)``, ``gap = 1 - c``, both inputs of one q value. The rules are those of
:mod:`kcalc.calculi.kernel` for fresh Gaussian pre-activations and independent addends; :mod:`kcalc.report.replay` runs a program in Python,
and a program that differs from the kernel calculus is not used.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ..activations import Activation
from ..foundation.errors import KcalcError
from ..network import layers as L
from ..network.network import Network, concat_channels, sum_weights

Node = Hashable
ENTRY = -1
MOST_NODES = 4000


@dataclass(frozen=True)
class Step:
    """One node: its rule, the steps of its piece that it reads (ENTRY: the input of the piece) and its numbers."""

    node: Node
    kind: str
    reads: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    activation: int | None = None
    shortcut: int | None = None
    standardised: bool = False

    def to_json(self) -> dict[str, Any]:
        """The step as plain data, without empty fields."""
        out: dict[str, Any] = {"k": self.kind, "r": list(self.reads), "n": str(self.node)}
        if self.numbers:
            out["w"] = list(self.numbers)
        for key, value in (("a", self.activation), ("s", self.shortcut)):
            if value is not None:
                out[key] = value
        if self.standardised:
            out["d"] = 1
        return out


@dataclass(frozen=True)
class Piece:
    """``count`` equal pieces in a row; each emits the feature map of its last step."""

    count: int
    steps: tuple[Step, ...]

    @property
    def nonlinear(self) -> int:
        """The nonlinear layers on the longest way through one piece."""
        depth: list[int] = []
        for step in self.steps:
            before = max((depth[r] for r in step.reads if r != ENTRY), default=0)
            depth.append(before + (step.kind == "phi"))
        return max(depth, default=0)


@dataclass(frozen=True)
class Program:
    """The pieces of a network, its activations by number, and the steps (piece, step) of its outputs."""

    pieces: tuple[Piece, ...]
    activations: tuple[Activation, ...]
    outputs: tuple[tuple[int, int], ...]

    def to_json(self) -> dict[str, Any]:
        """The program as plain data."""
        return {
            "pieces": [{"count": p.count, "steps": [s.to_json() for s in p.steps]} for p in self.pieces],
            "outputs": [list(o) for o in self.outputs],
        }

    def place(self, node: Node) -> tuple[int, int] | None:
        """(piece, step) of a node of a first piece; None for others."""
        for i, piece in enumerate(self.pieces):
            for k, step in enumerate(piece.steps):
                if step.node == node:
                    return i, k
        return None


def compiled(network: Network) -> Program:
    """The program of a network. Raises: KcalcError saying why there is none."""
    if network.free_symbols:
        names = ", ".join(sorted(map(str, network.free_symbols)))
        raise KcalcError(f"the network holds the symbols {names}; give them numbers with net.subs")
    blocks = network.blocks()
    if sum(len(block.pieces[0]) for block in blocks) > MOST_NODES:
        raise KcalcError(f"the network has more than {MOST_NODES} nodes that do not repeat")
    channels = concat_channels(network)
    activations: dict[Activation, int] = {}
    depth = _depths(network)
    pieces = []
    for block in blocks:
        number = {node: i for i, node in enumerate(block.pieces[0])}
        steps = []
        for node in block.pieces[0]:
            layer, parents = network.layer(node), network.parents(node)
            reads = tuple(number.get(p, ENTRY) for p in parents)
            steps.append(_step(node, layer, reads, activations, channels.get(node, ()), [depth[p] for p in parents]))
        pieces.append(Piece(block.count, tuple(steps)))
    program = Program(tuple(pieces), tuple(activations), ())
    places = [program.place(node) or _last(blocks, node) for node in network.outputs]
    return Program(program.pieces, program.activations, tuple(places))


def _last(blocks: Sequence[Any], node: Node) -> tuple[int, int]:
    """The place of an output in the last repetition of a block."""
    for i, block in enumerate(blocks):
        if node in block.pieces[-1]:
            return i, block.pieces[-1].index(node)
    raise KcalcError(f"the output {node!r} lies in the middle of repeated blocks")


def _depths(network: Network) -> dict[Node, int]:
    depth: dict[Node, int] = {}
    for node, layer, parents in network.steps():
        depth[node] = max((depth[p] for p in parents), default=0) + isinstance(layer, L.Nonlinear)
    return depth


def _step(
    node: Node, layer: L.Layer, reads: tuple[int, ...], activations: dict[Activation, int], channels: Sequence[Any], depths: list[int]
) -> Step:
    match layer:
        case L.Input():
            return Step(node, "in", ())
        case L.Affine():
            return Step(node, "aff", reads, (float(layer.sigma_w), float(layer.sigma_b)), standardised=layer.standardised)
        case L.Nonlinear():
            return Step(node, "phi", reads, activation=activations.setdefault(layer.activation, len(activations)))
        case L.Sum():
            weights = tuple(float(w) for w in sum_weights(layer, len(reads)))
            shortcut = None if layer.weights is None or len(reads) != 2 else int(depths[1] < depths[0])
            return Step(node, "sum", reads, weights, shortcut=shortcut)
        case L.Product():
            return Step(node, "prd", reads)
        case L.Concat():
            total = float(sum(channels))
            return Step(node, "cat", reads, tuple(float(k) / total for k in channels))
        case L.Scale():
            return Step(node, "scl", reads, (float(layer.factor),))
        case L.LayerNorm():
            return Step(node, "ln", reads)
        case L.RMSNorm():
            return Step(node, "rms", reads)
        case L.Identity() | L.Flatten() | L.Dropout() | L.Pool():
            return Step(node, "id", reads)
    raise KcalcError(f"node {node!r} is a {type(layer).__name__}, for which the page has no rule")
