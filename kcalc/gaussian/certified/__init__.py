"""Certified local kernel quantities: enclosures in Arb balls, to any number of digits.

A proven growth bound |phi(x)| <= A (1+|x|)^p exp(B|x| + G x^2) bounds the integral beyond a radius.
Within the radius, quadrature has a proven error bound.
"""

from __future__ import annotations

from kcalc.gaussian.certified.cross import cross
from kcalc.gaussian.certified.local import hermite_coefficients, moment_ball, taylor_balls

__all__ = ["cross", "hermite_coefficients", "moment_ball", "taylor_balls"]
