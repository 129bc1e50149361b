"""The source of these claims is a page of kcalc's documentation, not a paper."""

from ..claim import Paper

PAPER = Paper("attention", "Attention at initialisation (the theory page of this documentation)")
claim = PAPER.claim
