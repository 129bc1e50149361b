"""The paper on per-layer gradients, as a source of claims."""

from ..claim import Paper

PAPER = Paper(
    "gradient", "The effect of residual architecture on the per-layer gradient of deep networks"
)
claim = PAPER.claim
