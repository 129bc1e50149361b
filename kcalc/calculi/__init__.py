"""Calculi: a state per feature map and a rule per primitive, folded over a network's graph.

The folds are in :mod:`kcalc.network.compose`.
"""

from .slopes import Slopes, slope_polynomial

__all__ = ["Slopes", "slope_polynomial"]
