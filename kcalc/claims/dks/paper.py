"""The paper on Deep Kernel Shaping, as a source of claims."""

from ..claim import Paper

PAPER = Paper(
    "dks",
    "Rapid training of deep neural networks without skip connections or normalization layers "
    "using Deep Kernel Shaping",
)
claim = PAPER.claim
