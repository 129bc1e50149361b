"""Local kernel quantities of an activation at q = 1 with 30 digits.

The quantities are computed from closed forms and ball arithmetic, independently of the solver.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mpmath

from ..activations import Activation
from ..fields import NUMPY, Field, mpmath_field
from ..foundation.errors import KcalcError

DIGITS = 30


@lru_cache(maxsize=256)
def local_values(phi: Activation) -> dict[str, Any]:
    """Return Q(1), Q'(1), C(0), C'(1), C''(1) and the mean of phi at q = 1, as mpmath numbers.

    If phi jumps, C'(1) is infinite; if phi' jumps, C''(1) is infinite. Values of callables, and of
    functions without certified bounds, have only double precision.
    """
    if not phi.numeric_only:
        try:
            found = _values(phi, mpmath_field(DIGITS))
            return {name: mpmath.mp.make_mpf(value._mpf_) for name, value in found.items()}
        except KcalcError:  # no certified enclosure available
            pass
    return {name: mpmath.mpf(float(value)) for name, value in _values(phi, NUMPY).items()}


def _values(phi: Activation, field: Field) -> dict[str, Any]:
    finite = 0 if any(phi.jump_sizes(0)) else 1 if any(phi.jump_sizes(1)) else 2
    found = phi.taylor(0, 1, None, finite, field)[1:]
    slope, bend = (*found, *[mpmath.inf] * (2 - finite))
    mean, square = phi.mean(1, field), phi.second_moment(1, field)
    return {
        "E phi": mean,
        "Q(1)": square,
        "Q'(1)": phi.q_slope(1, field),
        "C(0)": mean * mean / square,
        "C'(1)": slope,
        "C''(1)": 2 * bend,
    }
