"""Calculi: a state per feature map and a rule per primitive, folded over a network's graph.

The folds are in :mod:`kcalc.network.compose`.
"""

from .slopes import LogSlope, Slopes, log_slopes, slope_polynomial

__all__ = ["LogSlope", "Slopes", "log_slopes", "slope_polynomial"]
