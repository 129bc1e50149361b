"""Attention layers, computed independently of kcalc.

The module draws softmax rows and uses quadrature that avoids T-th powers of small values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.linalg import cholesky
from numpy.polynomial.hermite_e import hermegauss

from ... import Network
from ... import layers as L
from ..bench import Array, Bench, statistical
from ..claim import Evidence


def softmax(scores: Array) -> Array:
    """Compute softmax over the last axis."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def rows(
    bench: Bench, draws: int, tokens: int, v1: float, v2: float, covariance: float
) -> tuple[Array, Array]:
    """Draw pairs of softmax rows, each of shape (draws, tokens).

    Their scores have variances ``v1`` and ``v2``. Scores of the same token have the given
    covariance.
    """
    z = bench.normal(2, draws, tokens)
    first = np.sqrt(v1) * z[0]
    return softmax(first), softmax(
        covariance / np.sqrt(v1) * z[0] + np.sqrt(v2 - covariance**2 / v1) * z[1]
    )


def alike(tokens: int, one: float, two: float) -> Array:
    """Return the matrix with ``one`` on its diagonal and ``two`` elsewhere."""
    return np.full((tokens, tokens), two) + (one - two) * np.eye(tokens)


def attention(bench: Bench, draws: int, queries: Array, keys: Array) -> Array:
    """Draw attention matrices, shape (draws, rows, columns).

    Their scores are ``root(G) Z root(H)^T``, where Z is standard normal, and G and H are the
    covariances ``queries`` and ``keys``.
    """
    z = bench.normal(draws, len(queries), len(keys))
    return softmax(cholesky(queries) @ z @ cholesky(keys).T)


def averaged(
    bench: Bench, matrices: Array, one: tuple[float, str], two: tuple[float, str]
) -> Iterator[Evidence]:
    """Compare the mean diagonal and off-diagonal entries of matrices over exchangeable tokens.

    ``one`` is for the diagonal and ``two`` for the other entries. Each is a pair: the expected mean
    and a description of the comparison.
    """
    yield statistical(np.diagonal(matrices, axis1=1, axis2=2).mean(axis=1), *one)
    yield statistical(matrices[:, 0, 1:].mean(axis=1), *two)


def projector(weights: Array) -> Array:
    """Return ``diag a - a a^T``, the derivative of softmax, for every row."""
    return (
        weights[..., None] * np.eye(weights.shape[-1])
        - weights[..., :, None] * weights[..., None, :]
    )


def two_tokens(v1: float, v2: float, covariance: float) -> float:
    """Compute the overlap S at T = 2.

    A softmax row is (s(x), s(-x)), where s is the logistic function and x is Gaussian with variance
    2 v.
    """
    x, weights = hermegauss(80)
    weights = weights / weights.sum()
    a = np.sqrt(2 * v1) * x[:, None]
    b = np.sqrt(2) * (covariance / np.sqrt(v1) * x[:, None] + np.sqrt(v2 - covariance**2 / v1) * x)
    first, second = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(-b))
    return float(weights @ (first * second + (1 - first) * (1 - second)) @ weights)


def direct(tokens: int, v1: float, v2: float, covariance: float, nodes: int = 70) -> float:
    """Compute S directly from the formula, for variances up to 2.

    The integral over (u, w) is a trapezoidal sum, and the scores are averaged over Gauss-Hermite
    nodes.
    """
    step, (x, weights) = 0.25, hermegauss(nodes)
    weights = weights / weights.sum()
    u = np.arange(-np.log(tokens) - 40, 14, step)
    a = np.sqrt(v1) * x
    b = covariance / np.sqrt(v1) * x[:, None] + np.sqrt(v2 - covariance**2 / v1) * x

    def averaged(power: int) -> Array:
        first = np.exp(np.minimum(u[:, None] + a, 30))
        second = np.exp(np.minimum(u[:, None, None] + b, 30))
        return (first**power * np.exp(-first) * weights) @ (
            second**power * np.exp(-second) @ weights
        ).T

    return tokens * step**2 * (averaged(1) * averaged(0) ** (tokens - 1)).sum()


def layer(
    queries: float = 1,
    keys: float = 1,
    values: float = 1,
    skip: float = 0,
    biases: tuple[float, float] = (0, 0),
    **options: Any,
) -> Network:
    """Build a network with one layer of attention.

    ``queries``, ``keys`` and ``values`` are the variances of the corresponding weights. ``skip`` is
    the weight of the skip connection. ``biases`` contains the variances of the query and key
    biases.
    """
    steps: list[Any] = [
        ("x", L.Input(), ()),
        ("queries", L.Affine(sigma_w=queries**0.5, sigma_b=biases[0] ** 0.5), ("x",)),
        ("keys", L.Affine(sigma_w=keys**0.5, sigma_b=biases[1] ** 0.5), ("x",)),
        ("values", L.Affine(sigma_w=values**0.5), ("x",)),
        ("attention", L.Attend(**options), ("queries", "keys", "values")),
        ("output", L.Affine(), ("attention",)),
    ]
    return Network.from_steps(
        [*steps, ("sum", L.Sum((skip, 1)), ("x", "output"))] if skip else steps
    )
