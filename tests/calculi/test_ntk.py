"""Tangent kernels against neural-tangents 0.6.5.

Chains, residual networks, shared trunks, LayerNorm, two parameterisations, unequal norms.

tests/tools/oracles/ntk.py froze the values. They agree to rounding where neural-tangents is right.
Near duplicates it is not: it forms the angle from a rounded cosine. There the truth is mpmath's.
"""

from __future__ import annotations
