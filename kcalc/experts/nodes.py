"""Quadrature nodes for thresholds, logits and the Laplace variable."""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv, gammaln, log_ndtr, ndtri

from ..gaussian.expectations.quadrature import panel_nodes

Array = np.ndarray
REACH = 9.0  # a standard Gaussian exceeds this magnitude with probability 2e-19
RARE = 1e-18  # probability of the omitted thresholds, on each side
LOG_ROOT = np.log(2 * np.pi) / 2
PANEL = 12  # nodes per panel
TAIL = 26.0  # exp(-TAIL) is below the error of the integrals


def panels(low: float, high: float, width: float) -> tuple[Array, Array]:
    """Return Gauss nodes and weights on panels no wider than ``width``."""
    edges = np.linspace(low, high, max(int(np.ceil((high - low) / width)), 1) + 1)
    nodes, weights = panel_nodes(edges, PANEL)
    return nodes.ravel(), weights.ravel()


def thresholds(experts: int, selected: int, width: float) -> tuple[Array, Array]:
    """Return nodes t for the (k + 1)-th largest of E standard Gaussians, and their weights.

    The weights do not include the density. Phi(t) is a Beta(E - k, k + 1) variable, and its
    quantiles determine the range.
    """
    low, high = quantiles(experts, selected, RARE)
    return panels(low, high, width * (high - low))


def quantiles(experts: int, selected: int, rare: float) -> tuple[float, float]:
    """Return the ``rare`` and 1 - ``rare`` quantiles of the (k + 1)-th largest of E Gaussians."""
    low = ndtri(betaincinv(experts - selected, selected + 1, rare))
    high = -ndtri(betaincinv(selected + 1, experts - selected, rare))
    return float(low), float(high)


def log_density(experts: int, selected: int, t: Array) -> Array:
    """Return the log density of the (k + 1)-th largest of E standard Gaussians."""
    combinations = gammaln(experts + 1) - gammaln(selected + 1) - gammaln(experts - selected)
    below, above = log_ndtr(t), log_ndtr(-t)
    return combinations + (experts - selected - 1) * below + selected * above - t**2 / 2 - LOG_ROOT


def laplace(low: float, high: float, step: float, tail: float = TAIL) -> tuple[Array, Array]:
    """Return nodes and weights of the trapezoidal rule in ln x, for integrals over x > 0.

    The integrands decay like exp(-x Z), with Z between ``low`` and ``high``.
    """
    logs = np.arange(-tail - np.log(high), np.log(tail + 4) - np.log(low) + step, step)
    return np.exp(logs), step * np.exp(logs)


def laplace_sum(low: float, high: float, step: float) -> tuple[Array, Array]:
    """Return nodes and weights with ``sum w exp(-x Z) = 1 / Z`` for Z in [``low``, ``high``].

    The rule is the trapezoidal rule in u for ``x = exp(u - exp(-u)) / high``. Its terms decay fast
    on both sides, and its relative error ``exp(-pi^2 / step)`` oscillates.
    """
    u = np.arange(-3.1, np.log(22 * high / low) + step, step)
    x = np.exp(u - np.exp(-u)) / high
    return x, step * x * (1 + np.exp(-u))


def trapezoid(low: float, high: float, step: float) -> tuple[Array, float]:
    """Return equidistant nodes from ``low`` to ``high`` and their spacing, at most ``step``."""
    count = int(np.ceil((high - low) / step))
    return np.linspace(low, high, count + 1), (high - low) / count


def density(z: Array, variance: float) -> Array:
    """Return the density at ``z`` of a Gaussian with mean 0."""
    return np.exp(-(z**2) / (2 * variance) - LOG_ROOT) / np.sqrt(variance)
