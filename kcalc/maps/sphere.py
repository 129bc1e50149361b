"""Eigenvalues of kernels on a sphere that depend only on the angle between two points.

Let ``K(t)`` be a kernel that depends only on the cosine t between two points on the sphere S^(d-1),
with uniform probability. Its eigenfunctions are spherical harmonics. Let P_k be the Gegenbauer
polynomials with ``P_k(1) = 1``. Then

    K = sum_k lambda_k N(d, k) P_k,    lambda_k = E K(t) P_k(t),    sum_k N(d, k) lambda_k = K(1).

Here N(d, k) is the number of harmonics of degree k, and t is the cosine between a random point and
a fixed point, with density ``(1 - t^2)^((d-3)/2)``. The kernel is fitted by panels on a logarithmic
scale of the distance from t = 1 and t = -1 (:mod:`kcalc.fields.panels`). Singularities there, such
as ``(1 - t)^(3/2)`` for ReLU, and the many scales of chaotic networks therefore cause no loss of
accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..fields.chebyshev import gauss_legendre
from ..fields.gaps import Gap
from ..fields.panels import Fitted, fit
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import whole
from ..foundation.printing import Shown, marked, plain

Array = np.ndarray
UNRESOLVED = 1e-3  # shares with a larger error are nan
TOLERANCE = 1e-14  # tolerance of the fit, relative to K(1)
NODES = 40  # quadrature nodes per part of a panel
ROUNDING = 4e-15
MOST_NODES = 20_000
LARGEST_DIMENSION = 10_000_000


@dataclass(frozen=True, eq=False, repr=False)
class SphereEigenvalues(Shown):
    """The eigenvalues of a kernel on the sphere S^(d-1) with uniform probability.

    Attributes
    ----------
    kernel
        The name of the kernel.
    dimension
        d, the dimension of the space that contains the sphere.
    eigenvalues
        lambda_k for the degrees k = 0, 1, ...; the kernel is ``sum_k lambda_k N_k P_k(c)``.
    multiplicities
        N_k, the number of spherical harmonics of degree k, as exact integers.
    errors
        Bounds on the numerical errors of the eigenvalues, estimated with a finer rule.
    total
        The kernel at equal inputs, which is the sum of ``N_k lambda_k`` over all degrees.

    """

    kernel: str
    dimension: int
    eigenvalues: Array
    multiplicities: tuple[int, ...]
    errors: Array
    total: float
    assumptions: tuple[Any, ...] = field(default=())
    listed = ("rest",)

    @property
    def heuristic(self) -> bool:
        """True if the kernel used a rule whose hypothesis fails or only partly holds."""
        return any(a.kind == "heuristic" for a in self.assumptions)

    @property
    def shares(self) -> Array:
        """``N_k lambda_k / K(1)``, the share of each degree in the kernel at equal inputs.

        A share is nan if the numerical error of the eigenvalue exceeds a thousandth of the kernel.
        """
        return np.array(self._traces) / self.total

    @property
    def _traces(self) -> list[float]:
        found = []
        for count, value, error in zip(
            self.multiplicities, self.eigenvalues, self.errors, strict=True
        ):
            known = _times(count, float(error)) <= UNRESOLVED * abs(self.total)
            found.append(_times(count, float(value)) if known else math.nan)
        return found

    @property
    def rest(self) -> float:
        """``K(1)`` minus the sum of the known ``N_k lambda_k``: the share of all other degrees."""
        return self.total - math.fsum(trace for trace in self._traces if not math.isnan(trace))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        names = ("kernel", "dimension", "eigenvalues", "multiplicities", "errors", "total", "rest")
        found = {name: plain(getattr(self, name)) for name in names}
        return found | {"assumptions": plain(self.assumptions)}

    def _frame(self) -> dict[str, Any]:
        return {
            "degree": np.arange(len(self.eigenvalues)),
            "multiplicity": np.array(self.multiplicities, dtype=object),
            "eigenvalue": self.eigenvalues,
            "share": self.shares,
            "error": self.errors,
        }

    def _rows(self) -> list[tuple[str, ...]]:
        columns = (self.multiplicities, self.eigenvalues, self.shares, self.errors)
        rows = [
            (str(k), _counted(n), f"{value:.8g}", f"{share:.4g}", f"{error:.1g}")
            for k, (n, value, share, error) in enumerate(zip(*columns, strict=True))
        ]
        rest = ("higher", "", "", f"{self.rest / self.total:.4g}", "")
        return [("degree", "multiplicity", "eigenvalue", "share", "error"), *rows, rest]

    def __repr__(self) -> str:
        text = f"{self.kernel} on S^{self.dimension - 1}, degrees 0 to {len(self.eigenvalues) - 1}"
        return f"SphereEigenvalues({marked(text, self)})"


def sphere_eigenvalues(
    kernel: Callable[[Gap], Array],
    name: str,
    dimension: Any,
    max_degree: Any,
    assumptions: tuple[Any, ...],
) -> SphereEigenvalues:
    """Return the eigenvalues of a kernel given as a function of the gap 1 - c.

    Raises KcalcError for an invalid dimension or degree, and for kernels that are 0 or not finite.
    """
    d = whole(dimension, "dimension, the d in S^(d-1),", 2)
    degree = whole(max_degree, "max_degree", 0)
    if d > LARGEST_DIMENSION:
        raise KcalcError(f"dimension must be at most {LARGEST_DIMENSION}, got {d}")
    if degree + d**0.5 > MOST_NODES:
        raise KcalcError(
            f"max_degree must be at most {int(MOST_NODES - d**0.5)} in dimension {d}, got {degree}"
        )
    fitted = fit(lambda gap: np.asarray(kernel(gap), float)[None], TOLERANCE, np.abs)
    total = float(fitted.lower.end[0])
    if total == 0:
        raise KcalcError(f"the kernel {name} is 0 at equal inputs, so it has no eigenvalues")
    (rough, _), (values, errors) = (_projected(fitted, d, degree, finer) for finer in (1.5, 2.5))
    errors = np.abs(values - rough) + errors
    counts = tuple(multiplicity(d, k) for k in range(degree + 1))
    return SphereEigenvalues(name, d, values, counts, errors, total, assumptions)


def multiplicity(dimension: int, degree: int) -> int:
    """Return N(d, k), the number of spherical harmonics of degree k on S^(d-1)."""
    d, k = dimension, degree
    if k == 0:
        return 1
    if d == 2:
        return 2
    return (2 * k + d - 2) * math.comb(k + d - 3, k - 1) // k


def _projected(fitted: Fitted, d: int, degree: int, finer: float) -> tuple[Array, Array]:
    """Return (E K P_k, bound on its rounding and fit error) for all degrees up to ``degree``."""
    sides = [_side_nodes(fitted, upper, d, degree, finer) for upper in (False, True)]
    t, values, missed, weights = (np.concatenate(rows) for rows in zip(*sides, strict=True))
    weights = weights / weights.sum()
    missed = missed + ROUNDING * np.abs(values)
    found, errors = [], []
    older, old = np.zeros_like(t), np.ones_like(t)
    for k in range(degree + 1):
        found.append(math.fsum(values * weights * old))
        errors.append(float(np.sum(missed * weights * np.abs(old))))
        new = t if k == 0 else ((2 * k + d - 2) * t * old - k * older) / (k + d - 2)
        older, old = old, new
    return np.array(found), np.array(errors)


def _side_nodes(
    fitted: Fitted, upper: bool, d: int, degree: int, finer: float
) -> tuple[Array, Array, Array, Array]:
    """Return (t, kernel, error of its fit, weight of the density) on one half of [-1, 1].

    The variable is s, with t at distance 2^-s from the end, so dt is proportional to 2^-s ds.
    """
    side = fitted.upper if upper else fitted.lower
    places, sides, known = fitted.checks
    off = np.abs(fitted.at(places, sides)[0] - known[0])
    x, w = gauss_legendre(NODES)
    rows = []
    # the last panel covers the remainder up to the end, where the kernel is constant
    for low, high in pairwise([*side.edges, side.edges[-1] + 64]):
        count = _angle(low) - _angle(high)
        count = math.ceil(finer * (1 + count * (degree + 6 * d**0.5) / NODES))
        edges = np.linspace(low, high, count + 1)
        half = (high - low) / (2 * count)
        s = ((edges[:-1] + half)[:, None] + half * x).ravel()
        gap, t = np.exp2(-s), -np.expm1(-s * math.log(2))  # t keeps its digits near 0
        near_end = gap < 0.5
        sine = np.where(near_end, np.log(gap * (2 - gap)), np.log1p(-np.where(near_end, 0, t * t)))
        weight = np.tile(half * w, count) * gap * np.exp((d - 3) / 2 * sine)
        near = off[(sides == upper) & (places >= low) & (places <= high)]
        missed = np.full(s.size, near.max() if near.size else 0.0)
        rows.append((t * (-1.0 if upper else 1.0), side(s)[0], missed, weight))
    t, values, missed, weights = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return t, values, missed, weights


def _angle(s: Any) -> Any:
    """Return the angle whose gap is 2^-s."""
    return 2 * np.arcsin(np.sqrt(np.exp2(-np.asarray(s, float)) / 2))


def _times(count: int, value: float) -> float:
    """Return the product of a large integer and a small number."""
    return (
        math.exp(math.log(count) + math.log(abs(value))) * math.copysign(1, value)
        if (count > 1e300 and value != 0)
        else count * value
    )


def _counted(count: int) -> str:
    return str(count) if count < 10**12 else f"{count:.4g}" if count < 1e300 else "over 1e300"


def sole_input(inputs: tuple[Hashable, ...], outputs: tuple[Hashable, ...]) -> tuple[Any, Any]:
    """Return the only input and the only output.

    Raises KcalcError if there are several inputs or outputs.
    """
    for what, nodes in (("input", inputs), ("output", outputs)):
        if len(nodes) != 1:
            raise KcalcError(
                f"eigenvalues on a sphere need one {what}, but the network has {len(nodes)}: "
                f"{', '.join(map(str, nodes[:6]))}"
            )
    return inputs[0], outputs[0]
