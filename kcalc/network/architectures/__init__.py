"""Builders of architectures.

All builders use ``sigma_w = 1`` and leave gains to the activations unless the docstring says
otherwise. No gain is hidden. Optional parts of kcalc add more builders, which are imported on first
use.
"""

from __future__ import annotations

import sys
from typing import Any

from ...foundation.guests import ARCHITECTURES
from .modern import convnext, gated_mlp, transformer
from .papers import (
    HALF,
    STAGES,
    alexnet,
    densenet,
    layernorm_resnet,
    lenet,
    preactivation_resnet50,
    preconditioned_block,
    rescaled_resnet,
    resnet_v2,
    vanilla,
    wide_resnet,
)

__all__ = [
    "HALF",
    "STAGES",
    "alexnet",
    "convnext",
    "densenet",
    "gated_mlp",
    "layernorm_resnet",
    "lenet",
    "preactivation_resnet50",
    "preconditioned_block",
    "rescaled_resnet",
    "resnet_v2",
    "transformer",
    "vanilla",
    "wide_resnet",
]
__all__ += map(str, ARCHITECTURES.places)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )


def __dir__() -> list[str]:
    return __all__
