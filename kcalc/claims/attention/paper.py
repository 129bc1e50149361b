"""The source: a page of kcalc's own documentation, and not a paper."""

from ..claim import Paper

PAPER = Paper("attention", "Attention at initialisation (the theory page of this documentation)")
claim = PAPER.claim
