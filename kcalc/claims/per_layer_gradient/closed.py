"""Closed forms and recursions for the moments, independent of the library."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np


def relu_step(
    state: tuple[float, float, float], n: int, c: float, excess: float
) -> tuple[float, float, float]:
    """Propagate (E|y|^2, E|y|^4, E sum y_i^4) through relu(W^T y)."""
    m, A, B = state
    kap = excess * c * c
    return (
        n * c / 2 * m,
        c * c / 4 * n * (n + 5) * A + n / 2 * kap * B,
        n / 2 * (3 * c * c * A + kap * B),
    )


def linear_step(
    state: tuple[float, float, float], n: int, c: float, excess: float
) -> tuple[float, float, float]:
    """Propagate (E|y|^2, E|y|^4, E sum y_i^4) through W^T y."""
    m, A, B = state
    kap = excess * c * c
    return n * c * m, c * c * n * (n + 2) * A + n * kap * B, n * (3 * c * c * A + kap * B)


def forward(
    widths: Sequence[int], excess: float, alpha: float = 1.0, linear: bool = False
) -> list[tuple[float, float, float]]:
    """Compute the states of a vanilla network layer by layer, for a flat input of norm 1."""
    states = [(1.0, 1.0, 1 / widths[0])]
    for before, n in pairwise(widths):
        states.append(
            linear_step(states[-1], n, alpha / before, excess)
            if linear
            else relu_step(states[-1], n, 2 * alpha / before, excess)
        )
    return states


def jacobian_fourth(
    widths: Sequence[int], k: int, excess: float, alpha: float = 1.0, linear: bool = False
) -> float:
    """Compute E|J^k|^4 of a vanilla network.

    J^k is the derivative of the output with respect to the weights of layer k. T, S and D are three
    fourth moments of the Jacobian from layer k to a later layer. They satisfy a linear recursion.
    """
    n = widths[k]
    T, S, D = (n * n, n, n) if linear else (n * (n + 1) / 4, n / 2, n / 2)
    for before, n in zip(widths[k:-1], widths[k + 1 :], strict=True):
        c = (1 if linear else 2) * alpha / before
        d = c * c * (T + 2 * S) + excess * c * c * D
        if linear:
            T, S, D = n * d + n * (n - 1) * c * c * T, n * d + n * (n - 1) * c * c * S, n * d
        else:
            T = n / 2 * d + n * (n - 1) / 4 * c * c * T
            S = n / 2 * d + n * (n - 1) / 4 * c * c * S
            D = n / 2 * d
    return forward(widths, excess, alpha, linear)[k - 1][1] * T


def beta(s: float, a: float, m: int, n: int) -> float:
    """Return the factor by which a residual block multiplies fourth moments.

    There are two modes of fourth moments, with s = 1 and s = -1/2.
    """
    return 1 + 2 * a * (1 + 2 * s / n) + a * a * (1 + (1 + 4 * s) / n) ** (m - 1) * (1 + 2 * s / n)


def resnet_fourth(L: int, m: int, n: int, alpha: float, k: int, j: int) -> float:
    """Compute E|J^{k,j}|^4 of a ResNet with Gaussian weights."""
    a = alpha**m
    plus, minus = beta(1, a, m, n), beta(-0.5, a, m, n)
    if j < m:
        rho = a * a * (1 + 5 / n) ** (m - 1) * (1 + 2 / n)
        ratio = ((n - 1) / (n + 5)) ** (m - j) * (n - 1) / (n + 2) * (minus / plus) ** (L - k)
        return rho * plus ** (L - 1) / (2 * alpha / n) ** 2 / 3 * (1 + 2 * ratio)
    tail = (n * n + 2 * n) / 3 * plus ** (L - k) + 2 / 3 * (n * n - n) * minus ** (L - k)
    return plus ** (k - 1) * (alpha**2 * (1 + 5 / n)) ** (m - 1) * tail


def dense_levels(L: int, n: int, alpha: float, k: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Compute (mu_l, C_{l,l'}) of the DenseNet by the recursions (96), (98) and (102).

    With ``k`` > 0, compute them for the reduced network.
    """
    mu, C = np.zeros(L + 1), np.zeros((L + 1, L + 1))
    mu[0] = C[0, 0] = 1
    for i in range(1, L + 1):
        read = list(range(k, i)) if i > k > 0 else list(range(i))
        mu[i] = alpha / i * mu[read].sum()
        C[i, :i] = C[:i, i] = alpha / i * C[read][:, :i].sum(axis=0)
        C[i, i] = (alpha / i) ** 2 * (1 + 5 / n) * C[np.ix_(read, read)].sum()
    return mu, C


def dense_factors(L: int, n: int, alpha: float, skip: int = 0) -> tuple[float, float]:
    """Return the products of a DenseNet's factors (of the mean, of the fourth moment) over layers.

    The layer l = ``skip`` is left out.
    """
    levels = [i for i in range(1, L + 1) if i != skip]
    g = [1 + (alpha - 1) / i for i in levels]
    f = [
        (1 + (alpha - 1) / i) ** 2 * (1 + 5 * alpha**2 / (n * (i + alpha - 1) ** 2)) for i in levels
    ]
    return prod(g), prod(f)
