"""Kernel matrices of data: engines that compute them, tables of functions of an angle, and spectra.

The engines use only the norms and angles of the data rows.
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
