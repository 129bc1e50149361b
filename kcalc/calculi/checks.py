"""Checks of states on their way through a network."""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp
from sympy.core.function import AppliedUndef

from ..arguments import TINY
from ..errors import KcalcError
from ..fields import NUMPY, SYMPY
from ..fields.jax_field import is_jax
from ..fields.jets import Jet

Number = Any
Node = Hashable

CANCELLED = 1e-8
"""Of what is added or subtracted: below it, less than half the digits of a double are left."""

EQUAL = 1e-14
"""Of q: what is left of a variance of 0."""


def check_q(field: Any, q: Number, node: Node) -> None:
    """Refuse a q value that is not positive and finite, or too small for a double of full precision, naming the node."""
    value = q.value if isinstance(q, Jet) else q
    if is_jax(value):  # perhaps traced: a bad value shows as nan
        return
    if field is SYMPY:
        if value == 0 or (isinstance(value, sp.Number) and value <= 0):  # no deeper question: SymPy may take forever to answer
            raise KcalcError(f"node {node!r} has q = {value}, so its feature map is 0 and no c value exists")
        return
    plain_values = np.asarray(value, dtype=float)
    good = np.isfinite(plain_values) & (plain_values >= TINY)
    if not good.all():
        bad = plain_values[~good].ravel()[0]
        raise KcalcError(
            f"node {node!r} has q = {bad}: q values must stay positive and finite; they explode or vanish before this node "
            "(kc.gain(activation) gives the sigma_w that keeps q), or its addends cancel"
        )


def check_variance(field: Any, var: Number, q: Number, node: Node) -> None:
    """Refuse to normalise what has no variance over channels, or one whose digits are gone, naming the node."""
    value, scale = (v.value if isinstance(v, Jet) else v for v in (var, q))
    if is_jax(value):
        return
    if field is NUMPY and np.any(np.asarray((value <= CANCELLED * scale) & (value > EQUAL * scale))):
        raise KcalcError(
            f"node {node!r} normalises a feature map whose variance over channels is less than {CANCELLED:g} of its q, which leaves "
            "too few digits of it; take larger inputs or weights, or ask the map's ball(...) for certified digits"
        )
    bad = value == 0 if field is SYMPY else np.any(np.asarray(value <= EQUAL * scale)) if field is NUMPY else not value > 0
    if bad:
        raise KcalcError(f"node {node!r} normalises a feature map whose channels are all equal, so its variance is 0")


def plain(value: Number) -> bool:
    """True for one definite number: no array of several, no jet, no symbols."""
    if isinstance(value, sp.Basic):
        return bool(value.is_number) and not value.atoms(AppliedUndef)
    return not isinstance(value, Jet) and np.ndim(value) == 0


def is_one(value: Number) -> bool:
    """True for a plain number that is exactly 1."""
    return isinstance(value, int | float | Fraction | sp.Basic) and value == 1
