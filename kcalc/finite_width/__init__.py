"""Shaping methods based on laws at finite width."""

from .geometric_initialisation import GeometricShaping, geometric

__all__ = ["GeometricShaping", "geometric"]
