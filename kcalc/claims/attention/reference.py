"""Attention computed in other ways than kcalc does.

Drawn rows of softmax, and quadrature that needs no T-fold power of small numbers.
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
    """Softmax over the last axis."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def rows(
    bench: Bench, draws: int, tokens: int, v1: float, v2: float, covariance: float
) -> tuple[Array, Array]:
    """Pairs of softmax rows, (draws, tokens) each.

    Their scores have the variances ``v1``, ``v2`` and, at equal tokens, the covariance
    ``covariance``.
    """
    z = bench.normal(2, draws, tokens)
    first = np.sqrt(v1) * z[0]
    return softmax(first), softmax(
        covariance / np.sqrt(v1) * z[0] + np.sqrt(v2 - covariance**2 / v1) * z[1]
    )


def alike(tokens: int, one: float, two: float) -> Array:
    """The matrix with ``one`` on its diagonal and ``two`` elsewhere."""
    return np.full((tokens, tokens), two) + (one - two) * np.eye(tokens)


def attention(bench: Bench, draws: int, queries: Array, keys: Array) -> Array:
    """Matrices of attention, (draws, rows, columns), for scores ``s = G^(1/2) Z H^(T/2)``."""
    z = bench.normal(draws, len(queries), len(keys))
    return softmax(cholesky(queries) @ z @ cholesky(keys).T)


def averaged(
    bench: Bench, matrices: Array, one: tuple[float, str], two: tuple[float, str]
) -> Iterator[Evidence]:
    """Drawn matrices over exchangeable tokens: entries at one token, and at two, in the mean.

    ``one``, ``two``: the expected means and their descriptions.
    """
    yield statistical(np.diagonal(matrices, axis1=1, axis2=2).mean(axis=1), *one)
    yield statistical(matrices[:, 0, 1:].mean(axis=1), *two)


def projector(weights: Array) -> Array:
    """``diag a - a a^T``, the derivative of softmax, of every row."""
    return (
        weights[..., None] * np.eye(weights.shape[-1])
        - weights[..., :, None] * weights[..., None, :]
    )


def two_tokens(v1: float, v2: float, covariance: float) -> float:
    """The overlap S at T = 2.

    A softmax row is (s(x), s(-x)) with the logistic function s and one Gaussian x of variance 2 v.
    """
    x, weights = hermegauss(80)
    weights = weights / weights.sum()
    a = np.sqrt(2 * v1) * x[:, None]
    b = np.sqrt(2) * (covariance / np.sqrt(v1) * x[:, None] + np.sqrt(v2 - covariance**2 / v1) * x)
    first, second = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(-b))
    return float(weights @ (first * second + (1 - first) * (1 - second)) @ weights)


def direct(tokens: int, v1: float, v2: float, covariance: float, nodes: int = 70) -> float:
    """S, directly from the formula.

    a trapezoidal rule over (u, w) and Hermite nodes for the scores; for variances up to 2.
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
    """A network of one layer of attention.

    ``queries``, ``keys``, ``values``: variances of their weights; ``skip``: the weight of the skip;
    ``biases``: variances of the biases of queries and keys.
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
