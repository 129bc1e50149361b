"""The tangent kernel before and after shaping.

It is shown as a function of c, with its eigenvalues on a sphere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import Network, ntk
from ... import layers as L
from ...calculi import predicted_limit
from ...foundation.errors import KcalcError

SPHERE = 10  # dimension of the input space
DEGREES = 9
POINTS = 29
NODES = 28


@dataclass(frozen=True)
class Kernel:
    """The NTK as a function of c, its eigenvalues by degree, and its infinite-depth limit.

    The eigenvalues are for the sphere in ``SPHERE`` dimensions.
    """

    c: list[float]
    ntk: list[float]
    eigenvalues: list[float]
    shares: list[float]
    limit: str


def kernel(network: Network, **tokens: Any) -> Kernel:
    """Return the kernel of a network.

    With ``tokens``, there are no eigenvalues, because they are defined for inputs that are single
    vectors.

    Raises: KcalcError if the network has no kernel or several outputs.
    """
    from scipy.special import comb, roots_gegenbauer

    if len(network.outputs) != 1:
        raise KcalcError(
            f"the network has {len(network.outputs)} outputs; use kc.ntk to compute one kernel per "
            "output"
        )
    if not network.nodes_of(L.Affine):
        raise KcalcError(
            "the network has no Affine layer, so it has no weights and no tangent kernel"
        )
    found = ntk(network, **tokens)
    over = tokens.get("tokens")
    grid = np.cos(np.linspace(math.pi, 0, POINTS))
    nodes, weights = roots_gegenbauer(NODES, (SPHERE - 2) / 2)
    values = np.asarray(found(np.concatenate([grid, nodes]) if over is None else grid))
    if not np.isfinite(values).all():
        raise KcalcError("the values of the tangent kernel overflow")
    if over is not None:
        return Kernel(grid.tolist(), values[:POINTS].tolist(), [], [], "")
    eigenvalues = _eigenvalues(nodes, weights, values[POINTS:])
    kept = np.where(eigenvalues > 1e-13 * np.abs(eigenvalues).max(), eigenvalues, 0.0)
    limit = predicted_limit(network, 1.0)[0] if len(network.inputs) == 1 else None
    words = (
        ""
        if limit is None
        else "the kernel matrix of different inputs tends to the degenerate matrix "
        f"{limit.formula}, with E the matrix of ones and D the depth"
    )
    k = np.arange(DEGREES)
    counts = comb(k + SPHERE - 1, k) - comb(k + SPHERE - 3, k - 2)  # harmonics of degree k
    shares = kept * counts / max(values[POINTS - 1], 1e-300)
    curve = values[:POINTS].tolist()
    return Kernel(grid.tolist(), curve, kept.tolist(), shares.tolist(), words)


def _eigenvalues(nodes: Any, weights: Any, values: Any) -> Any:
    """Return the eigenvalues lambda_k of a kernel on the sphere, by degree k (Funk-Hecke).

    lambda_k is the mean of K(<x, e>) P_k(<x, e>) over the sphere, and P_k is the Gegenbauer
    polynomial with P_k(1) = 1.
    """
    from scipy.special import eval_gegenbauer

    k, index = np.arange(DEGREES)[:, None], (SPHERE - 2) / 2
    rows = eval_gegenbauer(k, index, nodes) / eval_gegenbauer(k, index, 1.0)
    return rows @ (weights / weights.sum() * values)


def meaning(before: Kernel | None, after: Kernel | None) -> str:
    """Describe the effect of the kernels on training in one or two sentences."""
    words = []
    for name, found in (("Before shaping", before), ("After shaping", after)):
        if found is None:
            continue
        constant = found.shares[0] if found.shares else 0.0
        ratio = found.ntk[POINTS // 2] / found.ntk[-1] if found.ntk[-1] else 0.0
        ratio = ratio if abs(ratio) > 1e-9 else 0.0
        if not found.shares:
            words.append(
                f"{name}, the kernel between inputs with c = 0 is {100 * max(ratio, 0.0):.3g}% of "
                "the kernel at equal inputs"
            )
        elif constant > 0.9:
            words.append(
                f"{name}, {100 * constant:.3g}% of the kernel's trace belongs to the constant "
                "function: gradient descent fits the mean of the targets and almost nothing else"
            )
        elif ratio < 1e-3 and sum(found.shares) < 0.5:
            words.append(
                f"{name}, the kernel is nearly diagonal: training fits each example separately "
                "and generalises little"
            )
        else:
            words.append(
                f"{name}, the kernel between orthogonal inputs is {100 * max(ratio, 0.0):.3g}% of "
                f"the kernel at equal inputs, and {100 * constant:.3g}% of its trace belongs to "
                "the constant function, so differences between inputs can be learnt"
            )
    return ". ".join(words) + "." if words else ""
