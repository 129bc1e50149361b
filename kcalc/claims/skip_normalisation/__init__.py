"""On skip connections and normalisation layers in deep optimisation."""

from . import layers  # registers their claims
from .paper import PAPER

__all__ = ["PAPER", "layers"]
