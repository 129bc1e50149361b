"""On skip connections and normalisation layers in deep optimisation."""

from . import convergence, layers, regularity  # registers their claims
from .paper import PAPER

__all__ = ["PAPER", "convergence", "layers", "regularity"]
