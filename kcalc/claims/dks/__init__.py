"""Deep Kernel Shaping."""

# in the order of the text
# isort: off
from . import kernels, widths, maps, derivatives, sums, uniform, deep, bounds, flatness
from . import conditions, slope_polynomials, transformations, layers, networks, tangent_kernels
from . import degenerate_kernels, practice, recursions, fixed_points, attractors, rates
from . import appendices, pooling, kernel_estimates, resnets
# isort: on

from .paper import PAPER

__all__ = [
    "PAPER",
    "appendices",
    "attractors",
    "bounds",
    "conditions",
    "deep",
    "degenerate_kernels",
    "derivatives",
    "fixed_points",
    "flatness",
    "kernel_estimates",
    "kernels",
    "layers",
    "maps",
    "networks",
    "pooling",
    "practice",
    "rates",
    "recursions",
    "resnets",
    "slope_polynomials",
    "sums",
    "tangent_kernels",
    "transformations",
    "uniform",
    "widths",
]
