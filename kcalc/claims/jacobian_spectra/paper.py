"""The source: a page of kcalc's own documentation, and not a paper."""

from ..claim import Paper

PAPER = Paper("spectra", "Jacobian spectra (the guide of this documentation)")
claim = PAPER.claim
