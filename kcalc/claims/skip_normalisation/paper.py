"""The paper."""

from ..claim import Paper

PAPER = Paper("skips", "On skip connections and normalisation layers in deep optimisation")
claim = PAPER.claim
