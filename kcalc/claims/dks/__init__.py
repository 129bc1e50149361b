"""Claims of the paper on Deep Kernel Shaping."""

# importing these modules registers their claims, in the order of the text
# isort: off
from . import kernels as kernels
from . import widths as widths
from . import maps as maps
from . import derivatives as derivatives
from . import sums as sums
from . import uniform as uniform
from . import deep as deep
from . import bounds as bounds
from . import flatness as flatness
from . import conditions as conditions
from . import slope_polynomials as slope_polynomials
from . import transformations as transformations
from . import layers as layers
from . import networks as networks
from . import tangent_kernels as tangent_kernels
from . import degenerate_kernels as degenerate_kernels
from . import practice as practice
from . import recursions as recursions
from . import fixed_points as fixed_points
from . import attractors as attractors
from . import rates as rates
from . import appendices as appendices
from . import pooling as pooling
from . import kernel_estimates as kernel_estimates
from . import resnets as resnets
# isort: on

from .paper import PAPER as PAPER
