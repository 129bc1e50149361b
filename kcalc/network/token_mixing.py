"""TokenMix matrices for transformers without shortcuts, with known token covariances.

The matrices are arguments of :class:`kcalc.network.layers.TokenMix`. The token covariances are
known at every layer.

A mixing ``A`` turns the token covariance ``Sigma`` (T x T, unit diagonal, per channel) into ``A
Sigma A^T``. All tokens keep q = 1 if the result also has a unit diagonal. With Cholesky factors
``Sigma = L L^T`` and ``Sigma' = L' L'^T``, the matrix ``A = L' L^-1`` maps Sigma to Sigma'. It is
lower-triangular, so token t reads only tokens s <= t (causal). [He et al. 2023, "Deep Transformers
without Shortcuts", sec. 3]

All statements hold at initialisation, for inputs whose tokens have the stated covariance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from ..fields.arguments import as_number
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import items, text, truth, whole

Array = np.ndarray
MOST = 4096
UNIT = 1e-10  # tolerance for a diagonal of ones and for symmetry
LEAST = 1e-8  # eigenvalues below this cost Cholesky factors half of their digits
# divided by the least eigenvalue of the source, this is the rounding error of an entry
NOISE = 8 * np.finfo(float).eps


def value_skip(tokens: int, skip: float = 1.0, mix: float = 0.0, causal: bool = False) -> Array:
    """Return the identity-biased mixing ``skip I + mix U``, with U the attention for zero queries.

    The entries of U are 1/T; with ``causal``, row t of U has entries 1/t for the first t tokens.

    Value-skip initialisation (skip 1 and mix 0) leaves tokens unchanged for any token covariance.
    If mix > 0, a row ``a`` of the matrix preserves q only for token covariances with ``a Sigma a^T
    = 1``; :func:`rescaled` normalises the rows accordingly.

    Domain: 1 to 4096 tokens; finite weights, not both 0.

    Parameters
    ----------
    tokens
        The number of tokens T, 1 to 4096.
    skip
        The weight of the identity, a finite number.
    mix
        The weight of the mean over tokens, a finite number.
    causal
        Whether each token sees only itself and earlier tokens.

    Returns
    -------
    Array
        An array (T, T).

    Raises
    ------
    KcalcError
        If an argument is outside the domain.

    References
    ----------
    [He et al. 2023, sec. 3.1]

    """
    count, a, b = _tokens(tokens), _number(skip, "skip"), _number(mix, "mix")
    read = np.tril(np.ones((count, count))) if truth(causal, "causal") else np.ones((count, count))
    matrix = a * np.eye(count) + b * read / read.sum(axis=1, keepdims=True)
    dead = np.flatnonzero(np.abs(matrix).sum(axis=1) <= 1e-15 * (abs(a) + abs(b)))
    if dead.size:
        raise KcalcError(
            f"skip = {a:g} and mix = {b:g} make row {dead[0]} 0, so its token is always 0; "
            "change one of them"
        )
    return matrix


def preserving(source: Any, target: Any, nonnegative: bool = True) -> Array:
    """Return the lower-triangular ``A = L' L^-1`` with ``A source A^T = target``.

    L and L' are the Cholesky factors: ``source = L L^T`` and ``target = L' L'^T``.

    Attention weights are >= 0, but A has this property only for some pairs, such as growing
    correlations (:func:`uniform`, :func:`exponential`). The relative error of the entries is about
    1e-16 divided by the smallest eigenvalue of ``source``.

    Domain: symmetric (T, T) arrays of numbers with unit diagonal and eigenvalues >= 1e-8.

    Parameters
    ----------
    source
        The covariance of the tokens before mixing, (T, T).
    target
        The covariance after mixing, (T, T).
    nonnegative
        Whether negative entries of A raise an error.

    Returns
    -------
    Array
        An array (T, T).

    Raises
    ------
    KcalcError
        If an argument is outside the domain, or A has negative entries; the message names the worst
        entry.

    References
    ----------
    [He et al. 2023, sec. 3.2]

    """
    truth(nonnegative, "nonnegative")
    first, second = covariance(source, "source", LEAST), covariance(target, "target", LEAST)
    if len(first) != len(second):
        raise KcalcError(
            f"source has {len(first)} tokens, but target has {len(second)}; use the same "
            "number for both"
        )
    lower = np.linalg.cholesky(second)
    from scipy.linalg import solve_triangular

    found = np.tril(solve_triangular(np.linalg.cholesky(first), lower.T, trans=1, lower=True).T)
    if not nonnegative:
        return found
    found = np.where((found < 0) & (found > -NOISE / np.linalg.eigvalsh(first)[0]), 0.0, found)
    worst = np.unravel_index(int(np.argmin(found)), found.shape)
    if found[worst] < 0:
        raise KcalcError(
            f"{int((found < 0).sum())} entries of the matrix are negative (the worst is "
            f"{found[worst]:.3g} at row {worst[0]}, column {worst[1]}), but attention weights "
            "cannot be negative; let correlations grow from source to target, or pass "
            "nonnegative=False"
        )
    return found


def rescaled(matrix: Any, source: Any) -> Array:
    """Divide each row a of a matrix by ``sqrt(a source a^T)``.

    Every token then has q = 1 after mixing tokens with covariance ``source``.

    Parameters
    ----------
    matrix
        The mixing matrix, (T', T).
    source
        The covariance of the tokens, (T, T), positive semidefinite with unit diagonal.

    Returns
    -------
    Array
        An array (T', T).

    Raises
    ------
    KcalcError
        If the shapes do not match, or a row gives a token with q = 0 for this covariance.

    """
    known = covariance(source, "source", 0.0)
    rows = _array(matrix, "matrix")
    if rows.shape[1] != len(known):
        raise KcalcError(f"the matrix reads {rows.shape[1]} tokens, but source has {len(known)}")
    sizes = np.einsum("ts,sr,tr->t", rows, known, rows)
    dead = np.flatnonzero(sizes <= 1e-14 * np.abs(rows).sum(axis=1) ** 2)
    if dead.size:
        raise KcalcError(
            f"row {dead[0]} of the matrix gives a token with q = 0 for this covariance; change the "
            "row"
        )
    return rows / np.sqrt(sizes)[:, None]


def uniform(tokens: int, correlations: Iterable[float], start: float = 0.0) -> list[Array]:
    """Return one mixing matrix per layer, for uniform correlations between tokens.

    All pairs of tokens have the correlation ``start`` before the first layer and rho_l after layer
    l, with ``rho_1 <= rho_2 <= ...``.

    Layer l maps ``(1 - r) I + r 11^T`` with r = rho_(l-1) to the same form with r = rho_l, where
    rho_0 = ``start``. The Cholesky factors have a closed form: ``L_jj^2 = (1 - r)(1 + j r)/(1 + (j
    - 1) r)`` and ``L_ij = r (1 - r)/((1 + (j - 1) r) L_jj)`` for i > j (j starts at 0). Entries are
    >= 0, with an absolute error of about 1e-15 up to r = 1 - 1e-12. Domain: 0 <= start <= rho_1 <=
    rho_2 <= ... <= 1 - 1e-12.

    Parameters
    ----------
    tokens
        The number of tokens, >= 1.
    correlations
        The correlation after each layer, non-decreasing.
    start
        The correlation of the input tokens.

    Returns
    -------
    list[Array]
        One array (T, T) per layer.

    Raises
    ------
    KcalcError
        If an argument is outside the domain.

    References
    ----------
    [He et al. 2023, sec. 3.2: U-SPA]

    """
    count = _tokens(tokens)
    values = [_number(start, "start"), *_numbers(correlations, "correlations")]
    for before, after in zip([0.0, *values], values, strict=False):
        if not before <= after <= 1 - 1e-12:
            raise KcalcError(
                f"correlations must increase from {values[0]:g} and stay within [0, 1 - 1e-12], "
                f"got {after!r} after {before:g}"
            )
    return [_uniform_step(count, a, b) for a, b in pairwise(values)]


def _uniform_step(count: int, before: float, after: float) -> Array:
    if before == after or count == 1:
        return np.eye(count)
    d1, _, g = _uniform_factor(count, before)
    d2, below, _ = _uniform_factor(count, after)
    # taken[i] = sum of below_k g_k over 1 <= k < i
    taken = np.concatenate([[0.0, 0.0], np.cumsum((below * g)[1:])])[: count + 1]
    i, j = np.tril_indices(count, -1)
    out = np.diag(d2 / d1)
    # >= 0 up to rounding
    out[i, j] = np.maximum(below[j] / d1[j] - (taken[i] - taken[j + 1]) - d2[i] * g[i], 0.0)
    return out


def _uniform_factor(count: int, r: float) -> tuple[Array, Array, Array]:
    """Return (L_jj, L_ij for i > j, -(L^-1)_ji for i < j)."""
    j = np.arange(count)
    known = 1 + (j - 1) * r
    known[0] = 1 - r
    diagonal = np.sqrt((1 - r) * (1 + j * r) / known)
    diagonal[0] = 1.0
    below = r * (1 - r) / (known * diagonal)
    return diagonal, below, r / (known * diagonal)


def exponential(tokens: int, rates: Iterable[float], start: float = math.inf) -> list[Array]:
    """Return one mixing matrix per layer, for exponential correlations between tokens.

    Tokens i and j have the correlation ``exp(-r |i - j|)``, where r decreases from layer to layer.

    Layer l maps ``exp(-r_(l-1) |i - j|)`` to ``exp(-r_l |i - j|)``, where r_0 = ``start`` (infinity
    means independent tokens). Let a = exp(-r_(l-1)), b = exp(-r_l) and w = sqrt((1 - b^2)/(1 -
    a^2)). The entries are ``A_00 = 1``, ``A_ii = w``, ``A_ij = w b^(i-j-1) (b - a)`` for i > j > 0
    and ``A_i0 = b^(i-1) (b - a w)``. All entries are >= 0, and accurate to rounding even at the
    smallest rates. Domain: start >= r_1 >= r_2 >= ... > 0.

    Parameters
    ----------
    tokens
        The number of tokens, >= 1.
    rates
        The decay rate after each layer, > 0 and non-increasing.
    start
        The decay rate of the input tokens; infinity means independent tokens.

    Returns
    -------
    list[Array]
        One array (T, T) per layer.

    Raises
    ------
    KcalcError
        If an argument is outside the domain.

    References
    ----------
    [He et al. 2023, sec. 3.2: E-SPA]

    """
    count = _tokens(tokens)
    first = math.inf if isinstance(start, float) and start == math.inf else _number(start, "start")
    values = [first, *_numbers(rates, "rates")]
    for before, after in zip([math.inf, *values], values, strict=False):
        if not 0 < after <= before:
            raise KcalcError(
                f"rates must decrease from {values[0]:g} and stay > 0, got {after!r} after "
                f"{before:g}"
            )
    return [_exponential_step(count, a, b) for a, b in pairwise(values)]


def _exponential_step(count: int, before: float, after: float) -> Array:
    if before == after or count == 1:
        return np.eye(count)
    a, b = math.exp(-before), math.exp(-after)
    difference = -b * math.expm1(after - before) if math.isfinite(before) else b
    share = math.expm1(-2 * after) / math.expm1(-2 * before)  # w^2
    w = math.sqrt(share)
    rest = difference + a * difference * (a + b) / (-math.expm1(-2 * before) * (1 + w))  # b - a w
    powers = np.exp(-after * np.arange(count))
    i, j = np.tril_indices(count, -1)
    out = np.diag(np.full(count, w))
    out[i, j] = w * difference * powers[i - j - 1]
    out[1:, 0] = rest * powers[:-1]
    out[0, 0] = 1.0
    return out


# -- checks ----------------------------------------------------------------------------------------


def covariance(value: Any, what: str, least: float) -> Array:
    """Check a token covariance: (T, T), symmetric, with unit diagonal.

    Its eigenvalues must be >= ``least`` (0 means positive semidefinite).

    Raises: KcalcError for other values.
    """
    array, least = _array(value, text(what, "what")), _number(least, "least")
    if array.shape[0] != array.shape[1]:
        raise KcalcError(f"{what} must be square, (T, T), got shape {array.shape}")
    if np.abs(array - array.T).max() > UNIT:
        i, j = np.unravel_index(int(np.argmax(np.abs(array - array.T))), array.shape)
        raise KcalcError(
            f"{what} must be symmetric, but entry ({i}, {j}) is {array[i, j]:.6g} and ({j}, {i}) "
            f"is {array[j, i]:.6g}"
        )
    off = np.abs(array.diagonal() - 1)
    if off.max() > UNIT:
        t = int(np.argmax(off))
        raise KcalcError(
            f"{what} must have ones on its diagonal (q = 1 for every token), but entry ({t}, {t}) "
            f"is {array[t, t]:.6g}; divide rows and columns by the square roots of the diagonal"
        )
    array = (array + array.T) / 2
    np.fill_diagonal(array, 1.0)
    smallest = float(np.linalg.eigvalsh(array)[0])
    if smallest < (least or -1e-10 * len(array)):
        kind = (
            f"positive definite, with eigenvalues >= {least:g}"
            if least
            else "positive semidefinite"
        )
        raise KcalcError(
            f"{what} must be {kind}, but its smallest eigenvalue is {smallest:.3g}; repeated "
            "tokens make it singular"
        )
    return array


def _array(value: Any, what: str) -> Array:
    try:
        array = np.asarray(value)
        array = array.astype(float) if array.dtype != bool and not np.iscomplexobj(array) else None
    except Exception:  # user objects may raise anything when they are read
        array = None
    if array is None or array.ndim != 2 or 0 in array.shape or not np.isfinite(array).all():
        raise KcalcError(f"{what} must be a two-dimensional array of finite numbers")
    if max(array.shape) > MOST:
        raise KcalcError(f"{what} has {max(array.shape)} tokens; the maximum is {MOST}")
    return array


def _tokens(value: Any) -> int:
    return whole(value, "tokens", 1, MOST)


def _number(value: Any, what: str) -> float:
    number = as_number(value, what)
    if getattr(number, "free_symbols", None):
        raise KcalcError(f"{what} must be a number, got {value}")
    return float(number)


def _numbers(values: Any, what: str) -> list[float]:
    found = [_number(value, f"{what}[{i}]") for i, value in enumerate(items(values, what))]
    if not found:
        raise KcalcError(f"{what} must not be empty")
    return found


__all__ = ["covariance", "exponential", "preserving", "rescaled", "uniform", "value_skip"]


def __dir__() -> list[str]:
    return __all__
