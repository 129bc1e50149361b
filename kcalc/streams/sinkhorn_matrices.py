"""Nearly doubly stochastic matrices for manifold-constrained hyper-connections."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..fields.arguments import number_within
from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import choice, whole

Array = np.ndarray
LARGEST = 700.0  # exp overflows for larger arguments
AXES = {"column": 0, "row": 1}


def sinkhorn(logits: Any, iterations: int = 20, last: str = "row", eps: float = 0.0) -> Array:
    """Divide ``exp(logits)`` by its row sums and column sums in turn.

    If the last division is by column sums, the columns sum to 1, so mixing streams with the matrix
    preserves their mean. If it is by row sums, the rows sum to 1, so equal streams stay equal. Each
    iteration brings the other sums closer to 1 by a factor of lambda_2^2, where lambda_2 is the
    second singular value of the limit. A matrix near the identity is therefore still far from
    doubly stochastic after a few iterations.

    Parameters
    ----------
    logits
        A square matrix of finite entries; use -inf for a zero entry of ``exp(logits)``.
    iterations
        The number of pairs of divisions; 0 returns ``exp(logits)``.
    last
        "row" (each iteration divides by column sums, then by row sums) or "column".
    eps
        The constant added to every sum before the division.

    Returns
    -------
    Array
        A matrix of the same shape.

    Raises
    ------
    KcalcError
        If the matrix is not square, has an entry that is NaN or +inf, or has a row or column with
        only -inf.

    Notes
    -----
    Source: Sinkhorn and Knopp (1967). Xie et al. (2025), "mHC", apply it to residual streams.

    Examples
    --------
    >>> import numpy as np
    >>> import kcalc as kc
    >>> H = kc.sinkhorn(3 * np.eye(2), iterations=1)
    >>> print(H.round(4))
    [[0.9526 0.0474]
     [0.0474 0.9526]]

    """
    matrix = _logits(logits)
    count = whole(iterations, "iterations")
    axis = AXES[choice(last, "last", AXES)]
    eps = number_within(eps, "eps", lambda e: e >= 0, f"eps must be >= 0, got {glimpse(eps)}")
    if count == 0 and matrix.max() > LARGEST:
        raise KcalcError(
            f"exp of the logit {matrix.max():g} overflows; subtract a constant from all logits"
        )
    floor = np.log(eps) if eps > 0 else -np.inf
    for _ in range(count):  # work with logarithms, because exp of a logit may overflow
        for along in (1 - axis, axis):
            sums = np.logaddexp.reduce(matrix, axis=along, keepdims=True)
            matrix = matrix - np.logaddexp(sums, floor)
    return np.exp(matrix)


def _logits(given: Any) -> Array:
    """Check that the logits are a square matrix without nan, +inf, or any row or column of -inf."""
    try:
        matrix = np.asarray(given, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise KcalcError(
            f"logits must be a square matrix of numbers, got {glimpse(given)}"
        ) from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise KcalcError(f"logits must be a square matrix, got an array of shape {matrix.shape}")
    if np.isnan(matrix).any() or (matrix == np.inf).any():
        raise KcalcError("logits must be finite numbers or -inf, got nan or inf")
    for axis, name in ((1, "row"), (0, "column")):
        empty = np.flatnonzero((matrix == -np.inf).all(axis=axis))
        if len(empty):
            raise KcalcError(
                f"{name} {empty[0]} of the logits contains only -inf, so its sum is 0; set "
                "at least one finite logit"
            )
    return matrix
