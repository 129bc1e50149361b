"""Builders of architectures.

All use ``sigma_w = 1`` and leave gains to the activations unless the docstring says otherwise; none
hides a gain.
"""

from __future__ import annotations

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
from .transformers import bert, gpt2, llama, t5, transformer_stack, vit

__all__ = [
    "HALF",
    "STAGES",
    "alexnet",
    "bert",
    "convnext",
    "densenet",
    "gated_mlp",
    "gpt2",
    "layernorm_resnet",
    "lenet",
    "llama",
    "preactivation_resnet50",
    "preconditioned_block",
    "rescaled_resnet",
    "resnet_v2",
    "t5",
    "transformer",
    "transformer_stack",
    "vanilla",
    "vit",
    "wide_resnet",
]


def __dir__() -> list[str]:
    return __all__
