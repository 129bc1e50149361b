"""A network as a short program over local maps, with each repeated block written once.

The report page evaluates this program.

The state of a feature map consists of groups of channels ``(share, q, gap, mean)`` with ``gap = 1 -
c``; both inputs have the same q value. The rules are the same as in :mod:`kcalc.calculi.kernel` for
fresh Gaussian preactivations and independent addends. :mod:`kcalc.lab.report.replay` runs a program
in Python. A program that disagrees with the kernel calculus is not used.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import Network
from ... import network as P
from ...activations import Activation
from ...foundation.errors import KcalcError
from ...network import Block, Operation, require_numbers

Node = Hashable
ENTRY = -1
MOST_NODES = 4000


@dataclass(frozen=True)
class Step:
    """A node of a piece, with its rule, its input steps and its numerical parameters.

    The input steps are numbered within the piece; ENTRY is the input of the piece.
    """

    node: Node
    kind: str
    reads: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    activation: int | None = None
    shortcut: int | None = None
    standardised: bool = False


@dataclass(frozen=True)
class Piece:
    """A piece repeated ``count`` times in a row.

    Each repetition passes its last feature map to the next.
    """

    count: int
    steps: tuple[Step, ...]

    @property
    def nonlinear(self) -> int:
        """Return the number of nonlinear layers on the longest path through one piece."""
        depth: list[int] = []
        for step in self.steps:
            before = max((depth[r] for r in step.reads if r != ENTRY), default=0)
            depth.append(before + (step.kind == "phi"))
        return max(depth, default=0)


@dataclass(frozen=True)
class Program:
    """The pieces of a network, its activations in numbered order, and its outputs.

    An output is a pair (piece, step).
    """

    pieces: tuple[Piece, ...]
    activations: tuple[Activation, ...]
    outputs: tuple[tuple[int, int], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the program as plain data."""
        return {"pieces": self.pieces, "outputs": self.outputs}

    def place(self, node: Node) -> tuple[int, int] | None:
        """Return (piece, step) of a node in the first repetition of a block, or None."""
        for i, piece in enumerate(self.pieces):
            for k, step in enumerate(piece.steps):
                if step.node == node:
                    return i, k
        return None


def compiled(network: Network) -> Program:
    """Return the program of a network.

    Raises: a KcalcError that states the reason if the network has no such program.
    """
    require_numbers(network)
    blocks = network.blocks()
    if sum(len(block.pieces[0]) for block in blocks) > MOST_NODES:
        raise KcalcError(f"the network has more than {MOST_NODES} nodes that do not repeat")
    activations: dict[Activation, int] = {}
    depth = _depths(network)
    pieces = []
    for block in blocks:
        piece = [op for node in block.pieces[0] for op in network.operations_of(node)]
        number = {op.node: i for i, op in enumerate(piece)}
        steps = [
            _step(
                op,
                tuple(number.get(p, ENTRY) for p in op.reads),
                activations,
                [depth[p] for p in op.reads],
            )
            for op in piece
        ]
        pieces.append(Piece(block.count, tuple(steps)))
    program = Program(tuple(pieces), tuple(activations), ())
    places = [program.place(node) or _last(program, blocks, node) for node in network.outputs]
    return Program(program.pieces, program.activations, tuple(places))


def _last(program: Program, blocks: Sequence[Block], node: Node) -> tuple[int, int]:
    """Return (piece, step) of an output, which must be in the last repetition of a block."""
    for block in blocks:
        if node in block.pieces[-1]:
            place = program.place(block.pieces[0][block.pieces[-1].index(node)])
            assert place is not None
            return place
    raise KcalcError(f"the output {node!r} is inside repeated blocks")


def _depths(network: Network) -> dict[Node, int]:
    depth: dict[Node, int] = {}
    for node, op, reads in network.operations:
        depth[node] = max((depth[p] for p in reads), default=0) + isinstance(op, P.Post)
    return depth


def _step(
    operation: Operation,
    reads: tuple[int, ...],
    activations: dict[Activation, int],
    depths: list[int],
) -> Step:
    node, op, _ = operation
    match op:
        case P.Source():
            return Step(node, "in", ())
        case P.Fresh():
            return Step(
                node,
                "aff",
                reads,
                (float(op.sigma_w), float(op.sigma_b)),
                standardised=op.standardised,
            )
        case P.Post():
            return Step(
                node,
                "phi",
                reads,
                activation=activations.setdefault(op.activation, len(activations)),
            )
        case P.Mix():
            stated = len(reads) == 2 and getattr(op.origin, "weights", None) is not None
            weights = tuple(map(float, op.weights))
            return Step(
                node,
                "sum" if len(reads) > 1 else "scl",
                reads,
                weights,
                shortcut=int(depths[1] < depths[0]) if stated else None,
            )
        case P.Prod():
            return Step(node, "prd", reads)
        case P.Join():
            total = float(sum(op.channels))
            return Step(node, "cat", reads, tuple(float(k) / total for k in op.channels))
        case P.Norm(over="channels", groups=1):
            return Step(node, "ln" if op.centred else "rms", reads)
        case P.Mask() if op.drops:
            raise KcalcError(f"node {node!r} is active dropout, which the page cannot compute")
        case None | P.Passing() | P.Max() | P.Blend(matrix=None):
            return Step(node, "id", reads)
    raise KcalcError(f"node {node!r} is a {op.kind}, which the page cannot compute")
