"""Trace ONNX models, given as files or ``onnx.ModelProto`` objects.

Nothing in a file is executed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..trace import Trace
from .limits import Limits
from .reader import trace_onnx

__all__ = ["Limits", "trace_model", "trace_onnx"]


def trace_model(
    model: Any, inputs: Sequence[Any] = (), shapes: Mapping[str, Any] | None = None
) -> Trace | None:
    """Return the trace of an ``onnx.ModelProto``, or None for anything else."""
    onnx = sys.modules.get("onnx")
    return (
        trace_onnx(model, inputs, shapes)
        if onnx is not None and isinstance(model, onnx.ModelProto)
        else None
    )
