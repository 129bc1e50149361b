"""Compare models at initialisation with theory.

The comparison covers kernels, tangent kernels, gradients and Jacobians.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..foundation.guests import door
from ..foundation.moved import former
from .empirical_ntk import empirical_ntk
from .jacobians import Jacobians, layer_jacobians
from .kernels import verify_kernels
from .result import Deviation, KernelCheck
from .spectra import TrainingSpectra, VarianceSpectra, training_spectra, variance_spectra
from .statistics import Power, Statistic
from .tangent_checks import GradientCheck, TangentCheck, TextTable

if TYPE_CHECKING:
    from .scaling import HessianBlocks, hessian_blocks

__all__ = [
    "Deviation",
    "GradientCheck",
    "HessianBlocks",
    "Jacobians",
    "KernelCheck",
    "Power",
    "Statistic",
    "TangentCheck",
    "TextTable",
    "TrainingSpectra",
    "VarianceSpectra",
    "empirical_ntk",
    "hessian_blocks",
    "layer_jacobians",
    "training_spectra",
    "variance_spectra",
    "verify_kernels",
]


def __dir__() -> list[str]:
    return __all__


__getattr__ = former(__name__, door(__name__, {"scaling": "HessianBlocks hessian_blocks"}))
