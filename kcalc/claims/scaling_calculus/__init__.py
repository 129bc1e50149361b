"""Beyond Folklore: a scaling calculus for the design and initialization of ReLU networks."""

from .paper import PAPER

__all__ = ["PAPER"]
