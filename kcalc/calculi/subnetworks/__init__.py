"""Subnetworks, and the largest value of a map over all of them."""

from .api import (
    Subnetwork,
    Subnetworks,
    maximal,
    maximal_c_value,
    maximal_curvature,
    maximal_slope,
    subnetworks,
)

__all__ = [
    "Subnetwork",
    "Subnetworks",
    "maximal",
    "maximal_c_value",
    "maximal_curvature",
    "maximal_slope",
    "subnetworks",
]
