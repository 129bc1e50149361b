"""Exact moments at finite width: how much norms and Jacobians of random networks fluctuate."""

from .api import moments
from .depth import DepthMoments, Stability, depth_stability, moments_at_depth
from .laws import LAWS
from .moment import Moment
from .result import Moments
from .stability import Budget, crelu_budget

__all__ = [
    "LAWS",
    "Budget",
    "DepthMoments",
    "Moment",
    "Moments",
    "Stability",
    "crelu_budget",
    "depth_stability",
    "moments",
    "moments_at_depth",
]
