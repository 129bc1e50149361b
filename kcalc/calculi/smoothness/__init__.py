"""Curvature and regularity of loss landscapes.

Normalised layers, Lipschitz bounds, smallest eigenvalues, singular values of residual blocks.
"""

from .activation_bounds import ActivationBounds, activation_bounds
from .analysis import smoothness
from .losses import LOSSES
from .normalisers import BatchNormalisation, EntryNormalisation, WeightNormalisation, normaliser
from .parameters import CONTRACTING
from .result import LayerBound, Smoothness
from .singular_values import ResidualSpectrum, residual_spectrum

__all__ = [
    "CONTRACTING",
    "LOSSES",
    "ActivationBounds",
    "BatchNormalisation",
    "EntryNormalisation",
    "LayerBound",
    "Loss",
    "ResidualSpectrum",
    "Smoothness",
    "WeightNormalisation",
    "activation_bounds",
    "normaliser",
    "residual_spectrum",
    "smoothness",
]
