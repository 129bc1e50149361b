"""Closed forms of Q, E phi, E phi', C, C' and C'' against quadrature at 30 and more digits, for
many parameters of every factory.
"""

from __future__ import annotations

import sympy as sp

from kcalc.fields import mpmath_field

R = sp.Rational
WIDE = mpmath_field(30)

# --- smooth activations: trapezoid rule over the plane --------------------------------------------


# --- activations homogeneous on both sides of 0: an integral over the angle -----------------------
