"""Kernel maps of attention over tokens, and the overlaps of random rows of attention.

The names here are what clients take; their modules are imported when one is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...gaussian.softmax import Overlap, overlap_gap, row_entropy, self_overlap

if TYPE_CHECKING:
    from .gradients import SampledGradients
    from .structure import tells_tokens_apart
    from .values import SampledValues

_HOMES = {
    "SampledGradients": "gradients",
    "SampledValues": "values",
    "tells_tokens_apart": "structure",
}

__all__ = [
    "Overlap",
    "SampledGradients",
    "SampledValues",
    "overlap_gap",
    "row_entropy",
    "self_overlap",
    "tells_tokens_apart",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
