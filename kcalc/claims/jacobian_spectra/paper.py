"""The source of these claims is a page of kcalc's documentation, not a paper."""

from ..claim import Paper

PAPER = Paper("spectra", "Jacobian spectra (the guide of this documentation)")
claim = PAPER.claim
