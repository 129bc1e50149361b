"""The paper."""

from ..claim import Paper

PAPER = Paper(
    "gradient", "The effect of residual architecture on the per-layer gradient of deep networks"
)
claim = PAPER.claim
