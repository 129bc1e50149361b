"""Kernel matrices of data: tables of functions of one angle, matrix engines, and spectra.

The engines fill the matrices.
"""

from .spectrum import (
    Spectrum,
    checked_spectrum,
    float_matrix,
    not_positive_definite,
    ridge_value,
    symmetric_matrix,
)

__all__ = [
    "Spectrum",
    "checked_spectrum",
    "float_matrix",
    "not_positive_definite",
    "ridge_value",
    "symmetric_matrix",
]
