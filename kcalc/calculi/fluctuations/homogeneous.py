"""Chains of positively homogeneous activations: exact fluctuations at any width.

The ratio of the squared norms of a layer and its predecessor is independent of the other ratios. If
z has n independent normal channels, and phi has the slopes a (z < 0) and b (z > 0), then sum
phi(z_i)^2 = b^2 A + a^2 B. Here A + B is chi-squared with n degrees of freedom, and it is
independent of X = A/(A + B), which is a mixture of Beta(k/2, (n-k)/2) over k ~ Bin(n, 1/2). With
orthogonal weights A + B is constant. [Per-layer gradient, Lemma 2]
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ...activations import Activation
from ...gaussian.expectations.quadrature import gauss_hermite
from ...network import primitives as P
from ...network.network import Network
from ..moments.reading import slopes

POINTS = 48


def is_chain(network: Network) -> bool:
    """Whether a network is a single chain of rectifiers and dense layers without random biases.

    The network has only layers that fluctuations have a rule for. Rectifiers, phi(x) = a x for
    x < 0 and b x for x > 0, must come directly after weights.
    """
    steps = network.operations
    for i, (_, op, reads) in enumerate(steps):
        if len(reads) > 1 or (i and reads != (steps[i - 1].node,)):
            return False
        if isinstance(op, P.Fresh) and op.sigma_b != 0:
            return False
        if isinstance(op, P.Post) and (
            slopes(op.activation) is None or not isinstance(steps[i - 1].primitive, P.Fresh)
        ):
            return False
    return True


@lru_cache(maxsize=1024)
def ratio(phi: Activation | None, n: int, orthogonal: bool) -> tuple[float, float]:
    """Return (log of E r^2 / (E r)^2, Var log r) of r = sum_i phi(z_i)^2 over n channels.

    E r^2 / (E r)^2 = 1 + (E phi^4/(E phi^2)^2 - 1)/n, divided by 1 + 2/n for orthogonal weights. If
    r may be 0 (relu: with probability 2^-n), Var log r is conditional on r > 0.
    """
    from scipy.special import polygamma

    found = (1, 1) if phi is None else slopes(phi)
    assert found is not None
    a, b = (float(value) for value in found)
    excess = 3 * (a**4 + b**4) / 2 / ((a * a + b * b) / 2) ** 2 - 1
    second = math.log1p(excess / n) - (math.log1p(2 / n) if orthogonal else 0.0)
    spread = 0.0 if abs(a) == abs(b) else _log_variance(a * a, b * b, n)
    return max(second, 0.0), spread + (0.0 if orthogonal else float(polygamma(1, n / 2)))


def _log_variance(low: float, high: float, n: int) -> float:
    """Var log(low + (high - low) X), given that the argument of the logarithm is not 0.

    X ~ Beta(k/2, (n-k)/2), k ~ Bin(n, 1/2).
    """
    from scipy.special import gammaln

    centre, reach = n / 2, 10 * math.sqrt(n) / 2 + 10
    k = np.arange(max(0, math.floor(centre - reach)), min(n, math.ceil(centre + reach)) + 1)
    weight = np.exp(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) - n * math.log(2))
    first, second = np.empty(k.size), np.empty(k.size)
    for i, count in enumerate(k):
        first[i], second[i] = _log_moments(low, high, int(count), n)
    kept = np.isfinite(first)
    weight = weight[kept] / weight[kept].sum()
    mean = float(weight @ first[kept])
    return float(weight @ (second[kept] - 2 * mean * first[kept] + mean**2))


def _log_moments(low: float, high: float, k: int, n: int) -> tuple[float, float]:
    """Return (E log v, E log^2 v) of v = low + (high - low) X for one k; -inf if v is 0."""
    from scipy.special import polygamma, psi, roots_jacobi

    if k in (0, n):
        v = low if k == 0 else high
        return (math.log(v), math.log(v) ** 2) if v > 0 else (-math.inf, math.inf)
    if low == 0 or high == 0:
        part = k if low == 0 else n - k
        mean = math.log(max(low, high)) + float(psi(part / 2) - psi(n / 2))
        return mean, mean**2 + float(polygamma(1, part / 2) - polygamma(1, n / 2))
    if n > 300:  # X has a small variance: accurate to about 1e-4, and better for wider layers
        return _narrow(low, high, k, n)
    nodes, weights = roots_jacobi(POINTS, (n - k) / 2 - 1, k / 2 - 1)
    weights = weights / weights.sum()
    logs = np.log(low + (high - low) * (1 + nodes) / 2)
    return float(weights @ logs), float(weights @ logs**2)


def _narrow(low: float, high: float, k: int, n: int) -> tuple[float, float]:
    """Return :func:`_log_moments` from a normal approximation of X with Cornish-Fisher terms."""
    z, weights = gauss_hermite(24)
    share = k / n
    spread = math.sqrt(share * (1 - share) / (n / 2 + 1))
    skew = (
        2 * (1 - 2 * share) * math.sqrt(n / 2 + 1) / ((n / 2 + 2) * math.sqrt(share * (1 - share)))
    )
    x = np.clip(share + spread * (z + skew * (z * z - 1) / 6), 0.0, 1.0)
    logs = np.log(low + (high - low) * x)
    return float(weights @ logs), float(weights @ logs**2)


def chain_fluctuations(network: Network, orthogonal: bool) -> dict[Any, tuple[float, float]]:
    """Return {node: (log of E q^2 / (E q)^2, Var log q)} of a chain."""
    found: dict[Any, tuple[float, float]] = {}
    settled = (0.0, 0.0)
    width = 0
    for node, op, reads in network.operations:
        if isinstance(op, P.Source):
            found[node] = settled
        elif isinstance(op, P.Fresh | P.Post):
            phi = op.activation if isinstance(op, P.Post) else None
            if isinstance(op, P.Fresh):
                settled, width = found[reads[0]], int(op.features)
            own = ratio(phi, width, orthogonal)
            found[node] = (settled[0] + own[0], settled[1] + own[1])
        else:
            found[node] = found[reads[0]]
    return found
