"""Ways of reading a network: a state per feature map and a rule per layer, folded over the graph by :mod:`kcalc.network.compose`."""

from .slopes import LogSlope, Slopes, log_slopes, slope_polynomial

__all__ = ["LogSlope", "Slopes", "log_slopes", "slope_polynomial"]
