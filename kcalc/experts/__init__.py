"""Mixtures of experts at initialisation: what a random router selects, and with which weights."""

from .moe_statistics import MoEStatistics, moe_statistics

__all__ = ["MoEStatistics", "moe_statistics"]
