"""Spectra of Jacobians: the law of the singular values of d output / d input at infinite width."""

from .measured import Measured
from .result import Atom, Extreme, JacobianSpectrum, jacobian_spectrum

__all__ = ["Atom", "Extreme", "JacobianSpectrum", "Measured", "jacobian_spectrum"]
