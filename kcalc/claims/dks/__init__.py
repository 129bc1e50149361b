"""Deep Kernel Shaping."""

from . import bounds  # registers its claims
from .paper import PAPER

__all__ = ["PAPER", "bounds"]
