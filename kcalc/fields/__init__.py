"""Number systems: SymPy, mpmath, NumPy, JAX, Arb balls; 1 - c with its digits.

Truncated Taylor series.
"""

from .systems import NUMPY, SYMPY, Field, Number, mpmath_field

__all__ = ["NUMPY", "SYMPY", "Field", "Number", "mpmath_field"]
