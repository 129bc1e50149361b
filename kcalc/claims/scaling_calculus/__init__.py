"""Beyond Folklore: a scaling calculus for the design and initialization of ReLU networks."""

from . import blocks, design, propagation, weights  # registers their claims
from .paper import PAPER

__all__ = ["PAPER", "blocks", "design", "propagation", "weights"]
