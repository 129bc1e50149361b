"""Fluctuations of q and c values at finite width, for any activation."""

from .api import Fluctuation, Fluctuations, fluctuations

__all__ = ["Fluctuation", "Fluctuations", "fluctuations"]
