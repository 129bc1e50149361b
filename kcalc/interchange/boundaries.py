"""Mean squares of the model's own feature maps on the example inputs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from .model_reading import Reading

Node = Hashable


def measured_q(reading: Reading, nodes: Sequence[Node]) -> dict[Node, float]:
    """Return {node: q (mean square) of the model's feature map} for the example inputs.

    The result is empty if no example arrays were passed. ``nodes``: nodes of the network whose
    labels are names of the model's operations.
    """
    trace = reading.trace
    if trace is None or trace.framework != "torch" or not nodes:
        return {}
    from .torch_model.measured import mean_squares

    found = mean_squares(trace.model.program, [str(node) for node in nodes])
    return {node: found[str(node)] for node in nodes if str(node) in found}
