"""Subnetworks, and the largest value of a map over all of them."""

from .api import Subnetworks, subnetworks
from .leaky_relus import maximal_c_value
from .maxima import maximal
from .regions import Subnetwork
from .slope_maxima import maximal_curvature, maximal_slope

__all__ = [
    "Subnetwork",
    "Subnetworks",
    "maximal",
    "maximal_c_value",
    "maximal_curvature",
    "maximal_slope",
    "subnetworks",
]
