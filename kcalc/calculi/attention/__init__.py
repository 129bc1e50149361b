"""Kernel maps for attention over tokens, and overlaps of random attention rows.

This module exports the names that other packages use. Each module is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...foundation.guests import door
from ...gaussian.softmax import Overlap, overlap_gap, row_entropy, self_overlap

if TYPE_CHECKING:
    from .gradients import SampledGradients
    from .structure import tells_tokens_apart
    from .values import SampledValues

__all__ = [
    "Overlap",
    "SampledGradients",
    "SampledValues",
    "overlap_gap",
    "row_entropy",
    "self_overlap",
    "tells_tokens_apart",
]

__getattr__ = door(
    __name__,
    {
        "gradients": "SampledGradients",
        "values": "SampledValues",
        "structure": "tells_tokens_apart",
    },
)
