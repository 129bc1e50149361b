"""Gaussian expectations of functions of one or two correlated variables.

The functions are given in any form that :func:`kcalc.activation` accepts.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import sympy as sp
from numpy.typing import ArrayLike

from ..fields import SYMPY
from ..fields.arguments import Array, Number, Numbers, pair_arrays, q_array, q_pair
from . import activation as resolve


@overload
def expectation(f: Any, q: float | np.floating | np.integer = 1) -> float: ...
@overload
def expectation(f: Any, q: sp.Expr) -> sp.Expr | float: ...
@overload
def expectation(f: Any, q: ArrayLike) -> Array: ...
def expectation(f: Any, q: Any = 1) -> float | sp.Expr | Array:
    """Return E f(sqrt(q) z) for a standard normal z.

    Parameters
    ----------
    f
        A name, an activation, a SymPy expression in one real symbol or a callable.
    q
        The variance, > 0: a number, an array or a SymPy expression.

    Returns
    -------
    float | sp.Expr | Array
        The expectation in float64, with the shape of ``q``. For a symbolic q, a SymPy expression,
        or an undefined function M_f(q) if there is no closed form.

    Raises
    ------
    KcalcError
        For q <= 0, functions that are not real on the whole line, and divergent expectations.

    Examples
    --------
    >>> import kcalc as kc
    >>> print(round(kc.expectation("relu"), 6))
    0.398942

    """
    phi = resolve(f)
    if isinstance(q, sp.Basic) and q.free_symbols:
        return phi.mean(q, SYMPY)
    return phi.mean(q_array(q, "q"))


@overload
def pair_expectation(
    f: Any,
    g: Any,
    c: Number,
    q1: Number | None = None,
    q2: Number | None = None,
    *,
    q: Number | None = None,
) -> float: ...
@overload
def pair_expectation(
    f: Any, g: Any, c: Numbers, q1: Numbers = None, q2: Numbers = None, *, q: Numbers = None
) -> Array: ...
def pair_expectation(
    f: Any, g: Any, c: Any, q1: Any = None, q2: Any = None, *, q: Any = None
) -> float | Array:
    """Return E[f(u) g(v)] for centred Gaussians u, v with correlation c.

    The variances are q1 and q2, or ``q`` (default 1) for both.

    Kinks and jumps of f and g are handled exactly, even at c = +-1. Numbers and arrays broadcast.

    Parameters
    ----------
    f
        A name, an activation, a SymPy expression in one real symbol or a callable.
    g
        The second function, in the same forms as ``f``.
    c
        The correlation of u and v, in [-1, 1].
    q1
        The variance of u, > 0.
    q2
        The variance of v, > 0.
    q
        The common variance of u and v, > 0; default 1.

    Returns
    -------
    float | Array
        The expectation in float64, with the broadcast shape of the arguments.

    Raises
    ------
    KcalcError
        For |c| > 1, and for the reasons given in :func:`expectation`.

    """
    first, second = resolve(f), resolve(g)
    cosine, one, two = pair_arrays(c, *q_pair(q1, q2, q))
    return first.cross(second, one, two, cosine)[0]
