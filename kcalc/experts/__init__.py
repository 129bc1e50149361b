"""Mixtures of experts at initialisation: selections and weights of a random router."""

from .moe_statistics import MoEStatistics, moe_statistics

__all__ = ["MoEStatistics", "moe_statistics"]
