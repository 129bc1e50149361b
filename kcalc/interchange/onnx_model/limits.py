"""Limits on the cost of reading a file.

They apply to the number of bytes and of nodes, to the nesting depth, and to the size of arrays
computed from constants.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...foundation.errors import KcalcError


@dataclass(frozen=True)
class Limits:
    """Limits for a model file. Exceeding one raises an error before memory is allocated.

    ``file_bytes``: the size of the file with its external data. ``nodes``: the number of nodes,
    including subgraphs and functions. Arrays computed from constants may take ``folded_bytes`` plus
    ``folded_factor`` times the size of the model's tensors.
    """

    file_bytes: int = 2 * 2**30
    nodes: int = 200_000
    depth: int = 24
    folded_bytes: int = 64 * 2**20
    folded_factor: int = 8
    rank: int = 16
    extent: int = 2**40


class RemainingLimits:
    """The limits that remain while a model is read."""

    def __init__(self, limits: Limits, nodes: int, tensor_bytes: int) -> None:
        self.limits = limits
        self._steps = 10_000 + 10 * nodes
        self._folded = limits.folded_bytes + limits.folded_factor * tensor_bytes

    def step(self) -> None:
        """Count one more node.

        Raises: KcalcError if nested functions expand into too many nodes.
        """
        self._steps -= 1
        if self._steps < 0:
            raise KcalcError(
                "onnx: the functions in the file expand into far more nodes than a network of this "
                "size can have"
            )

    def fold(self, count: int, itemsize: int, where: str) -> None:
        """Count an array with ``count`` entries that is computed from constants.

        Raises: KcalcError if all such arrays together become too large.
        """
        self._folded -= count * itemsize
        if self._folded < 0:
            raise KcalcError(
                f"onnx: {where}: the arrays computed from constants are too large ({count} numbers)"
            )
