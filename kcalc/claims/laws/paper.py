"""The source: pages of kcalc's own documentation, and not a paper."""

from ..claim import Paper

PAPER = Paper("laws", "Laws of depth, width, dropout and large batches (this documentation)")
claim = PAPER.claim
