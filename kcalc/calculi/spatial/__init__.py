"""Kernels of convolutional networks on given images, by recursion over pairs of locations."""

from .maps import SpatialKernelMap, SpatialTangentKernel, exact_locations, spatial_reading
from .plan import tap_widths

__all__ = [
    "SpatialKernelMap",
    "SpatialTangentKernel",
    "exact_locations",
    "spatial_reading",
    "tap_widths",
]
