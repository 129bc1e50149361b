"""Nodes of the integrals over thresholds, logits and the Laplace variable."""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv, gammaln, log_ndtr, ndtri

from ..gaussian.expectations.quadrature import panel_nodes

Array = np.ndarray
REACH = 9.0  # a standard Gaussian lies beyond it with probability 2e-19
RARE = 1e-18  # probability of thresholds that are left out, on each side
LOG_ROOT = np.log(2 * np.pi) / 2
PANEL = 12  # nodes per panel
TAIL = 26.0  # exp(-TAIL) is below the error of the integrals


def panels(low: float, high: float, width: float) -> tuple[Array, Array]:
    """Nodes and weights on panels of at most ``width``."""
    edges = np.linspace(low, high, max(int(np.ceil((high - low) / width)), 1) + 1)
    nodes, weights = panel_nodes(edges, PANEL)
    return nodes.ravel(), weights.ravel()


def thresholds(experts: int, selected: int, width: float) -> tuple[Array, Array]:
    """Nodes t for the (k + 1)-th largest of E standard Gaussians, and weights without its density.

    Its quantiles follow from those of a Beta(E - k, k + 1) variable, Phi(t).
    """
    low, high = quantiles(experts, selected, RARE)
    return panels(low, high, width * (high - low))


def quantiles(experts: int, selected: int, rare: float) -> tuple[float, float]:
    """Quantiles of the (k + 1)-th largest of E standard Gaussians: ``rare`` and 1 - ``rare``."""
    low = ndtri(betaincinv(experts - selected, selected + 1, rare))
    high = -ndtri(betaincinv(selected + 1, experts - selected, rare))
    return float(low), float(high)


def log_density(experts: int, selected: int, t: Array) -> Array:
    """Log density of the (k + 1)-th largest of E standard Gaussians."""
    combinations = gammaln(experts + 1) - gammaln(selected + 1) - gammaln(experts - selected)
    below, above = log_ndtr(t), log_ndtr(-t)
    return combinations + (experts - selected - 1) * below + selected * above - t**2 / 2 - LOG_ROOT


def laplace(low: float, high: float, step: float, tail: float = TAIL) -> tuple[Array, Array]:
    """Nodes and weights of the trapezoidal rule in ln x, for integrals over x > 0.

    The functions decay like exp(-x Z), with Z between ``low`` and ``high``.
    """
    logs = np.arange(-tail - np.log(high), np.log(tail + 4) - np.log(low) + step, step)
    return np.exp(logs), step * np.exp(logs)


def laplace_sum(low: float, high: float, step: float) -> tuple[Array, Array]:
    """Nodes and weights with ``sum w exp(-x Z) = 1 / Z`` for Z between ``low`` and ``high``.

    This is the trapezoidal rule in u, for ``x = exp(u - exp(-u)) / high``, whose terms decay fast
    on both sides. The error is ``exp(-pi^2 / step)`` relative to 1 / Z, and oscillates.
    """
    u = np.arange(-3.1, np.log(22 * high / low) + step, step)
    x = np.exp(u - np.exp(-u)) / high
    return x, step * x * (1 + np.exp(-u))


def trapezoid(low: float, high: float, step: float) -> tuple[Array, float]:
    """Equidistant nodes from ``low`` to ``high``, and their distance, at most ``step``."""
    count = int(np.ceil((high - low) / step))
    return np.linspace(low, high, count + 1), (high - low) / count


def density(z: Array, variance: float) -> Array:
    """Density of a Gaussian."""
    return np.exp(-(z**2) / (2 * variance) - LOG_ROOT) / np.sqrt(variance)
