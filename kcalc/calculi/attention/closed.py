"""Attention that needs no sampling, for tokens with any covariance.

In the cases below, the limit of wide heads has a formula. G, H and V are the covariances of
queries, keys and values, M is the mask (0 or 1), and ``o`` is the elementwise product.

If the queries are the keys, the scores ``q . k / key_width`` (``scale="linear"``) tend to G, and:

    A = softmax(G),  K' = A V A^T,  tangent kernel A Theta_V A^T

If the weights are the scores ``q . k / sqrt(key_width)`` of independent queries and keys
(``normaliser="identity"``), then:

    K' = G o M (H o V) M^T

The tangent kernel is the derivative of K'. [Hron et al. 2020]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...network import primitives as P
from .weights import mean_over_visible, visible, weights_of

Node = Hashable
Array = np.ndarray
TIED = (
    "queries and keys are the same vectors, with scores divided by key_width: for wide heads the "
    "scores are the covariances of the queries"
)


def is_tied(inputs: Sequence[Any]) -> bool:
    """Whether queries and keys are the same feature map."""
    return inputs[0] is inputs[1]


def check_tied(op: P.Attend, node: Node) -> None:
    """Reject tied queries and keys if the limit of their scores is infinite or has no formula."""
    if op.scale != "linear":
        raise KcalcError(
            f"node {node!r}: queries and keys are the same vectors, so scores divided by "
            "sqrt(key_width) grow with the width; use scale='linear', or use separate Affine "
            "layers for queries and keys"
        )
    if op.wide is False:
        raise KcalcError(
            f"node {node!r}: queries and keys are the same vectors, and their scores have no "
            "rule at a finite key_width; use wide=True"
        )
    if op.rotary is not None or op.biased:
        raise KcalcError(
            f"node {node!r}: queries and keys are the same vectors, which is not supported "
            "together with rotary, ALiBi or relative; remove this option"
        )


def tied(op: P.Attend, queries: Array, values: Jet, sequences: int) -> Jet:
    """Return ``A V A^T`` as a jet, where A contains the attention weights for tied queries.

    ``queries`` is the covariance of the queries, (chains, positions, positions).
    """
    return mixed(_weights(op, queries, sequences), values)


def _weights(op: P.Attend, queries: Array, sequences: int) -> Array:
    """Return the attention weights A over all positions, from the covariance of the queries."""
    chains, places = queries.shape[0], queries.shape[-1]
    count = places // sequences
    grid = queries.reshape(chains, sequences, count, sequences, count)
    own = np.stack([grid[:, k, :, k] for k in range(sequences)], axis=1)
    scores = np.where(visible(op, count, count), own, -np.inf)
    centre = float(op.centre) * mean_over_visible(op, count, count)
    weights = weights_of(op, scores, np) - centre + float(op.identity) * np.eye(count)
    matrix = np.zeros(grid.shape)
    for k in range(sequences):
        matrix[:, k, :, k] = weights[:, k]
    return matrix.reshape(queries.shape)


def linear_in_scores(
    op: P.Attend, queries: Jet, keys: Jet, values: Jet, sequences: int, factor: float
) -> Jet:
    """Return ``factor G o M (H o V) M^T`` as a jet; the module docstring defines the symbols."""
    mask = _mask(op, queries.value, keys.value, sequences)
    return queries * mixed(mask, keys * values) * factor


def closed_form(op: P.Attend, is_tied: bool) -> bool:
    """Whether the limit of wide heads has a formula for tokens with any covariance."""
    return is_tied or (op.normaliser == "identity" and not op.biased and op.rotary is None)


def gradients(
    op: P.Attend, is_tied: bool, read: Sequence[Array], factor: float, behind: Array
) -> tuple[Array, Array, Array]:
    """Return the covariances of the gradients at queries, keys and values, from a formula.

    N is the covariance of the gradients at the output. With ``W = M^T (N o G) M``, the results are
    ``N o M (H o V) M^T``, ``V o W`` and ``H o W``, all multiplied by ``factor``. If the queries are
    the keys, the only gradient is ``A^T N A`` at the values. ``read``: the covariances of the
    attention's inputs for one sequence.
    """
    queries, keys, values = read
    if is_tied:
        (weights,) = _weights(op, queries[None], 1)
        return np.zeros_like(queries), np.zeros_like(keys), weights.T @ behind @ weights
    mask = _mask(op, queries, keys, 1)
    back = factor * mask.T @ (behind * queries) @ mask
    return factor * behind * (mask @ (keys * values) @ mask.T), back * values, back * keys


def _mask(op: P.Attend, queries: Array, keys: Array, sequences: int) -> Array:
    rows, columns = (part.shape[-1] // sequences for part in (queries, keys))
    return np.kron(np.eye(sequences), visible(op, rows, columns))


def mixed(matrix: Array, covariance: Jet) -> Jet:
    """Return ``M K M^T`` for every coefficient of a jet."""
    turned = np.swapaxes(matrix, -1, -2)
    return Jet(tuple(matrix @ part @ turned for part in covariance.coefficients))
