"""Gains: the weight scale that keeps q values."""

from __future__ import annotations

from typing import Any

import sympy as sp

from .activations import activation as resolve
from .errors import KcalcError
from .fields import NUMPY, SYMPY


def gain(activation: Any, q: Any = 1) -> Any:
    """``sigma_w = sqrt(q / Q(q))``, the weight scale after an activation that keeps the q value ``q``.

    With pre-activations of mean square q, ``Affine(sigma_w=gain)`` after the activation returns to q. Domain: q > 0,
    a number or a SymPy expression. Returns: a float, or a SymPy expression for a symbolic q. [DKS sec. 14]
    Raises: KcalcError for q <= 0 or an activation whose second moment diverges.
    """
    phi = resolve(activation)
    symbolic = isinstance(q, sp.Basic) and bool(q.free_symbols)
    field = SYMPY if symbolic else NUMPY
    value = field.number(q)
    if not symbolic and not value > 0:
        raise KcalcError(f"q is a mean square and must be > 0, got {q}")
    result = field.sqrt(value / phi.second_moment(value, field))
    return sp.simplify(result) if symbolic else float(result)
