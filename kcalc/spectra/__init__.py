"""Jacobian spectra: the limiting distribution of the singular values of d output / d input."""

from .measured import Measured
from .result import Atom, Extreme, JacobianSpectrum, jacobian_spectrum

__all__ = ["Atom", "Extreme", "JacobianSpectrum", "Measured", "jacobian_spectrum"]
