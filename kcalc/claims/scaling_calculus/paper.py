"""The paper on the scaling calculus, as a source of claims."""

from ..claim import Paper

PAPER = Paper(
    "scaling",
    "Beyond Folklore: a scaling calculus for the design and initialization of ReLU networks",
)
claim = PAPER.claim
