"""Number systems: SymPy, mpmath, NumPy, JAX and Arb balls, with accurate values of 1 - c.

Truncated Taylor series over these systems are included.
"""

from .systems import NUMPY, SYMPY, Field, Number, mpmath_field

__all__ = ["NUMPY", "SYMPY", "Field", "Number", "mpmath_field"]
