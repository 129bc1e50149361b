"""What shapes networks by their laws at finite width."""

from .geometric_initialisation import GeometricShaping, geometric

__all__ = ["GeometricShaping", "geometric"]
