"""What shapes networks by their laws at finite width."""

from .geometric import GeometricShaping, geometric

__all__ = ["GeometricShaping", "geometric"]
