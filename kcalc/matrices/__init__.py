"""Kernel matrices of data: engines that fill them, tables of functions of one angle, and spectra.

The engines use only the norms and angles of the rows of data.
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
