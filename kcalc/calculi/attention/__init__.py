"""Kernel maps of attention over tokens.

The names here are what clients take; their modules are imported when one is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .structure import read_tokens, tells_tokens_apart
    from .values import SampledValues

_HOMES = {
    "SampledValues": "values",
    "read_tokens": "structure",
    "tells_tokens_apart": "structure",
}

__all__ = ["SampledValues", "read_tokens", "tells_tokens_apart"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
