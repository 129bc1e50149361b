"""Attention over tokens of any covariance that needs no sampling.

Its limit of wide heads is a formula.

With G, H, V the covariances of queries, keys and values, M the mask (0 or 1), ``o`` entry by entry,
and scores ``q . k / key_width`` of queries that are the keys (``scale="linear"``), which tend to
their covariance,

    A = softmax(G),  K' = A V A^T,  tangent kernel A Theta_V A^T

and with weights that are the scores ``q . k / sqrt(key_width)`` of independent queries and keys
(``normaliser="identity"``)

    K' = G o M (H o V) M^T

whose tangent kernel is its derivative. [Hron et al. 2020]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...network import primitives as P
from .weights import visible, weights_of

Node = Hashable
Array = np.ndarray
TIED = (
    "scores over key_width of queries that are the keys: for wide heads they are the covariances "
    "of the queries"
)


def is_tied(inputs: Sequence[Any]) -> bool:
    """Whether queries and keys are one feature map."""
    return inputs[0] is inputs[1]


def check_tied(op: P.Attend, node: Node) -> None:
    """Refuse queries that are the keys where their scores have no limit, or one without formula."""
    if op.scale != "linear":
        raise KcalcError(
            f"node {node!r}: its queries are its keys, whose products over sqrt(key_width) grow "
            f"with the width; "
            "use scale='linear', or give queries and keys an Affine layer each"
        )
    if op.wide is False:
        raise KcalcError(
            f"node {node!r}: its queries are its keys, whose products at a finite key_width have "
            f"no rule; use wide=True"
        )
    if op.rotary is not None or op.alibi:
        raise KcalcError(
            f"node {node!r}: its queries are its keys, which has no rule with rotary or ALiBi; "
            f"drop it"
        )


def tied(op: P.Attend, queries: Array, values: Jet, sequences: int) -> Jet:
    """``A V A^T``, a jet; ``queries``: their covariance (chains, places, places)."""
    chains, places = queries.shape[0], queries.shape[-1]
    count = places // sequences
    grid = queries.reshape(chains, sequences, count, sequences, count)
    own = np.stack([grid[:, k, :, k] for k in range(sequences)], axis=1)
    scores = np.where(visible(op, count, count), own, -np.inf)
    weights = (
        weights_of(op, scores, np) - float(op.centre) / count + float(op.identity) * np.eye(count)
    )
    matrix = np.zeros(grid.shape)
    for k in range(sequences):
        matrix[:, k, :, k] = weights[:, k]
    return mixed(matrix.reshape(queries.shape), values)


def linear_in_scores(
    op: P.Attend, queries: Jet, keys: Jet, values: Jet, sequences: int, factor: float
) -> Jet:
    """``factor G o M (H o V) M^T``, a jet."""
    rows, columns = (part.value.shape[-1] // sequences for part in (queries, keys))
    mask = np.kron(np.eye(sequences), visible(op, rows, columns))
    return queries * mixed(mask, keys * values) * factor


def mixed(matrix: Array, covariance: Jet) -> Jet:
    """``M K M^T`` of every coefficient."""
    turned = np.swapaxes(matrix, -1, -2)
    return Jet(tuple(matrix @ part @ turned for part in covariance.coefficients))
