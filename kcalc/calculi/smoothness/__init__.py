"""Curvature and regularity of loss landscapes.

This package covers normalised layers, Lipschitz bounds, smallest eigenvalues and singular values of
residual blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...foundation.guests import door
from .analysis import smoothness
from .losses import LOSSES, Loss
from .normalisers import BatchNormalisation, EntryNormalisation, WeightNormalisation, normaliser
from .parameters import CONTRACTING
from .result import LayerBound, Smoothness
from .singular_values import ResidualSpectrum, residual_spectrum

if TYPE_CHECKING:
    from .activation_suprema import ActivationBounds, activation_bounds

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

__getattr__ = door(__name__, {"activation_suprema": "ActivationBounds activation_bounds"})
