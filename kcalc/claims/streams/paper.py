"""The source: a page of kcalc's own documentation, and not a paper."""

from ..claim import Paper

PAPER = Paper("streams", "Several residual streams and experts (the guide of this documentation)")
claim = PAPER.claim
