"""Shaping methods based on finite-width theory."""

from .geometric_initialisation import GeometricShaping, geometric

__all__ = ["GeometricShaping", "geometric"]
