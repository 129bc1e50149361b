"""The paper on skip connections and normalisation, as a source of claims."""

from ..claim import Paper

PAPER = Paper("skips", "On skip connections and normalisation layers in deep optimisation")
claim = PAPER.claim
