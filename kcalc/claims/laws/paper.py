"""The sources of these claims are pages of kcalc's documentation, not a paper."""

from ..claim import Paper

PAPER = Paper("laws", "Laws of depth, width, dropout and large batches (this documentation)")
claim = PAPER.claim
