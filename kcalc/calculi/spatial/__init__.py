"""Kernels of convolutional networks on given images, by recursion over pairs of locations."""

from .maps import SpatialKernelMap, SpatialTangentKernel

__all__ = ["SpatialKernelMap", "SpatialTangentKernel"]
