"""The paper on Tailored Activation Transformation, as a source of claims."""

from ..claim import Paper

PAPER = Paper("tat", "Deep learning without shortcuts: shaping the kernel with tailored rectifiers")
claim = PAPER.claim
