"""Deep Kernel Shaping."""

from . import kernels, widths, maps, derivatives, sums, uniform, deep, bounds, flatness  # isort: skip  # in the order of the text
from . import conditions, slope_polynomials, transformations, layers, networks, tangent_kernels, degenerate_kernels, practice  # isort: skip
from . import recursions, fixed_points, attractors, rates, appendices, pooling, kernel_estimates, resnets  # isort: skip
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
