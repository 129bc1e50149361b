"""The source of these claims is a page of kcalc's documentation, not a paper."""

from ..claim import Paper

PAPER = Paper("streams", "Several residual streams and experts (the guide of this documentation)")
claim = PAPER.claim
