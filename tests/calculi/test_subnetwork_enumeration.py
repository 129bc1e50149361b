"""Subnetworks, slopes, curvature and maxima of random networks against enumeration of all subsets
of layers.
"""

from __future__ import annotations

import kcalc as kc

psi = kc.symbols.psi
