"""Read PyTorch models into a trace, and edit them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..trace import Trace
from .copies import check_shapes, copied, duplicate, memory
from .examples import argument, first_line, place, undisturbed
from .padding import drawn_ids, padding_ids, unpadded
from .reader import trace_torch

if TYPE_CHECKING:
    from .mixture_modules import Mixture

__all__ = [
    "argument",
    "check_shapes",
    "copied",
    "drawn_ids",
    "duplicate",
    "first_line",
    "is_torch",
    "memory",
    "mixtures",
    "padding_ids",
    "place",
    "trace_model",
    "trace_torch",
    "undisturbed",
    "unpadded",
]


def is_torch(model: Any) -> bool:
    """Whether an object is a PyTorch module or an ExportedProgram."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    program = getattr(sys.modules.get("torch.export"), "ExportedProgram", torch.nn.Module)
    return isinstance(model, torch.nn.Module | program)


def trace_model(model: Any, inputs: Sequence[Any]) -> Trace | None:
    """Return the trace of a PyTorch model, or None for any other object."""
    return trace_torch(model, *inputs) if is_torch(model) else None


def mixtures(model: Any) -> dict[str, Mixture]:
    """Return {name: mixture of experts} for the mixtures in a module."""
    from . import mixture_modules  # imports PyTorch

    return mixture_modules.mixtures(model)
