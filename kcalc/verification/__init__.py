"""Models at initialisation against the theory of their network: kernels, tangent kernels, gradients, Jacobians."""

from .empirical_ntk import empirical_ntk
from .jacobians import Jacobians, layer_jacobians
from .kernels import verify_kernels
from .result import Deviation, GradientCheck, KernelCheck, Table, TangentCheck
from .statistics import Power, Statistic

__all__ = [
    "Deviation",
    "GradientCheck",
    "Jacobians",
    "KernelCheck",
    "Power",
    "Statistic",
    "Table",
    "TangentCheck",
    "empirical_ntk",
    "layer_jacobians",
    "verify_kernels",
]
