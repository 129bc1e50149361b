"""Limits on the cost of a file.

They cover bytes, nodes, depth and the size of arrays computed from constants.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...foundation.errors import KcalcError


@dataclass(frozen=True)
class Limits:
    """Bounds on a model file; larger files raise an error before memory is allocated.

    ``file_bytes``: the file and its external data together. ``nodes``: nodes of the file, including
    subgraphs and functions. ``folded_bytes``: all arrays computed from constants, in addition to
    ``folded_factor`` times the bytes of the model's tensors.
    """

    file_bytes: int = 2 * 2**30
    nodes: int = 200_000
    depth: int = 24
    folded_bytes: int = 64 * 2**20
    folded_factor: int = 8
    rank: int = 16
    extent: int = 2**40


class RemainingLimits:
    """The rest of the limits while a model is read."""

    def __init__(self, limits: Limits, nodes: int, tensor_bytes: int) -> None:
        self.limits = limits
        self._steps = 10_000 + 10 * nodes
        self._folded = limits.folded_bytes + limits.folded_factor * tensor_bytes

    def step(self) -> None:
        """Count a node that is read.

        Raises: KcalcError if functions that call functions expand without bound.
        """
        self._steps -= 1
        if self._steps < 0:
            raise KcalcError(
                "onnx: the functions of the file expand into far more nodes than it contains; "
                "this is not a network"
            )

    def fold(self, count: int, itemsize: int, where: str) -> None:
        """Count an array of ``count`` numbers that is computed from constants.

        Raises: KcalcError if these arrays become too large in total.
        """
        self._folded -= count * itemsize
        if self._folded < 0:
            raise KcalcError(
                f"onnx: {where}: the arrays computed from constants are too large ({count} "
                f"numbers here)"
            )
