"""On skip connections and normalisation layers in deep optimisation."""

from .paper import PAPER

__all__ = ["PAPER"]
